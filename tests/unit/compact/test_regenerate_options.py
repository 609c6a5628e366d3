"""What a regeneration may ask for."""

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from tests.store_fixtures import KEY, NOON, Stores, new_sqlite, sql_stores, summary, turns
from turnfold.contracts.requests import (
    RegenerateRequest,
)
from turnfold.errors import BadRequest
from turnfold.operations.compact.versions import regenerate


@pytest.fixture
async def stores(tmp_path: Path) -> AsyncGenerator[Stores]:
    """Open a database that holds one session with one version."""
    async with sql_stores(new_sqlite(tmp_path)) as stores:
        await stores.ingest(*turns(1, 7))
        (job,) = await stores.claim()
        await stores.jobs.commit(job, summary(), reason=None, now_ms=NOON)
        yield stores


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"prompt": "Sum {it} up."}, "prompt: there is no placeholder {it}"),
        ({"prompt": "Sum { up."}, "prompt: it does not parse"),
        ({"model": "gpt 4"}, "model: it is a word without spaces"),
    ],
)
@pytest.mark.proves("A4")
async def test_a_prompt_that_does_not_parse_and_a_name_that_is_none_are_refused_at_once(
    stores: Stores, asked: dict[str, Any], told: str
) -> None:
    with pytest.raises(BadRequest) as caught:
        await regenerate(
            KEY,
            RegenerateRequest(**asked),
            store=stores.versions,
            installation=stores.installation,
            now_ms=NOON,
        )

    assert str(caught.value).startswith(told)
    assert await stores.claim(NOON + 10_000) == []


@pytest.mark.proves("A4")
async def test_a_prompt_of_ones_own_is_work_to_do(stores: Stores) -> None:
    asked = RegenerateRequest(prompt="Sum it up in {words} words.", model="openai/y")
    await regenerate(
        KEY, asked, store=stores.versions, installation=stores.installation, now_ms=NOON
    )

    (job,) = await stores.claim(NOON + 10_000)
    assert (job.wanted.prompt, job.wanted.model) == ("Sum it up in {words} words.", "openai/y")
