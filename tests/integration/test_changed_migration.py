"""Databases that ran an earlier form of migration 1023 get the indexes of its last form."""

from collections.abc import Mapping

import pytest
from sqlalchemy import text

from tests.integration.test_migrations import engine_of, rows
from turnfold_migrations import downgrade, upgrade

DEFINITIONS = {
    "sqlite": "SELECT name, rootpage AS place, sql FROM sqlite_schema WHERE type = 'index'",
    "postgresql": "SELECT indexname AS name, pg_relation_filenode(indexname::regclass) AS place,"
    " indexdef AS sql FROM pg_indexes WHERE schemaname = 'public'",
}
PLAIN = (
    "DROP INDEX ix_usage_reports_answer",
    "CREATE INDEX ix_usage_reports_answer ON usage_reports (sid, answer_position)",
)
FORMS = {
    "last": (),
    "with an index of the column": PLAIN,
    "the first": (*PLAIN, "DROP INDEX ix_retracted_messages_seq"),
}


async def indexes(url: str, field: str) -> Mapping[str, object]:
    """A field of each index by the index's name."""
    statement = DEFINITIONS["sqlite" if url.startswith("sqlite") else "postgresql"]
    return {row["name"]: row[field] for row in await rows(url, statement)}


@pytest.mark.proves("O6")
@pytest.mark.parametrize("form", FORMS)
async def test_each_form_gets_the_same_indexes_and_builds_only_those_that_it_lacks(
    url: str, form: str
) -> None:
    right = await indexes(url, "sql")
    await downgrade(url, "1023")
    assert await indexes(url, "sql") == right
    async with engine_of(url) as engine, engine.begin() as connection:
        for statement in FORMS[form]:
            await connection.execute(text(statement))
    before = await indexes(url, "place")

    await upgrade(url)

    assert await indexes(url, "sql") == right
    if form == "last":
        assert await indexes(url, "place") == before
    await downgrade(url, "1022")
    assert {"ix_usage_reports_answer", "ix_retracted_messages_seq"}.isdisjoint(
        await indexes(url, "sql")
    )
    await upgrade(url)
    assert await indexes(url, "sql") == right
