"""Regenerations of many sessions, a few at a time, in every store."""

import asyncio

import pytest

from tests.store_fixtures import NOON, Stores, summary, turns
from turnfold.messages import AgentId, SessionId, SessionKey
from turnfold.ports.admin import CampaignProgress
from turnfold.ports.compact import JobKind, JobStatus, RegenerateOptions
from turnfold.store.compact.campaigns import SqlCampaignStore
from turnfold.store.database.engine import Database

NARRATIVE = RegenerateOptions(style="narrative")


def key(agent: str, number: int) -> SessionKey:
    return SessionKey(AgentId(agent), SessionId(f"s-{number}"))


async def summarised(stores: Stores, *keys: SessionKey) -> None:
    """Sessions with a version each."""
    for place, one in enumerate(keys):
        await stores.ingest(*turns(1 + 100 * place, 7, key=one))
    for job in await stores.claim():
        await stores.jobs.commit(job, summary(), reason=None, now_ms=NOON + 1_000)


async def begin(
    stores: Stores, agent: str | None, *, at_once: int = 2, wanted: RegenerateOptions = NARRATIVE
) -> CampaignProgress:
    return await stores.campaigns.begin(
        AgentId(agent) if agent else None,
        wanted,
        at_once=at_once,
        installation=stores.installation,
        now_ms=NOON + 2_000,
    )


async def advance(stores: Stores) -> int:
    return await stores.campaigns.advance(installation=stores.installation, now_ms=NOON + 3_000)


async def work(stores: Stores, *, refused: bool = False) -> list[str]:
    """Have what is open written; the sessions, in order."""
    done = []
    for job in await stores.claim(NOON + 4_000):
        assert (job.writes, job.wanted) == (JobKind.REGENERATED, NARRATIVE)
        if refused:
            await stores.jobs.fail(
                job, ending=JobStatus.REJECTED, reason="refused", detail="", now_ms=NOON + 4_000
            )
        else:
            await stores.jobs.commit(job, summary("again"), reason=None, now_ms=NOON + 4_000)
        done.append(f"{job.key.agent_id} {job.key.session_id}")
    return sorted(done)


@pytest.mark.proves("A4")
async def test_the_sessions_of_an_agent_are_written_again_a_few_at_a_time(stores: Stores) -> None:
    await summarised(stores, *(key("ada", number) for number in range(5)), key("bob", 0))

    begun = await begin(stores, "ada")
    assert (begun.sessions, begun.opened, begun.finished_at_ms) == (5, 0, None)
    assert await advance(stores) == 2
    assert await advance(stores) == 0
    first, second = await stores.claim(NOON + 4_000)
    await stores.jobs.commit(first, summary("again"), reason=None, now_ms=NOON + 4_000)
    # Each session that is written makes room for the next.
    assert await advance(stores) == 1
    await stores.jobs.commit(second, summary("again"), reason=None, now_ms=NOON + 4_000)
    seen = [await work(stores)]
    while await advance(stores):
        seen.append(await work(stores))

    assert seen == [["ada s-2"], ["ada s-3", "ada s-4"]]
    done = await stores.campaigns.progress(begun.campaign_id)
    assert done is not None
    assert (done.opened, done.written, done.failed, done.open, done.finished_at_ms) == (
        5,
        5,
        0,
        0,
        NOON + 3_000,
    )
    for number in range(5):
        in_force, (newest,) = await stores.history.versions(key("ada", number), 2)
        assert (in_force, newest.text) == (1, "again")
    assert len((await stores.history.versions(key("bob", 0)))[1]) == 1


@pytest.mark.proves("A4")
async def test_requests_that_arrive_together_begin_one_campaign(stores: Stores) -> None:
    await summarised(stores, key("ada", 0))

    begun = await asyncio.gather(*(begin(stores, "ada") for _ in range(8)))

    assert len({campaign.campaign_id for campaign in begun}) == 1


@pytest.mark.proves("A4")
async def test_all_agents_can_be_asked_for_and_failures_are_counted(stores: Stores) -> None:
    await summarised(stores, key("ada", 0), key("bob", 0))

    begun = await begin(stores, None, at_once=9)
    await advance(stores)

    assert await work(stores, refused=True) == ["ada s-0", "bob s-0"]
    await advance(stores)
    done = await stores.campaigns.progress(begun.campaign_id)
    assert done is not None
    assert (done.agent_id, done.written, done.failed, done.finished_at_ms is not None) == (
        None,
        0,
        2,
        True,
    )


@pytest.mark.proves("A4", "L2")
async def test_who_asks_again_finds_the_campaign_that_is_under_way(stores: Stores) -> None:
    await summarised(stores, key("ada", 0))

    first, again = await begin(stores, "ada"), await begin(stores, "ada")
    other = await begin(stores, "ada", wanted=RegenerateOptions(model="other/model"))

    assert first == again
    assert other.campaign_id != first.campaign_id


@pytest.mark.proves("A4")
async def test_a_campaign_is_not_over_while_what_somebody_asked_for_before_is_open(
    stores: Stores,
) -> None:
    await summarised(stores, key("ada", 0))
    await stores.versions.regenerate(
        key("ada", 0), NARRATIVE, installation=stores.installation, now_ms=NOON + 1_500
    )
    begun = await begin(stores, "ada")

    for _ in range(2):
        await advance(stores)
        progress = await stores.campaigns.progress(begun.campaign_id)
        assert progress is not None
        assert (progress.opened, progress.open, progress.finished_at_ms) == (1, 1, None)
    assert await work(stores) == ["ada s-0"]
    await advance(stores)

    progress = await stores.campaigns.progress(begun.campaign_id)
    assert progress is not None
    assert (progress.opened, progress.written, progress.open) == (1, 1, 0)
    assert progress.finished_at_ms is not None


@pytest.mark.proves("A4")
async def test_a_session_counts_for_the_campaign_that_opened_it(stores: Stores) -> None:
    await summarised(stores, key("ada", 0), key("bob", 0))
    of_ada = await begin(stores, "ada", at_once=1)
    await advance(stores)
    of_all = await begin(stores, None, at_once=1)
    # First past ada's session, which is open and takes no place of this campaign.
    for _ in range(2):
        await advance(stores)

    opened = [await stores.campaigns.progress(one.campaign_id) for one in (of_ada, of_all)]

    assert [(one.opened, one.open) for one in opened if one is not None] == [(1, 1), (1, 1)]
    assert await work(stores) == ["ada s-0", "bob s-0"]


@pytest.mark.proves("A4", "X6")
@pytest.mark.parametrize("at_once", [1, 5])
async def test_campaigns_that_wait_for_their_sessions_write_nothing(
    stores: Stores, shared_database: Database, at_once: int
) -> None:
    await summarised(stores, key("ada", 0), key("ada", 1))
    for number in range(3):
        wanted = RegenerateOptions(prompt=f"Tell of {number}.")
        await begin(stores, "ada", at_once=at_once, wanted=wanted)
    await advance(stores)
    # A database that may not write refuses each transaction that would.
    readable = Database(shared_database.url.render_as_string(hide_password=False), writes=False)

    opened = await SqlCampaignStore(readable).advance(
        installation=stores.installation, now_ms=NOON + 3_000
    )

    assert opened == 0
    await readable.close()


@pytest.mark.proves("A4", "C32")
async def test_where_there_is_no_version_there_is_nothing_to_do(stores: Stores) -> None:
    await stores.ingest(*turns(1, 2))

    begun = await begin(stores, "ada")

    assert (begun.sessions, begun.finished_at_ms) == (0, NOON + 2_000)
    assert await advance(stores) == 0
    for unknown in ("12345678901234567890123", str(1 << 63), "nothing"):
        assert await stores.campaigns.progress(unknown) is None


@pytest.mark.proves("A4")
async def test_workers_that_advance_a_campaign_at_once_open_each_session_once(
    stores: Stores,
) -> None:
    await summarised(stores, *(key("ada", number) for number in range(6)))
    begun = await begin(stores, "ada", at_once=2)

    for _ in range(3):
        opened = await asyncio.gather(*(advance(stores) for _ in range(4)))
        assert sum(opened) == 2
        assert len(await work(stores)) == 2

    await advance(stores)
    progress = await stores.campaigns.progress(begun.campaign_id)
    assert progress is not None
    assert (progress.opened, progress.written) == (6, 6)
