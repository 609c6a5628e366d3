"""The services of compose.yaml as plain processes: their own commands, environment, files and health checks, on other paths and ports."""

import asyncio
import os
import re
import shutil
import signal
import subprocess
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.containers.compose_file import read
from tests.containers.dockerfile import ROOT, Image
from tests.ports import free_port
from tests.postgres import Postgres, _programs
from tests.running_system import eventually, wait_until

COMPOSE = read(ROOT / "compose.yaml")
SERVICES: Mapping[str, Any] = COMPOSE["services"]
OURS = {name: service for name, service in SERVICES.items() if "build" in service}
HEALTHY_SECONDS = 60.0
RELOADED = "Reloaded server configuration"
NOWHERE = "http://127.0.0.1:9"


def make_secrets(directory: Path, path: str) -> None:
    """Run `deploy/make-secrets` with the `turnfold` of this path."""
    subprocess.run(
        ["sh", ROOT / "deploy" / "make-secrets", directory],
        env=os.environ | {"PATH": path},
        check=True,
    )


class Containers:
    """The services of compose.yaml, each as processes of this machine; the mapping is all that differs."""

    def __init__(self, directory: Path, image: Image, postgres: Postgres, database: str) -> None:
        self.image = image
        self._directory = directory
        self._postgres = postgres
        self._processes: dict[str, asyncio.subprocess.Process] = {}
        self._ports = {port: free_port() for port in (4222, 8222)}
        self._http_ports: dict[str, int] = {}
        self._path = f"{image.root}/opt/turnfold/bin:{os.environ['PATH']}"
        make_secrets(directory / "secrets", self._path)
        self._addresses = {
            "@postgres/turnfold": f"@127.0.0.1:{postgres.port}/{database}",
            "//nats:": "//127.0.0.1:",
            "0.0.0.0": "127.0.0.1",
        } | {f":{port}": f":{number}" for port, number in self._ports.items()}
        for target, source in {
            each for service in SERVICES.values() for each in mounts(service).items()
        }:
            text = (
                ROOT / source if source.startswith("deploy/") else directory / source
            ).read_text()
            self._mounted(target).parent.mkdir(exist_ok=True)
            self._mounted(target).write_text(self._addressed(text))
        self.settings = tomllib.loads(self._mounted("/run/secrets/settings").read_text())
        self.nats_url = f"nats://127.0.0.1:{self._ports[4222]}"

    async def up(self) -> None:
        """Start everything in the order in which it depends on each other."""
        waiting = {name: service for name, service in SERVICES.items() if "profiles" not in service}
        while waiting:
            name = next(
                name
                for name, service in waiting.items()
                if not set(service.get("depends_on", ())) & set(waiting)
            )
            service = waiting.pop(name)
            for other, needed in service.get("depends_on", {}).items():
                match needed["condition"]:
                    case "service_healthy":
                        await self.until_healthy(other)
                    case "service_completed_successfully":
                        assert await self._processes[other].wait() == 0, self.words(other)
                    case condition:
                        raise AssertionError(f"the test does not know {condition}")
            if "build" in service:
                for number in range(service.get("deploy", {}).get("replicas", 1)):
                    await self._start(f"{name}#{number}" if number else name, service)

    async def until_healthy(self, name: str) -> None:
        """Return when the health check of a container says so."""
        service = SERVICES[name]
        assert not service.get("healthcheck", {}).get("disable")
        how = (
            service["healthcheck"]["test"][1:]
            if "healthcheck" in service
            else self.image.healthcheck
        )

        async def is_healthy() -> bool:
            return not await self.failure_of(name, how)

        await eventually(
            is_healthy, seconds=HEALTHY_SECONDS, every=0.2, told=lambda: self.words(name)
        )

    async def failure_of(self, name: str, arguments: list[str], *, http: str | None = None) -> str:
        """Run a command inside a container; `http` is the query server that it asks.

        Returns:
            Its output if it failed, otherwise nothing.
        """
        environ = self._environ(name, SERVICES[name])
        if http is not None:
            environ["TURNFOLD_HTTP_PORT"] = str(self._own_port(http))
        if name == "postgres":
            environ = {"PATH": str(_programs(None)), "PGPORT": str(self._postgres.port)}
        process = await asyncio.create_subprocess_exec(
            *self._command(name, arguments, environ),
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        output, _ = await process.communicate()
        return f"{process.returncode}: {output.decode()}" if process.returncode else ""

    async def reload_nats(self) -> None:
        """Have the NATS server read its accounts again, and once more: the first time brings new ones, the second connects them."""
        for times in (1, 2):
            self._processes["nats"].send_signal(signal.SIGHUP)
            await self._reloaded(times)

    async def _reloaded(self, times: int) -> None:
        await wait_until(
            lambda: self._log("nats").count(RELOADED) == times, told=lambda: self.words("nats")
        )

    def new_agent(self, agent: str) -> Path:
        """Make an agent's key as the page on security says; the file of its seed."""
        keys, accounts = self._directory / "secrets" / "keys", self._mounted("nats-users.conf")
        arguments = ["keys", "new", "agent", agent, "--dir", str(keys), "--nats", str(accounts)]
        subprocess.run(
            [f"{self.image.root}/opt/turnfold/bin/turnfold", *arguments],
            check=True,
            capture_output=True,
        )
        (seed,) = keys.glob(f"agent-{agent}-*.nk")
        return seed

    def http_url(self, name: str) -> str:
        """Where a query server is reached."""
        return f"http://127.0.0.1:{self._own_port(name)}"

    async def down(self) -> Mapping[str, int]:
        """How each process ends that is told to, the bus last."""
        statuses: dict[str, int] = {}
        for name, process in reversed(self._processes.items()):
            if process.returncode is None:
                process.terminate()
            async with asyncio.timeout(grace_seconds(SERVICES[name.partition("#")[0]])):
                statuses[name] = await process.wait()
        return statuses

    async def kill(self) -> None:
        """End what a test left."""
        for process in self._processes.values():
            if process.returncode is None:
                process.kill()
                await process.wait()

    def words(self, name: str) -> str:
        """The end of what a container said."""
        return self._log(name)[-3_000:]

    def _log(self, name: str) -> str:
        log = self._directory / f"{name}.log"
        return log.read_text(errors="replace") if log.exists() else ""

    async def _start(self, name: str, service: Mapping[str, Any]) -> None:
        environ = self._environ(name, service)
        arguments = [*service.get("entrypoint", self.image.entrypoint), *service["command"]]
        with (self._directory / f"{name}.log").open("ab") as log:
            self._processes[name] = await asyncio.create_subprocess_exec(
                *self._command(name, arguments, environ),
                env=environ,
                cwd=self._directory,
                stdout=log,
                stderr=log,
            )

    def _environ(self, name: str, service: Mapping[str, Any]) -> dict[str, str]:
        """All that a container's process finds: nothing comes from the test."""
        # As of an engine whose configuration names proxies. Nothing inside is reached through them.
        proxies = {"http_proxy": NOWHERE, "HTTP_PROXY": NOWHERE}
        given = {**self.image.environ, **proxies, **service.get("environment", {})}
        # Commands name the query server.
        return {
            key: "127.0.0.1" if value in SERVICES else self._here(name, value, service)
            for key, value in given.items()
        }

    def _command(self, name: str, arguments: list[str], environ: Mapping[str, str]) -> list[str]:
        program, *rest = [
            self._here(name, argument, SERVICES[name.partition("#")[0]]) for argument in arguments
        ]
        return [shutil.which(program, path=environ["PATH"]) or program, *rest]

    def _here(self, name: str, text: str, service: Mapping[str, Any]) -> str:
        """The same text with what stands for a container's files, hosts and ports on this machine."""
        found = self.image.here(text)
        for target in mounts(service):
            found = found.replace(target, str(self._mounted(target)))
        return re.sub(r"(?<![\d.])8080\b", str(self._own_port(name)), self._addressed(found))

    def _addressed(self, text: str) -> str:
        """The same text with the addresses of this machine."""
        for there, here in self._addresses.items():
            text = text.replace(there, here)
        return text

    def _mounted(self, target: str) -> Path:
        """Where a mounted file is; those of one directory stay beside each other."""
        return self._directory / "mounted" / Path(target).name

    def _own_port(self, name: str) -> int:
        return self._http_ports.setdefault(name, free_port())


def mounts(service: Mapping[str, Any]) -> dict[str, str]:
    """The files that a container finds: where, and what each is outside."""
    found: dict[str, str] = {}
    for kind, place in (("secrets", "/run/secrets/"), ("configs", "/")):
        for one in service.get(kind, ()):
            name, target = (
                (one, f"{place}{one}") if isinstance(one, str) else (one["source"], one["target"])
            )
            found[target] = COMPOSE[kind][name]["file"]
    return found


def grace_seconds(service: Mapping[str, Any]) -> float:
    """How long a container is given to stop."""
    return float(service.get("stop_grace_period", "10s").removesuffix("s"))
