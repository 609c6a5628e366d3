"""The child, the model and the desk of a test."""

from collections.abc import AsyncIterator
from pathlib import Path
from unittest.mock import patch

import pytest_asyncio

from tests import forked_processes as forked
from tests.integration.model.desk import Desk, desk_with
from tests.model_server import ModelServer, running_model_server
from tests.store_fixtures import SMALL
from turnfold.models import ChildSummarizer
from turnfold.process import child_process


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def summarizer() -> AsyncIterator[ChildSummarizer]:
    child = ChildSummarizer(preload=True)
    with patch.object(child_process, "subprocess", forked.with_popen(forked.ForkedSummarizer)):
        await child.start()
    await child.loaded()
    yield child
    await child.close()


@pytest_asyncio.fixture(loop_scope="module")
async def model() -> AsyncIterator[ModelServer]:
    async with running_model_server() as server:
        yield server


@pytest_asyncio.fixture(loop_scope="module")
async def desk(
    summarizer: ChildSummarizer, model: ModelServer, tmp_path: Path
) -> AsyncIterator[Desk]:
    async for made in desk_with(summarizer, model, tmp_path, SMALL):
        yield made
