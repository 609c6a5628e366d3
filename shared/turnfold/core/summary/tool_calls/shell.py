"""Read command lines: their steps, those that do more than look around, and the files they touch.

This is not a shell parser. It reads the plain commands that agents write, in linear time, and
misses what variables, loops and quoted names hide.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import dropwhile, pairwise

from turnfold.core.summary.tool_calls.arguments import without_heredocs
from turnfold.core.text.lines import clip

MAX_ACTION_CHARACTERS = 120
_MAX_CHARACTERS = 2_000
_MAX_STEPS_SHOWN = 3
_LOOKING_PROGRAMS = frozenset(
    "ls cat head tail grep rg find cd pwd echo wc sed awk tree which stat file less sort true "
    "sleep ps env date mkdir test [ diff uniq cut tr".split()
)
_SUDO_OPTIONS_WITH_VALUES = frozenset("-u -g -h -p -C -D -R -T -U -r -t".split())
_SHELL_KEYWORDS = frozenset("for while until do done if then else elif fi case esac in".split())
_LOOKING_GIT_COMMANDS = frozenset("status log diff show branch stash".split())
_WRITING_PROGRAMS = frozenset({"rm", "mv", "cp", "touch", "tee"})
_READING_PROGRAMS = frozenset({"cat", "head", "tail", "less", "sed", "nl"})
# A number after the sign is compared, as in "x > 0.5".
_REDIRECT = re.compile(
    r"(?<![0-9&>=-])>{1,2}\s*(?!\d*\.?\d+(?![A-Za-z0-9_./~-]))([A-Za-z0-9_./~-]+)"
)
_PLAIN_PATH = re.compile(
    r"[A-Za-z0-9_.~@+-]*(?:/[A-Za-z0-9_.~@+-]+)+|[A-Za-z0-9_-]+\.[A-Za-z][A-Za-z0-9]{0,5}"
)
_ERRORS_REDIRECTED = re.compile(r"(?:\s2>(?:&1|/dev/null))+$")
_DOCUMENT = "<<…"
"""The part of a document inside a command that is shown."""
# The "&" of "2>&1" is not a separator.
_UNQUOTED = re.compile(r"(?:[^;&|\n\"']|(?<=>)&)+")
_QUOTED = re.compile(r"'[^'\n]*+'|\"[^\"\n]*+\"")
_OPENED_QUOTE = re.compile(r'"(?>(?:[^"\\]|\\.)*)')


def significant_steps(command: str) -> Iterator[str]:
    """Yield the steps that do more than look around, verbatim up to 120 characters.

    Redirected errors at the end are left out: they make one command look like two. So are steps
    that are given a document, because without it they are not whole.
    """
    for part in _separated(without_heredocs(command[:_MAX_CHARACTERS], _DOCUMENT)):
        step = _ERRORS_REDIRECTED.sub("", part.strip()).rstrip()
        words = step.split()
        if len(words) > 1 and _DOCUMENT not in step and _is_significant(words):
            # With the mark of a cut: half a command may be another one.
            is_long = len(step) > MAX_ACTION_CHARACTERS or "\n" in step
            yield clip(step, MAX_ACTION_CHARACTERS) if is_long else step


def significant_command(command: str) -> str:
    """Return the first three steps that do more than look around; empty if there are none."""
    significant = []
    for words in _steps(without_heredocs(command[:_MAX_CHARACTERS], _DOCUMENT)):
        if _is_significant(words) and (step := " ".join(words)) not in significant:
            significant.append(step)
        if len(significant) == _MAX_STEPS_SHOWN:
            break
    return clip("; ".join(significant), MAX_ACTION_CHARACTERS)


def touched_by_command(command: str) -> Iterator[tuple[str, str]]:
    """Yield the path of each file that a command line touches, and "read" or "modified"."""
    # Words of a quoted phrase, such as an expression of sed, are neither targets nor paths.
    command = _QUOTED.sub(_one_word, command[:4_000])
    for path in _REDIRECT.findall(without_heredocs(command)):
        if not path.startswith("/dev/") and ("/" in path or "." in path[1:]):
            yield path, "modified"
    for words in _steps(without_heredocs(command[:_MAX_CHARACTERS])):
        action = _file_action(words)
        if action is not None:
            # A file that receives its output is not one of its arguments.
            arguments = [word for before, word in pairwise(words) if not before.endswith(">")]
            paths = _plain_paths(arguments)
            # The other paths of `cp` are only read, but the copy is what matters.
            for path in paths[-1:] if _program(words) == "cp" else paths:
                yield path, action


def _one_word(quoted: re.Match[str]) -> str:
    return quoted[0] if len(quoted[0].split()) == 1 else "''"


def _file_action(words: Sequence[str]) -> str | None:
    """Return what a step does to the files that it names, or None if it is unknown."""
    program = _program(words)
    is_sed_in_place = program == "sed" and any(word.startswith("-i") for word in words)
    is_git_move = program == "git" and len(words) > 1 and words[1] in ("mv", "rm")
    if program in _WRITING_PROGRAMS or is_sed_in_place or is_git_move:
        return "modified"
    return "read" if program in _READING_PROGRAMS else None


def _plain_paths(words: Sequence[str]) -> list[str]:
    paths = [word.strip("'\"") for word in words if not word.startswith("-")]
    return [
        path
        for path in paths
        # An expression of sed (s/a/b/) has the shape of a path.
        if len(path) < 300 and _PLAIN_PATH.fullmatch(path) and not path.startswith("s/")
    ]


def _program(words: Sequence[str]) -> str:
    return words[0].rsplit("/", 1)[-1]


def _is_significant(words: Sequence[str]) -> bool:
    """Return whether a step does more than look around."""
    words = _without_prefixes(words)
    if words and _program(words) == "xargs":
        # What it runs comes after its options, whose values are numbers and marks.
        words = list(dropwhile(lambda word: not word.strip("/.")[:1].isalpha(), words[1:]))
    if not words:
        return False
    program = _program(words)
    if program in _LOOKING_PROGRAMS or program in _SHELL_KEYWORDS:
        return False
    if program == "git" and len(words) > 1 and words[1] in _LOOKING_GIT_COMMANDS:
        return False
    return program[:1].isalnum()


def _steps(command: str) -> Iterator[Sequence[str]]:
    """Yield the words of each step, without `sudo`, leading assignments and redirected errors."""
    for step in _separated(command):
        words = _without_prefixes(step.replace(" 2>&1", "").replace(" 2>/dev/null", "").split())
        if words:
            yield words


def _without_prefixes(words: Sequence[str]) -> Sequence[str]:
    """Return a step without assignments, `sudo` and its options before its program."""
    start = 0
    while start < len(words) and "=" in words[start] and words[start][0].isalpha():
        start += 1
    if words[start : start + 1] == ["sudo"]:
        start += 1
        while start < len(words) and words[start].startswith("-"):
            start += 1 + (words[start] in _SUDO_OPTIONS_WITH_VALUES)
    return words[start:]


def _separated(command: str) -> list[str]:
    """Split a command line at separators. Quoted parts stay whole.

    A quote that nobody closes is a separator.
    """
    parts: list[str] = []
    start = position = unclosed_to = 0
    while position < len(command):
        if plain := _UNQUOTED.match(command, position):
            position = plain.end()
            continue
        end = 0
        if command[position] == "'":
            end = command.find("'", position + 1) + 1
        elif command[position] == '"' and position >= unclosed_to:
            # If this quote is not closed, no quote up to `unclosed_to` is: looking again at each
            # of them would make the search quadratic.
            # The text begins with the quote, so the expression always matches.
            opened = _OPENED_QUOTE.match(command, position)
            unclosed_to = opened.end()  # type: ignore[union-attr]
            end = unclosed_to + 1 if command.startswith('"', unclosed_to) else 0
        if end:
            position = end
            continue
        parts.append(command[start:position])
        position = start = position + 1
    return [part for part in (*parts, command[start:]) if part]
