"""The engine of this machine, and the images that are tested."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.containers import stand_ins
from tests.containers.compose_file import read
from tests.containers.docker import Docker
from tests.containers.engines import Engine
from tests.containers.podman import Podman
from tests.previous_release import PREVIOUS, NoHistory, unpack

ROOT = Path(__file__).parents[2]
TODAY = "turnfold-test:today"
EARLIER = "turnfold-test:previous"
PROGRAMS = ("podman", "runc", "conmon", "iptables", "debootstrap")
"""What Debian's packages bring, beside the helpers of podman."""
HELPERS = ("netavark", "aardvark-dns", "catatonit")
PACKAGES = "podman runc debootstrap netavark aardvark-dns catatonit iptables"


@pytest.fixture(scope="session")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """Docker with compose, or else podman with stand-ins for the images of a registry."""
    if has_docker():
        engine: Engine = Docker()
    elif lacking := missing_for_podman():
        pytest.skip(
            f"containers need docker with compose, or podman; missing for the latter: {lacking} "
            f"(Debian: apt-get install --no-install-recommends {PACKAGES})"
        )
    else:
        kept = os.environ.get("KEEP")
        home = ROOT / "build" / "containers" if kept else tmp_path_factory.mktemp("podman")
        engine = Podman(home, is_kept=bool(kept))
    try:
        if isinstance(engine, Podman):
            stand_ins.make(engine, ROOT / "Dockerfile", read(ROOT / "compose.yaml"))
        yield engine
    finally:
        engine.end()


@pytest.fixture(scope="session")
def today(engine: Engine) -> str:
    """The image of this checkout."""
    engine.build(ROOT, TODAY)
    return TODAY


@pytest.fixture(scope="session")
def previous_source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkout of the previous release."""
    directory = tmp_path_factory.mktemp("previous")
    try:
        unpack(PREVIOUS, directory)
    except NoHistory as error:
        pytest.skip(str(error))
    return directory


@pytest.fixture(scope="session")
def previous(engine: Engine, previous_source: Path) -> str:
    """The image of the previous release."""
    engine.build(previous_source, EARLIER)
    return EARLIER


def has_docker() -> bool:
    """Return whether docker runs here, with compose."""
    commands = (["docker", "info"], ["docker", "compose", "version"])
    return bool(shutil.which("docker")) and all(
        subprocess.run(command, capture_output=True, check=False).returncode == 0
        for command in commands
    )


def missing_for_podman() -> str:
    """Return what podman lacks here, or an empty text."""
    lacking = [name for name in PROGRAMS if not shutil.which(name)]
    folders = "/usr/libexec/podman:/usr/lib/podman:/usr/local/libexec/podman"
    path = f"{folders}:{os.environ.get('PATH', '')}"
    lacking += [name for name in HELPERS if not shutil.which(name, path=path)]
    return ", ".join([*lacking, *([] if os.geteuid() == 0 else ["root"])])
