"""A command alone, as it runs, is the same as among all others."""

from typing import Any

import pytest
from typer.main import get_group

from turnfold.cli.application import application
from turnfold.cli.help_panels import PANELS


def shape(command: Any) -> dict[str, Any]:
    """The name, parameters and help of a command and of those below it."""
    return {
        "help": (command.name, command.help, command.rich_help_panel),
        "parameters": [(one.name, one.opts, one.help) for one in command.params if hasattr(one, "help")],
        "commands": {name: shape(one) for name, one in getattr(command, "commands", {}).items()},
    }  # fmt: skip


@pytest.mark.parametrize("name", PANELS)
def test_a_command_that_is_loaded_alone_lacks_nothing(name: str) -> None:
    alone = get_group(application([name])).commands[name]

    assert shape(alone) == shape(get_group(application()).commands[name])
    assert alone.help


def test_commands_are_loaded_without_those_of_other_modules() -> None:
    assert list(get_group(application(["keys", "list"])).commands) == ["keys"]
    assert get_group(application(["kyes"])).commands.keys() == PANELS.keys(), "to suggest names"
