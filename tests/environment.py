"""The environment of the programs that tests start."""

import os
from collections.abc import Mapping


def clean_environ(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment without anybody's settings of a system, and with these variables."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TURNFOLD_")}
    return kept | dict(more or {})
