"""The summary model of a benchmark, in a process of its own: `python -m tests.benchmarks.model FAULT`."""

import asyncio
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from tests.benchmarks.system import stop
from tests.model_server import running_model_server


@dataclass(frozen=True, slots=True)
class SummaryModel:
    """A running model; `settings` are those of a system that asks it."""

    settings: dict[str, str]
    process: Process

    async def change(self, fault: str) -> int:
        """Answer like this from now on; how often it was asked until now."""
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(f"{fault}\n".encode())
        return int(await self.process.stdout.readline())


@asynccontextmanager
async def summary_model(
    fault: str, module: str = "tests.benchmarks.model"
) -> AsyncGenerator[SummaryModel]:
    """A model that answers at once (`answer`), or never (`hang`), or as `tests/model_server.py` knows to.

    Another `module` is another model, and `fault` its argument.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", module, fault, stdin=PIPE, stdout=PIPE
    )
    try:
        assert process.stdout
        url = (await process.stdout.readline()).decode().strip()
        settings = {
            "TURNFOLD_SUMMARY_MODEL": "openai/bench",
            "TURNFOLD_SUMMARY_API_BASE": url,
            "TURNFOLD_SUMMARY_API_KEY": "none",
        }
        yield SummaryModel(settings, process)
    finally:
        await stop(process)


async def _serve(fault: str) -> None:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    async with running_model_server() as model:
        model.fault = fault
        print(model.url, flush=True)
        while line := await reader.readline():
            model.fault = line.decode().strip()
            print(len(model.requests), flush=True)


if __name__ == "__main__":
    asyncio.run(_serve(sys.argv[1]))
