"""Which question a window's recall answers: the newest request, or a query of its own."""

from dataclasses import replace
from typing import Any

import pytest

from tests.contract.query.test_recall import FACT, QUESTION, Asker, Json, block_of, long_ago
from tests.store_fixtures import KEY, NOON, Stores, assistant, retracted, tool, turn, user
from turnfold.errors import Unavailable
from turnfold.operations.query.context import MOST_MOVES
from turnfold.ports.ingest import DecodedEvent
from turnfold.store.query.window import SqlWindowStore

LONG_QUESTION = f"{QUESTION}\n{1_000 * '='}"


@pytest.mark.proves("F2", "L11")
@pytest.mark.parametrize(
    ("content", "budget", "queries"),
    [
        (QUESTION, 600, [QUESTION, "Which  cellar holds\none lantern?"]),
        (LONG_QUESTION, 1_100, [LONG_QUESTION.replace("\n", " "), QUESTION]),
        ([{"type": "text", "text": QUESTION}], 600, [QUESTION]),
    ],
    ids=["short", "long", "in parts"],
)
async def test_the_newest_request_asks_where_no_query_is_given_or_one_repeats_it(
    stores: Stores, content: Any, budget: int, queries: list[str]
) -> None:
    await long_ago(stores, user(content))
    asker = Asker(stores)

    unasked = await asker.told(max_tokens=budget)

    assert FACT in block_of(unasked)
    for query in queries:
        repeated = await asker.told(max_tokens=budget, query=query)
        assert repeated["messages"] == unasked["messages"]
    other = await asker.told(max_tokens=budget, query="And the lanterns of the cellar?")
    assert len(other["messages"]) < len(unasked["messages"])
    assert block_of(await asker.told(max_tokens=budget, recall=False)) == ""


@pytest.mark.proves("F2")
async def test_a_query_may_also_repeat_a_request_that_was_retracted_since(stores: Stores) -> None:
    await long_ago(stores, user(LONG_QUESTION))
    asked: Json = {"max_tokens": 1_100, "as_of": "2027-01-15T08:00:30Z"}
    await stores.ingest(retracted(50, "e40#0", at_ms=NOON + 60_000))

    unasked, repeated, other = [
        (await Asker(stores).told(**asked, query=query))["messages"]
        for query in (None, LONG_QUESTION, "And the lanterns of the cellar?")
    ]

    assert len(other) < len(unasked)
    assert repeated == unasked


@pytest.mark.proves("F2")
@pytest.mark.parametrize("blank", ["", " \n"])
async def test_a_blank_query_is_none(stores: Stores, blank: str) -> None:
    await long_ago(stores, user(QUESTION))
    asker = Asker(stores)

    unasked = await asker.told(max_tokens=400)

    assert FACT in block_of(unasked)
    for fields in ({"query": blank}, {"recall": {"query": blank}}):
        assert (await asker.told(max_tokens=400, **fields))["messages"] == unasked["messages"]


class ErasedMeanwhile(SqlWindowStore):
    """Windows of a session that is erased before its past is read."""

    def __init__(self, stores: Stores) -> None:
        super().__init__(stores.database)
        self.stores = stores

    async def window_as_of(self, *given: Any, **more: Any) -> Any:
        await self.stores.changes.erase(KEY, last_seq=99, now_ms=NOON + 99)
        return await super().window_as_of(*given, **more)


@pytest.mark.proves("F2", "A6")
async def test_a_window_whose_session_is_erased_meanwhile_is_answered_without_a_block(
    stores: Stores,
) -> None:
    await long_ago(stores, user(QUESTION))
    # Of the millisecond of the request, which its message names therefore.
    await stores.ingest(turn(41, assistant(None, "c1"), tool("c1"), at_ms=NOON + 40))

    told = await Asker(replace(stores, windows=ErasedMeanwhile(stores))).told(max_tokens=600)

    assert block_of(told) == ""
    assert (await stores.facts()).session is None


class ChangedMeanwhile(SqlWindowStore):
    """Windows of a session that events change, each between a window and its block."""

    def __init__(self, stores: Stores, *events: DecodedEvent) -> None:
        super().__init__(stores.database)
        self.stores, self.events, self.reads = stores, list(events), 0

    async def window(self, *given: Any, **more: Any) -> Any:
        read = await super().window(*given, **more)
        self.reads += 1
        if self.events:
            await self.stores.ingest(self.events.pop(0))
        return read


@pytest.mark.proves("F2", "W6")
@pytest.mark.parametrize(
    ("event", "reads"),
    [(retracted(50, "e1#0"), 2), (turn(50, assistant("In a cellar.")), 1)],
    ids=["retracted", "appended"],
)
async def test_a_window_is_read_again_if_its_session_changed_before_its_block_was_chosen(
    stores: Stores, event: DecodedEvent, reads: int
) -> None:
    await long_ago(stores, user(QUESTION))
    before = await Asker(stores).told(max_tokens=600)

    windows = ChangedMeanwhile(stores, event)
    told = await Asker(replace(stores, windows=windows)).told(max_tokens=600)

    after = await Asker(stores).told(max_tokens=600)
    now = before if reads == 1 else after
    assert windows.reads == reads
    assert (told["etag"], told["messages"]) == (now["etag"], now["messages"])


@pytest.mark.proves("F2", "X6")
async def test_a_window_of_a_session_that_changes_all_the_time_is_refused_in_the_end(
    stores: Stores,
) -> None:
    await long_ago(stores, *[assistant("So.")] * 30, user(QUESTION))
    windows = ChangedMeanwhile(stores, *[retracted(50 + n, f"e40#{n}") for n in range(30)])

    with pytest.raises(Unavailable, match="changes too fast"):
        await Asker(replace(stores, windows=windows)).told(max_tokens=600)

    assert windows.reads == MOST_MOVES + 1
