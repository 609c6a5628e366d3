"""Read the order of a session for recall: positions, sizes and speakers, most of it once."""

import json
from array import array
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from sqlalchemy import BigInteger, bindparam, case, select

from turnfold.core.recall.mask_ranking import Mask
from turnfold.core.recall.ranking import ordinals_of
from turnfold.core.text.search import Lookup, WordPlaces, searchable
from turnfold.core.text.tokens import MESSAGE_TOKENS
from turnfold.core.text.words import normalize, runs, word_terms
from turnfold.store.database.schema import messages
from turnfold.store.database.statements import Prepared, SupportsStatements

CHARACTERS_PER_TOKEN = 3
LOOKUP_BYTES = 400
"""About how many bytes a known lookup takes besides its mask."""
MOST_NEWEST, MOST_WORDS = 128, 1_000
"""With more, the words are forgotten; lookups are brought up to date by the index then."""
MOST_BODY_CHARACTERS = 10_000
"""The longest body, as JSON, whose words are found."""
WORD_BYTES = 250
"""About how many bytes a word takes."""


class MoreThan(NamedTuple):
    """A number, and the position before which more messages match."""

    number: int
    until: int


class KnownMask(NamedTuple):
    """The mask of a lookup, of so many of the first messages of a session."""

    mask: Mask
    messages: int


@dataclass(slots=True)
class NewestWords:
    """The words of the newest messages of a session: with ordinals from `first` to before `end`.

    They tell which of these messages match a lookup that is known for the older ones: for the
    beginning of a word, FTS5 would read all places of all words that begin so. Mutable: messages
    are added.
    """

    first: int = 0
    end: int = 0
    _holders: dict[str, Mask] = field(default_factory=dict)
    _in_order: list[str] = field(default_factory=list)

    @property
    def weight(self) -> int:
        """About how many bytes it takes."""
        return WORD_BYTES * len(self._holders)

    def add(self, bodies: Sequence[str], end: int) -> None:
        """Add the messages from `end` on, whose number should be that of these bodies.

        If it is not, or if a body is too long, only what comes after them can be added.
        """
        is_whole = len(bodies) == end - self.end and not any(
            len(body) > MOST_BODY_CHARACTERS for body in bodies
        )
        is_full = end - self.first > MOST_NEWEST or len(self._holders) > MOST_WORDS
        if is_full or not is_whole:
            self.first = self.end if is_whole and len(bodies) <= MOST_NEWEST else end
            self._holders, self._in_order = {}, []
        for number, body in enumerate(bodies if self.first < end else (), self.end - self.first):
            for word in word_terms(searchable(json.loads(body))):
                self._holders[word] = self._holders.get(word, 0) | 1 << number
        if len(self._in_order) < len(self._holders):
            self._in_order = sorted(self._holders)
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
        # Masks count messages from the first of the session, these from `first`.
        return found << self.first


@dataclass(slots=True)
class SessionOrder:
    """The messages of a session in order: positions, sizes, and who spoke.

    `frequent` has lookups that matched more than a number of messages before a position: they
    always will. `known` has the masks of lookups, each with the number of the first messages that
    it is known for, and `newest` the words that bring them up to date. Mutable: messages that
    arrived since are appended. A retraction, by its sequence `retracted_seq`, makes it void.
    """

    retracted_seq: int = 0
    positions: "array[int]" = field(default_factory=lambda: array("q"))
    tokens: "array[int]" = field(default_factory=lambda: array("q"))
    spoken: defaultdict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    frequent: dict[Lookup, MoreThan] = field(default_factory=dict)
    known: dict[Lookup, KnownMask] = field(default_factory=dict)
    newest: NewestWords = field(default_factory=NewestWords)

    @property
    def weight(self) -> int:
        """About how many bytes it takes."""
        number = len(self.positions)
        of_masks = (LOOKUP_BYTES + number // 8) * len(self.known)
        of_lookups = LOOKUP_BYTES * len(self.frequent) + of_masks
        return 24 * number + of_lookups + self.newest.weight

    def add(
        self, position: int, tokens: int, characters: int | None, named_body: str | None
    ) -> None:
        """Append a message; `named_body` is its JSON if it may name a speaker.

        Images count by their tokens, but only the text is recalled: of a message without calls, its
        `characters` limit the size.
        """
        name = json.loads(named_body).get("name") if named_body else None
        if isinstance(name, str):
            for word in runs(normalize(name)):
                self.spoken[word].add(len(self.positions))
        self.positions.append(position)
        if characters is not None:
            tokens = min(tokens, characters // CHARACTERS_PER_TOKEN + MESSAGE_TOKENS)
        self.tokens.append(tokens)

    def ordinals(self, positions: Sequence[int]) -> list[int]:
        """Return the ordinals of these positions, of those that are in the order."""
        return ordinals_of(positions, self.positions)


_of_session = messages.c.sid == bindparam("of_sid", type_=BigInteger)
_speaks = (messages.c.role == "user") | (messages.c.role == "assistant")
_is_recallable = (_speaks | (messages.c.role == "tool")) & ~messages.c.is_copy
_may_name = _speaks & messages.c.calls.is_(None)
_ORDER = Prepared(
    select(
        messages.c.position,
        case((_is_recallable, messages.c.tokens - messages.c.reasoning_tokens), else_=0),
        case((messages.c.calls.is_(None), messages.c.characters)),
        case((_may_name & messages.c.body.contains('"name"'), messages.c.body)),
    )
    .where(_of_session, messages.c.position > bindparam("after", type_=BigInteger))
    .order_by(messages.c.position),
    ("of_sid", "after"),
)


def read_order(
    connection: SupportsStatements, sid: int, order: SessionOrder, total: int
) -> SessionOrder:
    """Append what `order` lacks of the `total` messages of its session, and return it.

    Events may be ingested late, before others: then the counts differ, and all is read again.
    """
    # Once from what is known, and once more from the beginning if that did not give all.
    for _ in range(2):
        last = order.positions[-1] if order.positions else -1
        for row in _ORDER.rows(connection, sid, last):
            order.add(*row)
        if len(order.positions) == total:
            break
        order = SessionOrder(order.retracted_seq)
    return order


UNINDEXED_MESSAGES, UNINDEXED_CHARACTERS = 2_000, 5_000
"""The most unindexed messages that are read, newest first, and the most characters of one."""

BODIES = Prepared(
    select(messages.c.position, messages.c.body)
    .where(
        messages.c.sid == bindparam("of_sid", type_=BigInteger),
        messages.c.position.between(
            bindparam("first", type_=BigInteger), bindparam("last", type_=BigInteger)
        ),
        messages.c.characters <= UNINDEXED_CHARACTERS,
    )
    .order_by(messages.c.position.desc())
    .limit(UNINDEXED_MESSAGES + 1),
    ("of_sid", "first", "last"),
)


class UnindexedTexts(NamedTuple):
    """The messages that the index may lack. `is_partial` if there are more of them."""

    words: WordPlaces
    is_partial: bool


def read_unindexed(
    connection: SupportsStatements, sid: int, unindexed_from: int | None, until: int
) -> UnindexedTexts:
    """Read the newest messages from a position on.

    Only words are looked for, in a twentieth of the time that the index takes for a message.
    """
    if unindexed_from is None or unindexed_from >= until:
        return UnindexedTexts(WordPlaces({}), is_partial=False)
    rows = BODIES.rows(connection, sid, unindexed_from, until - 1)
    texts = {position: searchable(json.loads(body)) for position, body in rows[:UNINDEXED_MESSAGES]}
    return UnindexedTexts(WordPlaces(texts), is_partial=len(rows) > UNINDEXED_MESSAGES)
