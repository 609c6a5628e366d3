"""Read tool calls: functions with JSON arguments, and custom tools with free text.

The text that a custom tool receives counts as its one argument, `input`. So everything that reads
arguments reads it too, and formats without custom tools show it under that name.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from turnfold.core.text.json_text import compact

INPUT: Final = "input"
"""The argument that holds the text of a custom call."""

_SHELL: Final = re.compile(r"(?:^|[/\\])(?:ba|z|da|k|a|fi|pw)?sh(?:\.exe)?$")
_COMMAND_FOLLOWS: Final = re.compile(r"-\w*c$")


def read_call(entry: object) -> tuple[Mapping[str, Any] | None, Any]:
    """Return the part of a call that names its tool, and the arguments.

    Those of a custom tool are the JSON of its text. The part is None if there is none.
    """
    tool = called_tool(entry)
    if tool is None:
        return None, None
    return tool, _wrapped_input(tool.get(INPUT)) if is_custom(entry) else tool.get("arguments")


def call_entries(body: Mapping[str, Any]) -> Sequence[Any]:
    """Return the calls of a message as published; none if they are not a list."""
    entries = body.get("tool_calls")
    return entries if isinstance(entries, list) else ()


def chat_call(call_id: Any, name: Any, arguments: Any) -> dict[str, Any]:
    """Return the call of a function as an entry of `tool_calls`."""
    function = {"name": name, "arguments": arguments}
    return {"id": call_id, "type": "function", "function": function}


def arguments_of(entry: object) -> Any:
    """Return the arguments of a call; see `read_call`."""
    return read_call(entry)[1]


def called_tool(entry: object) -> Mapping[str, Any] | None:
    """Return the part of a call that names its tool; None if there is none."""
    if not isinstance(entry, Mapping):
        return None
    tool = entry.get("custom" if is_custom(entry) else "function")
    return tool if isinstance(tool, Mapping) else None


def is_custom(entry: object) -> bool:
    """Return whether an entry calls a custom tool."""
    return (
        isinstance(entry, Mapping)
        and entry.get("type") == "custom"
        and isinstance(entry.get("custom"), Mapping)
    )


def _wrapped_input(text: object) -> str:
    if not isinstance(text, str):
        text = "" if text is None else json.dumps(text, ensure_ascii=False, default=repr)
    return compact({INPUT: text})


def call_texts(body: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the tool of each call, and its arguments or the text of a custom call."""
    for entry in call_entries(body):
        tool = called_tool(entry) or {}
        text = tool.get(INPUT if tool and is_custom(entry) else "arguments")
        yield str(tool.get("name", "?")), "" if text is None else str(text)


def are_pairable(calls: Iterable[tuple[Any, Any]]) -> bool:
    """Return whether ids and names distinguish all calls of one answer.

    A window leaves out the others with their results, and the model would call again.
    """
    ids: set[str] = set()
    for call_id, name in calls:
        if not all(isinstance(text, str) and text for text in (call_id, name)) or call_id in ids:
            return False
        ids.add(call_id)
    return True


def has_pairable_calls(body: Mapping[str, Any]) -> bool:
    """Return whether ids and names distinguish all calls of a chat message."""
    return are_pairable(
        (entry.get("id"), tool.get("name")) if (tool := called_tool(entry)) else (None, None)
        for entry in body.get("tool_calls") or ()
    )


def command_of(arguments: Mapping[str, Any]) -> Any:
    """Return the command in the arguments of a shell, as one text if it is a list."""
    commands = arguments.get("commands")
    if isinstance(commands, list):
        return "\n".join(line for line in commands if isinstance(line, str))
    command = arguments.get("command", arguments.get("cmd", arguments.get(INPUT)))
    return command_line(command) if isinstance(command, list) else command


def command_line(words: Sequence[Any]) -> Any:
    """Return the words of a command as one line."""
    # As in ["bash", "-lc", "ls"]. In ["head", "-c", "9"], `-c` is an option of another program.
    if len(words) > 2 and _SHELL.search(str(words[0])) and _COMMAND_FOLLOWS.match(str(words[1])):
        return words[2]
    return " ".join(word for word in words if isinstance(word, str))


def shorten_arguments(entry: Mapping[str, Any], shorten: Callable[[object], str]) -> None:
    """Replace the arguments of a call in place by what `shorten` returns, the JSON of an object."""
    arguments = shorten(arguments_of(entry))
    if is_custom(entry):
        # The object holds the shortened input, a preview of it, or nothing.
        entry["custom"]["input"] = next(iter(json.loads(arguments).values()), "")
    else:
        entry["function"]["arguments"] = arguments
