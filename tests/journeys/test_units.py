"""The systemd units: what they start is there, what they set is known, and systemd finds nothing wrong with them."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from typer.main import get_group

from turnfold.cli.application import application
from turnfold.settings import _NAMES, _as_variable
from turnfold_worker.app import STOP_SECONDS

ROOT = Path(__file__).parents[2]
UNITS = ROOT / "deploy" / "systemd"
COMMON = (UNITS / "turnfold-.service.d" / "common.conf").read_text()
NAMES = sorted(path.name for path in UNITS.glob("*.service"))
INSTALLED = "/opt/turnfold/bin/"
WORST_EXPOSURE = 20
"""Of `systemd-analyze security`, in tenths: 0 is nothing left open, 100 everything."""

needs_systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")


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
    assert program == "nats-server" or (program == "turnfold" and command in get_group(application([command])).commands)
    for variable in re.findall(r"\b(TURNFOLD_\w+)=", text + COMMON):
        assert variable in {_as_variable(known) for known in _NAMES}
    assert set(re.findall(r"%d/([\w.-]+)", text)) <= set(loaded)
    assert all(path == f"/etc/turnfold/{credential}" for credential, path in loaded.items())


def test_a_worker_is_given_the_time_it_takes_to_stop_and_comes_back() -> None:
    (stop,) = values(COMMON, "TimeoutStopSec")

    assert float(stop.removesuffix("s")) > STOP_SECONDS
    assert all(values((UNITS / name).read_text(), "Restart") == ["on-failure" if "migrate" in name else "always"] for name in NAMES)


@needs_systemd
@pytest.mark.parametrize("name", NAMES)
def test_systemd_finds_a_unit_in_order_and_well_contained(name: str, tmp_path: Path) -> None:
    shutil.copytree(UNITS, tmp_path, dirs_exist_ok=True)
    for unit in tmp_path.glob("*.service"):
        # Nothing is installed here, and a program that is not there would be the only fault.
        unit.write_text(unit.read_text().replace(INSTALLED, f"{ROOT / '.venv' / 'bin'}/"))
    environ = os.environ | {"SYSTEMD_UNIT_PATH": f"{tmp_path}:"}
    instance = name.replace("@.", "@1.")

    verified = _analyze("verify", "--man=no", instance, environ=environ)
    exposure = _analyze("security", "--offline=yes", f"--threshold={WORST_EXPOSURE}", instance, environ=environ)

    assert (verified.returncode, verified.stdout) == (0, "")
    assert exposure.returncode == 0, exposure.stdout[-500:]


def _analyze(*arguments: str, environ: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["systemd-analyze", *arguments], env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
