"""Read the arguments of tool calls, whatever their shape: agents send what their models wrote."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from turnfold.core.text.calls import INPUT, command_of
from turnfold.core.text.lines import clip, printable, printable_json, whole_words

MAX_DEPTH_SHOWN: Final = 8
"""Values that are nested deeper are shown as an ellipsis."""

_MAX_PARSED_CHARACTERS = 40_000
_MAX_VALUES = 200
_SHORT_INPUT_CHARACTERS = 400
_BULK_KEYS = frozenset(
    "content contents new_string old_string newText oldText new_str old_str file_text new_text "
    "old_text text body code patch diff input script edits replacement search replace thought "
    "new_source".split()
)
_SHELL_TOOLS = frozenset(
    "bash shell terminal execute_bash run_command run_shell exec execute sandbox_run "
    "run_in_terminal local_shell cmd powershell".split()
)
_PATH_IN_TEXT = re.compile(r'"(?:file_?)?path"\s*:\s*"((?:[^"\\]|\\.){1,300})"')
_HEREDOC = re.compile(
    r"(?<!<)<<-?\s*['\"]?(\w+)['\"]?([^\n]*)(?:\n.*?(?:\n[ \t]*\1\b|\Z))?", re.DOTALL
)


def parsed_arguments(arguments: str) -> dict[str, Any]:
    """Return the printable arguments of a call; an empty mapping if they are not a JSON object.

    Printable, because they are stored, and databases reject half of a character.
    """
    if len(arguments) > _MAX_PARSED_CHARACTERS:
        # Such arguments hold a whole file. Its path is near the start or the end.
        match = _PATH_IN_TEXT.search(arguments[:2_000]) or _PATH_IN_TEXT.search(arguments[-2_000:])
        return {"path": printable(_unescaped(match[1]))} if match else {}
    try:
        parsed = json.loads(arguments, strict=False)
        if not isinstance(parsed, dict):
            return {}
        is_plain = arguments.isascii() and arguments.isprintable() and "\\u" not in arguments
        return parsed if is_plain else dict(printable_json(parsed))
    except (ValueError, RecursionError):
        return {}


def _unescaped(quoted: str) -> str:
    try:
        return str(json.loads(f'"{quoted}"', strict=False))
    except ValueError:
        return quoted


def short_tool_name(name: str) -> str:
    """Return the name of a tool without the prefix of an MCP server (`mcp__files__read`)."""
    return name.rsplit("__", 1)[-1]


def shell_command(tool: str, parsed: Mapping[str, Any]) -> str | None:
    """Return the command line that a call runs, or None if its tool is not a shell.

    `tool` is the short name of the tool.
    """
    is_shell = tool.lower() in _SHELL_TOOLS
    command = command_of(parsed) if is_shell else None
    return command if isinstance(command, str) else None


def argument_texts(arguments: str) -> Iterator[tuple[str, str]]:
    """Yield the key and text of each argument, except of bulk such as file content."""
    stack: list[tuple[str, Any]] = [("", parsed_arguments(arguments))]
    visited = 0
    while stack and visited < _MAX_VALUES:
        key, value = stack.pop()
        visited += 1
        if isinstance(value, Mapping):
            stack.extend(
                (str(name), inner) for name, inner in value.items() if not _is_bulk(name, inner)
            )
        elif isinstance(value, list):
            stack.extend((key, inner) for inner in value[:50])
        elif isinstance(value, str) and value:
            yield key, without_heredocs(whole_words(value, 4_000))


def without_heredocs(command: str, mark: str = "") -> str:
    """Replace the documents inside a command line by a mark. They are data, not commands."""
    return _HEREDOC.sub(rf"{mark}\2", command)


def shown_arguments(parsed: Mapping[str, Any]) -> str:
    """Return the arguments of a call on one line, without bulk and empty values."""
    return ", ".join(
        f"{key}={_shown_value(value)}"
        for key, value in parsed.items()
        if not _is_bulk(key, value) and value not in ("", None, [])
    )


def _is_bulk(name: str, value: Any) -> bool:
    """Return whether an argument holds bulk. The short input of a custom tool is its argument."""
    is_short = name == INPUT and isinstance(value, str) and len(value) <= _SHORT_INPUT_CHARACTERS
    return name in _BULK_KEYS and not is_short


def _shown_value(value: Any, depth: int = 0) -> str:
    if depth > MAX_DEPTH_SHOWN:
        return "…"
    if isinstance(value, list) and value and isinstance(value[0], Mapping):
        return "[" + "; ".join(_shown_item(item, depth + 1) for item in value) + "]"
    if isinstance(value, list):
        return "[" + ", ".join(_shown_value(item, depth + 1) for item in value) + "]"
    try:
        return clip(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False), 60)
    except RecursionError:
        return "…"


def _shown_item(item: Any, depth: int) -> str:
    if isinstance(item, Mapping):
        return " ".join(_shown_value(inner, depth) for inner in item.values())
    return _shown_value(item, depth)
