"""Search all messages of a session for words, characters and exact values."""

import asyncio
import json
from collections.abc import Iterator, Sequence

from turnfold.contracts.history_requests import SearchRequest
from turnfold.core.text.search import (
    BEGINNINGS,
    Lookup,
    Relevance,
    SearchHit,
    SearchQuery,
    ranked,
    ranked_by_any,
    searchable,
)
from turnfold.errors import BadRequest
from turnfold.messages import SessionKey, State
from turnfold.operations.query.history import original_json
from turnfold.ports.query import (
    OriginalMessage,
)
from turnfold.ports.search import Scope, SearchStore

ANSWER_CHARACTERS = 2_000_000
"""An answer with several hits ends at this size, so that it fits into one NATS message."""
PART_CHARACTERS = 200_000
"""The number of characters that are graded without a pause."""


async def search(key: SessionKey, request: SearchRequest, *, store: SearchStore) -> str:
    """Return the hits of a query as JSON text."""
    search = _Search(key, question_of(request.q), scope_of(request), store)
    hits: list[str] = []
    left = ANSWER_CHARACTERS
    best = await search.best(request.limit)
    for original, score in best:
        hit = original_json(original, score)
        left -= len(hit)
        # At least one, or a very long message could not be found.
        if hits and left < 0:
            break
        hits.append(hit)
    is_partial = search.is_partial or len(hits) < len(best)
    return f'{{"hits": [{", ".join(hits)}], "is_partial": {json.dumps(is_partial)}}}'


async def found(
    key: SessionKey, question: SearchQuery, *, scope: Scope, limit: int, store: SearchStore
) -> list[tuple[OriginalMessage, float]]:
    """Return the messages that match a query, best first, with their scores.

    Messages with all words come first, then those with words that begin like them, then those with
    some of them. Messages that are not indexed yet are read in full, so that none is missed.
    """
    return await _Search(key, question, scope, store).best(limit)


def scope_of(request: SearchRequest) -> Scope:
    """Return the messages that a request searches."""
    return Scope(
        state=None if request.state is None else State(request.state),
        role=request.role,
        after_position=request.after_position,
        before_position=request.before_position,
    )


def question_of(q: str) -> SearchQuery:
    """Parse a query.

    Raises:
        BadRequest: it contains no word.
    """
    question = SearchQuery.of(q)
    if not question.words:
        raise BadRequest("q: contains no word; search for a word, a path, an id or a number")
    return question


class _Search:
    """The messages that one search has read and graded."""

    def __init__(
        self, key: SessionKey, question: SearchQuery, scope: Scope, store: SearchStore
    ) -> None:
        self._key = key
        self._question = question
        self._scope = scope
        self._store = store
        self.originals: dict[int, OriginalMessage] = {}
        self.texts: dict[int, str] = {}
        self.graded: dict[int, Relevance] = {}
        self.is_partial = False

    async def best(self, limit: int) -> list[tuple[OriginalMessage, float]]:
        """Return the matching messages, best first, with their scores."""
        # First waiting messages, then the index: a message that is indexed in between is found
        # twice, and in the other order not at all.
        await self.read_unindexed()
        await self.look(self._question.lookups())
        if self.whole_words < limit:
            await self.look(self._question.beginnings())
        best: Sequence[SearchHit] = ranked(self._question, self.graded)
        if not best and len(self._question.words) > 1:
            await self.look(self._question.any_word())
            best = await asyncio.to_thread(ranked_by_any, self._question, self.texts)
        return [(self.originals[hit.position], hit.score) for hit in best[:limit]]

    @property
    def whole_words(self) -> int:
        """The number of messages that contain all words of the query."""
        return sum(grade.tier > BEGINNINGS for grade in self.graded.values())

    async def read_unindexed(self) -> None:
        """Read messages that the index may lack; keep those with a word of the query."""
        after_position = -1
        while page := await self._store.unindexed(
            self._key, scope=self._scope, after_position=after_position
        ):
            await self._take(page)
            after_position = page[-1].position

    async def look(self, lookups: Sequence[Lookup]) -> None:
        """Read messages from the index."""
        if not lookups:
            return
        candidates = await self._store.candidates(self._key, lookups, scope=self._scope)
        self.is_partial |= candidates.is_partial
        await self._take(candidates.originals)

    async def _take(self, page: Sequence[OriginalMessage]) -> None:
        new = [candidate for candidate in page if candidate.position not in self.originals]
        # Part by part: a cancelled search finishes only the current part.
        for part in _parts(new):
            for original, text, grade in await asyncio.to_thread(_graded, self._question, part):
                self.originals[original.position] = original
                self.texts[original.position] = text
                if grade is not None:
                    self.graded[original.position] = grade


def _parts(originals: Sequence[OriginalMessage]) -> Iterator[Sequence[OriginalMessage]]:
    """Split messages into parts of about PART_CHARACTERS, or of one longer message."""
    start, characters = 0, 0
    for end, original in enumerate(originals, 1):
        characters += len(original.body)
        if characters >= PART_CHARACTERS:
            yield originals[start:end]
            start, characters = end, 0
    if start < len(originals):
        yield originals[start:]


def _graded(
    question: SearchQuery, originals: Sequence[OriginalMessage]
) -> list[tuple[OriginalMessage, str, Relevance | None]]:
    graded = []
    for original in originals:
        text = searchable(json.loads(original.body))
        grade = question.grade(text)
        if grade is not None or question.holds(text):
            graded.append((original, text, grade))
    return graded
