"""What tool calls did: files read and modified, commands run, other actions, read from names and arguments without a model."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from turnfold.core.summary.sources import Source, clip

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
_BULK_KEYS = frozenset(
    "content contents new_string old_string newText oldText new_str old_str file_text new_text old_text text body code patch diff input script "
    "edits replacement search replace thought new_source".split()
)
_WRITES = (
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
_READS = ("read", "view", "open", "cat", "show", "get_file", "load")
_SHELLS = frozenset(
    "bash shell terminal execute_bash run_command run_shell exec execute sandbox_run run_in_terminal local_shell cmd powershell".split()
)
_LOOKS = re.compile(
    r"(?:^|_|__|-)(?:get|enter_plan|exit_plan|skill|task|submit|finish|search|list|find|query|fetch|read|view|grep|glob|ls|look|lookup|check|calculate|think|todo|web|screenshot|show|describe|open|output)",
    re.IGNORECASE,
)
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_QUIET = frozenset(
    "ls cat head tail grep rg find cd pwd echo wc sed awk tree which stat file less sort true sleep ps env date mkdir test [ diff".split()
)
_KEYWORDS = frozenset("for while until do done if then else elif fi case esac in".split())
_QUIET_GIT = frozenset("status log diff show branch stash".split())
_PATCHED = re.compile(r"^\*\*\* (?:Update|Add|Delete) File: (.+)$", re.MULTILINE)
_REDIRECT = re.compile(r"(?<![0-9&>=-])>{1,2}\s*([A-Za-z0-9_./~-]+)")
_PLAIN_PATH = re.compile(
    r"[A-Za-z0-9_.~@+-]*(?:/[A-Za-z0-9_.~@+-]+)+|[A-Za-z0-9_-]+\.[A-Za-z][A-Za-z0-9]{0,5}"
)
_HEREDOC = re.compile(r"<<-?\s*['\"]?(\w+)['\"]?([^\n]*)(?:\n.*?(?:\n[ \t]*\1\b|\Z))?", re.DOTALL)
_UNQUOTED = re.compile(r"(?:[^;&|\n\"']|(?<=>)&)+")
_QUOTE_OPENED = re.compile(r'"(?:[^"\\]|\\.)*+')
MAX_FILES = 60
_MAX_PARSED = 40_000
_IN_TEXT = re.compile(r'"(?:file_?)?path"\s*:\s*"((?:[^"\\]|\\.){1,300})"')


@dataclass(frozen=True, slots=True)
class FileChange:
    """A file that a tool read or modified; `message_id` is empty for one carried from an earlier version."""

    path: str
    action: str
    message_id: str = ""

    def as_json(self) -> dict[str, str]:
        """As it stands in the sections of a version."""
        return {"path": self.path, "action": self.action}


class Action(NamedTuple):
    """Something a call did that a reader would want to know of."""

    text: str
    message_id: str
    is_command: bool


def file_changes(carried: Any, sources: Iterable[Source]) -> tuple[FileChange, ...]:
    """Files read and modified, most recent last, each once; modified wins over read, also over versions.

    `carried` is the `file_changes` section of the version before, in whatever shape it is. At most 60 are kept: read
    files go first, then the oldest.
    """
    found: dict[str, FileChange] = {}
    for change in _carried(carried):
        found[change.path] = change
    for source in sources:
        for name, arguments in source.calls:
            for path, action in touched(name, arguments):
                before = found.pop(path, None)
                is_modified = "modified" in (action, before.action if before is not None else "")
                found[path] = FileChange(
                    path, "modified" if is_modified else "read", source.message_id
                )
    changes = list(found.values())
    for action in ("read", "modified"):
        surplus = len(changes) - MAX_FILES
        if surplus > 0:
            dropped = {
                change.path
                for change in [change for change in changes if change.action == action][:surplus]
            }
            changes = [change for change in changes if change.path not in dropped]
    return tuple(changes)


def touched(name: str, arguments: str) -> Iterator[tuple[str, str]]:
    """Each (path, "read" or "modified") of one call."""
    given = _parsed(arguments)
    kind = name.rsplit("__", 1)[-1]
    if is_shell(kind, given):
        yield from _touched_by_shell(str(given.get("command") or given.get("cmd") or ""))
        return
    for key in ("input", "patch", "diff"):
        if isinstance(given.get(key), str) and "*** " in given[key]:
            for path in _PATCHED.findall(given[key]):
                yield path.strip(), "modified"
    path = next(
        (given[key] for key in _PATH_KEYS if isinstance(given.get(key), str) and given[key]), None
    )
    if path is None or len(path) > 400 or "\n" in path:
        return
    lowered = (
        str(given.get("command") or kind).lower()
        if kind.startswith("str_replace") or "editor" in kind
        else kind.lower()
    )
    words = set(_CAMEL.sub("_", lowered).lower().replace("-", "_").split("_")) | {lowered}
    if any(word.startswith(_WRITES) for word in words):
        yield path, "modified"
    elif any(word.startswith(_READS) for word in words):
        yield path, "read"


def is_shell(kind: str, given: Mapping[str, Any]) -> bool:
    """Whether a tool of this name and these arguments runs a shell command."""
    return kind.lower() in _SHELLS and isinstance(given.get("command", given.get("cmd")), str)


def actions(sources: Iterable[Source], *, max_characters: int = 120) -> tuple[Action, ...]:
    """Commands that did more than look, and calls of other tools that did, in order, repeats once (the last time)."""
    found: dict[str, Action] = {}
    for source in sources:
        for name, arguments in source.calls:
            given = _parsed(arguments)
            kind = name.rsplit("__", 1)[-1]
            if is_shell(kind, given):
                text = _telling_command(
                    str(given.get("command") or given.get("cmd") or ""), max_characters
                )
                is_command = True
            elif _LOOKS.search(_CAMEL.sub("_", kind)) or any(
                True for _ in touched(name, arguments)
            ):
                continue
            else:
                shown = ", ".join(
                    f"{key}={_short(value)}"
                    for key, value in given.items()
                    if key not in _BULK_KEYS and value not in ("", None, [])
                )
                text = clip(f"{kind}({shown})", max_characters)
                is_command = False
            if text:
                found.pop(text, None)
                found[text] = Action(text, source.message_id, is_command)
    return tuple(found.values())


def commands_of(name: str, arguments: str, *, max_characters: int = 120) -> Iterator[str]:
    """The steps of a shell call that do more than look around, to the letter; the first characters of a long one."""
    if not is_shell(name.rsplit("__", 1)[-1], given := _parsed(arguments)):
        return
    for step in _parted(
        str(given.get("command") or given.get("cmd") or "")[:2_000].partition("<<")[0]
    ):
        words = step.split()
        if len(words) > 1 and _is_telling(words):
            yield step.strip()[:max_characters].rstrip()


def argument_texts(arguments: str) -> Iterator[tuple[str, str]]:
    """Each (key, text) among the arguments of a call that is not bulk such as file content."""
    stack: list[tuple[str, Any]] = [("", _parsed(arguments))]
    seen = 0
    while stack and seen < 200:
        key, value = stack.pop()
        seen += 1
        if isinstance(value, Mapping):
            stack.extend(
                (str(name), inner) for name, inner in value.items() if name not in _BULK_KEYS
            )
        elif isinstance(value, list):
            stack.extend((key, inner) for inner in value[:50])
        elif isinstance(value, str) and value:
            yield key, _HEREDOC.sub(r"\2", value[:4_000])


def _carried(stored: Any) -> Iterator[FileChange]:
    for item in stored if isinstance(stored, Sequence) and not isinstance(stored, str) else ():
        if isinstance(item, Mapping) and isinstance(item.get("path"), str) and item["path"]:
            action = str(item.get("action") or "").lower()
            yield FileChange(
                item["path"],
                "read" if action.startswith(("read", "view", "inspect", "look")) else "modified",
            )
        elif isinstance(item, str) and item:
            yield FileChange(item, "modified")


def _parsed(arguments: str) -> dict[str, Any]:
    if len(arguments) > _MAX_PARSED:
        found = _IN_TEXT.search(arguments[:2_000]) or _IN_TEXT.search(arguments[-2_000:])
        return {"path": found[1]} if found else {}
    try:
        given = json.loads(arguments, strict=False)
    except (ValueError, RecursionError):
        return {}
    return given if isinstance(given, dict) else {}


DEEPEST_SHOWN = 8
"""What arguments nest deeper is not shown."""


def _short(value: Any, depth: int = 0) -> str:
    if depth > DEEPEST_SHOWN:
        return "…"
    if isinstance(value, list) and value and isinstance(value[0], Mapping):
        return (
            "["
            + "; ".join(
                " ".join(_short(inner, depth + 1) for inner in item.values())
                if isinstance(item, Mapping)
                else _short(item, depth + 1)
                for item in value
            )
            + "]"
        )
    if isinstance(value, list):
        return "[" + ", ".join(_short(item, depth + 1) for item in value) + "]"
    try:
        return clip(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False), 60)
    except RecursionError:
        return "…"


def _parted(command: str) -> list[str]:
    """The parts of a command between separators; what is quoted is never parted, and a quote that nobody closes is a separator.

    Where a quote is not closed, no later one up to the place at which that was seen is: they are not looked at again.
    """
    parts: list[str] = []
    start = at = unclosed_to = 0
    while at < len(command):
        if plain := _UNQUOTED.match(command, at):
            at = plain.end()
            continue
        end = 0
        if command[at] == "'":
            end = command.find("'", at + 1) + 1
        elif command[at] == '"' and at >= unclosed_to:
            unclosed_to = _QUOTE_OPENED.match(command, at).end()  # type: ignore[union-attr]  # it begins with the quote
            end = unclosed_to + 1 if command.startswith('"', unclosed_to) else 0
        if end:
            at = end
            continue
        parts.append(command[start:at])
        at = start = at + 1
    return [part for part in (*parts, command[start:]) if part]


def _steps(command: str) -> Iterator[list[str]]:
    for step in _parted(_HEREDOC.sub(r"\2", command[:2_000])):
        words = step.replace(" 2>&1", "").replace(" 2>/dev/null", "").split()
        while words and "=" in words[0] and words[0][0].isalpha():
            words = words[1:]
        if words and words[0] == "sudo":
            words = words[1:]
        if words:
            yield words


def _telling_command(command: str, max_characters: int) -> str:
    """The steps of a command line that do more than look around; empty when there are none."""
    telling = []
    for words in _steps(command):
        if _is_telling(words):
            telling.append(" ".join(words))
        if len(telling) == 3:
            break
    return clip("; ".join(telling), max_characters)


def _is_telling(words: Sequence[str]) -> bool:
    """Whether a step does more than look around."""
    program = words[0].rsplit("/", 1)[-1]
    if (
        program in _QUIET
        or program in _KEYWORDS
        or (program == "git" and len(words) > 1 and words[1] in _QUIET_GIT)
    ):
        return False
    return program[:1].isalnum()


def _touched_by_shell(command: str) -> Iterator[tuple[str, str]]:
    for path in _REDIRECT.findall(_HEREDOC.sub(r"\2", command[:4_000])):
        if not path.startswith("/dev/") and ("/" in path or "." in path[1:]):
            yield path, "modified"
    for words in _steps(command):
        program = words[0].rsplit("/", 1)[-1]
        paths = [word.strip("'\"") for word in words[1:] if not word.startswith("-")]
        paths = [
            path
            for path in paths
            if len(path) < 300 and _PLAIN_PATH.fullmatch(path) and not path.startswith("s/")
        ]
        if program in ("rm", "mv", "cp", "touch", "tee") or (
            program == "sed" and any(word.startswith("-i") for word in words)
        ):
            for path in paths[-1:] if program == "cp" else paths:
                yield path, "modified"
        elif program == "git" and len(words) > 1 and words[1] in ("mv", "rm"):
            for path in paths:
                yield path, "modified"
        elif program in ("cat", "head", "tail", "less", "sed", "nl"):
            for path in paths:
                yield path, "read"
