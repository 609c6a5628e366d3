"""The forms a message may take in a window, and what each of them costs."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Final, NamedTuple

from turnfold.core.text.markers import defused
from turnfold.core.text.token_offsets import TokenOffsets
from turnfold.core.text.tokens import CALL_TOKENS, MESSAGE_TOKENS, token_upper_bound
from turnfold.messages import Message, ToolCall, UncountedText

STAND_IN: Final = "[No result of this call is known.]"
STAND_IN_TOKENS: Final = MESSAGE_TOKENS + token_upper_bound(STAND_IN)
"""What closes a call that nobody has answered, and its price as a message."""

LEAST_CHARACTERS: Final = 64
"""A request begins the same however short it is cut."""

LEAST_ARGUMENTS_TOKENS: Final = 48
SEAM_TOKENS: Final = 2
MARK_CHARACTERS: Final = 80
PATH_CHARACTERS: Final = 200
HEAD_LINES: Final = 20
TAIL_LINES: Final = 10


def grid_of(message: Message) -> TokenOffsets | None:
    """The prices of a long text; None for a short one, which has no grid."""
    return _grid(message.cuts) if message.cuts else None


@lru_cache(maxsize=2_048)
def _grid(cuts: str | UncountedText) -> TokenOffsets:
    return (
        TokenOffsets.of(cuts.text, cuts.counter)
        if isinstance(cuts, UncountedText)
        else TokenOffsets.parse(cuts)
    )


def forget_grids() -> None:
    """Forget the grids that were read; windows come out the same."""
    _grid.cache_clear()


class TextCut(NamedTuple):
    """A text of which the first `head` characters and those from `tail` on are shown, with a mark between them.

    `tokens` is what that costs, mark included; `omitted_tokens` is what is missing of the `original_tokens`, media
    included. A preview says only how long the original is.
    """

    head: int
    tail: int
    tokens: int
    omitted_tokens: int
    original_tokens: int
    is_preview: bool = False


class Form(NamedTuple):
    """How a message is shown. The default is byte for byte as it was stored.

    `line` replaces the whole content; `arguments` holds, by slot, how many tokens the arguments of a call may take.
    """

    cut: TextCut | None = None
    line: str | None = None
    without_reasoning: bool = False
    arguments: Mapping[int, int] | None = None
    is_mended: bool = False

    @property
    def is_whole(self) -> bool:
        """Whether nothing was shortened."""
        return self == WHOLE


WHOLE: Final = Form()
MENDED: Final = Form(is_mended=True)


def cut_mark(cut: TextCut, omitted_lines: int) -> str:
    """What stands where a text was cut."""
    if cut.is_preview:
        return f"\n[TRUNCATED original~{cut.original_tokens} tokens]\n"
    return f"\n[... {omitted_lines} lines, {cut.omitted_tokens} tokens left out ...]\n"


_WIDEST = 999_999_999
MARK_TOKENS: Final = SEAM_TOKENS + token_upper_bound(
    cut_mark(TextCut(0, 0, 0, _WIDEST, _WIDEST), _WIDEST)
)
PREVIEW_MARK_TOKENS: Final = SEAM_TOKENS + token_upper_bound(
    cut_mark(TextCut(0, 0, 0, _WIDEST, _WIDEST, is_preview=True), 0)
)


def result_line(call: ToolCall, result: Message) -> str:
    """What stands in the place of a result: whose it was, how long, and by which id the original can be fetched."""
    return defused(
        f"{_line_start(call)}: {result.content_tokens} tokens left out, original: {result.message_id}]"
    )


def line_start_tokens(call: ToolCall) -> int:
    """At most what such a line costs but for its number and its id; the same for every result of a tool on a file."""
    return 2 * SEAM_TOKENS + token_upper_bound(f"{_line_start(call)}: tokens left out, original: ]")


def line_tokens(start_tokens: int, result: Message) -> int:
    """At most what the line of a result costs."""
    return (
        start_tokens
        + (len(str(result.content_tokens)) + 2) // 3
        + 1
        + token_upper_bound(result.message_id)
    )


def _line_start(call: ToolCall) -> str:
    path = f" {clipped(call.path, PATH_CHARACTERS)}" if call.path else ""
    return f"[{clipped(call.name, PATH_CHARACTERS)}{path}"


def clipped(text: str, characters: int) -> str:
    """The text on one line, at most so long."""
    line = " ".join(text.split())
    return line if len(line) <= characters else line[: characters - 1] + "…"


def cut_to(
    message: Message,
    grid: TokenOffsets | None,
    max_tokens: int,
    *,
    least_head: int = 0,
    is_preview: bool = False,
) -> TextCut | None:
    """The longest head and tail of a text within these tokens, two thirds of them the head.

    At least `least_head` characters stay whatever the tokens. None when no cut is cheaper than the whole.
    """
    if grid is None:
        return _cut_without_prices(message, max_tokens, least_head)
    room = max(0, max_tokens - (PREVIEW_MARK_TOKENS if is_preview else MARK_TOKENS))
    head = grid.head(room * 2 // 3).offset
    if head < least_head:
        head = grid.at_or_after(least_head)
    tail = grid.tail(max(0, room - grid.tokens_between(0, head))).offset
    return _priced(message, grid, head, tail, is_preview=is_preview)


def cut_within(
    message: Message,
    grid: TokenOffsets | None,
    *,
    max_tokens: int,
    max_characters: int,
    is_brief: bool,
) -> TextCut | None:
    """Two thirds head and one third tail within both caps; with `is_brief` at most the first 20 and the last 10 lines.

    0 characters cap nothing. The caps come first, so that a few very long lines keep their end too. None when no cut is
    cheaper than the whole.
    """
    if grid is None:
        return _cut_without_prices(message, max_tokens, 0)
    room = max(0, max_tokens - MARK_TOKENS)
    characters = max(0, max_characters - MARK_CHARACTERS) if max_characters else grid.characters
    head = min(grid.head(room * 2 // 3).offset, grid.at_or_before(characters * 2 // 3))
    if is_brief:
        head = min(head, grid.head_lines(HEAD_LINES).offset)
    rest = grid.characters - (characters - head)
    tail = max(
        grid.tail(room - grid.tokens_between(0, head)).offset, grid.at_or_after(max(0, rest))
    )
    if is_brief:
        tail = max(tail, grid.tail_lines(TAIL_LINES).offset)
    return _priced(message, grid, head, tail)


def cut_characters(
    message: Message, grid: TokenOffsets | None, max_characters: int
) -> TextCut | None:
    """The first three quarters of so many characters from the start of a text, the last quarter from its end, mark included."""
    if grid is None:
        return None
    characters = max(0, max_characters - MARK_CHARACTERS)
    head = grid.at_or_before(characters * 3 // 4)
    return _priced(
        message, grid, head, grid.at_or_after(max(0, grid.characters - (characters - head)))
    )


def _priced(
    message: Message, grid: TokenOffsets, head: int, tail: int, *, is_preview: bool = False
) -> TextCut | None:
    if tail <= head:
        head = tail = grid.characters
    kept = grid.tokens_between(0, head) + grid.tokens_between(tail, grid.characters)
    tokens = kept + (PREVIEW_MARK_TOKENS if is_preview else MARK_TOKENS)
    if tokens >= message.content_tokens:
        return None
    return TextCut(
        head, tail, tokens, message.content_tokens - kept, message.content_tokens, is_preview
    )


def _cut_without_prices(message: Message, max_tokens: int, least_head: int) -> TextCut | None:
    """A short text has no grid; no character costs more than its four bytes."""
    head = min(message.characters, max(least_head, (max_tokens - PREVIEW_MARK_TOKENS) // 4, 0))
    tokens = 4 * head + PREVIEW_MARK_TOKENS
    if tokens >= message.content_tokens:
        return None
    return TextCut(head, message.characters, tokens, 0, message.content_tokens, is_preview=True)


def arguments_tokens(call: ToolCall) -> int:
    """About what the arguments of a call cost: the name is taken for a token a word."""
    name = call.name
    words = 1 + name.count("_") + name.count("-") + name.count(".") + name.count(" ")
    return max(0, call.tokens - CALL_TOKENS - words)


def call_tokens_within(call: ToolCall, arguments: int) -> int:
    """At most what a call costs when its arguments may take so many tokens."""
    name = call.name
    # A token is at least one byte: for a name that no tool has, that bound will do.
    name_tokens = (
        _usual_name_tokens(name)
        if len(name) <= USUAL_NAME
        else len(name.encode("utf-8", "surrogatepass"))
    )
    return CALL_TOKENS + name_tokens + arguments


USUAL_NAME: Final = 128
"""The characters of a name that is remembered; there are few tools, and each is called often."""
_usual_name_tokens = lru_cache(maxsize=1_024)(token_upper_bound)
