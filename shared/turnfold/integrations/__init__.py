"""Turnfold inside agent frameworks: one module for each, with an extra of the same name.

Nothing here is imported by the rest of Turnfold, and no framework is installed unless its extra
was asked for.
"""

from types import TracebackType


class requires:  # noqa: N801  # used like a statement
    """Import a framework in this block; where it is missing, the error names the extra.

    ```python
    with requires("openai-agents"):
        from agents.memory import SessionSettings
    ```

    Raises:
        ImportError: a module is missing in the environment.
    """

    def __init__(self, extra: str) -> None:
        self._extra = extra

    def __enter__(self) -> None:
        """Begin the imports."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Name the extra in place of the missing module."""
        if isinstance(error, ModuleNotFoundError):
            raise ImportError(  # noqa: TRY004  # what an import raises
                f"turnfold.integrations.{self._extra.replace('-', '_')} needs the module "
                f"{error.name}; install it with: pip install 'turnfold[{self._extra}]'",
                name=error.name,
            ) from error
