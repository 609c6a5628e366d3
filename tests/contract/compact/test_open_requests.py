"""Which request a summary says is open, read from every store."""

import pytest

from tests.contract.compact.versions import claimed, override
from tests.store_fixtures import NOON, Stores, assistant, tool, turn, user
from turnfold.operations.compact.attempt import SummaryConfig, summary_job


@pytest.mark.proves("S11")
@pytest.mark.parametrize("calls", [10, 40])
async def test_a_request_is_answered_however_much_has_followed_its_answer(
    stores: Stores, calls: int
) -> None:
    await override(stores, max_live_messages=200, keep_messages=2 * calls + 3)
    await stores.ingest(
        turn(1, user("Which port?"), assistant("8443.")),
        turn(2, user("And which host?")),
        turn(3, user("Of the staging system, I mean."), assistant("stage-1, for both.")),
        turn(4, user("Restart it.")),
        *[
            turn(5 + number, assistant(None, f"c{number}"), tool(f"c{number}"))
            for number in range(calls)
        ],
    )
    await override(stores, max_live_messages=2 * calls + 5)

    job = await claimed(stores, NOON + 10_000)
    given = await stores.jobs.load(job, now_ms=NOON + 10_000)

    assert [one.message.message_id for one in given.evicted] == ["e1#0", "e1#1", "e2#0"]
    assert summary_job(job, given, None, SummaryConfig()).newest_request is None
