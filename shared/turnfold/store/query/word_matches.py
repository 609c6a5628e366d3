"""Find the messages of a session that match lookups, in the index of either database.

A query server remembers those of many lookups, in short sessions as masks: words recur between
questions, and the index is read for newer messages only.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from operator import neg
from typing import Any, TypeVar

from sqlalchemy import (
    BigInteger,
    Integer,
    Text,
    bindparam,
    column,
    func,
    literal_column,
    select,
    table,
    text,
)

from turnfold.contracts.json_values import read_json
from turnfold.core.recall.mask_ranking import MOST_MASKED, Mask, mask_of, newest_in
from turnfold.core.recall.ranking import MOST_PLACES, NEWEST_PLACES, Matches, ordinals_of
from turnfold.core.text.search import Lookup, Term
from turnfold.store.database.inline_reader import WouldBlock
from turnfold.store.database.schema import word_index
from turnfold.store.database.sqlite_files import VOCABULARY
from turnfold.store.database.statements import Prepared, SupportsStatements
from turnfold.store.database.word_segments import (
    SegmentCaches,
    StoredSegment,
    find_terms,
    rare_terms,
    read_index,
)
from turnfold.store.ingest.word_index.search_index import (
    IS_IN_SQLITE,
    REMOVED,
    fts5_term,
    of_session,
)
from turnfold.store.query.session_order import KnownMask, KnownPlaces, MoreThan, SessionOrder

BEFORE_ALL = -1
"""A position before every message."""
MOST_FORMS = 32
"""If more words than this have a beginning, FTS5 reads all places of them."""

_after, _until = bindparam("after", type_=BigInteger), bindparam("until", type_=BigInteger)
_most = bindparam("most", type_=Integer)
_falling = (
    select(word_index.c.rowid)
    .where(
        text("word_index MATCH :asked"),
        word_index.c.rowid > _after,
        word_index.c.rowid < _until,
        IS_IN_SQLITE,
    )
    .order_by(word_index.c.rowid.desc())
)
_MATCHES = Prepared(_falling.limit(_most), ("asked", "after", "until", "most"))
_BEYOND = Prepared(
    _falling.limit(literal_column("1")).offset(_most), ("asked", "after", "until", "most")
)
"""A row only if there are more than so many: FTS5 counts in a third of the time of reading them."""
_vocabulary = table(VOCABULARY, column("term", Text), column("doc", BigInteger), schema="temp")
_TERM_FROM = Prepared(
    select(_vocabulary.c.term)
    .where(_vocabulary.c.term >= bindparam("first", type_=Text))
    .limit(literal_column("1")),
    ("first",),
)
_held = (
    select(_vocabulary.c.doc)
    .where(
        _vocabulary.c.term.between(bindparam("first", type_=Text), bindparam("last", type_=Text)),
        ~REMOVED.exists() | _vocabulary.c.doc.not_in(REMOVED),
    )
    .limit(_most)
    .subquery()
)
_HELD = Prepared(select(func.json_group_array(_held.c.doc)), ("first", "last", "most"))
"""The messages of each word from one to another: in one text, as rows take twice as long, and up to
a limit, which spares frequent words. If none is to be removed, that is asked once, not per row."""
_LAST_CHARACTER = "\U0010ffff"

MOST_KNOWN = 1_000
"""The most lookups of a session whose masks are known, and that are known to match too many."""
_UNKNOWN, _NO_PLACES = KnownMask(), KnownPlaces()
MOST_KNOWN_PLACES = 250
"""The same for lookups of a long session, whose places take up to 8 KB each."""
Known = TypeVar("Known", KnownMask, KnownPlaces)


class WordMatches:
    """The word index of a session with so many `messages`, of those before the position `until`."""

    def __init__(
        self,
        connection: SupportsStatements,
        sid: int,
        until: int,
        *,
        messages: int,
        caches: SegmentCaches,
        listed: Sequence[Sequence[Any]] | None = None,
        is_inline: bool = False,
    ) -> None:
        self._connection, self._sid, self.until = connection, sid, until
        # In shorter sessions, FTS5 finds words by their beginning faster than we find the words.
        self._is_long, self._is_inline = messages > MOST_MASKED, is_inline
        self._caches, self._listed = caches, listed
        self._dialect = connection.dialect.name

    def rare(
        self, lookups: Sequence[Lookup], most: int, after: Sequence[int] | None = None
    ) -> list[list[int] | None]:
        """Return for each lookup the falling positions with any of its terms; None of too many.

        Of each lookup, positions up to that of `after` are left out. Those of more than `most`
        messages are not read: FTS5 takes long for them.
        """
        firsts = after or [BEFORE_ALL] * len(lookups)
        if self._dialect == "sqlite":
            read = self._rare_of_long if self._is_long else self._rare_rows
            return [read(lookup, most, at) for lookup, at in zip(lookups, firsts, strict=True)]
        return self._rare_in_segments(lookups, most, firsts)

    def _rare_in_segments(
        self, lookups: Sequence[Lookup], most: int, after: Sequence[int]
    ) -> list[list[int] | None]:
        """Read the positions of lookups from PostgreSQL's segments."""
        oldest = min(after, default=BEFORE_ALL)
        newer = [stored for stored in self._segments if stored.header.positions[-1] > oldest]
        terms = {term for lookup in lookups for term in lookup}
        held = rare_terms(
            self._connection, self._sid, newer, terms, until=self.until, most=most,
            kept=self._caches.pieces,
        )  # fmt: skip
        return [
            _rare_of([held[term] for term in lookup], most, first)
            for lookup, first in zip(lookups, after, strict=True)
        ]

    def newest(self, lookups: Sequence[Lookup], number: int) -> list[list[int]]:
        """Return so many of the newest positions of each lookup, falling."""
        if self._dialect == "sqlite":
            write = self._by_words if self._is_long else self._fts5
            return [self._rows(write(lookup), number) for lookup in lookups]
        terms = {term for lookup in lookups for term in lookup}
        held = find_terms(
            self._connection, self._sid, self._segments, terms, until=self.until, newest=number,
            kept=self._caches.pieces,
        )  # fmt: skip
        return [
            sorted(set().union(*(held[term] for term in lookup)), reverse=True)[:number]
            for lookup in lookups
        ]

    @cached_property
    def _segments(self) -> list[StoredSegment]:
        return read_index(self._connection, self._sid, self._caches.headers, self._listed)

    def _rare_rows(self, lookup: Lookup, most: int, after: int) -> list[int] | None:
        """Read the positions of a lookup, in a short session on SQLite."""
        found = self._rows(self._fts5(lookup), most + 1, after)
        return found if len(found) <= most else None

    def _rare_of_long(self, lookup: Lookup, most: int, after: int) -> list[int] | None:
        """Read the positions of a lookup, in a long session on SQLite."""
        of_terms: list[list[int]] = []
        is_whole = True
        for term in lookup:
            first = of_session(self._sid, term.text)
            last = first + _LAST_CHARACTER if term.is_prefix else first
            ((listed,),) = _HELD.rows(self._connection, first, last, most + 1)
            held = read_json(listed)
            is_whole &= len(held) <= most
            # Those of one word are sorted already, which a set would undo.
            rising = sorted(held if len(set(held)) == len(held) else set(held))
            of_terms.append(rising[: bisect_left(rising, self.until)])
        found = _rare_of(of_terms, most, after)
        if is_whole or found is None:
            return found
        # A message holds several words that begin so, or is newer than what is searched.
        asked = self._by_words(lookup)
        if _BEYOND.rows(self._connection, asked, after, self.until, most):
            return None
        return self._rows(asked, most, after)

    def _rows(self, asked: str, number: int, after: int = BEFORE_ALL) -> list[int]:
        if not asked:
            return []
        rows = _MATCHES.rows(self._connection, asked, after, self.until, number)
        return [position for (position,) in rows]

    def _fts5(self, lookup: Lookup) -> str:
        return " OR ".join([fts5_term(self._sid, term) for term in lookup])

    def _by_words(self, lookup: Lookup) -> str:
        """Return a lookup of SQLite with the words of the session for each beginning.

        FTS5 reads all places of words with that beginning, but only the requested ones of a word.
        In the event loop's thread, a beginning with too many words is refused by `WouldBlock`.
        """
        terms: list[Term] = []
        for term in lookup:
            words = list(self._words(term.text)) if term.is_prefix else [term]
            if self._is_inline and len(words) > MOST_FORMS:
                raise WouldBlock
            terms += words if len(words) <= MOST_FORMS else [term]
        return self._fts5(tuple(terms))

    def _words(self, beginning: str) -> Iterator[Term]:
        """Yield the terms of the session that begin so, one more than `MOST_FORMS` at most."""
        session = len(of_session(self._sid, ""))
        first = asked = of_session(self._sid, beginning)
        for _ in range(MOST_FORMS + 1):
            rows = _TERM_FROM.rows(self._connection, first)
            if not rows or not rows[0][0].startswith(asked):
                return
            term: str = rows[0][0]
            yield Term(term[session:])
            # The ASCII of terms is letters and digits: no other one stands before this.
            first = f"{term}0"


def _rare_of(of_terms: Sequence[list[int] | None], most: int, after: int) -> list[int] | None:
    """Join the positions of the terms of a lookup."""
    if None in of_terms:
        return None
    held = [positions for positions in of_terms if positions]
    found = held[0] if len(held) == 1 else sorted(set().union(*held))
    newest = found[bisect_right(found, after) :][::-1]
    return newest if len(newest) <= most else None


def _joined(known: KnownPlaces, newer: Sequence[int], messages: int) -> KnownPlaces:
    """Add the places of newer messages, which are then known of so many."""
    held = known.positions
    if not newer:
        return KnownPlaces(held, messages)
    # After a late message, the index holds later ones than it was known for.
    is_apart = not held or newer[-1] > held[0]
    joined = [*newer, *held] if is_apart else sorted({*newer, *held}, reverse=True)
    return KnownPlaces(array("q", joined), messages)


def _keep(kept: dict[Lookup, Known], known: Mapping[Lookup, Known], most: int) -> None:
    """Put lookups back as used most recently, and forget others."""
    kept.update(known)
    for lookup in list(islice(kept, max(0, len(kept) - most))):
        del kept[lookup]


@dataclass(frozen=True, slots=True)
class SessionLookups:
    """The lookups of a session: in its index, and in the terms of newer messages.

    The index holds every message before the ordinal `indexed`; those before `end` are searched.
    """

    words: WordMatches
    order: SessionOrder
    indexed: int
    end: int

    def found(self, lookups: Sequence[Lookup]) -> list[Matches]:
        """Return the falling positions of each lookup, none if it matches too many messages.

        If no lookup is rare enough, return the newest positions of each.
        """
        kept, asked = self.order.places, self._not_frequent(lookups, MOST_PLACES)
        known = self._taken(kept, _NO_PLACES, asked)
        for lookup, newer in self._newer(known, MOST_PLACES).items():
            known[lookup] = _joined(known[lookup], newer, self.indexed)
        found: dict[Lookup, Matches] = {}
        for lookup, (positions, _) in known.items():
            together = self._with_unindexed(lookup, positions)
            found[lookup] = together if len(together) <= MOST_PLACES else ()
        rare = {at: held for at, held in known.items() if len(held.positions) <= MOST_PLACES}
        _keep(kept, rare, MOST_KNOWN_PLACES)
        if any(found.values()):
            return [found.get(lookup, ()) for lookup in lookups]
        return self._newest(lookups)

    def found_masks(self, lookups: Sequence[Lookup]) -> list[Mask]:
        """Return the same as masks, of a session with at most `MOST_MASKED` messages."""
        # Also of frequent words: once read, only newer messages are looked up.
        found = self.rare_masks(lookups, MOST_MASKED)
        rare = [mask if mask.bit_count() <= MOST_PLACES else 0 for mask in found]
        return rare if any(rare) else [newest_in(mask, NEWEST_PLACES) for mask in found]

    def rare_masks(self, lookups: Sequence[Lookup], most: int) -> list[Mask]:
        """Return the masks of lookups, empty for one with more than `most` matches."""
        masks = [
            0 if indexed is None else indexed | self.order.newest.unindexed(lookup, self.end)
            for lookup, indexed in zip(lookups, self._masks(lookups, most), strict=True)
        ]
        return [mask if mask.bit_count() <= most else 0 for mask in masks]

    def _masks(self, lookups: Sequence[Lookup], most: int) -> list[Mask | None]:
        """Return the masks of lookups in the index, None for one with more than `most` matches."""
        known = self._taken(self.order.known, _UNKNOWN, self._not_frequent(lookups, most))
        found = self._newer(known, most)
        # A list is searched in two thirds of the time: an array makes a number at each step.
        listed = self.order.positions.tolist() if found else []
        for lookup, places in found.items():
            more = mask_of(ordinals_of(places, listed), len(listed)) if places else 0
            known[lookup] = KnownMask(known[lookup].mask | more, self.indexed)
        _keep(self.order.known, known, MOST_KNOWN)
        # A known mask may reach further: a window of the past ends earlier than one of now.
        before = (1 << self.end) - 1
        masks = [known[lookup].mask & before if lookup in known else None for lookup in lookups]
        return [None if mask is None or mask.bit_count() > most else mask for mask in masks]

    def _taken(
        self, kept: dict[Lookup, Known], unknown: Known, lookups: Sequence[Lookup]
    ) -> dict[Lookup, Known]:
        """Take out what is known of lookups, brought up to date by the newest words if possible."""
        newest, indexed = self.order.newest, self.indexed
        known = {lookup: kept.pop(lookup, unknown) for lookup in lookups}
        for lookup, held in known.items():
            # A long message before `whole_from` may match, and its words are not here.
            if not 0 < held.messages < indexed or held.messages < newest.whole_from:
                continue
            if isinstance(held, KnownMask):
                mask = held.mask | newest.matches(lookup) & (1 << indexed) - 1
                known[lookup] = KnownMask(mask, indexed)
            else:
                more = newest.ordinals(lookup, held.messages, indexed)
                newer = [self.order.positions[ordinal] for ordinal in reversed(more)]
                known[lookup] = _joined(held, newer, indexed)
        return known

    def _newer(
        self, known: dict[Lookup, KnownMask] | dict[Lookup, KnownPlaces], most: int
    ) -> Mapping[Lookup, Sequence[int]]:
        """Look up what is not known of messages in the index; remember which match too many."""
        new = [lookup for lookup, held in known.items() if not held.messages]
        behind = [lookup for lookup, held in known.items() if 0 < held.messages < self.indexed]
        after = [self.order.positions[known[lookup].messages - 1] for lookup in behind]
        # By themselves, because PostgreSQL reads all segments for lookups that are new.
        found = [*self.words.rare(new, most), *self.words.rare(behind, most, after)]
        newer = dict(zip([*new, *behind], found, strict=True))
        for lookup in [lookup for lookup, places in newer.items() if places is None]:
            if len(self.order.frequent) >= MOST_KNOWN:
                self.order.frequent.clear()
            self.order.frequent[lookup] = MoreThan(most, self.words.until)
            del known[lookup]
        return {lookup: places for lookup, places in newer.items() if places is not None}

    def _not_frequent(self, lookups: Sequence[Lookup], most: int) -> list[Lookup]:
        """Return the lookups that are not known to match more than `most` messages."""
        frequent, until = self.order.frequent, self.words.until
        return [
            lookup
            for lookup in lookups
            if (more := frequent.get(lookup)) is None or more.number < most or more.until > until
        ]

    def _newest(self, lookups: Sequence[Lookup]) -> list[Matches]:
        """Return the newest positions of each lookup."""
        kept = self.order.newest_places
        known = self._taken(kept, _NO_PLACES, lookups)
        # A window of the past needs as many before its end. Before a late first message, nothing is
        # indexed in order, but the index holds later messages.
        missing = [
            lookup
            for lookup, (held, messages) in known.items()
            if not messages or messages != self.indexed or (held and held[0] >= self.words.until)
        ]
        found = self.words.newest(missing, NEWEST_PLACES) if missing else ()
        for lookup, positions in zip(missing, found, strict=True):
            known[lookup] = KnownPlaces(array("q", positions), self.indexed)
        known = {at: KnownPlaces(held[:NEWEST_PLACES], to) for at, (held, to) in known.items()}
        _keep(kept, known, MOST_KNOWN_PLACES)
        matches = [self._with_unindexed(lookup, known[lookup].positions) for lookup in lookups]
        return [positions[:NEWEST_PLACES] for positions in matches]

    def _with_unindexed(self, lookup: Lookup, known: "array[int]") -> Matches:
        """Add positions of messages that the index lacks."""
        # A list, because an array makes a number at each step, and all are sought more than once.
        positions = known.tolist()
        if positions and positions[0] >= self.words.until:
            # What is known may reach further: a window of the past ends earlier than one of now.
            positions = positions[bisect_right(positions, -self.words.until, key=neg) :]
        more = self.order.newest.unindexed_ordinals(lookup, self.end)
        if not more:
            return positions
        held = self.order.positions
        return sorted({*positions, *[held[at] for at in more]}, reverse=True)
