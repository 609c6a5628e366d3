"""The command `turnfold`."""

import os
import sys
from collections.abc import Sequence
from importlib.util import find_spec, module_from_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from turnfold.cli.help_panels import COMPLETE_VARIABLE
from turnfold.errors import TurnfoldError


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and exit: 0 on success, 1 on failure, 2 on wrong usage.

    A failure prints one line that says what to do.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:1] in (["-h"], ["--help"]):
        # `turnfold --help COMMAND` is answered with the help of the command.
        words = [*words[1:], words[0]]
    # Databases, logs, streams and keys are readable by their owner alone.
    os.umask(0o077)
    _open_streams()
    try:
        try:
            sys.exit(_run(words))
        finally:
            sys.stdout.flush()
    except ModuleNotFoundError as error:
        # A missing module of Turnfold itself is a fault, for which no extra helps.
        if (error.name or "turnfold").partition(".")[0].startswith("turnfold"):
            raise
        sys.stderr.write(f"turnfold: {_missing(words, str(error.name))}\n")
        sys.exit(1)
    except TurnfoldError as error:
        sys.stderr.write(f"turnfold: {' '.join(str(error).split())}\n")
        sys.exit(1)
    except OSError as error:
        # For example a full disk behind the output.
        named = f"{error.filename}: " if error.filename else ""
        sys.stderr.write(f"turnfold: {named}{error.strerror or error}\n")
        # Python would try to write the rest at its end, and exit with 120.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except UnicodeEncodeError as error:
        letters = ascii(error.object[error.start : error.end])
        # UTF-8 can print all texts of messages, but not every name or path of the command line.
        remedy = (
            "correct the name or path"
            if error.encoding == "utf-8"
            else "set PYTHONIOENCODING=utf-8"
        )
        sys.stderr.write(f"turnfold: {letters} is not possible in {error.encoding}; {remedy}\n")
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)


def _open_streams() -> None:
    """Open the null device in place of each standard stream that is closed."""
    nowhere = Path(os.devnull)
    # In this order, each file gets the descriptor of its stream, because it is the lowest free one.
    sys.stdin = sys.stdin or nowhere.open()
    sys.stdout = sys.stdout or nowhere.open("w")
    sys.stderr = sys.stderr or nowhere.open("w")


def _run(words: list[str]) -> int:
    from turnfold.cli.services import SERVICES

    # Commands that start a system skip the parser, which takes a third of a second to load.
    if len(words) == 1 and words[0] in SERVICES:
        return SERVICES[words[0]]()
    if words[:1] == ["up"] and COMPLETE_VARIABLE not in os.environ:
        from turnfold.cli.up import run_system, simple_options

        if (options := simple_options(words[1:])) is not None:
            run_system(**options)
            return 0
    from turnfold.cli.application import application

    _load_when_used("aiohttp")
    application(words)(args=words, prog_name="turnfold")
    return 0


def _load_when_used(name: str) -> None:
    """Load an installed package when one of its names is first read.

    nats-py imports aiohttp if it can, which costs a command a quarter of its start, but uses it for
    websocket URLs only.
    """
    spec = None if name in sys.modules else find_spec(name)
    if spec:
        module = sys.modules[name] = module_from_spec(spec)
        module.__class__ = _LoadedWhenUsed
        # Importing a module of the package reads it.
        del module.__path__


class _LoadedWhenUsed(ModuleType):
    """A package that is executed when one of its names is first read."""

    def __getattr__(self, name: str) -> Any:
        setattr(self, "__class__", ModuleType)  # noqa: B010 - the types say it is constant
        spec = self.__spec__
        assert spec is not None
        assert spec.loader is not None
        self.__path__ = spec.submodule_search_locations or []
        spec.loader.exec_module(self)
        return getattr(self, name)


def _missing(words: list[str], module: str) -> str:
    """Return what to install, for an installation that lacks a module of the command."""
    command = " ".join(["turnfold", *words[:1]])
    extra = words[0] if words[:1] in (["mcp"], ["proxy"]) else "server"
    return (
        f"`{command}` needs the module {module}, and `pip install turnfold` brings the client"
        f" alone; install the commands with: pip install 'turnfold[{extra}]'"
    )
