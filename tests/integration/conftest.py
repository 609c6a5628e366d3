"""A database of either kind, for tests that open stores themselves."""

from pathlib import Path

import pytest

from tests.store_fixtures import new_sqlite


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the address of an empty database."""
    if request.param == "sqlite":
        return new_sqlite(tmp_path)
    made: str = request.getfixturevalue("postgres_url")
    return made
