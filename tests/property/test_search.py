"""Searching with an index finds what reading every message finds, in the same order with the same scores."""

import asyncio
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.store_fixtures import (
    KEY,
    RAM,
    SMALL,
    new_sqlite,
    sql_stores,
    tightened,
    turn,
    user,
)
from turnfold.core.text.search import Lookup, SearchQuery, searchable
from turnfold.core.text.words import normalize, terms
from turnfold.messages import AgentId, SessionId, SessionKey
from turnfold.operations.query.search import found
from turnfold.ports.ingest import DecodedEvent
from turnfold.ports.query import (
    HistoryStore,
    OriginalMessage,
)
from turnfold.ports.search import Candidates, Scope, SearchStore

PIECES = (
    "amber", "Amber", "ambers", "pendant", "dé", "straße", "STRASSE", "ﬁnd", "a", "7", "17.5 kg", "3 days", "5月3日", "$5", "#118", "50%", "v2.4.1",
    "琥珀色的吊坠", "吊坠", "珀", "蜃気楼を見ました", "カタカナ", "ｶﾀｶﾅ", "서울에서", "서울", "𠮷野家", "в доме", "दिल्ली", "फली", "ฉันแพ้อาหาร", "อาหาร", "ั", "İstanbul", "ısparta",
    "/srv/zephyr-7719/config.toml", "zephyr", "config.toml:12", "src\\new\\file.py", "a\\nb", "https://example.org/a/b?c=d&e=f#g", "example.org",
    "8b8a5eb0c4d2", "8b8a5", "user_id", "TF-118", "x" * 70, "x" * 64, "\0", "\ud800", "\u200b", "\n", ",", "(", '"', "'", "*", "AND", "NEAR(", ":",
)  # fmt: skip
KEYS = (KEY, SessionKey(AgentId("bob"), SessionId("s-1")))
TEXTS = st.lists(st.sampled_from(PIECES) | st.text(max_size=4), max_size=6).flatmap(
    lambda pieces: st.sampled_from([" ".join(pieces), "".join(pieces), "\n".join(pieces)])
)


class Step(NamedTuple):
    """Something that happens: events come (at these sequences), or some messages are indexed, or the store is opened anew."""

    arrivals: tuple[DecodedEvent, ...] = ()
    slices: int = 0
    is_killed: bool = False


@st.composite
def histories(draw: st.DrawFn) -> list[Step]:
    """Events of two sessions in an order other than that of the stream, some twice, with indexing between."""
    seqs = draw(st.permutations(range(20, draw(st.integers(20, 31)) + 1)))
    steps: list[Step] = []
    for seq in seqs:
        messages = [user(text) for text in draw(st.lists(TEXTS, min_size=1, max_size=3))]
        event = turn(seq, *messages, key=draw(st.sampled_from(KEYS)))
        steps.append(Step((event,)))
        if draw(st.integers(0, 5)) == 0:
            # It comes again: as it was, later in the stream, or earlier, where it stands from now on.
            steps.append(
                Step((event._replace(stream_seq=seq + draw(st.sampled_from((0, 20, -19)))),))
            )
        if draw(st.integers(0, 2)) == 0:
            steps.append(Step(slices=draw(st.integers(1, 3)), is_killed=draw(st.booleans())))
    return steps


class ReadEverything:
    """A search without an index: it reads every message of the session from the history."""

    def __init__(self, history: HistoryStore) -> None:
        self._history = history

    async def unindexed(
        self, key: SessionKey, *, scope: Scope, after_position: int
    ) -> Sequence[OriginalMessage]:
        assert scope == Scope()
        return await self._history.page(key, after_position=after_position, limit=100)

    async def candidates(
        self, key: SessionKey, lookups: Sequence[Lookup], *, scope: Scope
    ) -> Candidates:
        del key, lookups, scope
        return Candidates(())


async def answers(search: SearchStore, query: str, limit: int) -> list[tuple[str, float]]:
    """Return the ids that a search finds in one session, with their scores."""
    hits = await found(KEY, SearchQuery.of(query), scope=Scope(), limit=limit, store=search)
    return [(original.message_id, score) for original, score in hits]


async def search_with_and_without_index(steps: list[Step], queries: list[str]) -> None:
    """Apply the steps to a database, and compare its index with reading every message."""
    policy = tightened(SMALL, max_live_messages=1_000)
    with tempfile.TemporaryDirectory(dir=RAM) as folder:
        url = new_sqlite(Path(folder))
        pending = [Step((turn(100, user("the last word")),)), *steps]
        while pending:
            async with sql_stores(url, policy) as sqlite:
                while pending:
                    step = pending.pop(0)
                    for _ in range(step.slices):
                        await sqlite.index.index_some()
                    if step.arrivals:
                        await sqlite.ingest(*step.arrivals)
                    if step.is_killed:
                        break
                everything = ReadEverything(sqlite.history)
                for query in [query for query in queries if SearchQuery.of(query).words]:
                    for limit in (2, 20):
                        expected = await answers(everything, query, limit)
                        assert await answers(sqlite.search, query, limit) == expected, query


@pytest.mark.proves("F1", "L2", "L3")
@given(histories(), st.lists(TEXTS, min_size=1, max_size=4))
def test_an_index_finds_what_reading_everything_finds(
    steps: list[Step], queries: list[str]
) -> None:
    asyncio.run(search_with_and_without_index(steps, queries))


@pytest.mark.proves("F1")
@given(TEXTS, st.data())
def test_what_answers_has_the_terms_that_are_looked_up(text: str, data: st.DataObject) -> None:
    said = normalize(text)
    query = data.draw(TEXTS | st.just(text))
    question = SearchQuery.of(query)
    held = terms(said) or frozenset()
    grade = question.grade(said) if question.words else None

    if grade is not None:
        lookups = (
            question.lookups()[-1]
            if grade.tier
            else (question.beginnings() or question.lookups())[-1]
        )
        for term in lookups:
            assert any(
                one == term.text or (term.is_prefix and one.startswith(term.text)) for one in held
            ), (term, query)


@pytest.mark.proves("F1")
@given(st.text("abyz019 \n._-/€—_,:", max_size=80))
def test_a_text_of_plain_letters_has_the_terms_it_has_beside_others(text: str) -> None:
    beside = terms(f"{text}\né") or frozenset()

    assert terms(text) == beside - {"xé"}


@pytest.mark.proves("F1")
@given(
    st.recursive(
        st.none() | st.integers() | TEXTS,
        lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner),
        max_leaves=5,
    )
)
def test_a_message_of_any_shape_can_be_searched(content: object) -> None:
    call = {
        "id": "c",
        "type": "function",
        "function": {"name": "f", "arguments": json.dumps(content)},
    }

    said = searchable(
        {
            "role": "assistant",
            "content": content,
            "tool_calls": [call, content],
            "function_call": content,
        }
    )

    assert all(
        term[0] in "xy" and not set(term) & set("\"'\\*&|!<:() \0") for term in terms(said) or ()
    )
