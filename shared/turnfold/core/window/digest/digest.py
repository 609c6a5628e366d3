"""The digest of a window: a description of the messages that the window leaves out.

`WindowBuilder` reports each block that it leaves out. The digest takes what it needs of a share of
the budget, and its cost is known before its text is written.
"""

from collections.abc import Mapping
from enum import IntEnum
from typing import Final, NamedTuple

from turnfold.core.history.gist import named_calls
from turnfold.core.window.digest.earlier_messages import COUNT_TOKENS, EarlierMessages, count_line
from turnfold.core.window.digest.open_round import OpenRoundCalls
from turnfold.core.window.framing import (
    DIGEST_FRAME_TOKENS,
    SHORT_DIGEST_TOKENS,
    digest_tokens,
    short_digest,
)
from turnfold.core.window.prefix import PendingDigest
from turnfold.core.window.views import BlockView, RoundView
from turnfold.messages import CompactionId

LEAST_TOKENS: Final = 120
MOST_TOKENS: Final = 1_200
OWN_SHARES: Final = 3
"""The compactions' own digests together take at most this many shares of the digest."""
MOST_RATIO: Final = 0.27
"""The share of the budget that the compactions' own digests together take at most."""
NAMES_RATIO: Final = 0.45
"""The share that the names of the open round's calls take at most: only turns of more than 70 calls
need it in a window of 4,000 tokens, and a model that does not see a call makes it again."""


class DigestForm(IntEnum):
    """The content of a digest: nothing, a number of messages, the open round, or all that fits."""

    NONE = 0
    SHORT = 1
    NAMES = 2
    FULL = 3


class DigestText(NamedTuple):
    """The digest of a window: its compactions with digests of their own, and its own text.

    `is_framed` is false for the shortest form, which needs no frame.
    """

    compaction_ids: tuple[CompactionId, ...] = ()
    text: str = ""
    is_framed: bool = True

    @property
    def is_shown(self) -> bool:
        """Whether there is anything to show."""
        return bool(self.compaction_ids or self.text)


class WindowDigest:
    """The messages that a window leaves out, and the cost of describing them.

    `tokens` and `size` are what the digest adds to the window. `live` and `pending` count the
    messages left out, `calls` their tool calls, and `messages` counts a result for each call, so
    that a late one does not change the text. A compaction that waits for its summary has a
    digest of its own, which describes its messages while there is room for it: with many of them, a
    small window would show nothing else. One that begins in the open round is described like live
    messages. `compactions` are those of the session.

    Mutable, because it grows with the window.
    """

    def __init__(
        self,
        compactions: Mapping[CompactionId, PendingDigest],
        *,
        budget_tokens: int,
        ratio: float,
        is_told: bool = True,
    ) -> None:
        self.form = DigestForm.FULL
        self.live = self.pending = self.calls = self.messages = 0
        self.tokens = self.size = 0
        self._is_told = is_told
        self._compactions = dict(compactions)
        self._told_compactions: set[CompactionId] = set()
        self._told_tokens = 0
        share, most = int(ratio * budget_tokens), min(MOST_TOKENS, int(MOST_RATIO * budget_tokens))
        self._names_room = int(NAMES_RATIO * budget_tokens)
        self._told_room = min(most, OWN_SHARES * share)
        self._earlier = EarlierMessages(max(LEAST_TOKENS, min(MOST_TOKENS, share)))
        self._named: OpenRoundCalls | None = None
        self._text: DigestText | None = None

    def begin_trim(self, open_round: RoundView) -> None:
        """Name as much as possible again, and the calls of the round that is open now."""
        self.form = DigestForm.FULL
        self._calls_of(open_round)
        self._has_changed()

    def add(self, block: BlockView) -> None:
        """Add a block that is left out."""
        self.count(block, len(block.views))
        self.calls += len(block.results)
        self.messages += block.messages
        compaction_id = block.compaction_id
        is_named = bool(block.results) and not block.in_round.is_closed
        calls = named_calls(block.head.message) if block.results else []
        tokens = sum([item.tokens for item in calls])
        if is_named:
            self._calls_of(block.in_round).add(block)
            if compaction_id is not None and compaction_id not in self._told_compactions:
                # Its own digest would name these calls a second time.
                self._compactions.pop(compaction_id, None)
        if compaction_id is None or not self._tell(compaction_id):
            self._earlier.add(block, tokens, is_named=is_named)
        self._has_changed()

    def name_covered(self, block: BlockView) -> None:
        """Name the calls of a block of the open round that a summary covers: it is not left out."""
        self._calls_of(block.in_round).add(block)
        self._has_changed()

    def count(self, block: BlockView, messages: int) -> None:
        """Count stored messages of a block that is left out; the text stays the same."""
        if block.compaction_id is None:
            self.live += messages
        else:
            self.pending += messages

    def add_joined(self, block: BlockView) -> None:
        """Add a further item of a response whose first items are left out already."""
        self.count(block, 1)
        self.messages += 1
        if block.compaction_id not in self._told_compactions:
            # The calls of its block were counted when the block was left out.
            self._earlier.messages += 1
        self._has_changed()

    def shorten(self, form: DigestForm) -> None:
        """Use at most this form until the next trim."""
        self.form = min(self.form, form)
        self._has_changed()

    def cost_of(self, compaction: PendingDigest) -> int:
        """Return the tokens that leaving out a compaction adds to the digest, at least."""
        if compaction.compaction_id in self._told_compactions:
            return 0
        tokens = self._cost_of_own(compaction)
        if not tokens or self.form is not DigestForm.FULL:
            return self.first_cost
        return tokens + (0 if self.size else DIGEST_FRAME_TOKENS)

    @property
    def first_cost(self) -> int:
        """The tokens that the first omitted message adds, whatever its content."""
        if self.size or not self._is_told:
            return 0
        is_short = self.form <= DigestForm.SHORT
        return SHORT_DIGEST_TOKENS if is_short else DIGEST_FRAME_TOKENS + COUNT_TOKENS

    @property
    def names_calls(self) -> bool:
        """Whether calls of the open round are left out."""
        return self._named is not None and self._named.cost > 0

    @property
    def told(self) -> int:
        """The omitted live messages that the digest describes."""
        return self.live if self.size else 0

    @property
    def untold(self) -> int:
        """The omitted messages that nothing in the window describes."""
        return 0 if self.size else self.live + self.pending

    @property
    def content(self) -> DigestText:
        """The digest as text; the same until it changes."""
        if self._text is None:
            self._text = self._written()
        return self._text

    def _tell(self, compaction_id: CompactionId) -> bool:
        """Describe a compaction's messages by its own digest; return False if it may not be."""
        if compaction_id in self._told_compactions:
            return True
        compaction = self._compactions.get(compaction_id)
        tokens = self._cost_of_own(compaction) if compaction else 0
        if tokens:
            self._told_compactions.add(compaction_id)
            self._told_tokens += tokens
        return tokens > 0

    def _cost_of_own(self, compaction: PendingDigest) -> int:
        """Return the tokens of a compaction's own digest; 0 if it has none, or no room is left."""
        tokens = digest_tokens(compaction.digest_tokens) if compaction.digest_tokens else 0
        return tokens if self._told_tokens + tokens <= self._told_room else 0

    def _calls_of(self, in_round: RoundView) -> OpenRoundCalls:
        """Return the named calls of the open round; those of the round before are earlier ones."""
        if self._named is None or self._named.in_round is not in_round:
            self._named = OpenRoundCalls(in_round, self._names_room)
            self._earlier.include_named_calls()
        return self._named

    def _has_changed(self) -> None:
        self._text = None
        self.tokens = self._cost()
        self.size = int(self.tokens > 0)

    def _cost(self) -> int:
        # Upper bounds: the text is written only if the window is rendered.
        names = self._named.cost if self._named else 0
        is_left_out = self.live + self.pending > 0
        if not (self._is_told and (is_left_out or names)) or self.form is DigestForm.NONE:
            return 0
        if self.form is DigestForm.SHORT:
            return SHORT_DIGEST_TOKENS if is_left_out else 0
        if self.form is DigestForm.NAMES:
            return DIGEST_FRAME_TOKENS + is_left_out * COUNT_TOKENS + names
        return DIGEST_FRAME_TOKENS + self._told_tokens + self._earlier.cost + names

    def _written(self) -> DigestText:
        if not self.size:
            return DigestText()
        if self.form is DigestForm.SHORT:
            return DigestText(text=short_digest(self.messages, self.calls), is_framed=False)
        names = self._named.lines if self._named else []
        if self.form is DigestForm.NAMES:
            counted = [count_line(self.messages, self.calls)] if self.messages else []
            return DigestText((), "\n".join([*counted, *names]))
        # In the order of the session, not in that of leaving.
        compactions = tuple([name for name in self._compactions if name in self._told_compactions])
        named_round = self._named.in_round if self._named else None
        return DigestText(
            compactions, "\n".join([*self._earlier.lines(named_round, names), *names])
        )
