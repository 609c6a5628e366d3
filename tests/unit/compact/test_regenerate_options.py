"""Options of a regeneration, and the answer about a restored compaction."""

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from tests.store_fixtures import KEY, NOON, Stores, new_sqlite, sql_stores, summary, turns
from turnfold.contracts.requests import RegenerateRequest, RestoreRequest
from turnfold.errors import BadRequest
from turnfold.messages import CompactionId
from turnfold.operations.compact.versions import regenerate, restore
from turnfold.ports.compact import RegenerateOptions


@pytest.fixture
async def stores(tmp_path: Path) -> AsyncGenerator[Stores]:
    """Open a database that holds one session with one version."""
    async with sql_stores(new_sqlite(tmp_path)) as stores:
        await stores.ingest(*turns(1, 7))
        (job,) = await stores.claim()
        await stores.jobs.commit(job, summary(), reason=None, now_ms=NOON)
        yield stores


async def write_another(stores: Stores) -> CompactionId:
    """Write a second version; return its compaction."""
    await stores.ingest(*turns(10, 7))
    (job,) = await stores.claim(NOON + 10_000)
    await stores.jobs.commit(job, summary("More."), reason=None, now_ms=NOON + 10_000)
    (compaction_id,) = job.compaction_ids
    return compaction_id


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


@pytest.mark.proves("A4")
async def test_every_option_of_a_regeneration_reaches_its_job(stores: Stores) -> None:
    await write_another(stores)
    asked = RegenerateRequest(
        model="openai/y", style="narrative", prompt="Sum it up.", from_version=1
    )
    await regenerate(
        KEY, asked, store=stores.versions, installation=stores.installation, now_ms=NOON
    )

    (job,) = await stores.claim(NOON + 20_000)
    assert job.wanted == RegenerateOptions("openai/y", "narrative", "Sum it up.", 1)


@pytest.mark.proves("A4")
async def test_a_restored_compaction_is_answered_with_the_state_after_it(stores: Stores) -> None:
    compaction_id = await write_another(stores)

    answer = await restore(
        KEY,
        RestoreRequest(compaction_id=compaction_id),
        store=stores.versions,
        installation=stores.installation,
        now_ms=NOON + 20_000,
    )

    assert answer == {
        "compaction_id": compaction_id,
        "status": "restored",
        "version": 1,
        "messages_pending": 0,
    }
