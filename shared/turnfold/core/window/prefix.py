"""The prefix of a window: everything before the history."""

from collections.abc import Mapping
from dataclasses import dataclass

from turnfold.core.text.tokens import MESSAGE_TOKENS
from turnfold.core.window.framing import Placement, SummarySize
from turnfold.messages import CompactionId, Message, Shape


@dataclass(frozen=True, slots=True)
class PendingDigest:
    """A compaction that no summary covers yet: the size of its digest, and its message count."""

    compaction_id: CompactionId
    digest_tokens: int
    messages: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowPrefix:
    """The pinned system message, the summary, and the compactions that wait for one.

    `shape` is the format of the window, because a response is several items there. `covered_calls`
    are messages that the summary covers, with calls of a turn whose request is not covered: the
    digest names these calls. The pinned message may be covered as well, if newer ones were
    retracted.
    """

    pinned: Message | None
    summary: SummarySize | None
    placement: Placement
    pending: Mapping[CompactionId, PendingDigest]
    shape: Shape = Shape.CHAT
    covered_calls: tuple[Message, ...] = ()
    is_pinned_covered: bool = False

    @property
    def summary_messages(self) -> int:
        """The number of messages that the summary adds to the window."""
        is_own = self.placement.is_message or (
            self.placement is Placement.SYSTEM and self.pinned is None
        )
        return int(self.summary is not None and is_own)


def extra_items(message: Message) -> int:
    """Return how many items of the Responses API a message takes in addition to one.

    A chat message is an item for its text, and one for each call. Items that are joined to another
    are counted by themselves.
    """
    if not message.calls or message.element.shape is Shape.RESPONSES:
        return 0
    of_calls = sum([call.tokens for call in message.calls])
    # A refusal or a transcript beside the content is a text, too.
    is_silent = message.tokens - message.reasoning_tokens <= MESSAGE_TOKENS + of_calls
    return len(message.calls) - is_silent
