"""The parts of a window under construction: messages in their current form, and blocks."""

from dataclasses import dataclass, field
from typing import Final, NamedTuple, cast
from weakref import ref

from turnfold.core.history.priority import priority_of
from turnfold.core.text.json_text import json_text
from turnfold.core.text.token_offsets import TokenOffsets
from turnfold.core.window.forms import (
    MENDED,
    STAND_IN_TOKENS,
    WHOLE,
    Form,
    TextCut,
    arguments_tokens,
    call_tokens_within,
    cut_to,
    line_start_tokens,
    line_tokens,
    offsets_of,
    result_line,
)
from turnfold.messages import Ids, Message, ToolCall


class ShownMessage(NamedTuple):
    """A stored message and its form in a window; `call` is the call that a result answers.

    `joined` are the other items of a response, which are shown with its first item.
    """

    message: Message
    form: Form
    call: ToolCall | None
    joined: tuple[Message, ...] = ()


class SynthesizedResult(NamedTuple):
    """The place of a missing result."""

    call: ToolCall


class RecallEntry(NamedTuple):
    """The place of the recall block."""


Entry = ShownMessage | SynthesizedResult | RecallEntry


class RenderedTexts(NamedTuple):
    """Messages as JSON texts, and the ids of each."""

    messages: tuple[str, ...]
    ids: tuple[Ids, ...]


@dataclass(slots=True)
class BlockContent:
    """The visible content of a block.

    `texts` is set when it is rendered, so that later windows reuse it.
    """

    entries: tuple[Entry, ...]
    stored: int
    trimmed: int
    texts: RenderedTexts | None = field(default=None, compare=False)

    @property
    def positions(self) -> list[int]:
        """The positions of the messages whose bodies are needed to render it; none afterwards."""
        if self.texts is not None:
            return []
        positions = []
        for entry in self.entries:
            if isinstance(entry, ShownMessage) and (
                entry.form.line is None or entry.message.element
            ):
                positions.append(entry.message.position)
                if entry.joined:
                    positions += [message.position for message in entry.joined]
        return positions

    def reads_like(self, other: "BlockContent") -> bool:
        """Return whether both render to the same texts, within one session."""
        return len(self.entries) == len(other.entries) and all(
            map(_reads_like, self.entries, other.entries)
        )


def recall_part(text: str) -> BlockContent:
    """Return the recall block as part of a window: one user message that is not stored."""
    message = json_text({"role": "user", "content": text})
    return BlockContent((RecallEntry(),), 0, 0, RenderedTexts((message,), (None,)))


def _reads_like(entry: Entry, other: Entry) -> bool:
    if not isinstance(entry, ShownMessage) or not isinstance(other, ShownMessage):
        return entry == other
    # Not the whole messages: they differ once one is evicted, and its text stays the same.
    is_same_message = (
        entry.message.position == other.message.position
        and entry.message.event_id == other.message.event_id
    )
    return is_same_message and entry.form == other.form and entry.call == other.call


class MessageView:
    """One message of a window: its current form, and the tokens of that form.

    Mutable, because each step of the ladder shortens many of them.
    """

    __slots__ = (
        "_offsets",
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
        self._offsets: TokenOffsets | None = None

    @property
    def offsets(self) -> TokenOffsets | None:
        """The token offsets of its text; None for a short one."""
        if self._offsets is None:
            self._offsets = offsets_of(self.message)
        return self._offsets

    @property
    def may_become_line(self) -> bool:
        """Whether its text was cut, and may still be replaced by one line."""
        return self.cut is not None and self.line is None

    @property
    def form(self) -> Form:
        """The current form as a value."""
        if not (self.cut or self.line or self.without_reasoning or self.arguments):
            return MENDED if self.message.is_irregular else WHOLE
        return Form(
            self.cut, self.line, self.without_reasoning, self.arguments, self.message.is_irregular
        )

    def drop_reasoning(self) -> None:
        """Remove its reasoning, if it has any."""
        if not self.without_reasoning and self.message.reasoning_tokens:
            self.without_reasoning = True
            self.tokens -= self.message.reasoning_tokens

    def shorten(self, cut: TextCut | None) -> int:
        """Apply a cut if it is shorter than the current form; return the tokens freed."""
        if cut is None or cut.tokens >= self.text or self.line is not None:
            return 0
        self.cut = cut
        return self._text_is(cut.tokens)

    def shorten_to(self, max_tokens: int, *, least_head: int = 0, is_preview: bool = False) -> int:
        """Apply the cut of `cut_to` if it is shorter; return the tokens freed."""
        kept = cut_to(
            self.message, self.offsets, max_tokens, least_head=least_head, is_preview=is_preview
        )
        return self.shorten(kept)

    def to_line(self, starts: dict[tuple[str, str | None], int]) -> None:
        """Replace a result by one line if that is shorter.

        `starts` caches the tokens of line beginnings, by tool and path.
        """
        if self.line is not None or self.call is None:
            return
        key = (self.call.name, self.call.path)
        start = starts.get(key) or starts.setdefault(key, line_start_tokens(self.call))
        if start < self.text and (tokens := line_tokens(start, self.message)) < self.text:
            self.line, self.cut = result_line(self.call, self.message), None
            self._text_is(tokens)

    def to_mark(self) -> None:
        """Replace a text by the mark of a cut if that is shorter."""
        cut = cut_to(self.message, self.offsets, 0)
        if cut is not None and cut.tokens < self.text:
            self.line, self.cut = None, cut
            self._text_is(cut.tokens)

    @property
    def arguments_sizes(self) -> list[int]:
        """The current token cap of the arguments of each call; a higher cap frees nothing."""
        shown = self.arguments or {}
        return [
            shown.get(call.slot, max(0, call.tokens - call_tokens_within(call, 0)))
            for call in self.message.calls
        ]

    def preview_arguments(self, above: int, within: int) -> int:
        """Replace arguments of more than `above` tokens by previews of at most `within` tokens.

        Return the tokens freed.
        """
        freed = 0
        # A copy, because a form returned earlier shares the dictionary.
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
        freed, self.text = self.text - tokens, tokens
        self.tokens -= freed
        return freed


UNRANKED: Final = -1


class RoundView:
    """A request and the blocks up to the next one. The newest round is open, older ones are closed.

    The first round has no request: its blocks precede the first user message. Until a person has
    written a request, user messages of programs start rounds, too.
    """

    __slots__ = ("__weakref__", "blocks", "hidden", "is_closed", "priority", "request")

    def __init__(self, request: "BlockView | None" = None) -> None:
        self.request = request
        self.blocks: list[BlockView] = []
        self.hidden = 0
        """How many of its blocks are left out."""
        self.is_closed = False
        self.priority = UNRANKED
        """The highest priority of its blocks, once they are queued as those of a closed round."""

    @property
    def shown(self) -> "list[BlockView]":
        """Its visible blocks, in order."""
        return [block for block in self.blocks if block.is_shown]

    @property
    def is_unanswered(self) -> bool:
        """Whether it is closed, and the request stands without any of the blocks that followed."""
        if not self.is_closed or self.request is None or not self.request.is_shown:
            return False
        return self.hidden == len(self.blocks) - 1 > 0


class BlockView:
    """A block of a window: a message and the results of its calls so far, in call order."""

    __slots__ = (
        "_part",
        "_queued_priority",
        "best_answer",
        "compaction_id",
        "extra_size",
        "head",
        "is_recent",
        "is_shown",
        "joined",
        "results",
        "round",
        "tokens",
    )

    def __init__(self, head: Message, in_round: RoundView) -> None:
        self.head = MessageView(head)
        self.round = ref(in_round)
        calls = len(head.calls)
        self.results: list[MessageView | None] = [None] * calls
        self.compaction_id = head.compaction_id
        self.is_shown = True
        self._queued_priority: int | None = None
        self.tokens = head.tokens + STAND_IN_TOKENS * calls
        self._part: BlockContent | None = None
        self.joined: tuple[MessageView, ...] = ()
        """The other items of a response whose first item is the head."""
        self.extra_size = 0
        """Messages that the format of the window needs in addition to one per chat message."""
        self.best_answer = UNRANKED
        """The highest priority of its results; set only if the window may need trimming."""
        self.is_recent = False
        """Whether it is one of the newest tool blocks, which step (6) keeps."""

    @property
    def in_round(self) -> RoundView:
        """Its round. The builder keeps it: a cycle with it would outlive every window."""
        return cast("RoundView", self.round())

    def join(self, message: Message) -> None:
        """Add a further item of the response."""
        self.joined += (MessageView(message),)
        self.tokens += message.tokens
        self._part = None

    def add_result(self, place: int, view: MessageView) -> None:
        """Store the result of the call at this index."""
        self.results[place] = view
        self._part = None

    @property
    def part(self) -> BlockContent:
        """Its visible content; the same object until it changes."""
        if self._part is None:
            head, form = self.head.message, self.head.form
            joined = tuple([view.message for view in self.joined]) if self.joined else ()
            entries: list[Entry] = [ShownMessage(head, form, None, joined)]
            stored, trimmed = 1 + len(joined), int(form is not WHOLE)
            for place, view in enumerate(self.results):
                if view is None:
                    entries.append(SynthesizedResult(head.calls[place]))
                    continue
                form = view.form
                entries.append(ShownMessage(view.message, form, view.call))
                stored += 1
                trimmed += form is not WHOLE
            self._part = BlockContent(tuple(entries), stored, trimmed)
        return self._part

    @property
    def queued_priority(self) -> int:
        """Its priority in the queues: that of its head, until a result changes it."""
        if self._queued_priority is None:
            self._queued_priority = priority_of(self.head.message)
        return self._queued_priority

    @queued_priority.setter
    def queued_priority(self, priority: int) -> None:
        self._queued_priority = priority

    @property
    def needs_its_round(self) -> bool:
        """Whether it may only be left out together with its whole round.

        That holds for the request and the answers of a closed round, not for its tool blocks.
        """
        in_round = self.in_round
        return in_round.is_closed and in_round.request is not None and not self.results

    def has_changed(self) -> None:
        """Discard the cached content after a message changed."""
        self._part = None

    @property
    def position(self) -> int:
        """The position of its first message."""
        return self.head.message.position

    @property
    def size(self) -> int:
        """The number of messages it takes in a window."""
        return 1 + len(self.results) + self.extra_size

    @property
    def messages(self) -> int:
        """The number of its messages once each call has a result."""
        return 1 + len(self.joined) + len(self.results)

    @property
    def views(self) -> tuple[MessageView, ...]:
        """Its stored messages."""
        results = [view for view in self.results if view is not None] if self.results else ()
        return (self.head, *self.joined, *results)

    @property
    def priority(self) -> int:
        """The highest priority of its messages; a head without text does not count."""
        best = self.best_answer
        if best == UNRANKED:
            best = max(
                [priority_of(view.message) for view in self.results if view is not None],
                default=UNRANKED,
            )
        if best == UNRANKED or self.head.message.content_tokens:
            return max(best, priority_of(self.head.message))
        return best
