"""Hosts that use a tool's name as the id of each call: one id has thousands of calls."""

from collections.abc import Iterator
from itertools import count
from random import Random
from typing import Any

import pytest

from tests.invariants import faults
from tests.store_fixtures import (
    KEY,
    Stores,
    assistant,
    result,
    retracted,
    tool,
    turn,
    turns,
    user,
)
from turnfold.ports.ingest import DecodedEvent
from turnfold.store.database import statements

TOOL = "read_file"


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rows of calls and results that each statement reads."""
    rows: list[int] = []
    fetched = statements._fetched  # all prepared statements fetch here

    def counted(connection: Any, sql: str, *rest: Any) -> Any:
        found = fetched(connection, sql, *rest)
        if "call_id" in sql:
            rows.append(len(found))
        return found

    monkeypatch.setattr(statements, "_fetched", counted)
    return rows


def rounds(*, are_apart: bool) -> Iterator[list[DecodedEvent]]:
    """Yield rounds of a call and its result, as one event or two."""
    for number in count(1):
        asked = [user(f"q{number}"), assistant(None, TOOL)]
        if are_apart:
            yield [turn(3 * number, *asked), result(3 * number + 1, TOOL, f"a{number}")]
        else:
            yield [turn(3 * number, *asked, tool(TOOL, f"a{number}"))]


@pytest.mark.proves("L8")
@pytest.mark.parametrize("are_apart", [False, True])
@pytest.mark.parametrize("named", [(), ("e3#0",)], ids=["", "after a retraction"])
async def test_an_event_reads_as_many_calls_and_results_after_400_rounds_as_after_50(
    stores: Stores, read: list[int], are_apart: bool, named: tuple[str, ...]
) -> None:
    made, before = rounds(are_apart=are_apart), 0
    if named:
        await stores.ingest(*next(made))
        await stores.ingest(retracted(5, *named))
    seen: list[list[list[int]]] = []
    for stored in (50, 400):
        await stores.ingest(*[event for _ in range(before, stored) for event in next(made)])
        seen.append([])
        before = stored + 1
        for event in next(made):
            read.clear()
            await stores.ingest(event)
            seen[-1].append(list(read))

    assert seen[0] == seen[1]
    assert max(map(sum, seen[1])) < 150


@pytest.mark.proves("L8", "X6")
@pytest.mark.parametrize("calls", [(), (TOOL,), (TOOL,) * 40])
@pytest.mark.parametrize("named", [(), ("e1#0",)], ids=["", "after a retraction"])
async def test_an_event_reads_few_of_the_results_that_one_call_id_has(
    stores: Stores, read: list[int], calls: tuple[str, ...], named: tuple[str, ...]
) -> None:
    await stores.ingest(turn(1, user("go"), *[assistant(None, call) for call in calls]))
    if named:
        await stores.ingest(retracted(2, *named))
    await stores.ingest(*[result(seq, TOOL, f"a{seq}") for seq in range(3, 400)])
    read.clear()

    await stores.ingest(result(400, TOOL, "a399"), result(401, TOOL, "more"))

    assert sum(read) < 150
    session = (await stores.seen()).sessions[KEY]
    assert [one.message.is_copy for one in session.messages[-2:]] == [True, False]


async def test_results_that_come_late_twice_or_without_a_call_are_matched_among_many_calls(
    stores: Stores,
) -> None:
    random, made = Random(1), rounds(are_apart=True)
    many = [event for _ in range(60) for event in next(made)]
    late = random.sample(many, 8)
    odd = [
        result(300, TOOL, "a60"),
        result(301, TOOL, "waits"),
        turn(302, assistant(None, TOOL), tool(TOOL, "own")),
        turn(303, assistant(None, TOOL)),
        turn(304, assistant(None, TOOL, TOOL)),
        result(305, TOOL, "one"),
        result(306, TOOL, "one"),
        result(307, TOOL, "one"),
        turn(308, assistant(None, TOOL)),
        retracted(309, "e300#0", "e302#1"),
        result(311, TOOL, "two"),
        turn(312, assistant(None, TOOL), tool(TOOL, "three")),
    ]
    # An event that the stream holds twice stands at its first place.
    moved = [odd[3]._replace(stream_seq=290), many[-1]._replace(stream_seq=1)]

    await stores.ingest(*[event for event in many if event not in late])
    for event in [*odd, *late, *moved]:
        await stores.ingest(event)

        assert faults(await stores.seen()) == []


IN_PROGRESS = [turn(seq, assistant(None, f"c{seq}")) for seq in range(11, 24)]


@pytest.mark.proves("L1", "G1")
@pytest.mark.parametrize("others", [turns(11, 8), IN_PROGRESS], ids=["with others", "alone"])
async def test_an_evicted_result_that_comes_back_from_a_retraction_is_live(
    stores: Stores, others: list[DecodedEvent]
) -> None:
    await stores.ingest(result(10, TOOL, "1"), *others)
    await stores.ingest(turn(30, assistant(None, TOOL)))
    await stores.ingest(retracted(31, "e30#0"))
    (followed, _) = (await stores.seen()).sessions[KEY].retracted
    assert followed.message.compaction_id is not None

    # It waited for the call before the other one did.
    await stores.ingest(result(5, TOOL, "0"))

    session = (await stores.seen()).sessions[KEY]
    (back,) = [one.message for one in session.messages if one.message.event_id == "e10"]
    # Alone, it left again with the event that brought it back.
    assert back.compaction_id != followed.message.compaction_id
    assert "e5" in [entry.message.event_id for entry in session.retracted]
