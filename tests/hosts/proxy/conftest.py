"""A proxy in front of a provider that a test writes."""

import asyncio
import os
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest

from tests.environment import clean_environ
from tests.hosts.conftest import RunningSystem
from tests.provider import Provider, ProviderReply, ProviderRequest, running_provider

Reply = Callable[[ProviderRequest], ProviderReply]
Start = Callable[[Reply], AbstractAsyncContextManager[tuple[Provider, str]]]


@pytest.fixture
def proxied(system: RunningSystem) -> Start:
    """Start a provider and `turnfold proxy`; yield the provider and the proxy's URL."""

    @asynccontextmanager
    async def start(reply: Reply) -> AsyncGenerator[tuple[Provider, str]]:
        async with running_provider(reply) as provider:
            python = os.environ.get("MAIN_PYTHON", sys.executable)
            words = ["-P", "-m", "turnfold.cli", "proxy", "--upstream", provider.url, "--port", "0"]
            process = await asyncio.create_subprocess_exec(
                python, *words, stdout=PIPE, env=clean_environ(_settings(system))
            )
            try:
                assert process.stdout
                line = (await process.stdout.readline()).decode()
                yield provider, line.removeprefix("turnfold proxy: ").strip()
            finally:
                process.terminate()
                await process.wait()

    return start


def _settings(system: RunningSystem) -> Mapping[str, str]:
    # Machines that run tests are slow, and no call of these tests may be bypassed.
    return {"TURNFOLD_NATS_URL": system.nats_url, "TURNFOLD_PROXY_WAIT_SECONDS": "60"}
