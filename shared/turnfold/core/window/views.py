"""What a growing window is made of: messages in the form they have by now, and the blocks they stand in."""

from dataclasses import dataclass, field
from typing import Final, NamedTuple

from turnfold.core.history.priority import priority_of
from turnfold.core.text.token_offsets import TokenOffsets
from turnfold.core.window.truncation import (
    MENDED,
    STAND_IN_TOKENS,
    WHOLE,
    Form,
    TextCut,
    arguments_tokens,
    call_tokens_within,
    cut_to,
    grid_of,
    line_start_tokens,
    line_tokens,
    result_line,
)
from turnfold.messages import Message, MessageId, ToolCall


class ShownMessage(NamedTuple):
    """A stored message in the form in which it stands in a window; `call` is what a result answers."""

    message: Message
    form: Form
    call: ToolCall | None


class SynthesizedResult(NamedTuple):
    """The place of a result that nobody has sent."""

    call: ToolCall


Entry = ShownMessage | SynthesizedResult


class RenderedTexts(NamedTuple):
    """Entries as JSON texts, and the id of each (None beside what is no stored message)."""

    messages: tuple[str, ...]
    ids: tuple[MessageId | None, ...]


@dataclass(slots=True)
class BlockContent:
    """What a window shows of a block; `texts` once it was rendered, so that no window that shows the same renders it again."""

    entries: tuple[Entry, ...]
    stored: int
    trimmed: int
    texts: RenderedTexts | None = field(default=None, compare=False)

    @property
    def positions(self) -> list[int]:
        """The messages whose bodies are needed to render it; none once it was."""
        if self.texts is not None:
            return []
        return [
            entry.message.position
            for entry in self.entries
            if isinstance(entry, ShownMessage) and entry.form.line is None
        ]

    def reads_like(self, other: "BlockContent") -> bool:
        """Whether it comes to the same texts, in the same session: where a message is by now, live or evicted, changes none."""
        return len(self.entries) == len(other.entries) and all(
            map(_reads_like, self.entries, other.entries)
        )


def _reads_like(one: Entry, other: Entry) -> bool:
    if not isinstance(one, ShownMessage) or not isinstance(other, ShownMessage):
        return one == other
    same = (
        one.message.position == other.message.position
        and one.message.event_id == other.message.event_id
    )
    return same and one.form == other.form and one.call == other.call


class MessageView:
    """One message of a growing window: the form it has by now, and what that costs."""

    __slots__ = (
        "_grid",
        "arguments",
        "call",
        "cut",
        "line",
        "message",
        "text",
        "tokens",
        "without_reasoning",
    )

    def __init__(self, message: Message, call: ToolCall | None = None) -> None:
        self.message = message
        self.call = call
        self.tokens = message.tokens
        self.text = message.content_tokens
        self.cut: TextCut | None = None
        self.line: str | None = None
        self.without_reasoning = False
        self.arguments: dict[int, int] | None = None
        self._grid: TokenOffsets | None = None

    @property
    def grid(self) -> TokenOffsets | None:
        """What the cuts of its text cost; None for a short one."""
        if self._grid is None:
            self._grid = grid_of(self.message)
        return self._grid

    @property
    def was_softened(self) -> bool:
        """Whether its text was cut, and could still become one line."""
        return self.cut is not None and self.line is None

    @property
    def form(self) -> Form:
        """The form as a value."""
        if (
            self.cut is None
            and self.line is None
            and not (self.without_reasoning or self.arguments)
        ):
            return MENDED if self.message.is_irregular else WHOLE
        return Form(
            self.cut, self.line, self.without_reasoning, self.arguments, self.message.is_irregular
        )

    def drop_reasoning(self) -> int:
        """Show it without its reasoning. Each of these returns the tokens that it frees."""
        if self.without_reasoning:
            return 0
        self.without_reasoning = True
        self.tokens -= self.message.reasoning_tokens
        return self.message.reasoning_tokens

    def shorten(self, cut: TextCut | None) -> int:
        """Show less of its text, if the cut shows less than is shown by now."""
        if cut is None or cut.tokens >= self.text or self.line is not None:
            return 0
        self.cut = cut
        return self._text_is(cut.tokens)

    def to_line(self, starts: dict[tuple[str, str | None], int]) -> int:
        """Put one line in the place of a result, where that is shorter; `starts` keeps what the lines begin with."""
        if self.line is not None or self.call is None:
            return 0
        key = (self.call.name, self.call.path)
        start = starts.get(key) or starts.setdefault(key, line_start_tokens(self.call))
        if start >= self.text or (tokens := line_tokens(start, self.message)) >= self.text:
            return 0
        self.line, self.cut = result_line(self.call, self.message), None
        return self._text_is(tokens)

    def to_mark(self) -> int:
        """Put the mark of a cut alone in the place of a text, where that is shorter still."""
        cut = cut_to(self.message, self.grid, 0)
        if cut is None or cut.tokens >= self.text:
            return 0
        self.line, self.cut = None, cut
        return self._text_is(cut.tokens)

    @property
    def arguments_sizes(self) -> list[int]:
        """Within how many tokens the arguments of each of its calls are shown by now; nothing above frees anything."""
        shown = self.arguments or {}
        return [
            shown.get(call.slot, max(0, call.tokens - call_tokens_within(call, 0)))
            for call in self.message.calls
        ]

    def preview_arguments(self, above: int, within: int) -> int:
        """Show of arguments above so many tokens only a preview within so many."""
        freed = 0
        # A copy: a form that was taken from this piece before keeps its own.
        previews: dict[int, int] = dict(self.arguments) if self.arguments else {}
        for call in self.message.calls:
            shown = (
                call_tokens_within(call, previews[call.slot])
                if call.slot in previews
                else call.tokens
            )
            tokens = call_tokens_within(call, within)
            if tokens < shown and arguments_tokens(call) > above:
                previews[call.slot] = within
                freed += shown - tokens
        if freed:
            self.arguments = previews
            self.tokens -= freed
        return freed

    def _text_is(self, tokens: int) -> int:
        freed = self.text - tokens
        self.text = tokens
        self.tokens -= freed
        return freed


UNRANKED: Final = -1


class BlockView:
    """A block of a growing window: a message and, in call order, the results of its calls by now."""

    __slots__ = (
        "_listed",
        "_part",
        "best_answer",
        "head",
        "is_recent",
        "is_shown",
        "results",
        "row",
        "tokens",
    )

    def __init__(self, head: Message) -> None:
        self.head = MessageView(head)
        calls = len(head.calls)
        self.results: list[MessageView | None] = [None] * calls
        self.row = head.compaction_id
        self.is_shown = True
        self._listed: int | None = None
        self.tokens = head.tokens + STAND_IN_TOKENS * calls
        self._part: BlockContent | None = None
        self.best_answer = UNRANKED
        """The highest priority of its results, kept while the window is trimmed."""
        self.is_recent = False
        """Whether it is one of the newest blocks with calls, which are left out later than the others."""

    def add_result(self, place: int, piece: MessageView) -> None:
        """Put a result in the place of its call."""
        self.results[place] = piece
        self._part = None

    @property
    def part(self) -> BlockContent:
        """What a window shows of it; one value for as long as that is the same."""
        if self._part is None:
            entries: list[Entry] = []
            stored = trimmed = 0
            for place in self.places:
                if isinstance(place, SynthesizedResult):
                    entries.append(place)
                    continue
                form = place.form
                entries.append(ShownMessage(place.message, form, place.call))
                stored += 1
                trimmed += form is not WHOLE
            self._part = BlockContent(tuple(entries), stored, trimmed)
        return self._part

    @property
    def places(self) -> list[MessageView | SynthesizedResult]:
        """Its messages in the order in which a model is sent them, with a stand-in for each result that is missing."""
        places: list[MessageView | SynthesizedResult] = [self.head]
        for slot, piece in enumerate(self.results):
            places.append(
                SynthesizedResult(self.head.message.calls[slot]) if piece is None else piece
            )
        return places

    @property
    def listed(self) -> int:
        """The priority under which it waits to be left out: that of its head, until a result changes it."""
        if self._listed is None:
            self._listed = priority_of(self.head.message)
        return self._listed

    @listed.setter
    def listed(self, priority: int) -> None:
        self._listed = priority

    def has_changed(self) -> None:
        """Another message stands in it, or one in another form."""
        self._part = None

    @property
    def position(self) -> int:
        """Where it stands: with its first message."""
        return self.head.message.position

    @property
    def size(self) -> int:
        """How many messages of a window it is."""
        return 1 + len(self.results)

    @property
    def pieces(self) -> tuple[MessageView, ...]:
        """The messages of it that exist."""
        return (self.head, *(piece for piece in self.results if piece is not None))

    @property
    def priority(self) -> int:
        """The highest priority of its messages; a head that only calls has no say."""
        best = self.best_answer
        if best == UNRANKED:
            best = max(
                [priority_of(piece.message) for piece in self.results if piece is not None],
                default=UNRANKED,
            )
        if best == UNRANKED or self.head.message.content_tokens:
            return max(best, priority_of(self.head.message))
        return best
