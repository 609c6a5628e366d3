"""Read the order of a session for recall, most of it once: sizes, speakers, words, marked lines."""

import json
from array import array
from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from operator import attrgetter
from typing import Any, NamedTuple

from sqlalchemy import BigInteger, Integer, bindparam, case, select

from turnfold.core.recall.labels import speaker_name
from turnfold.core.recall.mask_ranking import Mask, ordinals_in
from turnfold.core.recall.quotes import MarkedLine, mark_lines, read_marks
from turnfold.core.recall.ranking import Speaker, ordinals_of
from turnfold.core.text.search import Lookup, searchable
from turnfold.core.text.tokens import MESSAGE_TOKENS, token_upper_bound
from turnfold.core.text.words import normalize, runs, terms
from turnfold.store.database.predicates import in_range, of_messages
from turnfold.store.database.schema import marked_lines, messages
from turnfold.store.database.statements import Prepared, SupportsStatements

CHARACTERS_PER_TOKEN = 4  # of English text
LOOKUP_BYTES, SAID_BYTES = 400, 64
"""About how many bytes a known lookup takes besides its mask, and a message of a speaker."""
MOST_NAME_WORDS, MOST_SPEAKERS = 4, 1_000
"""The most words of a name by which a question names its speaker, and of all names in a session."""
UNINDEXED_MESSAGES, UNINDEXED_CHARACTERS = 2_000, 5_000
"""The most unindexed messages whose words are found, and the most characters of one."""
MOST_MARKED_HERE = 32
"""The most unindexed messages whose lines are marked, at 0.3 ms a message."""
MOST_NEWEST, MOST_WORDS = 128, 1_000
"""With more, the words of messages in the index are forgotten."""
WORD_BYTES, LINE_BYTES = 250, 400
"""About how many bytes a word takes, and a marked line."""


class MoreThan(NamedTuple):
    """A number, and the position before which more messages match."""

    number: int
    until: int


class KnownMask(NamedTuple):
    """The mask of a lookup, of so many of the first messages of a session."""

    mask: Mask = 0
    messages: int = 0


class KnownPlaces(NamedTuple):
    """The falling positions of a lookup, of so many messages; for long sessions."""

    positions: "array[int]" = array("q")
    messages: int = 0


_POSITIONS = attrgetter("positions")


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
            # Half of them: most lookups are known up to one of the newer half.
            last_indexed = min(self._indexed, self.end)
            self._forget_before(max(self.first, min(last_indexed, (self.first + self.end) // 2)))
        self._indexed = indexed

    def add(self, bodies: Mapping[int, str], end: int) -> None:
        """Add the messages before `end`, by their ordinals; those without a body are too long."""
        if end <= self.end:
            return
        for ordinal, body in bodies.items():
            bit = 1 << ordinal - self.first
            for word in terms(searchable(json.loads(body))) or ():
                self._holders[word] = self._holders.get(word, 0) | bit
        if len(bodies) < end - self.end:
            missing = set(range(self.end, end)) - bodies.keys()
            self.whole_from = max(missing) + 1
        self.end = end

    def matches(self, lookup: Lookup) -> Mask:
        """Return the mask of the messages with any term of a lookup."""
        return self._matches(lookup) << self.first

    def unindexed(self, lookup: Lookup, end: int) -> Mask:
        """Return the mask of the messages before `end` that match, and that the index lacks."""
        first = self._first_unindexed(end)
        return self._between(lookup, first, end) << first

    def unindexed_ordinals(self, lookup: Lookup, end: int) -> list[int]:
        """Return the ordinals of the same messages; in a long session, faster than their mask."""
        return self.ordinals(lookup, self._first_unindexed(end), end)

    def ordinals(self, lookup: Lookup, first: int, end: int) -> list[int]:
        """Return the ordinals of the matching messages from one here to before another."""
        return [first + place for place in ordinals_in(self._between(lookup, first, end))]

    def _first_unindexed(self, end: int) -> int:
        # Words of messages in the index are kept here as well, but the index answers for these.
        return max(self._indexed, end - UNINDEXED_MESSAGES)

    def _between(self, lookup: Lookup, first: int, end: int) -> Mask:
        """Return the mask of matching messages from `first`, which is its bit 0, to `end`."""
        if first >= end:
            return 0
        return self._matches(lookup) >> first - self.first & (1 << end - first) - 1

    def _matches(self, lookup: Lookup) -> Mask:
        """Return the mask of all matching messages, whose bit 0 is the first message here."""
        found = 0
        for text, is_prefix in lookup:
            if not is_prefix:
                found |= self._holders.get(text, 0)
                continue
            words = self._in_order
            # Only now: many questions need no words of the newest messages.
            if len(words) < len(self._holders):
                words += list(self._holders)[len(words) :]
                words.sort()
            at = bisect_left(words, text)
            while at < len(words) and words[at].startswith(text):
                found |= self._holders[words[at]]
                at += 1
        return found

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
        self._in_order = []
        self.first, self.whole_from = first, max(first, self.whole_from)


@dataclass(slots=True)
class NewestMarks:
    """The marked lines of the messages with ordinals from `first` to before `end`, by ordinals.

    Those of the newest messages that are `unindexed` were marked here. Mutable: lines of newer
    messages are added, and those of older ones leave.
    """

    first: int = 0
    end: int = 0
    lines: Mapping[int, Sequence[MarkedLine]] = field(default_factory=dict)
    unindexed: Mapping[int, Sequence[MarkedLine]] = field(default_factory=dict)

    @property
    def weight(self) -> int:
        """About how many bytes it takes."""
        kept = chain(self.lines.values(), self.unindexed.values())
        return LINE_BYTES * sum(map(len, kept))


@dataclass(slots=True)
class SessionOrder:
    """The messages of a session in order: positions, sizes, who spoke, and which are the agent's.

    `is_own` has a byte for each message, 1 for those of the agent itself.
    `frequent` has lookups that matched more than a number of messages before a position: they
    always will. `known` has the masks of lookups, each with the number of the first messages that
    it is known for, `places` and `newest_places` the same of a long session, and `newest` and
    `marks` the words and the marked lines of the newest messages, which are too many for the event
    loop's thread if it `has_many_lines`. `new_bodies` are of the messages from `new_from` on, which
    were read last, without long ones; of many, none. Mutable: messages that arrived since are
    appended. `changes` are counters of the session that retractions and moved events change; others
    make it void.
    """

    changes: tuple[int, ...] = ()
    positions: "array[int]" = field(default_factory=lambda: array("q"))
    tokens: "array[int]" = field(default_factory=lambda: array("q"))
    speakers: dict[str, Speaker] = field(default_factory=dict)
    is_own: bytearray = field(default_factory=bytearray)
    frequent: dict[Lookup, MoreThan] = field(default_factory=dict)
    known: dict[Lookup, KnownMask] = field(default_factory=dict)
    places: dict[Lookup, KnownPlaces] = field(default_factory=dict)
    newest_places: dict[Lookup, KnownPlaces] = field(default_factory=dict)
    newest: NewestWords = field(default_factory=NewestWords)
    marks: NewestMarks = field(default_factory=NewestMarks)
    has_many_lines: bool = False
    new_from: int = 0
    new_bodies: dict[int, str] = field(default_factory=dict)

    @property
    def weight(self) -> int:
        """About how many bytes it takes."""
        number = len(self.positions)
        of_masks = (LOOKUP_BYTES + number // 8) * len(self.known)
        places = [*self.places.values(), *self.newest_places.values()]
        of_places = LOOKUP_BYTES * len(places) + 8 * sum(map(len, map(_POSITIONS, places)))
        of_lookups = LOOKUP_BYTES * len(self.frequent) + of_masks + of_places
        said = sum([len(of.messages) + len(of.firsts) for of in self.speakers.values()])
        of_speakers = LOOKUP_BYTES * len(self.speakers) + SAID_BYTES * said
        return 24 * number + of_lookups + of_speakers + self.newest.weight + self.marks.weight

    def add(
        self, position: int, tokens: int, characters: int | None, named_body: str | None, role: str
    ) -> None:
        """Append a message; `named_body` is its JSON if it may name a speaker.

        Images count by their tokens, but only the text is recalled: of a message without calls, its
        `characters` limit the size.
        """
        name = speaker_name(json.loads(named_body)) if named_body else None
        for word in islice(runs(normalize(name)), MOST_NAME_WORDS) if name else ():
            speaker = self.speakers.get(word)
            if speaker is None and len(self.speakers) < MOST_SPEAKERS:
                speaker = self.speakers[word] = Speaker(set(), {})
            if speaker is not None:
                speaker.add(len(self.positions))
        self.is_own.append(role == "assistant")
        self.positions.append(position)
        if characters is not None:
            tokens = min(tokens, characters // CHARACTERS_PER_TOKEN + MESSAGE_TOKENS)
        self.tokens.append(tokens)

    def ordinals(self, positions: Sequence[int]) -> list[int]:
        """Return the ordinals of these positions, of those that are in the order."""
        return ordinals_of(positions, self.positions)


_speaks = (messages.c.role == "user") | (messages.c.role == "assistant")
_is_recallable = (_speaks | (messages.c.role == "tool")) & ~messages.c.is_copy
_may_name = _speaks & messages.c.calls.is_(None)
# The parameters of `SessionOrder.add`, in order, and the body of a message of `most` characters.
ORDER = (
    select(
        messages.c.position,
        case((_is_recallable, messages.c.tokens - messages.c.reasoning_tokens), else_=0),
        case((messages.c.calls.is_(None), messages.c.characters)),
        case((_may_name & messages.c.body.contains('"name"'), messages.c.body)),
        messages.c.role,
        case((messages.c.characters <= bindparam("most", type_=Integer), messages.c.body)),
    )
    .where(of_messages)
    .order_by(messages.c.position)
)
_ORDER = Prepared(
    ORDER.where(messages.c.position > bindparam("after", type_=BigInteger)),
    ("of_sid", "after", "most"),
)
Rows = Sequence[Sequence[Any]]


def read_newest(
    connection: SupportsStatements, sid: int, order: SessionOrder, total: int, newest: Rows
) -> None:
    """Append to `order` the messages after its last one, if its session has `total` messages.

    `newest` are rows that were read already, perhaps not all.
    """
    last = order.positions[-1] if order.positions else -1
    order.new_from = len(order.positions)
    number = total - order.new_from
    # If they are few, their words are needed next.
    most = UNINDEXED_CHARACTERS if number <= MOST_NEWEST else -1
    order.new_bodies = {}
    rows: Rows = [row for row in newest if row[0] > last]
    if len(rows) != number:
        rows = _ORDER.rows(connection, sid, last, most)
    for ordinal, (*facts, body) in enumerate(rows, order.new_from):
        order.add(*facts)
        if body is not None:
            order.new_bodies[ordinal] = body


_BODIES = Prepared(
    select(messages.c.position, messages.c.body)
    .where(in_range(messages), messages.c.characters <= UNINDEXED_CHARACTERS)
    .order_by(messages.c.position),
    ("of_sid", "first", "last"),
)


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


_MARKED = Prepared(
    select(marked_lines.c.position, marked_lines.c.lines)
    .where(in_range(marked_lines))
    .order_by(marked_lines.c.position),
    ("of_sid", "first", "last"),
)


def marks_before(
    connection: SupportsStatements, sid: int, order: SessionOrder, indexed: int, end: int, most: int
) -> Mapping[int, Sequence[MarkedLine]]:
    """Return the marked lines of the `most` messages before the ordinal `end`, by ordinals.

    Copies are left out, and what is never recalled. Lines are marked as messages are indexed, so
    those of the messages before `indexed` are kept, of the newest ones only.
    """
    first, known = max(0, end - most), order.marks
    if known.first < end and first < known.end:
        held = {at: lines for at, lines in known.lines.items() if first <= at < end}
        # Older ones, too: a window that shows more messages asks for the lines of more.
        older = _read_marks(connection, sid, order, first, known.first)
        found = older | held | _read_marks(connection, sid, order, known.end, end)
    else:
        found = _read_marks(connection, sid, order, first, end)
    if known.end < end:
        known.first, known.end = first, min(indexed, end)
        known.lines = {at: lines for at, lines in found.items() if at < indexed}
    return found | _marked_here(connection, sid, order, range(max(first, indexed), end), found)


def _marked_here(
    connection: SupportsStatements, sid: int, order: SessionOrder, unindexed: range,
    marked: Collection[int],
) -> dict[int, Sequence[MarkedLine]]:  # fmt: skip
    """Mark the newest messages that the index lacks, but no long one, and keep their lines.

    They say best which names the next step needs. No tokenizer counts here: bounds stand for the
    tokens of the few lines that are quoted.
    """
    newest = [at for at in unindexed[-MOST_MARKED_HERE:] if at not in marked and order.tokens[at]]
    known = order.marks.unindexed
    lines = {at: known[at] for at in newest if at in known}
    if missing := [at for at in newest if at not in known]:
        bodies = read_bodies(connection, sid, order.positions, missing[0], missing[-1] + 1)
        for at in missing:
            marks = mark_lines(json.loads(bodies[at]), token_upper_bound) if at in bodies else None
            lines[at] = read_marks(marks or b"")
    order.marks.unindexed = lines
    return lines


def _read_marks(
    connection: SupportsStatements, sid: int, order: SessionOrder, first: int, end: int
) -> dict[int, Sequence[MarkedLine]]:
    """Read the marked lines of the messages with ordinals from `first` to before `end`."""
    newest = order.positions[first:end]
    rows = _MARKED.rows(connection, sid, newest[0], newest[-1]) if newest else ()
    ordinals = dict(zip(newest, range(first, end), strict=True)) if newest else {}
    return {
        ordinals[position]: read_marks(lines)
        for position, lines in rows
        if position in ordinals and order.tokens[ordinals[position]]
    }
