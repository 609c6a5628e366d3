"""The systemd units: what they start is there, what they set is known, and systemd finds nothing wrong with them."""

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from signal import SIGTERM

import nats
import pytest
from typer.main import get_group

import turnfold
from tests.nats_server import nats_server, subscriptions_known
from tests.ports import free_port
from tests.running_system import Parts, command, running_system, wait_until
from turnfold.access.identity import public_key
from turnfold.cli.application import application
from turnfold.errors import NotAllowed
from turnfold.settings.parsers import SETTING_NAMES
from turnfold.settings.reading import as_variable
from turnfold_worker.app import STOP_SECONDS

ROOT = Path(__file__).parents[2]
UNITS = ROOT / "deploy" / "systemd"
COMMON = (UNITS / "turnfold-.service.d" / "common.conf").read_text()
NAMES = sorted(path.name for path in UNITS.glob("*.service"))
INSTALLED = "/opt/turnfold/bin/"
WORST_EXPOSURE = 20
"""Of `systemd-analyze security`, in tenths: 0 is nothing left open, 100 everything."""

needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed"
)


def values(text: str, name: str) -> list[str]:
    """What a unit says under this name, in order."""
    return re.findall(rf"^{name}=(.*)$", text, flags=re.MULTILINE)


@pytest.mark.parametrize("name", NAMES)
def test_a_unit_starts_what_is_there_and_sets_what_is_known(name: str) -> None:
    text = (UNITS / name).read_text()
    (started,) = values(text, "ExecStart")
    program, command, *_ = started.removeprefix(INSTALLED).split()
    loaded = dict(one.split(":", 1) for one in values(text, "LoadCredential"))

    assert started.startswith(INSTALLED)
    assert program == "nats-server" or (
        program == "turnfold" and command in get_group(application([command])).commands
    )
    for variable in re.findall(r"\b(TURNFOLD_\w+)=", text + COMMON):
        assert variable in {as_variable(known) for known in SETTING_NAMES}
    assert set(re.findall(r"%d/([\w.-]+)", text)) <= set(loaded)
    assert all(path == f"/etc/turnfold/{credential}" for credential, path in loaded.items())


def test_a_file_of_the_authority_is_where_the_units_can_read_it() -> None:
    """`deploy/make-secrets` makes /etc/turnfold for root alone, and the units run as other users."""
    (path,) = re.findall(r"sslrootcert=([\w/.]+)", (ROOT / "docs" / "security.md").read_text())

    assert values(COMMON, "DynamicUser") == ["yes"]
    assert not path.startswith("/etc/turnfold/")


def test_a_worker_is_given_the_time_it_takes_to_stop_and_comes_back() -> None:
    (stop,) = values(COMMON, "TimeoutStopSec")

    assert float(stop.removesuffix("s")) > STOP_SECONDS
    assert all(
        values((UNITS / name).read_text(), "Restart")
        == ["on-failure" if "migrate" in name else "always"]
        for name in NAMES
    )


@pytest.mark.proves("O4")
async def test_a_system_that_systemd_stops_answers_the_requests_that_it_runs(
    tmp_path: Path,
) -> None:
    async with running_system(tmp_path / "data") as started:
        bus = await nats.connect(started.nats_url)
        arrived = await bus.subscribe("context.get.>")
        await subscriptions_known(bus)
        said = json.dumps(
            {
                "event_id": "turn-1",
                "agent_id": "ada",
                "session_id": "s-1",
                "messages": [{"role": "user", "content": "Is anybody there?"}],
            }
        )
        seq = json.loads((await bus.request("turn.completed.ada.s-1", said.encode())).data)["seq"]
        wanted = json.dumps({"max_tokens": 8_000, "after": seq + 1, "wait_ms": 2_000}).encode()
        asked = asyncio.create_task(bus.request("context.get.ada.s-1", wanted, timeout=30))
        await arrived.next_msg(30)

        assert started.process.pid
        pids = [started.process.pid]
        # By default, systemd stops all processes of a unit at once.
        if values(COMMON, "KillMode") != ["mixed"]:
            pids += started.ready["pids"].values()
        for pid in pids:
            os.kill(pid, SIGTERM)

        assert json.loads((await asked).data)["fresh"] is False
        assert await started.ended() == 0
        await bus.close()


@pytest.mark.proves("X1", "X5")
async def test_the_secrets_and_the_units_bring_the_roles_into_force(tmp_path: Path) -> None:
    """X1, X5: each part signs in with its own key, an agent's key is made by one command, and nothing else signs in."""
    etc = secrets_in(tmp_path)
    config = (
        (ROOT / "deploy" / "nats-server.conf")
        .read_text()
        .replace("nats-users.conf", "etc/nats-users.conf")
    )
    config = re.sub(r"^(listen|http): .*$", "", config, flags=re.MULTILINE)
    config = config.replace("jetstream {", f'jetstream {{\n  store_dir: "{tmp_path / "store"}"')

    with nats_server(tmp_path, more=config, jetstream=False) as server:
        migrate, worker, query = (
            Parts(tmp_path, server, of_unit(f"turnfold-{name}.service", etc))
            for name in ("migrate", "worker@", "query@")
        )
        query.environ["TURNFOLD_HTTP_PORT"] = str(free_port())
        await migrate.migrate()
        async with worker.running("worker"), query.running("query"):
            for agent in ("support", "other"):
                made = await command(
                    "keys",
                    "new",
                    "agent",
                    agent,
                    "--dir",
                    str(etc / "keys"),
                    "--nats",
                    str(etc / "nats-users.conf"),
                )
                assert made.status == 0, made.err
            # The first reload brings a new account, the second connects its imports.
            for number in (1, 2):
                server.reload()
                await reloaded(tmp_path / "nats.log", number)
            keys = {
                agent: {"TURNFOLD_NATS_NKEY": str(next((etc / "keys").glob(f"agent-{agent}-*.nk")))}
                for agent in ("support", "other")
            }

            async with turnfold.connect(server.url, environ=keys["support"]) as client:
                await client.session("support", "user-42").turn_completed(
                    [{"role": "user", "content": "Where is order 7341?"}]
                )
                window = await client.session("support", "user-42").context(wait_ms=5_000)
            async with turnfold.connect(server.url, environ=keys["other"]) as stranger:
                for forbidden in (
                    stranger.session("support", "user-42").context(),
                    stranger.erase_agent("support"),
                ):
                    with pytest.raises(NotAllowed):
                        await forbidden
            with pytest.raises(NotAllowed):
                async with turnfold.connect(server.url, environ={}, timeout_seconds=1):
                    pass
            by_operator = query.environ | {"TURNFOLD_NATS_NKEY": str(etc / "operator.nk")}
            erased = await command("erase", "support", "user-42", "--yes", environ=by_operator)

    assert [message["content"] for message in window.messages] == ["Where is order 7341?"]
    assert erased.status == 0, erased.err


async def reloaded(log: Path, times: int) -> None:
    """Wait until the server has read its configuration again so many times."""
    await wait_until(lambda: log.read_text().count("Reloaded server configuration") == times)


def secrets_in(directory: Path) -> Path:
    """What `deploy/make-secrets` makes for units."""
    environ = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    subprocess.run(
        ["sh", ROOT / "deploy" / "make-secrets", directory / "etc", "127.0.0.1"],
        env=environ,
        check=True,
    )
    return directory / "etc"


@pytest.mark.parametrize("role", ["provisioner", "operator"])
async def test_secrets_are_made_although_a_first_run_was_interrupted(
    role: str, tmp_path: Path
) -> None:
    accounts = ("--nats", str(tmp_path / "etc" / "nats-users.conf"))
    await command("keys", "new", role, "--dir", str(tmp_path / "etc" / "keys"), *accounts)

    etc = secrets_in(tmp_path)

    listed = (etc / "nats-users.conf").read_text()
    assert public_key((etc / f"{role}.nk").read_text().strip()) in listed
    assert (etc / "turnfold.toml").exists()


def of_unit(name: str, credentials: Path) -> dict[str, str]:
    """The environment of a unit, with its credentials in this directory; the database is a file of the test."""
    text = (UNITS / name).read_text().replace("%d", str(credentials)).replace("%i", "1")
    found = dict(one.split("=", 1) for line in values(text, "Environment") for one in line.split())
    assert {Path(path).name for path in re.findall(rf"{credentials}/([\w.-]+)", text)} <= {
        path.name for path in credentials.iterdir()
    }
    return found


@needs_systemd
@pytest.mark.parametrize("name", NAMES)
def test_systemd_finds_a_unit_in_order_and_well_contained(name: str, tmp_path: Path) -> None:
    shutil.copytree(UNITS, tmp_path, dirs_exist_ok=True)
    # A unit names no path with spaces as the checkout's may be.
    installed = tmp_path / "bin"
    installed.symlink_to(ROOT / ".venv" / "bin")
    for unit in tmp_path.glob("*.service"):
        # Nothing is installed here, and a program that is not there would be the only fault.
        unit.write_text(unit.read_text().replace(INSTALLED, f"{installed}/"))
    environ = os.environ | {"SYSTEMD_UNIT_PATH": f"{tmp_path}:"}
    instance = name.replace("@.", "@1.")

    verified = _analyze("verify", "--man=no", instance, environ=environ)
    exposure = _analyze(
        "security", "--offline=yes", f"--threshold={WORST_EXPOSURE}", instance, environ=environ
    )

    assert (verified.returncode, verified.stdout) == (0, "")
    assert exposure.returncode == 0, exposure.stdout[-500:]


def _analyze(*arguments: str, environ: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["systemd-analyze", *arguments],
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
