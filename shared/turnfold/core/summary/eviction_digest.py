"""Write the digest of an eviction: lines that replace its messages until they are summarized.

It is written in the transaction that evicts, so its cost is bounded, whatever the messages contain.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from turnfold.core.history.gist import ARGUMENT_CHARACTERS
from turnfold.core.summary.source_messages import sources_of
from turnfold.core.summary.sources import Source
from turnfold.core.text.calls import command_line
from turnfold.core.text.defuse import defused
from turnfold.core.text.lines import clip, clip_exact, clip_path, printable
from turnfold.core.text.tokens import Count
from turnfold.messages import JOINED, TOOL, Message

DIGEST_MAX_TOKENS = 300
DIGEST_MESSAGES = 8
"""With more lines each would be too short to be useful. One line counts all other messages."""

_ROLES = {
    "system": "System",
    "developer": "System",
    "user": "User",
    "assistant": "Assistant",
}
_TARGET, _ID, _TEXT = (
    re.compile(names + r'\s*:\s*"((?:[^"\\]|\\.){1,240})', re.IGNORECASE)
    for names in (
        r'"(?:file_?path|path|file_?name|command|cmd|script|query|url|pattern)"',
        r'"[a-z_]*(?:id|name)"',
        "",
    )
)
"""Arguments that identify a call, the best first: a path or command, an id, any text."""
_COMMAND = re.compile(
    r'"(?:cmd|command(s?))"\s*:\s*\[((?>(?:[\s,]|"(?>(?:[^"\\]|\\.)*)(?:"|\\?$))*))(?:\]|$)'
)
"""A command as a list of words, or several commands."""
_WORDS = re.compile(r'"((?>(?:[^"\\]|\\.)*))"?')
_VALUES = re.compile(r'"((?>(?:[^"\\]|\\.)*))"(\s*:)?|(-?\d+(?:\.\d+)?)')
"""The strings of a JSON text, with a colon after keys, and its numbers."""
_READ_CHARACTERS = 400
_SHORT_CHARACTERS = 24
_VALUE_CHARACTERS = 60
_LEFT_OUT_LINE_TOKENS = 16


def digest_messages(evicted: Sequence[Message]) -> Sequence[Message]:
    """Select the messages that a digest quotes: the first request, and the newest messages."""
    return _quoted(_spoken(evicted))


def digest_eviction(
    evicted: Sequence[Message], bodies: Mapping[int, str], *, count: Count
) -> tuple[str, int]:
    """Write the digest of an eviction, and count its tokens.

    `bodies` holds the JSON text of each message of `digest_messages`, by position.
    """
    spoken = _spoken(evicted)
    quoted = _quoted(spoken)
    return digest(
        sources_of([(message, bodies[message.position], False) for message in quoted]),
        count=count,
        older=len(spoken) - len(quoted),
        silent=len(evicted) - len(spoken),
        keeps_first=len(spoken) > len(quoted) and quoted[0].is_request,
    )


def _quoted(spoken: Sequence[Message]) -> Sequence[Message]:
    older, newest = spoken[:-DIGEST_MESSAGES], spoken[-DIGEST_MESSAGES:]
    # The newest messages seldom repeat the request that led to them.
    request = next((message for message in older if message.is_request), None)
    return newest if request is None else [request, *newest[1:]]


def _spoken(messages: Sequence[Message]) -> Sequence[Message]:
    return [
        message
        for message in messages
        if message.role is not TOOL
        and message.element is not JOINED
        and not (message.role.is_system and message.is_pinnable)
    ]


def digest(
    sources: Sequence[Source],
    *,
    max_tokens: int = DIGEST_MAX_TOKENS,
    count: Callable[[str], int],
    older: int = 0,
    silent: int = 0,
    keeps_first: bool = False,
) -> tuple[str, int]:
    """Return one line per message, its shortened text and the tools that it calls; and its tokens.

    The digest has at most `max_tokens` tokens. `sources` are not tool results. A line before the
    newest messages counts those without a line: older ones, and those without text. `older` and
    `silent` are such messages that are not among `sources`. With `keeps_first`, the first message
    stays before that line, unless it alone does not fit.
    """
    width = min(160, max(40, max_tokens * 3 // max(len(sources), 1)))
    lines = [defused(line) for line in (_line(source, width) for source in sources) if line]
    silent += len(sources) - len(lines)
    first = lines[:1] if keeps_first and _line(sources[0], width) else []
    # A first estimate by bytes, so that the tokenizer reads few lines that do not fit.
    kept = _newest_within(lines[len(first) :], max_tokens * 4)
    while True:
        left_out = older + len(lines) - len(first) - len(kept)
        text = "\n".join([*first, *_left_out_line(left_out, silent), *kept])
        tokens = count(text)
        if tokens <= max_tokens:
            return text, tokens
        if not kept:
            if not first:
                return "", 0
            first = []
            continue
        # At least one line leaves each time, so that the loop ends.
        kept = kept[
            max(1, len(kept) - len(kept) * max(max_tokens - _LEFT_OUT_LINE_TOKENS, 0) // tokens) :
        ]


def _line(source: Source, width: int) -> str:
    text = clip(printable(source.text[: width * 5]), width)
    if not source.calls:
        return f"{_ROLES[source.role]}: {text}" if text else ""
    called = "called " + ", ".join(
        f"{name}({clip(main_arguments(arguments), ARGUMENT_CHARACTERS)})"
        for name, arguments in source.calls[:4]
    )
    if len(source.calls) > 4:
        called += f" and {len(source.calls) - 4} more"
    return (
        f"{_ROLES[source.role]}: {text}; {called}" if text else f"{_ROLES[source.role]}: {called}"
    )


def main_arguments(arguments: str, path: str | None = None) -> str:
    """Return the arguments that identify a call: a path, command or query alone.

    Otherwise an id or the first text, and then all short values, because calls of one tool often
    differ only in a date. A command keeps its line ends, because with spaces it is another command.
    `path` is the file that the call names, even beyond the part of long arguments that is read.
    """
    listed = _COMMAND.search(arguments, 0, _READ_CHARACTERS)
    if listed and (words := [_text(word) for word in _WORDS.findall(listed[2])]):
        return clip_exact("; ".join(words) if listed[1] else command_line(words), _VALUE_CHARACTERS)
    for names in (_TARGET, _ID, _TEXT):
        if match := names.search(arguments, 0, _READ_CHARACTERS):
            # If the reading ended within the text, its true end is unknown.
            is_whole = arguments[match.end() : match.end() + 1] == '"'
            first = _value(match[1], is_whole=is_whole)
            if names is _TARGET:
                return first
            values = dict.fromkeys([first, *_short_values(arguments)])
            return clip(", ".join(values), ARGUMENT_CHARACTERS)
        if path:
            return clip_path(printable(path), _VALUE_CHARACTERS)
    return ""


def _short_values(arguments: str) -> Iterator[str]:
    for text, colon, figure in _VALUES.findall(arguments, 0, _READ_CHARACTERS):
        if not colon and len(text) <= _SHORT_CHARACTERS:
            value = _value(text or figure)
            # In irregular JSON, the part between two strings may look like one.
            if value.strip(" ,:[]{}"):
                yield value


def _value(quoted: str, *, is_whole: bool = True) -> str:
    shorten = clip_path if is_whole else clip_exact
    return shorten(_text(quoted), _VALUE_CHARACTERS)


def _text(quoted: str) -> str:
    try:
        text = json.loads(f'"{quoted}"')
    except ValueError:  # irregular JSON, as models write it
        text = quoted
    return printable(text)


def _newest_within(lines: list[str], size: int) -> list[str]:
    """Return the newest lines up to a number of bytes."""
    first = len(lines)
    while first and size > 0:
        first -= 1
        size -= len(lines[first].encode(errors="replace"))
    return lines[first:]


def _left_out_line(older: int, silent: int) -> list[str]:
    parts = [
        f"{older} earlier message{'s' * (older != 1)}" if older else "",
        f"{silent} without words of their own" if silent else "",
    ]
    left_out = " and ".join(part for part in parts if part)
    return [f"({left_out} left out)"] if left_out else []
