"""Know the words of a session's newest messages: those that the index lacks, and some before."""

import json
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sqlalchemy import BigInteger, bindparam, select

from turnfold.core.recall.mask_ranking import Mask
from turnfold.core.text.search import Lookup, searchable
from turnfold.core.text.words import word_terms
from turnfold.store.database.schema import messages
from turnfold.store.database.statements import Prepared, SupportsStatements

UNINDEXED_MESSAGES, UNINDEXED_CHARACTERS = 2_000, 5_000
"""The most unindexed messages whose words are found, and the most characters of one."""
MOST_NEWEST, MOST_WORDS = 128, 1_000
"""With more, the words of messages in the index are forgotten."""
WORD_BYTES = 250
"""About how many bytes a word takes."""

_BODIES = Prepared(
    select(messages.c.position, messages.c.body)
    .where(
        messages.c.sid == bindparam("of_sid", type_=BigInteger),
        messages.c.position.between(
            bindparam("first", type_=BigInteger), bindparam("last", type_=BigInteger)
        ),
        messages.c.characters <= UNINDEXED_CHARACTERS,
    )
    .order_by(messages.c.position),
    ("of_sid", "first", "last"),
)


@dataclass(slots=True)
class NewestWords:
    """The words of the messages with ordinals from `first` to before `end`, but of no long one.

    They find the messages that the index lacks. They also tell which of the other ones match a
    lookup that is known for the older ones, from `whole_from` on, where no long message follows:
    for the beginning of a word, FTS5 would read all places of all words that begin so. Words are
    found once, because windows are asked for faster than messages are indexed. Mutable: messages
    are added.
    """

    first: int = 0
    end: int = 0
    whole_from: int = 0
    _indexed: int = 0
    _holders: dict[str, Mask] = field(default_factory=dict)
    _in_order: list[str] = field(default_factory=list)

    @property
    def weight(self) -> int:
        """About how many bytes it takes."""
        return WORD_BYTES * len(self._holders)

    def prepare(self, indexed: int, end: int, *, has_known: bool) -> None:
        """Forget what is not needed to add the messages before `end`, of which so many are indexed.

        Words of indexed messages stay, and are added, as long as they are few; added only if the
        session `has_known` lookups.
        """
        first = max(indexed, end - UNINDEXED_MESSAGES)
        is_missing = self.first > first and indexed < end
        if not self.end or is_missing or first - self.end > (MOST_NEWEST if has_known else 0):
            self._begin(first)
        elif self.end - self.first > MOST_NEWEST or len(self._holders) > MOST_WORDS:
            # Most lookups are known up to what was in the index the last time.
            self._forget_before(max(self.first, min(self._indexed, self.end)))
        self._indexed = indexed

    def add(self, bodies: Mapping[int, str], end: int) -> None:
        """Add the messages before `end`, by their ordinals; those without a body are too long."""
        if end <= self.end:
            return
        for ordinal, body in bodies.items():
            bit = 1 << ordinal - self.first
            for word in word_terms(searchable(json.loads(body))):
                self._holders[word] = self._holders.get(word, 0) | bit
        if len(bodies) < end - self.end:
            missing = set(range(self.end, end)) - bodies.keys()
            self.whole_from = max(missing) + 1
        self._in_order += list(self._holders)[len(self._in_order) :]
        self._in_order.sort()
        self.end = end

    def matches(self, lookup: Lookup) -> Mask:
        """Return the mask of the messages with any term of a lookup."""
        found = 0
        for text, is_prefix in lookup:
            if not is_prefix:
                found |= self._holders.get(text, 0)
                continue
            words = self._in_order
            at = bisect_left(words, text)
            while at < len(words) and words[at].startswith(text):
                found |= self._holders[words[at]]
                at += 1
        return found << self.first

    def unindexed(self, lookup: Lookup, end: int) -> Mask:
        """Return the mask of the messages before `end` that match, and that the index lacks."""
        first = max(self._indexed, end - UNINDEXED_MESSAGES)
        if first >= end:
            return 0
        return self.matches(lookup) >> first << first & (1 << end) - 1

    def trim(self) -> None:
        """Forget all if there are too many words to be remembered."""
        if len(self._holders) > 2 * MOST_WORDS:
            self._begin(0)

    def _begin(self, first: int) -> None:
        self.first = self.end = self.whole_from = first
        self._holders, self._in_order = {}, []

    def _forget_before(self, first: int) -> None:
        passed = first - self.first
        if not passed:
            return
        held = {word: mask >> passed for word, mask in self._holders.items()}
        self._holders = {word: mask for word, mask in held.items() if mask}
        self._in_order = sorted(self._holders)
        self.first, self.whole_from = first, max(first, self.whole_from)


def read_bodies(
    connection: SupportsStatements, sid: int, positions: Sequence[int], first: int, end: int
) -> dict[int, str]:
    """Return the bodies of messages by their ordinals, from one to before another, but no long one.

    `positions` are those of all messages of the session, in order.
    """
    if first >= end:
        return {}
    rows = _BODIES.rows(connection, sid, positions[first], positions[end - 1])
    return {bisect_left(positions, position): body for position, body in rows}
