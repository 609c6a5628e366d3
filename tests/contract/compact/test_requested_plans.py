"""A request for a compaction, where an eviction is planned already."""

import pytest

from tests.contract.compact.versions import claimed, override
from tests.store_fixtures import KEY, NOON, Stores, turns
from turnfold.contracts.requests import PolicyRequest
from turnfold.core.eviction.triggers import Trigger
from turnfold.ports.compact import JobStatus


async def planned(stores: Stores) -> None:
    """A session whose eviction waits for its summary."""
    await override(stores, commit="on_summary")
    await stores.ingest(*turns(10, 7))


async def request(stores: Stores, *, now_ms: int = NOON + 2_000) -> str | None:
    return await stores.changes.compact_now(
        KEY, installation=stores.installation, now_ms=now_ms, actor="key:ALICE"
    )


@pytest.mark.proves("E6", "A7")
async def test_a_request_is_met_in_manual_mode_though_the_plan_was_automatic(
    stores: Stores,
) -> None:
    await planned(stores)
    await stores.changes.set_policy(
        KEY, PolicyRequest(mode="manual"), installation=stores.installation, now_ms=NOON + 500
    )

    compaction_id = await request(stores)
    job = await claimed(stores, NOON + 12_000)

    assert job.planned is not None
    assert job.planned.trigger is Trigger.REQUEST
    assert job.compaction_ids == (compaction_id,)


@pytest.mark.proves("E6", "S7")
async def test_a_request_does_not_wait_for_the_cooldown_of_a_plan(stores: Stores) -> None:
    await planned(stores)
    await stores.jobs.fail(
        await claimed(stores),
        ending=JobStatus.FAILED,
        reason="provider_error",
        detail="",
        now_ms=NOON + 1_000,
    )
    await stores.ingest(*turns(40, 3))
    assert await stores.claim(NOON + 2_000) == []

    compaction_id = await request(stores)

    due_ms = await stores.jobs.next_due_ms()
    assert due_ms is not None
    assert due_ms < NOON + 3_000
    assert (await claimed(stores, due_ms)).compaction_ids == (compaction_id,)
