"""The tables come up from nothing, are what the schema says, and go down again."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, inspect, make_url, text
from sqlalchemy.event import listen
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from structlog.testing import capture_logs

import turnfold_migrations
from tests.forked_processes import begun, ended
from tests.ports import free_port
from tests.postgres import Postgres
from tests.store_fixtures import (
    KEY,
    NOON,
    Stores,
    assistant,
    new_postgres,
    result,
    retracted,
    sql_stores,
    summary,
    turn,
    turns,
    user,
)
from turnfold.errors import StartError, Unavailable
from turnfold.store.database.engine import Database
from turnfold.store.database.instance_lock import wait_for_schema
from turnfold.store.database.schema import REVISION, metadata, word_index
from turnfold_migrations import downgrade, revision_of, upgrade

pytestmark = pytest.mark.filterwarnings("ignore:.*expression-based index")  # SQLite's are skipped
VIEW_COLUMNS = {
    "sessions_view": "agent_id session_id model policy mode messages_total messages_live messages_pending messages_covered "
    "tokens_total tokens_live summary_version last_event_at",
    "messages_view": "agent_id session_id message_id stream_seq position role tool_call_id tokens priority state compaction_id created_at "
    "text body",
    "summaries_view": "agent_id session_id version in_force kind style model tokens messages_covered compaction_id created_at text",
    "compactions_view": "compaction_id agent_id session_id trigger status messages_evicted tokens_before tokens_after attempts reason "
    "requested_at finished_at",
    "audit_view": "audit_id at agent_id session_id compaction_id phase reason tokens_before tokens_after details prev_hash hash actor",
    "dead_letters_view": "dead_letter_id at subject stream_seq reason size_bytes replayed_at",
    "reigns_view": "agent_id session_id version from_at until_at",
    "moves_view": "agent_id session_id message_id position compaction_id left_at back_at",
    "costs_view": "agent_id session_id at version compaction_id model prompt_tokens completion_tokens cost",
    "coverage_view": "agent_id session_id version base_version compaction_id",
}
"""The contract's views and those for auditors, with their columns."""
BY_TRIGGERS = ("fk_events_sid", "fk_messages_sid", "fk_tool_calls_sid")
"""What stands in for these foreign keys on PostgreSQL looks at all rows of a statement together."""


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where an empty database is."""
    if request.param == "sqlite":
        return f"sqlite+aiosqlite:///{tmp_path}/new/turnfold.db"
    url: str = request.getfixturevalue("postgres_url")
    return url


@asynccontextmanager
async def engine_of(url: str) -> AsyncGenerator[AsyncEngine]:
    engine = create_async_engine(url)
    try:
        yield engine
    finally:
        await engine.dispose()


async def looked_up(url: str, look: Any) -> Any:
    async with engine_of(url) as engine, engine.connect() as connection:
        return await connection.run_sync(look)


async def rows(url: str, statement: str) -> list[dict[str, Any]]:
    async with engine_of(url) as engine, engine.connect() as connection:
        return [dict(row) for row in (await connection.execute(text(statement))).mappings()]


def everything(connection: Connection) -> set[str]:
    """The tables and views of a database; of the index of words, which is several tables on SQLite, the one by its name."""
    seen = inspect(connection)
    return {
        name
        for name in (*seen.get_table_names(), *seen.get_view_names())
        if not name.startswith(f"{word_index.name}_")
    }


def differences(connection: Connection) -> list[Any]:
    by_triggers = BY_TRIGGERS if connection.dialect.name == "postgresql" else ()

    def is_compared(_: object, name: str | None, kind: str, *__: object) -> bool:
        if kind == "table" and name is not None:
            return name not in VIEW_COLUMNS and not name.startswith(word_index.name)
        return name not in by_triggers

    opts = {"compare_type": True, "compare_server_default": True, "include_object": is_compared}
    context = MigrationContext.configure(connection, opts=opts)
    return list(compare_metadata(context, metadata))


@pytest.mark.proves("O6")
async def test_the_tables_come_up_go_down_and_come_up_again(database_url: str) -> None:
    await upgrade(database_url)
    first = await looked_up(database_url, everything)
    await downgrade(database_url, "base")

    assert await looked_up(database_url, everything) == {"alembic_version"}
    await upgrade(database_url)

    assert (
        await looked_up(database_url, everything)
        == first
        == {*metadata.tables, *VIEW_COLUMNS, "alembic_version", word_index.name}
    )
    assert await looked_up(database_url, revision_of) == REVISION


@pytest.mark.proves("O6")
async def test_going_up_twice_changes_nothing(database_url: str) -> None:
    for _ in range(2):
        await upgrade(database_url)

    assert await looked_up(database_url, revision_of) == REVISION


@pytest.mark.proves("O6")
def test_services_wait_for_the_newest_migration_and_numbers_only_grow() -> None:
    """Revisions are compared as text; a service that waits for an older one misses columns."""
    scripts = ScriptDirectory(str(Path(turnfold_migrations.__file__).parent))
    revisions = [script.revision for script in scripts.walk_revisions()]

    assert [REVISION] == scripts.get_heads() == revisions[:1]
    assert revisions == sorted(revisions, reverse=True)
    assert {len(revision) for revision in revisions} == {4}


@pytest.mark.proves("O6")
async def test_the_migrations_build_what_the_schema_says(url: str) -> None:
    assert await looked_up(url, differences) == []


@pytest.mark.proves("O6", "O3")
async def test_a_database_of_an_early_release_is_refused_with_a_way_to_carry_it_over(
    database_url: str,
) -> None:
    await upgrade(database_url)
    async with engine_of(database_url) as engine, engine.begin() as connection:
        await connection.execute(text("UPDATE alembic_version SET version_num = '0014'"))
    before = await looked_up(database_url, everything)
    database = Database(database_url, writes=False)

    with pytest.raises(StartError, match=r"made by an early release .* `turnfold replay`"):
        await upgrade(database_url)
    with pytest.raises(StartError, match="made by an early release"):
        await wait_for_schema(database, seconds=0)

    assert await looked_up(database_url, everything) == before
    await database.close()


@pytest.mark.proves("O3")
@pytest.mark.parametrize("revision", ["ae1027a6acf0", "0a1b2c3d4e5f", "1002_users"])
async def test_a_database_whose_tables_are_another_applications_is_refused(
    database_url: str, revision: str
) -> None:
    await upgrade(database_url)
    async with engine_of(database_url) as engine, engine.begin() as connection:
        await connection.execute(text(f"UPDATE alembic_version SET version_num = '{revision}'"))
    database = Database(database_url, writes=False)

    with pytest.raises(StartError, match=f"another application's .schema {revision}"):
        await upgrade(database_url)
    with pytest.raises(StartError, match="another application's"):
        await wait_for_schema(database, seconds=0)

    await database.close()


@pytest.mark.proves("O3")
@pytest.mark.parametrize(
    ("role", "name", "told"),
    [
        (None, "nobody_made_it", 'database "nobody_made_it" does not exist'),
        ("nobody_made_it", None, 'role "nobody_made_it" does not exist'),
    ],
)
async def test_a_database_or_role_that_does_not_exist_is_named(
    postgres_url: str, role: str | None, name: str | None, told: str
) -> None:
    url = make_url(postgres_url).set(username=role, database=name)
    database = Database(str(url), writes=False)
    try:
        with pytest.raises(StartError, match=told):
            await upgrade(str(url))
        with pytest.raises(Unavailable, match=told):
            await wait_for_schema(database, seconds=0)
    finally:
        await database.close()


@pytest.mark.proves("L1", "I2")
@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1"])
async def test_a_database_that_would_not_store_every_text_is_refused_before_it_has_tables(
    postgres: Postgres, encoding: str
) -> None:
    name = await postgres.create_database(like=f"template0 ENCODING '{encoding}'")
    try:
        with pytest.raises(StartError, match=f"has the encoding {encoding} .*ENCODING 'UTF8'"):
            await upgrade(postgres.url(name))

        assert await looked_up(postgres.url(name), everything) == set()
    finally:
        await postgres.drop_database(name)


async def waited(url: str, error: type[Exception], told: str) -> list[str]:
    """The reasons that a service logs while it waits for the tables in vain."""
    database = Database(url, writes=False)
    with capture_logs() as logged, pytest.raises(error, match=told):
        await wait_for_schema(database, seconds=0.3)
    await database.close()
    return [line["reason"] for line in logged if line["event"] == "tables.awaited"]


@pytest.mark.proves("O6")
async def test_a_service_that_waits_for_the_tables_reports_it_once(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("turnfold.store.database.instance_lock.REPORT_SECONDS", 0.0)
    reasons = await waited(database_url, StartError, "run `turnfold migrate` first")

    assert reasons == ["the tables are not there; run `turnfold migrate`"]


@pytest.mark.proves("O6")
async def test_a_service_and_a_migration_tell_that_the_database_cannot_be_reached() -> None:
    url = f"postgresql+asyncpg://user@127.0.0.1:{free_port()}/turnfold"
    (reason,) = await waited(url, Unavailable, "the database cannot be used now")

    assert "the database cannot be used now" in reason
    with pytest.raises(StartError, match="start it, or correct TURNFOLD_DATABASE_URL"):
        await upgrade(url)


async def test_a_database_that_newer_code_brought_further_is_left_as_it_is_and_served(
    url: str,
) -> None:
    async with engine_of(url) as engine, engine.begin() as connection:
        await connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))

    await upgrade(url)

    assert await looked_up(url, revision_of) == "9999"
    database = Database(url, writes=False)
    await wait_for_schema(database, seconds=5)
    await database.close()


@pytest.mark.proves("A2", "O6")
async def test_auditors_keep_their_rights_on_the_views_and_their_own_views_of_them(
    postgres_url: str,
) -> None:
    await upgrade(postgres_url, "1001")
    views = [row["viewname"] for row in await rows(postgres_url, VIEWS_OF_TURNFOLD)]
    async with engine_of(postgres_url) as engine, engine.begin() as connection:
        for view in views:
            await connection.execute(text(f"GRANT SELECT ON {view} TO PUBLIC"))
            await connection.execute(text(f"CREATE VIEW my_{view} AS SELECT * FROM {view}"))

    await upgrade(postgres_url)
    await downgrade(postgres_url, "1001")

    granted = await rows(
        postgres_url, "SELECT relname FROM pg_class WHERE relacl::text LIKE '%,=r/%'"
    )
    kept = {row["relname"] for row in granted}
    assert kept >= set(views)


VIEWS_OF_TURNFOLD = "SELECT viewname FROM pg_views WHERE schemaname = 'public'"
OF_1001 = (
    "INSERT INTO sessions (sid, agent_id, session_id) VALUES (7, 'ada', 's-1')",
    "INSERT INTO events (agent_id, event_id, sid, stream_seq, digest) VALUES ('ada', 'e', 7, 1, '1')",
)
"""Rows as code of revision 1001 writes them."""
ERASED_BY_1001 = ("DELETE FROM events WHERE sid = 7", "DELETE FROM sessions WHERE sid = 7")


@pytest.mark.proves("O6", "R5", "C54")
async def test_sessions_of_1001_are_kept_and_its_code_works_on_the_tables_of_1002(
    database_url: str,
) -> None:
    await upgrade(database_url, "1001")
    assert await refusal(database_url, OF_1001[0]) is None

    await upgrade(database_url)

    (session,) = await rows(database_url, "SELECT * FROM sessions")
    assert (session["session_id"], session["window_limits"]) == ("s-1", None)
    assert await refusal(database_url, OF_1001[1]) is None
    limit = "INSERT INTO reported_limits (sid, stream_seq, model, limit_tokens, at_ms) VALUES (7, 2, 'm', 9, 9)"
    assert await refusal(database_url, limit) is None
    # An older worker erases the session, and knows nothing of its limits.
    assert await refusal(database_url, *ERASED_BY_1001) is None
    assert await rows(database_url, "SELECT * FROM reported_limits") == []
    await downgrade(database_url, "1001")
    assert "reported_limits" not in await looked_up(database_url, everything)
    await upgrade(database_url)
    assert await looked_up(database_url, differences) == []


def bring_up(url: str) -> None:
    asyncio.run(upgrade(url))


@pytest.mark.proves("O6", "C48")
async def test_several_may_bring_the_tables_up_at_once(database_url: str) -> None:
    processes = [await asyncio.to_thread(begun, bring_up, database_url) for _ in range(3)]

    assert [await ended(process) for process in processes] == [0, 0, 0]
    assert await looked_up(database_url, differences) == []


def bring_up_and_die(url: str, revision: str, after: int) -> None:
    """Kill this process so many statements after it has noted a revision, or begun."""
    left = after if not revision else None

    def on_executed(_1: object, _2: object, statement: str, given: object, *_: object) -> None:
        nonlocal left
        if left is None:
            left = (
                after
                if "alembic_version" in statement and revision in f"{statement} {given}"
                else None
            )
        elif left > 1:
            left -= 1
        else:
            os.kill(os.getpid(), signal.SIGKILL)

    listen(Engine, "after_cursor_execute", on_executed)
    asyncio.run(upgrade(url))


@pytest.mark.proves("O6", "L1")
async def test_migrations_that_are_killed_are_run_again(database_url: str) -> None:
    """O6: killed within the first and within later ones, one death after the other."""
    seen: list[str | None] = []
    for revision, after in (("", 20), ("", 50), ("1001", 2), ("1008", 4), ("1012", 9)):
        process = await asyncio.to_thread(begun, bring_up_and_die, database_url, revision, after)
        assert await ended(process) == -signal.SIGKILL
        seen.append(await looked_up(database_url, revision_of))

    await upgrade(database_url)

    assert seen == [None, None, "1001", "1008", "1012"]
    assert await looked_up(database_url, differences) == []


@pytest.mark.proves("O3")
async def test_a_database_out_of_reach_is_told_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")

    for url in (
        f"sqlite+aiosqlite:///{tmp_path}/file",
        f"sqlite+aiosqlite:///{tmp_path}/file/turnfold.db",
        "postgresql+asyncpg://nobody@127.0.0.1:1/nothing",
    ):
        with pytest.raises(StartError, match=r"the database .*cannot be|is not a SQLite database"):
            await upgrade(url)


@pytest.mark.proves("A2")
async def test_the_views_have_the_columns_of_the_contract(url: str) -> None:
    def columns(connection: Connection) -> dict[str, str]:
        return {
            name: " ".join(column["name"] for column in inspect(connection).get_columns(name))
            for name in VIEW_COLUMNS
        }

    assert await looked_up(url, columns) == VIEW_COLUMNS


# --- what is in them


async def lived(stores: Stores) -> None:
    """A session with everything: covered, pending and live messages, a failed attempt, a dead letter."""
    await stores.ingest(*turns(1, 7), turn(8, user("hello"), model="gpt-5"))
    (job,) = await stores.claim(NOON + 1_000)
    await stores.jobs.retry_later(
        job, reason="timeout", detail="", retry_at_ms=NOON + 2_000, now_ms=NOON + 1_500
    )
    (job,) = await stores.claim(NOON + 2_000)
    await stores.jobs.commit(job, summary(), reason=None, now_ms=NOON + 3_000)
    await stores.ingest(*turns(9, 5), result(14, "c", "42"))
    await stores.ingest(turn(15, user("other"), event_id="e1"))


@pytest.mark.proves("A2", "L7")
async def test_the_views_tell_what_happened(url: str) -> None:
    async with sql_stores(url) as stores:
        await lived(stores)
        counters = (await stores.seen()).sessions[KEY].counters

    (session,) = await rows(url, "SELECT * FROM sessions_view")
    assert [session[f"messages_{state}"] for state in ("total", "live", "pending", "covered")] == [
        26,
        7,
        9,
        10,
    ]
    assert (session["tokens_live"], session["model"], session["summary_version"]) == (
        counters.live_tokens,
        "gpt-5",
        1,
    )
    messages = await rows(url, "SELECT * FROM messages_view ORDER BY position")
    assert [one["state"] for one in messages] == ["covered"] * 10 + ["pending"] * 9 + ["live"] * 7
    assert [one["message_id"] for one in messages][:2] == ["e1#0", "e1#1"]
    assert [one["stream_seq"] for one in messages] == [one["position"] // 1024 for one in messages]
    compactions = await rows(url, "SELECT * FROM compactions_view ORDER BY requested_at")
    assert [(one["status"], one["attempts"], one["messages_evicted"]) for one in compactions] == [
        ("committed", 2, 10),
        ("pending", 0, 9),
    ]
    (version,) = await rows(url, "SELECT * FROM summaries_view")
    assert (version["version"], bool(version["in_force"]), version["compaction_id"]) == (
        1,
        True,
        compactions[0]["compaction_id"],
    )
    audit = await rows(url, "SELECT * FROM audit_view ORDER BY audit_id")
    assert [one["phase"] for one in audit] == [
        "evicted",
        "summary_start",
        "attempt_failed",
        "summary_start",
        "summary_done",
        "evicted",
    ]
    assert {one["compaction_id"] for one in audit} == {one["compaction_id"] for one in compactions}
    assert json.loads(audit[0]["details"])["trigger"] == "messages"
    (letter,) = await rows(url, "SELECT * FROM dead_letters_view")
    assert (letter["reason"], letter["stream_seq"], letter["replayed_at"]) == (
        "event_id_reused",
        15,
        None,
    )


@pytest.mark.proves("A2")
async def test_a_version_is_not_in_force_where_none_is(url: str) -> None:
    async with sql_stores(url) as stores:
        await stores.ingest(*turns(1, 7))
        (job,) = await stores.claim(NOON + 1_000)
        await stores.jobs.commit(job, summary(), reason=None, now_ms=NOON + 2_000)
        await stores.versions.restore(
            KEY, job.compaction_ids[0], installation=stores.installation, now_ms=NOON + 3_000
        )

    found = await rows(url, "SELECT version FROM summaries_view WHERE NOT in_force")
    assert [row["version"] for row in found] == [1]


@pytest.mark.proves("A2", "A6")
async def test_no_view_shows_an_erased_session_while_its_rows_are_there(url: str) -> None:
    async with sql_stores(url) as stores:
        await lived(stores)
        await stores.ingest(retracted(16, "e2#0"))
        shown = {name: await rows(url, f"SELECT * FROM {name}") for name in VIEW_COLUMNS}
        assert [name for name, found in shown.items() if not found] == []

        await stores.changes.erase(KEY, last_seq=100, now_ms=NOON + 9_000)

        assert await rows(url, "SELECT * FROM messages") != []
        for name in VIEW_COLUMNS:
            found = await rows(url, f"SELECT * FROM {name}")
            assert bool(found) == (name == "audit_view"), name
        with pytest.raises(RuntimeError, match="run a worker until it deleted them"):
            await downgrade(url, "1012")
        await upgrade(url)
        await stores.delete_rows()
    await downgrade(url, "1012")


@pytest.mark.proves("A1")
async def test_the_audit_refuses_to_be_changed(url: str) -> None:
    async with sql_stores(url) as stores:
        await lived(stores)
    before = await rows(url, "SELECT * FROM audit ORDER BY audit_id")

    for change in (
        "UPDATE audit SET phase = 'x'",
        "UPDATE audit SET at_ms = 0 WHERE audit_id = 1",
        "DELETE FROM audit",
    ):
        assert "append-only" in str(await refusal(url, change))

    assert await rows(url, "SELECT * FROM audit ORDER BY audit_id") == before


@pytest.mark.proves("A1")
async def test_the_audit_refuses_to_be_emptied(postgres: Postgres) -> None:
    assert "append-only" in str(await refusal(await new_postgres(postgres), "TRUNCATE audit"))


FILLED = ("events", "messages", "tool_calls")
COLUMNS = {table: [column.name for column in metadata.tables[table].columns] for table in FILLED}
OTHER = {"sid": "999", "event_id": "event_id || '/'"}
ELSEWHERE = {table: [OTHER.get(name, name) for name in names] for table, names in COLUMNS.items()}
"""The rows of a table as they would be in a session that is not there."""
IMPOSSIBLE = [
    "UPDATE messages SET role = 'robot'",
    "UPDATE messages SET answers_slot = 0, answers_position = NULL",
    "UPDATE messages SET is_copy = true, answers_slot = 0, answers_position = 1",
    "UPDATE compactions SET status = 'done'",
    "UPDATE compactions SET status = 'running', lease_until_ms = NULL",
    "UPDATE compactions SET is_covered = true WHERE status = 'pending'",
    "UPDATE compactions SET ordinal = 1",
    "UPDATE summaries SET base_version = version",
    "UPDATE sessions SET live_messages = -1",
    "UPDATE ingested_ranges SET last_seq = first_seq - 1",
    "INSERT INTO messages SELECT * FROM messages",
    "INSERT INTO events SELECT * FROM events",
    *(f"UPDATE {table} SET sid = 999" for table in FILLED),
    *(
        f"INSERT INTO {table} ({', '.join(COLUMNS[table])}) SELECT {', '.join(ELSEWHERE[table])} FROM {table}"
        for table in FILLED
    ),
]


@pytest.mark.proves("L1")
async def test_rows_that_must_not_exist_are_refused(url: str) -> None:
    async with sql_stores(url) as stores:
        await lived(stores)
        await stores.ingest(turn(16, assistant(None, "d")))

    for change in IMPOSSIBLE:
        assert isinstance(await refusal(url, change), IntegrityError), change


@pytest.mark.proves("L1")
@pytest.mark.parametrize("left", FILLED)
async def test_a_session_cannot_go_while_it_has_rows(url: str, left: str) -> None:
    async with sql_stores(url) as stores:
        await stores.ingest(turn(1, user("q"), assistant(None, "c")))
    others = [f"DELETE FROM {table}" for table in FILLED if table != left]

    assert isinstance(await refusal(url, *others, "DELETE FROM sessions"), IntegrityError)
    assert await refusal(url, *others, f"DELETE FROM {left}", "DELETE FROM sessions") is None


@pytest.mark.proves("L1")
async def test_a_session_cannot_go_while_somebody_adds_rows_to_it(postgres: Postgres) -> None:
    url = await new_postgres(postgres)
    async with sql_stores(url) as stores:
        await stores.ingest(turn(1, user("q")))

    async with engine_of(url) as engine, engine.begin() as adding:
        await adding.execute(
            text(
                "INSERT INTO tool_calls (sid, call_id, position, slot) SELECT sid, 'c', 1, 0 FROM sessions"
            )
        )
        refused = await refusal(url, "SET LOCAL lock_timeout = '100ms'", "DELETE FROM sessions")

    assert "lock timeout" in str(refused)


async def refusal(url: str, *changes: str) -> DBAPIError | None:
    """Why these changes are refused; None when they are made."""
    async with engine_of(url) as engine:
        try:
            async with engine.begin() as connection:
                if engine.dialect.name == "sqlite":
                    await connection.execute(text("PRAGMA foreign_keys=ON"))
                for change in changes:
                    await connection.execute(text(change))
        except DBAPIError as error:
            return error
    return None
