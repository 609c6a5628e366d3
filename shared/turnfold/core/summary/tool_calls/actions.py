"""The actions of tool calls: files read and modified, commands run, and others.

They are derived from names and arguments of calls, without a model. The names of tools differ from
agent to agent, so the words in a name decide: `write_file` and `deletePath` modify a file.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from turnfold.core.summary.sources import Source
from turnfold.core.summary.tool_calls.arguments import (
    parsed_arguments,
    shell_command,
    short_tool_name,
    shown_arguments,
)
from turnfold.core.summary.tool_calls.shell import (
    MAX_ACTION_CHARACTERS,
    significant_command,
    significant_steps,
    touched_by_command,
)
from turnfold.core.text.lines import clip

MAX_FILES = 60
_MAX_PATH_CHARACTERS = 400
_PATH_KEYS = (
    "path",
    "file_path",
    "filepath",
    "filename",
    "file_name",
    "file",
    "target_file",
    "notebook_path",
    "absolute_path",
    "relative_path",
)
_WRITE_WORDS = (
    "edit",
    "write",
    "create",
    "patch",
    "replace",
    "insert",
    "append",
    "delete",
    "remove",
    "rename",
    "move",
    "save",
    "update",
)
_READ_WORDS = ("read", "view", "open", "cat", "show", "get_file", "load")
_LOOKING_TOOL = re.compile(
    r"(?:^|_|__|-)(?:get|enter_plan|exit_plan|skill|task|submit|finish|search|list|find|query|fetch"
    r"|read|view|grep|glob|ls|look|lookup|check|calculate|think|todo|web|screenshot|show|describe"
    r"|open|output)",
    re.IGNORECASE,
)
_CAMEL_CASE = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_PATCHED_FILE = re.compile(r"^\*\*\* (?:Update|Add|Delete) File: (.+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class FileChange:
    """A file that a tool read or modified. `message_id` is empty if an earlier version named it.

    If `is_claimed`, no call shows it: only a model says so.
    """

    path: str
    action: str
    message_id: str = ""
    is_claimed: bool = False

    @property
    def is_modified(self) -> bool:
        """Whether a call is known to have modified the file."""
        return self.action == "modified" and not self.is_claimed

    def as_json(self) -> dict[str, str]:
        """Return the change as the sections of a version store it."""
        claimed = {"by": "model"} if self.is_claimed else {}
        return {"path": self.path, "action": self.action, **claimed}


class Action(NamedTuple):
    """A command or another call that changed something, as a reader of the summary sees it.

    `order` is the index of its message.
    """

    text: str
    order: int
    is_command: bool


def file_changes(carried: Any, sources: Iterable[Source]) -> tuple[FileChange, ...]:
    """Return the files read and modified, each once, the most recent last.

    A file that was ever modified stays modified. `carried` is the section `file_changes` of the
    previous version, in any shape. At most 60 files are kept: read files are dropped first, then
    the oldest.
    """
    changes: dict[str, FileChange] = {}
    for change in stored_changes(carried):
        changes[change.path] = change
    for source in sources:
        for name, arguments in source.calls:
            for path, action in touched(name, arguments):
                # Removed first, so that a file that is touched again moves to the end.
                earlier = changes.pop(path, None)
                merged = "modified" if earlier is not None and earlier.is_modified else action
                changes[path] = FileChange(path, merged, source.message_id)
    least_first = sorted(changes.values(), key=lambda change: change.action == "modified")
    kept = {change.path for change in least_first[-MAX_FILES:]}
    return tuple([change for path, change in changes.items() if path in kept])


def touched(name: str, arguments: str) -> Iterator[tuple[str, str]]:
    """Yield the path of each file that a call touches, and "read" or "modified"."""
    parsed, tool = parsed_arguments(arguments), short_tool_name(name)
    command = shell_command(tool, parsed)
    if command is not None:
        yield from touched_by_command(command)
        return
    for path in _patched_paths(parsed):
        yield path, "modified"
    named_path = _path_argument(parsed)
    action = _file_action(tool, parsed)
    if named_path is not None and action is not None:
        yield named_path, action


def actions(sources: Iterable[Source]) -> tuple[Action, ...]:
    """Return the commands and calls that did more than look, in order.

    Equal ones are kept once, at the place of the last.
    """
    unique: dict[str, Action] = {}
    for order, source in enumerate(sources):
        for name, arguments in source.calls:
            action = _action_of(name, arguments, order)
            if action is not None:
                unique.pop(action.text, None)
                unique[action.text] = action
    return tuple(unique.values())


def commands_of(name: str, arguments: str) -> Iterator[str]:
    """Yield the steps of a shell call that do more than look around, verbatim.

    A long step is cut to its first words, with an ellipsis.
    """
    command = shell_command(short_tool_name(name), parsed_arguments(arguments))
    if command is not None:
        yield from significant_steps(command)


def _action_of(name: str, arguments: str, order: int) -> Action | None:
    """Return the action of a call, or None if it only looked or touched files.

    Touched files have a section of their own.
    """
    parsed, tool = parsed_arguments(arguments), short_tool_name(name)
    command = shell_command(tool, parsed)
    if command is not None:
        text = significant_command(command)
        return Action(text, order, is_command=True) if text else None
    if _LOOKING_TOOL.search(_CAMEL_CASE.sub("_", tool)):
        return None
    if next(touched(name, arguments), None) is not None:
        return None
    text = clip(f"{tool}({shown_arguments(parsed)})", MAX_ACTION_CHARACTERS)
    return Action(text, order, is_command=False) if text else None


def stored_changes(stored: Any) -> Iterator[FileChange]:
    """Yield the files of an earlier version. A model may have written them, in its own words."""
    for item in stored if isinstance(stored, Sequence) and not isinstance(stored, str) else ():
        if isinstance(item, Mapping) and isinstance(item.get("path"), str) and item["path"]:
            action = str(item.get("action") or "").lower()
            is_read = action.startswith(("read", "view", "inspect", "look"))
            is_claimed = item.get("by") == "model"
            yield FileChange(item["path"], "read" if is_read else "modified", is_claimed=is_claimed)
        elif isinstance(item, str) and item:
            yield FileChange(item, "modified")


def _patched_paths(parsed: Mapping[str, Any]) -> Iterator[str]:
    """Yield the files that a patch in the format of `apply_patch` names."""
    for key in ("input", "patch", "diff"):
        patch = parsed.get(key)
        if isinstance(patch, str) and "*** " in patch:
            for path in _PATCHED_FILE.findall(patch):
                yield path.strip()


def _path_argument(parsed: Mapping[str, Any]) -> str | None:
    for key in _PATH_KEYS:
        path = parsed.get(key)
        if isinstance(path, str) and path:
            return None if len(path) > _MAX_PATH_CHARACTERS or "\n" in path else path
    return None


def _file_action(tool: str, parsed: Mapping[str, Any]) -> str | None:
    """Return what a tool does to a file by its name, or None if the name does not say."""
    # An editor has one tool for everything; its `command` decides.
    is_editor = tool.startswith("str_replace") or "editor" in tool
    name = (str(parsed.get("command") or tool) if is_editor else tool).lower()
    words = {*name.replace("-", "_").split("_"), name}
    if any(word.startswith(_WRITE_WORDS) for word in words):
        return "modified"
    return "read" if any(word.startswith(_READ_WORDS) for word in words) else None
