"""`turnfold audit` shows the rows of a session in the order of its chain."""

from pathlib import Path

import pytest

from tests.running_system import command, running_parts
from tests.store_fixtures import KEY, NOON, stores_on
from turnfold.contracts.requests import PolicyRequest
from turnfold.core.policy.retention import DAY_MS
from turnfold.store.database.engine import Database


@pytest.mark.proves("O3", "A1")
async def test_the_newest_rows_are_the_last_ones_also_after_a_clock_was_ahead(
    tmp_path: Path,
) -> None:
    async with running_parts(tmp_path) as parts, parts.running("query"):
        database = Database(parts.database_url, writes=True)
        stores = stores_on(database)
        for days, mode in ((9, "manual"), (0, "off"), (0, "auto")):
            await stores.changes.set_policy(
                KEY,
                PolicyRequest(overrides={"mode": mode}),
                installation=stores.installation,
                now_ms=NOON + days * DAY_MS,
            )
        await database.close()

        shown = await command("audit", *KEY, "--limit", "2", "--json", environ=parts.environ)

        assert [row["ordinal"] for row in shown.rows] == [2, 3], shown
