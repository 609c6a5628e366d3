"""A database in trouble says nothing against the events that it cannot store just now."""

import pytest
from sqlalchemy import Connection, text
from sqlalchemy.dialects.postgresql.asyncpg import AsyncAdapt_asyncpg_dbapi

from tests.chaos.mortal import Life, living
from turnfold.errors import Unavailable
from turnfold.store.engine import may_pass
from turnfold_migrations import upgrade

DAMAGE = """
CREATE FUNCTION damage() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN RAISE EXCEPTION 'could not extend file "base/1/1": File too large' USING ERRCODE = 'XX000'; END $$;
"""


@pytest.mark.proves("L1")
async def test_what_a_full_or_damaged_disk_refuses_is_no_dead_letter_and_is_stored_later(postgres_url: str) -> None:
    await upgrade(postgres_url)
    async with living(Life(deed="", database_url=postgres_url)) as worker:

        def damage(connection: Connection) -> None:
            connection.execute(text(DAMAGE))
            connection.execute(text("CREATE TRIGGER damage BEFORE INSERT ON messages EXECUTE FUNCTION damage()"))

        await worker.database.write(damage)

        with pytest.raises(Unavailable):
            await worker.do("ingest", "1")

        await worker.database.write(lambda connection: connection.execute(text("DROP TRIGGER damage ON messages")))
        await worker.do("ingest", "1")
        stored = await worker.database.snapshot(lambda connection: connection.execute(text("SELECT count(*) FROM events")).scalar())
        assert stored


def test_a_connection_whose_server_has_just_ended_it_is_passing_trouble() -> None:
    kind: type[Exception] = AsyncAdapt_asyncpg_dbapi.InternalClientError

    assert may_pass(kind("cannot switch to state 12; another operation (2) is in progress"))
