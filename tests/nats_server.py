"""A real nats-server for tests: on a free port, in a directory of the test, stopped by its own process id."""

import asyncio
import json
import os
import signal
import subprocess
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

import nats
from nats.aio.client import Client
from nats.js.api import StreamConfig

from tests.ports import free_port
from turnfold.contracts.subjects import EVENTS_STREAM, EVENTS_SUBJECTS
from turnfold.process.nats_server import find_server

START_SECONDS = 10.0
EVENTS = StreamConfig(name=EVENTS_STREAM, subjects=list(EVENTS_SUBJECTS))
"""A stream for events, without any setting of the bus."""
CONFIG = """
listen: "127.0.0.1:{port}"
ports_file_dir: "{ports}"
{more}
"""


class NatsServer:
    """One server process. `stop`, `kill` and `start` again keep its port and its store."""

    def __init__(self, directory: Path, *, more: str = "", jetstream: bool = True) -> None:
        self._directory = directory
        self._more = more if "max_payload" in more else f"{more}\nmax_payload: 8MB"
        if jetstream:
            self._more += f'\njetstream {{ store_dir: "{directory / "store"}" }}'
        self._port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def url(self) -> str:
        """Where clients connect."""
        return f"nats://127.0.0.1:{self._port}"

    @property
    def pid(self) -> int:
        """The process."""
        assert self._process
        return self._process.pid

    def start(self) -> None:
        """Start it and wait until it answers."""
        config, ports = self._directory / "nats.conf", self._directory / "ports"
        ports.mkdir(parents=True, exist_ok=True)
        config.write_text(CONFIG.format(port=self._port, ports=ports, more=self._more))
        with (self._directory / "nats.log").open("ab") as log:
            self._process = subprocess.Popen([find_server(), "-c", config], stdout=log, stderr=log)
        deadline = time.monotonic() + START_SECONDS
        found: list[str] = []
        while not found:
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise RuntimeError(
                    f"nats-server did not start:\n{(self._directory / 'nats.log').read_text()[-2_000:]}"
                )
            for file in ports.glob(f"*_{self.pid}.ports"):
                text = file.read_text()
                found = json.loads(text).get("nats", []) if text.endswith("}") else []
            time.sleep(0.005)
        self._port = int(found[0].rpartition(":")[2])

    def stop(self) -> None:
        """Stop it in good order."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it as a crash would."""
        self._signal(signal.SIGKILL)

    def reload(self) -> None:
        """Have it read its configuration again."""
        os.kill(self.pid, signal.SIGHUP)

    async def make_stream(self, config: StreamConfig = EVENTS, **who: str) -> None:
        """Make a stream, as one who may do that."""
        connection = await nats.connect(self.url, **who)
        await connection.jetstream().add_stream(config)
        await connection.close()

    async def delete_stream(self, client: Client, name: str) -> None:
        """Delete a stream and wait until its files are gone.

        nats-server 2.15.1 keeps the messages of a stream that is made and deleted again meanwhile.
        """
        await client.jetstream().delete_stream(name)
        deadline = time.monotonic() + START_SECONDS
        while any(self._directory.glob(f"store/jetstream/*/streams/.{name}")):
            assert time.monotonic() < deadline, f"the files of {name} are still there"
            await asyncio.sleep(0.005)

    def _signal(self, number: int) -> None:
        if self._process and self._process.poll() is None:
            os.kill(self._process.pid, number)
            self._process.wait(timeout=START_SECONDS)


@contextmanager
def nats_server(
    directory: Path, *, more: str = "", jetstream: bool = True
) -> Generator[NatsServer, None, None]:
    """A running server that keeps its streams in `directory`; `more` is further configuration."""
    server = NatsServer(directory, more=more, jetstream=jetstream)
    try:
        yield server
    finally:
        server.stop()


@contextmanager
def nats_cluster(directory: Path, *, nodes: int = 3) -> Generator[Sequence[NatsServer], None, None]:
    """Servers that keep their streams together, each with a store of its own."""
    ports = [free_port() for _ in range(nodes)]
    routes = ", ".join(f'"nats://127.0.0.1:{port}"' for port in ports)
    servers: list[NatsServer] = []
    try:
        for number, port in enumerate(ports):
            home = directory / f"node-{number}"
            home.mkdir(parents=True)
            cluster = f'cluster {{ name: test, listen: "127.0.0.1:{port}", routes: [{routes}], no_advertise: true }}'
            servers.append(NatsServer(home, more=f'server_name: "node-{number}"\n{cluster}'))
        yield servers
    finally:
        for server in servers:
            server.kill()


async def subscriptions_known(client: Client) -> None:
    """Return when the server knows every subscription of this connection.

    One flush of nats-py may overtake the subscriptions it should follow; a second cannot.
    """
    await client.flush()
    await client.flush()
