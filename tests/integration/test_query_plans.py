"""What is done all the time reads by index, never a table that grows with the age of a session or an installation."""

import json
import re
import sqlite3
from collections.abc import AsyncGenerator, Generator, Iterable
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, event

from tests.store_fixtures import (
    KEY,
    NOON,
    SMALL,
    Stores,
    assistant,
    new_sqlite,
    reported,
    result,
    retracted,
    sql_stores,
    summary,
    tool,
    turn,
    turns,
    user,
    words,
)
from turnfold.contracts.requests import PolicyRequest
from turnfold.core.history.as_of import AsOf, AtMessage, AtTime, AtVersion
from turnfold.core.policy.presets import Mode
from turnfold.messages import AgentId, EventId, SessionId, SessionKey, State
from turnfold.operations.ingest.decode import Delivery, decode_event
from turnfold.operations.query.search import found, question_of
from turnfold.ports.ingest import DecodedEvent
from turnfold.ports.search import Scope
from turnfold.store.database.engine import Database
from turnfold.store.database.statistics import SqlStatistics
from turnfold.store.query.inspection import SqlInspectionStore

GROWING = (
    "messages",
    "events",
    "tool_calls",
    "sessions",
    "compactions",
    "summaries",
    "audit",
    "outbox",
    "dead_letters",
    "usage_reports",
    "retracted_messages",
)
OTHERS = [SessionKey(AgentId("ada"), SessionId(f"other-{number}")) for number in range(3)]

Statement = tuple[str, Any]


class Recorder:
    """The statements that reach SQLite, as they are prepared: with their parameters beside them, not in them."""

    def __init__(self) -> None:
        self.statements: list[Statement] = []

    def connection(self) -> type[sqlite3.Connection]:
        """A kind of connection that records."""
        statements = self.statements

        class Cursor(sqlite3.Cursor):
            def execute(self, sql: str, parameters: Any = (), /) -> "Cursor":
                statements.append((sql, parameters))
                super().execute(sql, parameters)
                return self

            def executemany(self, sql: str, parameters: Iterable[Any], /) -> "Cursor":
                rows = list(parameters)
                statements.append((sql, rows[0]))
                super().executemany(sql, rows)
                return self

        class Connection(sqlite3.Connection):
            def cursor(self, factory: Any = Cursor) -> Any:
                return super().cursor(factory)

        return Connection


@contextmanager
def recording() -> Generator[Recorder]:
    """Record whatever engines that connect meanwhile send."""
    recorder = Recorder()
    factory = recorder.connection()

    def on_connect(
        _dialect: object, _record: object, _args: object, options: dict[str, Any]
    ) -> None:
        options["factory"] = factory

    event.listen(Engine, "do_connect", on_connect)
    try:
        yield recorder
    finally:
        event.remove(Engine, "do_connect", on_connect)


@contextmanager
def counting() -> Generator[list[int]]:
    """Count the steps that SQLite takes for engines that connect meanwhile, in hundreds."""
    hundreds = [0]

    def count() -> int:
        hundreds[0] += 1
        return 0

    class Connection(sqlite3.Connection):
        def __init__(self, *given: Any, **named: Any) -> None:
            super().__init__(*given, **named)
            self.set_progress_handler(count, 100)

    def on_connect(
        _dialect: object, _record: object, _args: object, options: dict[str, Any]
    ) -> None:
        options["factory"] = Connection

    event.listen(Engine, "do_connect", on_connect)
    try:
        yield hundreds
    finally:
        event.remove(Engine, "do_connect", on_connect)


class Watched:
    """A store with a past, and the plans of what is asked of it."""

    def __init__(self, stores: Stores, recorder: Recorder, path: Path) -> None:
        self.stores = stores
        self._recorder = recorder
        self._path = path

    @property
    def url(self) -> str:
        """Its database."""
        return f"sqlite+aiosqlite:///{self._path}"

    def begin(self) -> None:
        """Forget what was sent."""
        self._recorder.statements.clear()

    def plans(self) -> list[tuple[str, str]]:
        """Each step of each plan of what was sent since, and the statement it belongs to."""
        found: list[tuple[str, str]] = []
        with closing(sqlite3.connect(self._path)) as connection:
            for sql, parameters in self._recorder.statements:
                if re.match(r"\s*(SELECT|UPDATE|DELETE|INSERT|WITH)", sql):
                    found += [
                        (str(row[3]), " ".join(sql.split()))
                        for row in connection.execute(f"EXPLAIN QUERY PLAN {sql}", parameters)
                    ]
        assert found
        return found

    @property
    def sent(self) -> int:
        """How many statements were sent since."""
        return len(self._recorder.statements)

    def scans(self) -> list[tuple[str, str]]:
        """The steps that read a whole growing table, be it by an index; an index of open work alone is no such thing."""
        growing = re.compile(rf"SCAN ({'|'.join(GROWING)})\b(?!.*ix_compactions_open)")
        return [(step, sql) for step, sql in self.plans() if growing.search(step)]

    def steps(self) -> str:
        """All steps as one text."""
        return "\n".join(step for step, _ in self.plans())


@pytest.fixture
async def watched(tmp_path: Path) -> AsyncGenerator[Watched]:
    url = new_sqlite(tmp_path)
    with recording() as recorder:
        async with sql_stores(url) as stores:
            for number, key in enumerate([*OTHERS, KEY]):
                first = 1_000 * number
                await stores.ingest(
                    *[
                        turn(
                            first + seq,
                            user("q"),
                            assistant("a", f"c{seq}"),
                            tool(f"c{seq}"),
                            key=key,
                        )
                        for seq in range(1, 40)
                    ]
                )
            for job in await stores.claim(NOON + 5_000):
                await stores.jobs.commit(job, summary(), reason=None, now_ms=NOON + 8_000)
            await stores.ingest(*turns(9_000, 8))
            found = Watched(stores, recorder, tmp_path / "turnfold.db")
            found.begin()
            yield found


@pytest.mark.proves("L8", "C58")
async def test_a_window_is_read_by_its_index(watched: Watched) -> None:
    await watched.stores.windows.window(
        KEY,
        on_session=lambda _: None,
        on_messages=lambda facts: (True, [facts.messages[0].position]),
    )

    assert watched.scans() == []
    steps = watched.steps()
    assert "ix_messages_live (sid=?)" in steps
    assert "SEARCH compactions USING INDEX ix_compactions_pending (sid=?)" in steps
    assert "SEARCH messages USING PRIMARY KEY (sid=? AND position>? AND position<?)" in steps


@pytest.mark.proves("L8", "W6")
@pytest.mark.parametrize(
    "moment", [AtVersion(1), AtMessage(EventId("e9003"), 0), AtTime(NOON + 9_004)]
)
async def test_a_window_of_the_past_is_read_by_key_and_no_text_but_those_it_shows(
    watched: Watched, moment: AsOf
) -> None:
    await watched.stores.windows.window_as_of(
        KEY,
        moment,
        on_session=lambda _: None,
        on_messages=lambda facts: (True, [facts.messages[0].position] if facts.messages else []),
    )

    plans = watched.plans()
    assert watched.scans() == []
    assert "ix_messages_live (sid=? AND position<?)" in watched.steps()
    # The short texts of users come with the facts; see `core.history.gist`.
    short = (
        r"CASE WHEN \((\w+)\.role = 'user' AND \1\.characters <= 1000 AND [^A-Z]+ THEN \1\.body END"
    )
    texts = [sql for _, sql in plans if "messages.body" in re.sub(short, "", sql)]
    assert texts
    assert [sql for sql in texts if "position IN" not in sql] == []


@pytest.mark.proves("L8")
async def test_storing_what_is_new_reads_nothing_old(watched: Watched) -> None:
    await watched.stores.ingest(
        turn(9_100, user("q"), assistant(None, "x")), result(9_101, "x", "42")
    )

    assert watched.scans() == []
    steps = watched.steps()
    assert "ix_messages_results (sid=? AND tool_call_id=?)" in steps
    assert re.search(
        r"SEARCH tool_calls USING (COVERING )?(INDEX \S+|PRIMARY KEY) \(sid=\? AND call_id=\? AND position>\?\)",
        steps,
    )


@pytest.mark.proves("L8", "L2")
async def test_an_event_that_comes_again_is_found_by_its_id(watched: Watched) -> None:
    again = turn(9_007, user("question 9007"), assistant("answer 9007"))

    await watched.stores.ingest(again._replace(stream_seq=9_200))
    await watched.stores.ingest(again._replace(stream_seq=8_999))

    assert watched.scans() == []
    assert re.search(
        r"SEARCH events USING (INDEX \S+|PRIMARY KEY) \(agent_id=\? AND event_id=\?\)",
        watched.steps(),
    )


@pytest.mark.proves("X6")
@pytest.mark.parametrize("named", ["a result each", "an evicted message each", "all", "after"])
async def test_a_batch_of_retractions_reads_a_long_session_once(tmp_path: Path, named: str) -> None:
    def taken_back(seq: int) -> DecodedEvent:
        if named.endswith("each"):
            return retracted(seq, f"e1#{seq % 100}")
        return retracted(seq, all=True) if named == "all" else retracted(seq, after="e1#0")

    with counting() as hundreds:
        async with sql_stores(new_sqlite(tmp_path), replace(SMALL, mode=Mode.MANUAL)) as stores:
            of_role = tool if named == "a result each" else lambda _, text: user(text)
            said = [of_role("c", f"{number}") for number in range(100)]
            await stores.ingest(*[turn(seq, *said) for seq in range(1, 31)])
            if named == "an evicted message each":
                given: Any = {"installation": stores.installation, "now_ms": NOON + 50}
                assert await stores.changes.compact_now(KEY, **given)
            elif named != "a result each":
                await stores.ingest(retracted(31, all=True))
            before = hundreds[0]
            await stores.ingest(taken_back(100))
            once = hundreds[0] - before
            await stores.ingest(*map(taken_back, range(101, 200)))

    assert hundreds[0] - before < 10 * once


@pytest.mark.proves("X6", "L2")
async def test_an_event_under_a_known_id_costs_what_its_own_size_allows(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = [user([{"emoji": "🙂" * 500}] * 100)]
    first = turn(9_100, *said, event_id="e")
    fields = {**KEY._asdict(), "event_id": "e", "messages": said}
    # The longest and the shortest text of the same content.
    spread = json.dumps(fields, ensure_ascii=False, indent=16).encode()
    await watched.stores.ingest(first)

    parsed, loads = [0], json.loads

    def counted(text: str, **options: Any) -> Any:
        parsed[0] += len(text)
        return loads(text, **options)

    copy = decode_event(Delivery("turn.completed", spread, 9_101, NOON), count=words)
    others = [turn(seq, user("x"), event_id="e") for seq in range(9_102, 9_152)]
    monkeypatch.setattr(json, "loads", counted)
    done = await watched.stores.intake.ingest(
        [copy, *others], (), installation=watched.stores.installation
    )

    assert (done.duplicates, done.dead_letters) == (1, 50)
    assert parsed[0] < 2 * len(json.dumps(fields))


@pytest.mark.proves("L8", "E2")
async def test_an_eviction_reads_the_live_messages_alone(watched: Watched) -> None:
    await watched.stores.ingest(*turns(9_100, 8))

    assert watched.scans() == []
    assert "ix_messages_live (sid=?)" in watched.steps()


def marking_steps(watched: Watched) -> list[str]:
    """How the messages that leave are found, to be marked."""
    return [step for step, sql in watched.plans() if "UPDATE messages SET compaction_id" in sql]


@pytest.mark.proves("L8", "E2")
async def test_messages_that_leave_are_marked_without_rereading_those_that_left_before(
    watched: Watched,
) -> None:
    await watched.stores.ingest(*turns(8_500, 1))
    await watched.stores.ingest(*turns(9_100, 8))

    assert marking_steps(watched)
    assert all("ix_messages_live (sid=? AND position>?" in step for step in marking_steps(watched))


@pytest.mark.proves("T4", "L8")
async def test_a_factor_is_learnt_from_the_newest_reports_alone(watched: Watched) -> None:
    reports = [
        turn(
            9_200 + seq,
            user("q"),
            assistant("a"),
            model="m",
            usage={"prompt_tokens": 120_000 + seq},
        )
        for seq in range(20)
    ]

    await watched.stores.ingest(*reports)

    assert watched.scans() == []
    steps = watched.steps()
    assert "ix_usage_reports_model (agent_id=? AND model=?)" in steps
    assert not re.search(r"SCAN (earlier|before|between|first)", steps)
    assert "ix_usage_reports_answer (sid=? AND <expr><?)" in steps
    assert re.search(
        r"SEARCH between USING PRIMARY KEY \(sid=\? AND position>\? AND position<\?\)", steps
    )


@pytest.mark.proves("G1", "L8")
async def test_a_report_reads_only_the_retractions_after_its_answer(watched: Watched) -> None:
    await watched.stores.ingest(turn(9_200, user("q"), assistant("a"), event_id="a"))
    watched.begin()

    usage = {"prompt_tokens": 120_000}
    await watched.stores.ingest(reported(9_201, "m", usage=usage, message_id="a#1"))

    assert watched.scans() == []
    steps = [step for step, sql in watched.plans() if "FROM retracted_messages" in sql]
    assert any("ix_retracted_messages_seq (sid=? AND retracted_seq>?)" in step for step in steps)


@pytest.mark.proves("I7", "L8")
async def test_whether_a_report_is_stale_is_read_from_open_and_newest_compactions(
    watched: Watched,
) -> None:
    stores, overrides = watched.stores, {"reserve_tokens": 60_000}
    await stores.changes.set_policy(
        KEY, PolicyRequest(overrides=overrides), installation=stores.installation, now_ms=NOON
    )
    watched.begin()

    usage = {"prompt_tokens": 120_000}
    await stores.ingest(turn(9_200, user("q"), assistant("a"), model="m", usage=usage))

    assert watched.scans() == []
    steps = [step for step, sql in watched.plans() if "AS last" in sql]
    assert re.search(r"SEARCH last USING INDEX \S+ \(sid=\? AND ordinal=\?\)", "\n".join(steps))
    assert "SEARCH compactions USING INDEX ix_compactions_pending (sid=?)" in steps


@pytest.mark.proves("S1", "L8")
async def test_jobs_are_found_among_the_open_ones(watched: Watched) -> None:
    (job,) = await watched.stores.claim(NOON + 20_000)
    await watched.stores.jobs.next_due_ms()

    assert watched.scans() == []
    steps = watched.steps()
    assert "ix_compactions_open" in steps
    assert "ix_compactions_pending (sid=?)" in steps
    # A session's lock reads its newest compaction by this index; nothing else does.
    assert not [
        sql
        for step, sql in watched.plans()
        if "sqlite_autoindex_compactions" in step and "FROM sessions" not in sql
    ]
    assert job.key == KEY


@pytest.mark.proves("S1", "L8")
async def test_a_job_is_loaded_renewed_and_committed_without_reading_a_whole_table(
    watched: Watched,
) -> None:
    (job,) = await watched.stores.claim(NOON + 20_000)
    watched.begin()

    await watched.stores.jobs.load(job, now_ms=NOON)
    await watched.stores.jobs.renew(job, lease_ms=1_000, now_ms=NOON)
    await watched.stores.jobs.commit(job, summary(), reason=None, now_ms=NOON)

    assert watched.scans() == []


@pytest.mark.proves("G1", "E2")
async def test_retracting_an_early_message_takes_as_many_statements_after_many_versions(
    watched: Watched,
) -> None:
    stores, sent = watched.stores, []
    for first_seq, versions in ((20_000, 3), (30_000, 12)):
        key = SessionKey(AgentId("ada"), SessionId(f"of {versions} versions"))
        for number in range(versions):
            await stores.ingest(*turns(first_seq + 10 * number, 8, key=key))
            (job,) = [job for job in await stores.claim(NOON + 100_000) if job.key == key]
            await stores.jobs.commit(job, summary(), reason=None, now_ms=NOON + 100_000)
        assert (await stores.history.counts(key)).summary_version == versions
        watched.begin()

        await stores.ingest(retracted(first_seq + 900, f"e{first_seq}#0", key=key))

        sent.append(watched.sent)
        assert watched.scans() == []
        assert (await stores.history.counts(key)).summary_version is None

    assert sent[0] == sent[1]


@pytest.mark.proves("A5", "L8")
async def test_histories_versions_and_the_audit_are_read_by_key(watched: Watched) -> None:
    history = watched.stores.history
    await history.page(KEY, after_position=0, limit=5)
    await history.page(KEY, before_position=1 << 50, limit=5, newest_first=True)
    await history.by_ids(KEY, ["e9001#0", "e9002#1"])
    await history.versions(KEY)
    await history.audit(KEY, after=0, limit=5)
    await history.counts(KEY)

    assert watched.scans() == []


@pytest.mark.proves("V1", "L8")
async def test_a_timeline_reads_one_session_by_index_and_no_text_of_it(watched: Watched) -> None:
    database = Database(watched.url, writes=False)
    try:
        inspections = SqlInspectionStore(database)
        await inspections.strip(KEY)
        await inspections.compactions_of(KEY, before=None, limit=5)
    finally:
        await database.close()

    assert watched.scans() == []
    assert re.search(r"messages USING (COVERING )?INDEX ix_messages_live", watched.steps())
    assert not any("body" in sql for _, sql in watched.plans())


@pytest.mark.proves("F1", "L8", "C58")
async def test_a_search_reads_the_index_and_the_messages_it_names(watched: Watched) -> None:
    while await watched.stores.index.index_some():
        pass
    watched.begin()

    scope = Scope(state=State.COVERED, version=1)
    hits = await found(KEY, question_of("q 17"), scope=scope, limit=5, store=watched.stores.search)

    assert hits
    assert watched.scans() == []
    steps = watched.steps()
    assert "SCAN word_index VIRTUAL TABLE" in steps
    assert "SEARCH messages USING PRIMARY KEY (sid=? AND position=?)" in steps
    # The index gives what matches in order: only those few that are looked at are sorted.
    assert not re.search(r"SCAN word_index[^\n]*\nUSE TEMP B-TREE", steps)


@pytest.mark.proves("F1", "L8")
async def test_what_waits_to_be_indexed_is_found_by_an_index_of_its_own(watched: Watched) -> None:
    await watched.stores.index.index_some()

    assert watched.scans() == []
    steps = watched.steps()
    assert "ix_sessions_unindexed (unindexed_from>?)" in steps
    assert "SEARCH messages USING PRIMARY KEY (sid=? AND position>?)" in steps
    assert not re.search(r"SCAN word_index VIRTUAL TABLE INDEX \d+:(?!=)", steps)


@pytest.mark.proves("A3", "L8")
async def test_notices_are_sent_in_the_order_of_their_key(watched: Watched) -> None:
    await watched.stores.outbox.sent(await watched.stores.outbox.unsent(2))

    assert "TEMP B-TREE" not in watched.steps()
    assert re.search(r"SEARCH outbox USING INTEGER PRIMARY KEY", watched.steps())


@pytest.mark.proves("L8", "A6")
async def test_an_erasure_reads_no_letter_of_others(watched: Watched) -> None:
    """SQLite reads a letter's payload on the way to the columns behind it."""
    await watched.stores.changes.erase(KEY, last_seq=9_100, now_ms=NOON)

    by_key = {step for step, sql in watched.plans() if "dead_letters.agent_id =" in sql}
    plan = "SEARCH dead_letters USING INDEX ix_dead_letters_key"
    assert by_key == {f"{plan} (agent_id=? AND session_id=? AND rowid>?)"}


async def test_a_scan_would_be_seen(watched: Watched) -> None:
    await watched.stores.seen()

    assert {step.split()[1] for step, _ in watched.scans()} >= {"messages", "events", "audit"}


@pytest.mark.proves("O4")
async def test_whoever_watches_reads_what_is_open_and_not_what_ever_was(watched: Watched) -> None:
    database = Database(watched.url, writes=False)
    watched.begin()
    await SqlStatistics(database).waiting(now_ms=NOON)
    await database.close()

    assert {step for step, _ in watched.scans()} == {"SCAN outbox"}
    assert "ix_compactions_open" in watched.steps()
    assert "ix_sessions_unindexed" in watched.steps()
