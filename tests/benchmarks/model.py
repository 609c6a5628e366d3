"""The summary model of a benchmark, in a process of its own: `python -m tests.benchmarks.model answer|hang`."""

import asyncio
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from tests.benchmarks.system import stop
from tests.model_server import running_model_server


@asynccontextmanager
async def summary_model(fault: str) -> AsyncGenerator[dict[str, str]]:
    """The settings of a system whose model answers at once (`answer`), or never (`hang`)."""
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "tests.benchmarks.model", fault, stdout=PIPE)
    try:
        assert process.stdout
        url = (await process.stdout.readline()).decode().strip()
        yield {"TURNFOLD_SUMMARY_MODEL": "openai/bench", "TURNFOLD_SUMMARY_API_BASE": url, "TURNFOLD_SUMMARY_API_KEY": "none"}
    finally:
        await stop(process)


async def _serve(fault: str) -> None:
    async with running_model_server() as model:
        model.fault = fault
        print(model.url, flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_serve(sys.argv[1]))
