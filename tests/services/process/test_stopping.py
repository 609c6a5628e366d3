"""Services stop on a signal even if their database hangs."""

from pathlib import Path
from signal import SIGTERM

from tests.postgres import Postgres
from tests.running_system import running_parts, wait_until
from turnfold.client import connect


async def test_services_stop_while_their_database_server_hangs(
    tmp_path: Path, postgres: Postgres
) -> None:
    async with (
        running_parts(tmp_path, postgres=postgres) as parts,
        parts.running("worker") as worker,
        parts.running("query") as query,
        connect(parts.server.url, timeout_seconds=30, environ={}) as client,
    ):
        session = client.session("ada", "s-1")
        await session.turn_completed([{"role": "user", "content": "Is anybody there?"}])
        await session.context()
        with postgres.frozen():
            for service in (query, worker):
                service.signal(SIGTERM)

                assert await service.ended() == 0, parts.words()

        async with parts.running("worker") as another, parts.running("query"):
            await wait_until(lambda: another.is_ready, told=parts.words)
            assert len((await session.context()).messages) == 1
