"""Reports of usage whose copies stand earlier in the stream, in every store."""

from itertools import permutations
from math import factorial
from typing import Any

import pytest
from sqlalchemy import select, update

from tests.contract.ingest.test_usage import factor, reporting
from tests.store_fixtures import KEY, NOON, Stores, assistant, reported, retracted, turn, user
from turnfold.messages import AgentId, SessionKey
from turnfold.ports.ingest import DecodedEvent
from turnfold.store.database.schema import sessions, usage_reports
from turnfold.store.ingest.model_windows import limits_of

MODEL = "acme/small-1"
USAGE = {"prompt_tokens": 20_000}


@pytest.mark.proves("L2")
@pytest.mark.parametrize(
    "fields",
    [
        {"usage": USAGE},
        {"usage": USAGE, "message_id": "e1#1"},
        {"limit_tokens": 9_000},
        {"is_overflow": True},
    ],
)
async def test_a_session_is_as_old_as_its_newest_report_whatever_that_says(
    stores: Stores, fields: dict[str, Any]
) -> None:
    await stores.ingest(turn(1, user("a"), assistant("b"), model=MODEL))
    await stores.ingest(reported(9, MODEL, event_id="r", **fields))

    await stores.ingest(reported(5, MODEL, event_id="r", **fields))

    assert (await stores.history.counts(KEY)).last_event_at_ms == NOON + 5


@pytest.mark.proves("L2")
async def test_a_report_of_unknown_time_that_moves_leaves_the_time_of_a_newer_one(
    stores: Stores,
) -> None:
    await stores.ingest(reported(5, MODEL, event_id="r", is_overflow=True))
    await stores.ingest(reported(9, MODEL, event_id="s", is_overflow=True))

    await stores.ingest(reported(3, MODEL, event_id="r", is_overflow=True))

    assert (await stores.history.counts(KEY)).last_event_at_ms == NOON + 9


@pytest.mark.proves("L1", "L2")
async def test_a_session_is_not_older_than_its_newest_event_whose_time_is_unknown(
    stores: Stores,
) -> None:
    """L1: retention would erase it too early."""
    await stores.ingest(turn(1, user("a")), reported(8, MODEL, event_id="r", is_overflow=True))
    await stores.ingest(turn(9, user("b"), event_id="s"))

    await stores.ingest(turn(3, user("b"), event_id="s"))

    assert ((await stores.history.counts(KEY)).last_event_at_ms or 0) >= NOON + 8


@pytest.mark.proves("I7", "L3")
async def test_a_report_that_names_its_answer_is_the_newest_with_its_own_time(
    stores: Stores,
) -> None:
    await stores.ingest(turn(1, user("a"), assistant("b"), model=MODEL))
    await stores.ingest(reported(5, MODEL, usage=USAGE, message_id="e1#1"))
    await stores.ingest(reported(9, MODEL, event_id="s", usage={"prompt_tokens": 7}))

    await stores.ingest(reported(3, MODEL, event_id="s", usage={"prompt_tokens": 7}))

    columns = (sessions.c.reported_seq, sessions.c.reported_at_ms, sessions.c.reported_tokens)
    newest = await stores.database.snapshot(
        lambda connection: connection.execute(select(*columns)).all()
    )
    assert newest == [(5, NOON + 5, 20_000)]


@pytest.mark.proves("G1", "I7", "L3")
@pytest.mark.parametrize(("other", "tokens"), [(7, 0), (2, 20_000)])
async def test_a_report_counts_again_after_the_retraction_moved_before_it_unless_another_voids_it(
    stores: Stores, other: int, tokens: int
) -> None:
    await stores.ingest(turn(1, user("a"), assistant("b"), model=MODEL))
    await stores.ingest(reported(5, MODEL, usage=USAGE), retracted(9, "e1#0", event_id="r"))
    await stores.ingest(retracted(other, "e1#1"))
    assert (await stores.history.counts(KEY)).reported_tokens == 0

    await stores.ingest(retracted(3, "e1#0", event_id="r"))

    assert (await stores.history.counts(KEY)).reported_tokens == tokens


ANSWERED, ASKED = (user("a"), assistant("b")), (user("c"), assistant("d"))
NAMES: dict[str, Any] = {"message_id": "e1#1"}


@pytest.mark.proves("L2", "L3", "T4")
@pytest.mark.parametrize(
    ("stream", "places"),
    [
        # Two reports of one answer: the first one counts.
        (
            [
                turn(1, *ANSWERED, event_id="e1"),
                reported(3, MODEL, event_id="r", usage=USAGE, **NAMES),
                reported(4, MODEL, event_id="s", usage={"prompt_tokens": 7}, **NAMES),
            ],
            {(1, 1): 20_000},
        ),
        # The first of two comes again before the answer, and then stands by itself.
        (
            [
                reported(1, MODEL, event_id="r", usage=USAGE, **NAMES),
                turn(2, *ANSWERED, event_id="e1"),
                reported(3, MODEL, event_id="r", usage=USAGE, **NAMES),
                reported(4, MODEL, event_id="s", usage={"prompt_tokens": 7}, **NAMES),
            ],
            {(1, 0): 20_000, (2, 1): 7},
        ),
        # The answer was retracted before its report.
        (
            [
                turn(1, *ANSWERED, event_id="e1"),
                retracted(2, "e1#1", event_id="q"),
                reported(3, MODEL, event_id="r", usage=USAGE, **NAMES),
            ],
            {},
        ),
        # The earlier copy of a retraction ends before what its later one voided.
        (
            [
                turn(1, *ANSWERED, event_id="e1"),
                retracted(2, "e1#0", event_id="q"),
                reported(3, MODEL, event_id="r", usage=USAGE),
                retracted(4, "e1#0", event_id="q"),
            ],
            {(3, 0): 20_000},
        ),
        # The answer comes again after the report.
        (
            [
                turn(2, *ANSWERED, event_id="e1"),
                reported(3, MODEL, event_id="r", usage=USAGE, **NAMES),
                turn(5, *ANSWERED, event_id="e1"),
            ],
            {(2, 1): 20_000},
        ),
        # The report comes again after the answer, before which it stands.
        (
            [
                reported(2, MODEL, event_id="r", usage=USAGE, **NAMES),
                turn(3, *ANSWERED, event_id="e1"),
                reported(4, MODEL, event_id="r", usage=USAGE, **NAMES),
            ],
            {(2, 0): 20_000},
        ),
        # A retraction of what stands behind the answer voids no report of it.
        (
            [
                turn(1, *ANSWERED, event_id="e1"),
                turn(2, *ASKED, event_id="e2"),
                reported(3, MODEL, event_id="r", usage=USAGE, **NAMES),
                retracted(4, "e2#0", event_id="q"),
            ],
            {(1, 1): 20_000},
        ),
    ],
)
async def test_reports_stand_in_every_order_of_arrival_where_the_stream_says(
    stores: Stores, stream: list[DecodedEvent], places: dict[tuple[int, int], int]
) -> None:
    """Each order is that of another agent, and of later sequences."""
    table = usage_reports.c
    columns = (table.agent_id, table.answer_position, table.prompt_tokens)
    teaching = select(*columns).where(table.agent_id != "")
    for number, order in enumerate(permutations(stream)):
        key, before = SessionKey(AgentId(f"ada-{number}"), KEY.session_id), 10 * number
        for event in order:
            await stores.ingest(event._replace(key=key, stream_seq=before + event.stream_seq))

    found = await stores.database.snapshot(lambda connection: connection.execute(teaching).all())
    assert {
        (agent_id, *divmod(position, 1024)): tokens for agent_id, position, tokens in found
    } == {
        (f"ada-{number}", 10 * number + seq, index): tokens
        for number in range(factorial(len(stream)))
        for (seq, index), tokens in places.items()
    }


@pytest.mark.proves("O6", "T4", "R5")
async def test_reports_of_workers_that_know_no_place_of_an_answer_count(stores: Stores) -> None:
    """Those before migration 1023, also beside newer ones."""
    await stores.ingest(
        reported(1, MODEL, limit_tokens=1_024), *reporting(8, first_seq=2, model=MODEL)
    )
    no_place = update(usage_reports).values(answer_position=None)
    await stores.database.write(lambda connection: connection.execute(no_place))

    await stores.changes.compact_now(KEY, installation=stores.installation, now_ms=NOON + 500)

    assert await factor(stores) == 1.25
    limits = await stores.database.snapshot(
        lambda connection: limits_of(
            connection, connection.scalar(select(sessions.c.sid)) or 0, NOON + 99
        )
    )
    assert limits == {MODEL: 4_875}
