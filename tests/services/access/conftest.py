"""One server with the shipped permissions for each module."""

import subprocess
from collections.abc import Iterator

import pytest

from tests.nats_server import NatsServer, nats_server
from tests.running_system import TURNFOLD
from tests.services.access.guarded import MONITOR, Guarded


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Guarded:
    return Guarded(tmp_path_factory.mktemp("guarded"))


@pytest.fixture(scope="module")
def server(guarded: Guarded) -> Iterator[NatsServer]:
    with nats_server(
        guarded.directory, more=guarded.configuration.replace("users: [", f"users: [ {MONITOR}", 1)
    ) as running:
        parts = guarded.parts(running, "provisioner")
        done = subprocess.run(
            [*TURNFOLD, "migrate"],
            env=parts.environ,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        yield running
