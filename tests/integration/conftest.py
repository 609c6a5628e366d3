"""A database of either kind, for tests that open stores themselves."""

from pathlib import Path

import pytest

from tests.store_fixtures import new_postgres, new_sqlite


@pytest.fixture(params=["sqlite", "postgresql"])
async def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the address of a database with its tables."""
    return (
        new_sqlite(tmp_path)
        if request.param == "sqlite"
        else await new_postgres(request.getfixturevalue("postgres"))
    )
