"""The forms of a message in a window, and the tokens of each form."""

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from turnfold.core.history.gist import gist_of
from turnfold.core.text.caches import cached_text
from turnfold.core.text.defuse import defused
from turnfold.core.text.lines import one_line
from turnfold.core.text.token_offsets import TokenOffsets
from turnfold.core.text.tokens import CALL_TOKENS, MESSAGE_TOKENS, token_upper_bound
from turnfold.messages import Message, ToolCall, UncountedText

STAND_IN: Final = "[No result of this call is known.]"
STAND_IN_TOKENS: Final = MESSAGE_TOKENS + token_upper_bound(STAND_IN)
"""The tokens of the message that closes a call without a result."""

LEAST_CHARACTERS: Final = 64
"""The characters that stay of the shortest cut of a request."""

LEAST_ARGUMENTS_TOKENS: Final = 48
NO_ARGUMENTS_TOKENS: Final = 1
"""The tokens of an empty object, the shortest preview of arguments."""

SEAM_TOKENS: Final = 2
MARK_CHARACTERS: Final = 80
PATH_CHARACTERS: Final = 200


def offsets_of(message: Message) -> TokenOffsets | None:
    """Return the token offsets of a long text; None for a short one."""
    return _offsets(message.cuts) if message.cuts else None


@cached_text(2_048)
def _offsets(cuts: str | UncountedText) -> TokenOffsets:
    return (
        TokenOffsets.of(cuts.text, cuts.counter)
        if isinstance(cuts, UncountedText)
        else TokenOffsets.parse(cuts)
    )


class TextCut(NamedTuple):
    """The first `head` characters of a text, a mark, and the characters from `tail` on.

    `tokens` includes the mark. `omitted_tokens` of the `original_tokens`, which include media, are
    missing. The mark of a preview states only the original size.
    """

    head: int
    tail: int
    tokens: int
    omitted_tokens: int
    original_tokens: int
    is_preview: bool = False


class Form(NamedTuple):
    """The form of a message in a window. The default is the stored message, byte for byte.

    `line` replaces the whole content. `arguments` maps slots to the token cap of their arguments.
    """

    cut: TextCut | None = None
    line: str | None = None
    without_reasoning: bool = False
    arguments: Mapping[int, int] | None = None
    is_mended: bool = False

    @property
    def is_whole(self) -> bool:
        """Whether nothing is shortened."""
        return self == WHOLE


# Renderers test for WHOLE by identity: an unchanged message must have this very object.
WHOLE: Final = Form()
MENDED: Final = Form(is_mended=True)


def cut_mark(cut: TextCut, omitted_lines: int) -> str:
    """Return the mark that replaces the middle of a cut text."""
    if cut.is_preview:
        return f"\n[TRUNCATED original~{cut.original_tokens} tokens]\n"
    return f"\n[... {omitted_lines} lines, {cut.omitted_tokens} tokens left out ...]\n"


CUT_MARK: Final = re.compile(
    r"\n\[(?:TRUNCATED original~\d+ tokens|\.\.\. \d+ lines, \d+ tokens left out \.\.\.)\]\n"
)
"""What `cut_mark` returns."""

# A mark costs the same for all numbers, so that the tokens of a cut are known before it is made.
_WIDEST = 999_999_999
MARK_TOKENS: Final = SEAM_TOKENS + token_upper_bound(
    cut_mark(TextCut(0, 0, 0, _WIDEST, _WIDEST), _WIDEST)
)
PREVIEW_MARK_TOKENS: Final = SEAM_TOKENS + token_upper_bound(
    cut_mark(TextCut(0, 0, 0, _WIDEST, _WIDEST, is_preview=True), 0)
)


def result_line(call: ToolCall, result: Message) -> str:
    """Return the line that replaces a result: its tool, its size, and the id of the original."""
    return defused(
        f"{_line_start(call)}: {result.content_tokens} tokens left out, "
        f"original: {result.message_id}]"
    )


def line_start_tokens(call: ToolCall) -> int:
    """Return an upper bound of the line's tokens without its number and its id.

    It is the same for every result of one tool on one file.
    """
    return 2 * SEAM_TOKENS + token_upper_bound(f"{_line_start(call)}: tokens left out, original: ]")


def line_tokens(start_tokens: int, result: Message) -> int:
    """Return an upper bound of the tokens of a result's line."""
    return (
        start_tokens
        + (len(str(result.content_tokens)) + 2) // 3
        + 1
        + token_upper_bound(result.message_id)
    )


def _line_start(call: ToolCall) -> str:
    path = f" {one_line(call.path, PATH_CHARACTERS)}" if call.path else ""
    return f"[{one_line(call.name, PATH_CHARACTERS)}{path}"


def cut_to(
    message: Message,
    offsets: TokenOffsets | None,
    max_tokens: int,
    *,
    least_head: int = 0,
    is_preview: bool = False,
) -> TextCut | None:
    """Cut a text to its longest head and tail within `max_tokens`, two thirds of them the head.

    At least `least_head` characters stay. None if no cut is shorter than the whole.
    """
    if offsets is None:
        return _cut_without_offsets(message, max_tokens, least_head)
    room = max(0, max_tokens - (PREVIEW_MARK_TOKENS if is_preview else MARK_TOKENS))
    head = offsets.head(room * 2 // 3)
    if head < least_head:
        head = offsets.at_or_after(least_head)
    tail = offsets.tail(room - offsets.tokens_between(0, head))
    return _cut_at(message, offsets, head, tail, is_preview=is_preview)


def cut_within(
    message: Message,
    offsets: TokenOffsets | None,
    *,
    max_tokens: int,
    max_characters: int,
    is_brief: bool,
) -> TextCut | None:
    """Cut a text to two thirds head and one third tail within both caps.

    `max_characters` of 0 means no cap. With `is_brief`, at most the first 20 and the last 10 lines
    stay; the caps apply first, so that a few very long lines keep their end, too. None if no cut is
    shorter than the whole.
    """
    if offsets is None:
        return _cut_without_offsets(message, max_tokens, 0)
    room = max(0, max_tokens - MARK_TOKENS)
    characters = max(0, max_characters - MARK_CHARACTERS) if max_characters else offsets.characters
    head = min(offsets.head(room * 2 // 3), offsets.at_or_before(characters * 2 // 3))
    if is_brief:
        head = min(head, offsets.head_lines())
    rest = offsets.characters - (characters - head)
    tail = max(
        offsets.tail(room - offsets.tokens_between(0, head)),
        offsets.at_or_after(max(0, rest)),
    )
    if is_brief:
        tail = max(tail, offsets.tail_lines())
    return _cut_at(message, offsets, head, tail)


def cut_characters(
    message: Message, offsets: TokenOffsets | None, max_characters: int
) -> TextCut | None:
    """Cut a text to `max_characters`, mark included: three quarters head and one quarter tail."""
    if offsets is None:
        return None
    characters = max(0, max_characters - MARK_CHARACTERS)
    head = offsets.at_or_before(characters * 3 // 4)
    return _cut_at(
        message,
        offsets,
        head,
        offsets.at_or_after(max(0, offsets.characters - (characters - head))),
    )


def _cut_at(
    message: Message, offsets: TokenOffsets, head: int, tail: int, *, is_preview: bool = False
) -> TextCut | None:
    # Head and tail meet, so the whole text stays: a cut is shorter only if it omits media.
    if tail <= head:
        head = tail = offsets.characters
    kept = offsets.tokens_between(0, head) + offsets.tokens_between(tail, offsets.characters)
    tokens = kept + (PREVIEW_MARK_TOKENS if is_preview else MARK_TOKENS)
    if tokens >= message.content_tokens:
        return None
    return TextCut(
        head, tail, tokens, message.content_tokens - kept, message.content_tokens, is_preview
    )


def _cut_without_offsets(message: Message, max_tokens: int, least_head: int) -> TextCut | None:
    """Cut a text without token offsets: no character takes more than four tokens.

    A text beside media was counted, so it may stay whole while only the media are left out.
    """
    room = max(0, max_tokens - PREVIEW_MARK_TOKENS)
    head = min(message.characters, max(least_head, room // 4))
    text_tokens = 4 * head
    counted = gist_of(message).text_tokens
    if counted is not None and (counted <= room or head == message.characters):
        head, text_tokens = message.characters, min(counted, 4 * message.characters)
    tokens = text_tokens + PREVIEW_MARK_TOKENS
    if tokens >= message.content_tokens:
        return None
    return TextCut(head, message.characters, tokens, 0, message.content_tokens, is_preview=True)


def arguments_tokens(call: ToolCall) -> int:
    """Estimate the tokens of a call's arguments; its name counts one token per word."""
    name = call.name
    words = 1 + name.count("_") + name.count("-") + name.count(".") + name.count(" ")
    return max(0, call.tokens - CALL_TOKENS - words)


def call_tokens_within(call: ToolCall, arguments: int) -> int:
    """Return an upper bound of a call's tokens, given those of its arguments."""
    name = call.name
    # A token is at least one byte. For a name of unusual length, that bound is good enough.
    name_tokens = (
        _usual_name_tokens(name)
        if len(name) <= USUAL_NAME
        else len(name.encode("utf-8", "surrogatepass"))
    )
    return CALL_TOKENS + name_tokens + arguments


USUAL_NAME: Final = 128
"""Token bounds of longer names are not cached. There are few tools, and each is called often."""
_usual_name_tokens = cached_text(1_024)(token_upper_bound)
