"""Turnfold inside agent frameworks: one module for each, with an extra of the same name.

Nothing here is imported by the rest of Turnfold, and no framework is installed unless its extra
was asked for.
"""

from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def requires(extra: str) -> Generator[None]:
    """Import a framework in this block; where it is missing, the error names the extra.

    ```python
    with requires("openai-agents"):
        from agents.memory import SessionSettings
    ```

    Raises:
        ImportError: a module is missing in the environment.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise ImportError(
            f"turnfold.integrations.{extra.replace('-', '_')} needs the module "
            f"{error.name}; install it with: pip install 'turnfold[{extra}]'",
            name=error.name,
        ) from error
