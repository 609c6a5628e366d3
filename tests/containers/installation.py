"""An installation in containers, made by the steps of docs/operations.md."""

import json
import os
import shutil
import tempfile
import time
from asyncio import to_thread
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from uuid import uuid4

import httpx

from tests.containers.compose_file import IMAGE, Json, of_run, read
from tests.containers.engines import Engine, Project
from tests.containers.programs import output
from tests.ports import free_port
from tests.running_system import wait_until

ROOT = Path(__file__).parents[2]
SERVICES = ("nats", "postgres", "worker", "query", "query-more")
SECONDS = 120.0
RELOADED = "Reloaded server configuration"

COUNTS = """
SELECT json_build_object(
    'sessions', (SELECT count(*) FROM sessions_view WHERE agent_id = '{agent}'),
    'messages', (SELECT count(*) FROM messages_view WHERE agent_id = '{agent}'),
    'versions', (SELECT count(*) FROM summaries_view WHERE agent_id = '{agent}'),
    'audit', (SELECT count(*) FROM audit_view WHERE agent_id = '{agent}'),
    'dead letters', (SELECT count(*) FROM dead_letters_view))
"""

# `docker` of a shell, with the engine and the image of the run.
SHIM = """#!/bin/sh
for word; do
    shift
    [ "$word" != {image} ] || word={tag}
    set -- "$@" "$word"
done
exec {command} "$@"
"""


class Installation:
    """A project with its secrets, its published ports, and the token of its operator."""

    def __init__(self, engine: Engine, directory: Path, source: Path, tag: str) -> None:
        self._engine, self.directory = engine, directory
        self._ports = {4222: free_port(), 8080: free_port()}
        self._programs = directory / "bin"
        self._programs.mkdir()
        name = f"turnfold-test-{uuid4().hex[:8]}"
        self.project: Project = engine.project(name, directory, self.take(source, tag))

    def take(self, source: Path, tag: str) -> Json:
        """Take the files of a checkout and an image; return the compose file of this run."""
        shutil.rmtree(self.directory / "deploy", ignore_errors=True)
        shutil.copytree(source / "deploy", self.directory / "deploy")
        shim = self._programs / "docker"
        shim.write_text(SHIM.format(image=IMAGE, tag=tag, command=self._engine.docker_command()))
        shim.chmod(0o755)
        tokens = ROOT / "deploy" / "compose.tokens.yaml"
        return of_run(read(source / "compose.yaml", tokens), image=tag, host_ports=self._ports)

    @property
    def nats_url(self) -> str:
        """Where agents reach the bus."""
        return f"nats://127.0.0.1:{self._ports[4222]}"

    def make_secrets(self) -> None:
        """Make keys, password and the token of an operator, as an operator does."""
        self._shell("sh deploy/make-secrets")
        self.token = self.new_token("--operator", "--name=admin")
        self.open_tokens()

    def open_tokens(self) -> None:
        """Let the user of the containers read the hashes of the tokens."""
        self._shell("chmod 755 secrets/http && chmod 644 secrets/http/tokens.json")

    def new_token(self, *whose: str) -> str:
        """Make a token; running query servers read it at once."""
        made = self.in_image("keys", "token", *whose, "--dir=/s/http", "--json")
        return str(json.loads(made)["token"])

    def in_image(self, *arguments: str) -> str:
        """Run a command of the image on the directory `secrets`; return its output."""
        run = 'docker run --rm -v "$PWD/secrets:/s" -u "$(id -u)"'
        return self._shell(f"{run} {IMAGE} {' '.join(arguments)}")

    async def new_agent(self, agent: str) -> Path:
        """Make an agent's key and have the server read it; return the file of the seed."""
        await to_thread(
            self.in_image,
            "keys",
            "new",
            "agent",
            agent,
            "--dir=/s/keys",
            "--nats=/s/nats-users.conf",
        )
        await self.reload_nats()
        (seed,) = (self.directory / "secrets" / "keys").glob(f"agent-{agent}-*.nk")
        return seed

    def write_accounts(self) -> None:
        """Write the permissions of all keys again, in the file that the server has open."""
        accounts = self.in_image("keys", "nats", "--dir=/s/keys")
        (self.directory / "secrets" / "nats-users.conf").write_text(accounts)

    async def reload_nats(self) -> None:
        """Reload the accounts twice, because the first time does not connect new ones."""
        for _ in range(2):
            before = self._reloads()
            await to_thread(self.project.signal, "nats", "HUP")
            await wait_until(lambda: self._reloads() > before)  # noqa: B023

    def _reloads(self) -> int:
        return self.project.logs("nats").count(RELOADED)

    def until_healthy(self, *services: str) -> None:
        """Return when these services are healthy."""
        deadline = time.monotonic() + SECONDS
        for service in services:
            while not self.project.is_healthy(service):
                assert time.monotonic() < deadline, self.project.logs(service)[-4_000:]
                time.sleep(0.5)

    async def operator(self, *arguments: str) -> str:
        """Run a command with the operator's key and token; return its output."""
        return await self.run("operator", *arguments)

    async def run(self, service: str, *arguments: str) -> str:
        """Run a command of a service with the operator's token; return its output."""
        variables = {"TURNFOLD_HTTP_TOKEN": self.token}
        run = partial(self.project.run, service, *arguments, variables=variables)
        return (await to_thread(run)).decode()

    async def counts(self, agent: str) -> dict[str, int]:
        """Return how many rows the database has of an agent, and how many dead letters."""
        statement = COUNTS.format(agent=agent)
        command = ("psql", "-U", "turnfold", "-At", "-c", statement)
        return dict(json.loads(await to_thread(self.project.exec, "postgres", *command)))

    def http(self, token: str | None) -> httpx.AsyncClient:
        """Return a client of HTTP with a token."""
        return httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{self._ports[8080]}",
            headers={"Authorization": f"Bearer {token}"} if token else {},
            trust_env=False,
            timeout=20.0,
        )

    def _shell(self, command: str) -> str:
        # What an operator has: no `turnfold`, so that the image runs it.
        path = f"{self._programs}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        environ = {name: value for name, value in os.environ.items() if name != "PATH"}
        shell = ["sh", "-c", command]
        return output(shell, environ=environ | {"PATH": path}, directory=self.directory).decode()


@contextmanager
def running_installation(engine: Engine, source: Path, tag: str) -> Generator[Installation]:
    """Start an installation and remove it at the end, whatever happens in between."""
    with tempfile.TemporaryDirectory(prefix="turnfold-containers-") as directory:
        installation = Installation(engine, Path(directory), source, tag)
        try:
            installation.make_secrets()
            installation.project.up()
            installation.until_healthy(*SERVICES)
            yield installation
        finally:
            installation.project.down()
