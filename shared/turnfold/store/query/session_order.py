"""Read the order of a session for recall: positions, sizes and speakers, most of it once."""

import json
from array import array
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from sqlalchemy import BigInteger, bindparam, case, select

from turnfold.core.recall.mask_ranking import Mask
from turnfold.core.recall.ranking import ordinals_of
from turnfold.core.text.search import Lookup
from turnfold.core.text.tokens import MESSAGE_TOKENS
from turnfold.core.text.words import normalize, runs
from turnfold.store.database.schema import messages
from turnfold.store.database.statements import Prepared, SupportsStatements
from turnfold.store.query.newest_words import NewestWords

CHARACTERS_PER_TOKEN = 3
LOOKUP_BYTES = 400
"""About how many bytes a known lookup takes besides its mask."""


class MoreThan(NamedTuple):
    """A number, and the position before which more messages match."""

    number: int
    until: int


class KnownMask(NamedTuple):
    """The mask of a lookup, of so many of the first messages of a session."""

    mask: Mask
    messages: int


@dataclass(slots=True)
class SessionOrder:
    """The messages of a session in order: positions, sizes, and who spoke.

    `frequent` has lookups that matched more than a number of messages before a position: they
    always will. `known` has the masks of lookups, each with the number of the first messages that
    it is known for, and `newest` the words of the newest messages. Mutable: messages that
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
