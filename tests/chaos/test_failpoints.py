"""A worker killed between any two steps: another continues, at the cost of one model call."""

import asyncio
import shutil
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import nats
import pytest
from sqlalchemy import text

from tests.chaos.compaction_scene import DEED_IDS, TEN_MINUTES_MS, Scene, scene_of, states
from tests.chaos.crashing_worker import Fate, Life, Worker, Writer, living
from tests.forked_processes import PATIENCE_SECONDS, ended
from tests.invariants import faults, seen_in_database
from tests.model_server import ModelServer, running_model_server
from tests.nats_server import nats_server
from tests.running_system import wait_until
from tests.store_fixtures import (
    KEY,
    LEASE_MS,
    assistant,
    new_postgres,
    new_sqlite,
    tool,
    turn,
    turns,
    user,
)
from turnfold.bus.streams import ensure_streams
from turnfold.contracts.subjects import NOTICES_STREAM
from turnfold.core.summary.sources import Draft, SummaryJob
from turnfold.operations.compact.compact import Committed, Discarded
from turnfold.process.directory import is_alive


@pytest.fixture
async def model() -> AsyncIterator[ModelServer]:
    async with running_model_server() as server:
        yield server


@pytest.fixture(params=["sqlite"])
async def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database with its tables; which one says the test."""
    return (
        new_sqlite(tmp_path)
        if request.param == "sqlite"
        else await new_postgres(request.getfixturevalue("postgres"))
    )


@pytest.fixture
async def scene(database_url: str, model: ModelServer) -> AsyncIterator[Scene]:
    async with scene_of(database_url, model) as made:
        yield made


# --- a summary is written


POINTS = [
    ("in", "claim", 1),
    ("after", "claim", 1),
    ("after", "read load", 1),
    ("before", "ask", 1),
    ("while", "ask", 2),
    ("after", "ask", 2),
    ("in", "spend", 2),
    ("after", "spend", 2),
    ("before", "commit", 2),
    ("in", "commit", 2),
    ("after", "commit", 1),
]
"""Where a worker dies, and how often the model is asked in all."""
ON_POSTGRESQL = [
    ("in", "claim", 1),
    ("while", "ask", 2),
    ("in", "commit", 2),
    ("after", "commit", 1),
]


@pytest.mark.parametrize(
    ("database_url", "moment", "step", "calls"),
    [
        *(pytest.param("sqlite", *point, id=f"{point[0]} {point[1]}") for point in POINTS),
        *(
            pytest.param("postgresql", *point, id=f"{point[0]} {point[1]} on postgresql")
            for point in ON_POSTGRESQL
        ),
    ],
    indirect=["database_url"],
)
@pytest.mark.proves("C49", "L1", "L10", "S1", "A1", "A3")
async def test_a_worker_that_dies_at_any_step_of_a_job_leaves_one_version_for_one_call_more(
    scene: Scene, moment: str, step: str, calls: int
) -> None:
    await scene.worker.do("ingest", "1")
    before = await scene.seen()
    scene.model.script = ["hang"] if moment == "while" else []

    await scene.die("write", moment, step)

    left = await scene.seen()
    is_committed = (moment, step) == ("after", "commit")
    assert faults(left) == []
    assert len(left.sessions[KEY].versions) == is_committed
    assert (await scene.told())["summary.updated"] == is_committed
    assert (left == before) == ((moment, step) == ("in", "claim"))
    session = await scene.finished()
    assert [(one.version, one.kind) for one in session.versions] == [(1, "llm")]
    assert states(session) == {"live": 4, "covered": 10}
    assert len(scene.model.requests) == calls
    starts = 1 if is_committed or left == before else 2
    assert Counter(row.phase for row in session.audit) == {
        "evicted": 1,
        "summary_start": starts,
        "summary_done": 1,
    }


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
@pytest.mark.proves("L9", "C28", "C47", "C49")
async def test_no_transaction_is_open_while_the_model_writes_and_what_comes_meanwhile_is_covered_later(
    scene: Scene,
) -> None:
    open_now = text(
        "SELECT count(*) FROM pg_stat_activity WHERE xact_start IS NOT NULL AND backend_type = 'client backend'"
    )
    scene.model.script = ["hang"]
    await scene.worker.do("ingest", "1")
    dying = await scene.begin("write", "", "")
    await asyncio.wait_for(scene.model.is_hanging.wait(), PATIENCE_SECONDS)

    (transactions,) = await scene.database.snapshot(
        lambda connection: list(connection.execute(open_now).scalars())
    )
    await scene.worker.intake.ingest(turns(8, 3), (), installation=scene.worker.installation)
    assert states(await scene.session()) == {"pending": 10, "live": 10}
    await scene.worker.do("ingest", "11")
    assert await scene.worker.claim() == []
    dying.kill()
    await ended(dying)

    assert transactions == 1, "the one that asks"
    session = await scene.finished()
    assert states(session) == {"live": 4, "covered": 30}
    assert len(scene.model.requests) == 2


@pytest.mark.proves("C50", "C49", "L1", "L10")
async def test_over_three_compactions_with_a_death_in_each_covered_and_live_are_all_messages(
    scene: Scene,
) -> None:
    covered_before: set[str] = set()
    for number, (moment, step) in enumerate(
        [("in", "commit"), ("while", "ask"), ("after", "commit")], start=1
    ):
        await scene.worker.do("ingest", str(7 * number))
        scene.model.script = ["hang"] if moment == "while" else []
        scene.model.is_hanging.clear()

        await scene.die("write", moment, step)

        session = await scene.finished()
        rows = {str(row) for row in session.speaks_for[number]}
        covered = {
            str(one.message.message_id)
            for one in session.messages
            if one.message.compaction_id in rows
        }
        live = [
            str(one.message.message_id)
            for one in session.messages
            if one.message.compaction_id is None
        ]
        assert sorted([*covered, *live]) == sorted(
            f"e{seq}#{at}" for seq in range(7, 7 * number + 7) for at in (0, 1)
        )
        assert covered > covered_before
        covered_before = covered
    versions = (await scene.session()).versions
    assert [(one.version, one.base_version) for one in versions] == [(1, None), (2, 1), (3, 2)]
    assert len(scene.model.requests) == 5


# --- a long input


LONG = "The retry queue waits for the billing service, which answers late. " * 60


@pytest.mark.parametrize(
    ("moment", "step", "nth", "extra"),
    [
        pytest.param("in", "keep", 1, 1, id="in keep"),
        pytest.param("after", "keep", 1, 0, id="after keep"),
        pytest.param("after", "spend", 1, 0, id="after spend"),
        pytest.param("before", "ask", 2, 0, id="before the second ask"),
        pytest.param("while", "ask", 2, 1, id="while the second ask"),
        pytest.param("after", "ask", 2, 1, id="after the second ask"),
        pytest.param("in", "commit", 1, 0, id="in commit"),
    ],
)
@pytest.mark.proves("C49", "C39", "S1", "S2", "L1")
async def test_a_worker_that_dies_between_two_parts_of_a_long_input_leaves_the_parts_that_were_written(
    database_url: str, model: ModelServer, moment: str, step: str, nth: int, extra: int
) -> None:
    async with scene_of(database_url, model, window=8_000) as scene:
        said = [
            one
            for at in range(3)
            for one in (user(f"Part {at}. {LONG}"), assistant(None, f"c{at}"), tool(f"c{at}", LONG))
        ]
        await scene.worker.intake.ingest(
            [turn(1, *said), *turns(2, 7)], (), installation=scene.worker.installation
        )
        model.script = ["answer", "hang"] if moment == "while" else []

        await scene.die("write", moment, step, nth=nth)

        session = await scene.finished()
        asked = [
            int(request["messages"][1]["content"].partition(" are part ")[2].split()[0])
            for request in model.requests
        ]
        parts = len(set(asked))
        assert parts >= 3
        assert len(asked) == parts + extra
        assert asked == sorted(asked)
        assert [one.kind for one in session.versions] == ["llm"]
        assert states(session) == {"live": 4, "covered": 19}


# --- attempts that fail, and endings


@pytest.mark.parametrize("moment", ["in", "after"])
@pytest.mark.proves("C49", "S7", "L10", "A1", "A3")
async def test_a_worker_that_dies_while_it_gives_a_job_back_costs_one_call(
    scene: Scene, moment: str
) -> None:
    await scene.worker.do("ingest", "1")
    scene.model.script = ["500"]

    await scene.die("write", moment, "retry_later")

    given_back = Counter({"attempt_failed": 1} if moment == "after" else {})
    assert (
        +Counter(
            row.phase for row in (await scene.session()).audit if row.phase == "attempt_failed"
        )
        == given_back
    )
    assert (await scene.told())["compaction.failed"] == given_back.total()
    session = await scene.finished()
    assert [(one.version, one.kind) for one in session.versions] == [(1, "llm")]
    assert len(scene.model.requests) == 2


@pytest.mark.parametrize("moment", ["in", "after"])
@pytest.mark.proves("C49", "S4")
async def test_a_worker_that_dies_while_it_commits_a_stand_in_leaves_one_that_the_model_writes_again(
    scene: Scene, moment: str
) -> None:
    await scene.worker.do("ingest", "1")
    scene.model.script = ["401"]

    await scene.die("write", moment, "commit")

    session = await scene.finished()
    assert [one.kind for one in session.versions] == (
        ["extractive", "llm"] if moment == "after" else ["llm"]
    )
    assert states(session) == {"live": 4, "covered": 10}


ENDINGS = {
    # kind: what made the row, the versions at the end when the ending was lost, and when it was not
    "plan": ({"commit": "on_summary"}, ["ingest 1"], ["llm"], ["llm"]),
    "stand-in": ({}, ["ingest 1", "write 401"], ["extractive", "llm"], ["extractive", "llm"]),
    "regeneration": ({}, ["ingest 1", "write answer", "regenerate"], ["llm", "llm"], ["llm"]),
}


@pytest.mark.parametrize("moment", ["in", "after"])
@pytest.mark.parametrize("kind", ENDINGS)
@pytest.mark.proves("C49", "L10", "A1", "A3")
async def test_a_worker_that_dies_while_it_ends_a_job_leaves_all_as_it_was_or_as_it_should_be(
    database_url: str, model: ModelServer, kind: str, moment: str
) -> None:
    numbers, deeds, kinds_lost, kinds_kept = ENDINGS[kind]
    async with scene_of(database_url, model, numbers=numbers) as scene:
        for deed in deeds:
            name, _, subject = deed.partition(" ")
            model.script = [subject] if name == "write" else []
            await scene.worker.do(name, subject)
            scene.worker.now_ms += TEN_MINUTES_MS
        before = await scene.session()
        model.script = ["401"]

        await scene.die("write", moment, "fail")

        left = await scene.session()
        assert left.versions == before.versions
        assert states(left) == states(before)
        assert ("rollback" in {row.phase for row in left.audit}) == (moment == "after")
        session = await scene.finished()
        assert [one.kind for one in session.versions] == (
            kinds_kept if moment == "after" else kinds_lost
        )
        assert sum(states(session).values()) == 14


# --- what people and agents ask for, each in one transaction


CHANGES = {
    # deed: its subject, the transaction, and how many versions there are before
    "ingest": ("100", "ingest", 1),
    "compact_now": ("", "compact_now", 1),
    "promote": ("1", "promote", 2),
    "restore": ("2", "restore", 2),
    "regenerate": ("", "regenerate", 1),
}


@pytest.mark.parametrize("moment", ["in", "after"])
@pytest.mark.parametrize("deed", CHANGES)
@pytest.mark.proves("C49", "L1", "L2", "L10", "A3", "A5")
async def test_a_change_is_made_whole_or_not_at_all(
    tmp_path: Path, scene: Scene, model: ModelServer, deed: str, moment: str
) -> None:
    subject, step, versions = CHANGES[deed]
    for number in range(versions):
        await scene.worker.do("ingest", str(1 + 7 * number))
        scene.worker.now_ms += TEN_MINUTES_MS
        await scene.worker.do("write")
    await scene.worker.intake.ingest(turns(50, 3), (), installation=scene.worker.installation)
    before, told = await scene.seen(), await scene.told()
    other = await twin(scene, tmp_path / "twin.db")
    async with living(replace(other, first_id=DEED_IDS, now_ms=scene.worker.now_ms)) as undisturbed:
        await undisturbed.do(deed, subject)
        wanted = await seen_in_database(undisturbed.database)
    assert wanted != before

    await scene.die(deed, moment, step, subject=subject)

    assert await scene.seen() == (before if moment == "in" else wanted)
    if moment == "in":
        assert await scene.told() == told
    if (
        moment == "in" or deed == "ingest"
    ):  # an event that was stored and not acknowledged comes again
        async with living(
            replace(scene.life, first_id=DEED_IDS, now_ms=scene.worker.now_ms)
        ) as again:
            await again.do(deed, subject)
        assert await scene.seen() == wanted
    session = await scene.finished()
    assert sum(states(session).values()) == len(session.messages)


async def twin(scene: Scene, path: Path) -> Life:
    """The same database once more."""

    source = Path(scene.life.database_url.partition(":///")[2])
    shutil.copyfile(source, path)
    wal = source.with_name(f"{source.name}-wal")
    if wal.exists():
        shutil.copyfile(wal, path.with_name(f"{path.name}-wal"))
    return replace(scene.life, database_url=f"sqlite+aiosqlite:///{path}")


@pytest.mark.parametrize("moment", ["in", "after"])
@pytest.mark.proves("C49", "A6", "L1")
async def test_a_session_is_erased_whole_or_not_at_all(scene: Scene, moment: str) -> None:
    await scene.worker.do("ingest", "1")
    scene.worker.now_ms += TEN_MINUTES_MS
    await scene.worker.do("write")
    before, told = await scene.seen(), await scene.told()

    await scene.die("erase", moment, "erase", subject="7")

    if moment == "in":
        assert (await scene.seen(), await scene.told()) == (before, told)
        await scene.worker.do("erase", "7")
    await scene.worker.do("ingest", "1")
    left = await scene.seen()
    assert left.sessions == {}
    assert faults(left) == []


@pytest.mark.parametrize("database_url", ["sqlite", "postgresql"], indirect=True)
@pytest.mark.parametrize("moment", ["in", "after"])
@pytest.mark.proves("C49", "A6", "L1", "L2")
async def test_a_worker_that_dies_among_portions_leaves_the_rest_to_the_next(
    scene: Scene, moment: str
) -> None:
    await scene.worker.do("ingest", "1")
    scene.worker.now_ms += TEN_MINUTES_MS
    await scene.worker.do("write")
    await scene.worker.do("erase", "7")
    await scene.worker.do("ingest", "8")
    before = await scene.seen()

    await scene.die("delete_rows", moment, "_delete_portion", nth=3)

    await scene.worker.do("ingest", "1")
    assert await scene.seen() == before
    await scene.worker.do("delete_rows")
    assert await scene.seen() == before
    assert set(before.sessions) == {KEY}
    assert faults(before) == []
    assert [*await scene.worker.erasures.to_purge(100)] == [*range(1, 8)]
    names = await scene.database.snapshot(
        lambda connection: (
            connection.execute(text("SELECT session_id FROM sessions")).scalars().all()
        )
    )
    assert names == [KEY.session_id]


# --- notices are sent


@pytest.mark.parametrize(
    ("moment", "step"),
    [
        pytest.param("after", "read unsent", id="before they are published"),
        pytest.param("before", "sent", id="after they were published"),
        pytest.param("in", "sent", id="while they are forgotten"),
        pytest.param("after", "sent", id="after they were forgotten"),
    ],
)
@pytest.mark.proves("A3", "C49")
async def test_a_relay_that_dies_sends_every_notice_in_the_end_and_each_once(
    database_url: str, model: ModelServer, tmp_path: Path, moment: str, step: str
) -> None:
    with nats_server(tmp_path) as server:
        client = await nats.connect(server.url)
        await ensure_streams(client, first_seq=1)
        async with scene_of(database_url, model, nats_url=server.url) as scene:
            await scene.worker.do("ingest", "1")
            scene.worker.now_ms += TEN_MINUTES_MS
            await scene.worker.do("write")
            told = [
                (notice.subject, notice.payload) for notice in await scene.worker.outbox.unsent(100)
            ]

            await scene.die("send", moment, step)

            waiting = await scene.worker.outbox.unsent(100)
            assert len(waiting) == (0 if (moment, step) == ("after", "sent") else len(told))
            await scene.worker.do("send")
            assert await scene.worker.outbox.unsent(100) == []
            assert faults(await scene.seen()) == []
        jetstream = client.jetstream()
        held = (await jetstream.stream_info(NOTICES_STREAM)).state
        sent = [
            await jetstream.get_msg(NOTICES_STREAM, seq)
            for seq in range(held.first_seq, held.last_seq + 1)
        ]
        await client.close()
    # They are published side by side.
    assert sorted((one.subject, (one.data or b"").decode()) for one in sent) == sorted(told)
    assert len(told) == 2


# --- two workers


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
@pytest.mark.proves("C48", "S1")
async def test_two_workers_at_one_due_job_write_one_version_for_one_call(scene: Scene) -> None:
    await scene.worker.do("ingest", "1")
    scene.worker.now_ms += TEN_MINUTES_MS

    async with living(replace(scene.life, now_ms=scene.worker.now_ms)) as other:
        await asyncio.gather(*(one.do("write") for one in (scene.worker, other) * 4))

    assert len(scene.model.requests) == 1
    session = await scene.finished()
    assert len(session.versions) == 1
    assert Counter(row.phase for row in session.audit) == {
        "evicted": 1,
        "summary_start": 1,
        "summary_done": 1,
    }


class Slow:
    """A summariser that has its answer and does not give it before it is told to."""

    def __init__(self) -> None:
        self.has_answer = asyncio.Event()
        self.may_give = asyncio.Event()

    async def summarize(self, job: SummaryJob, **keep: Any) -> Draft:
        """Write one version."""
        draft = await Writer(Fate()).summarize(job, **keep)
        self.has_answer.set()
        await self.may_give.wait()
        return draft


@pytest.mark.parametrize("database_url", ["sqlite", "postgresql"], indirect=True)
@pytest.mark.parametrize(
    "is_committed", [True, False], ids=["after the other committed", "while the other writes"]
)
@pytest.mark.proves("C51", "S1", "S8", "L10", "A1")
async def test_a_worker_that_still_writes_when_its_lease_is_over_comes_too_late_and_that_is_on_record(
    scene: Scene, is_committed: bool
) -> None:
    await scene.worker.do("ingest", "1")
    scene.worker.now_ms += TEN_MINUTES_MS
    summarizer = Slow()
    slow = Worker(replace(scene.life, now_ms=scene.worker.now_ms), scene.database, summarizer)
    (lost,) = await slow.claim()
    writing = asyncio.create_task(slow.compact(lost))
    await summarizer.has_answer.wait()
    scene.worker.now_ms += LEASE_MS
    (job,) = await scene.worker.claim()
    assert job.compaction_ids == lost.compaction_ids
    if is_committed:
        assert isinstance(await scene.worker.compact(job), Committed)
    before = await scene.session()

    summarizer.may_give.set()

    assert isinstance(await writing, Discarded)
    left = await scene.session()
    assert (left.versions, left.rows) == (before.versions, before.rows)
    if not is_committed:
        assert isinstance(await scene.worker.compact(job), Committed)
    session = await scene.finished()
    assert len(session.versions) == 1
    assert [row.phase for row in session.audit].count("stale") == 1
    assert len(scene.model.requests) == 2


# --- the real thing


def children_of(pid: int) -> list[int]:
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.proves("C49", "S1", "S4")
async def test_a_worker_that_dies_with_its_summariser_at_work_takes_it_along_and_costs_one_call(
    scene: Scene,
) -> None:
    await scene.worker.do("ingest", "1")
    scene.model.script = ["hang"]

    dying = await scene.begin("write", "", "", has_child=True)
    await asyncio.wait_for(scene.model.is_hanging.wait(), PATIENCE_SECONDS)
    assert dying.pid
    children = children_of(dying.pid)
    dying.kill()
    await ended(dying)

    assert len(children) == 1
    await wait_until(lambda: not is_alive(children[0]))
    session = await scene.finished()
    assert [one.kind for one in session.versions] == ["llm"]
    assert len(scene.model.requests) == 2
