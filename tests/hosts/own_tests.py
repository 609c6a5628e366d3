"""A framework's own tests: taken from its source distribution by hash, run, never kept."""

import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).parents[2]


def unpacked(package: str, directory: Path) -> Path:
    """Download the source of the installed version of a package, and unpack it.

    The lock has its hash. Only a version that is newer than the lock is taken without.
    """
    wanted = f"{package}=={version(package)}"
    lock = (ROOT / "requirements" / "hosts" / f"{package}.txt").read_text()
    entry = re.search(rf"^{re.escape(wanted)} \\\n(    --hash=\S+( \\)?\n)+", lock, re.MULTILINE)
    requirement = directory / "requirement.txt"
    requirement.write_text(entry[0] if entry else wanted)
    main_python = os.environ.get("MAIN_PYTHON", str(ROOT / ".venv" / "bin" / "python"))
    command = [main_python, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    command += ["--no-deps", "--no-build-isolation", "--no-binary", package]
    command += ["--require-hashes"] if entry else []
    command += ["--dest", str(directory), "--requirement", str(requirement)]
    subprocess.run(command, check=True)
    [archive] = directory.glob("*.tar.gz")
    shutil.unpack_archive(archive, directory)
    return directory / archive.name.removesuffix(".tar.gz")


def run(source: Path, tests: list[str], *, plugin: Path, name: str, nats_url: str) -> int:
    """Run some of the tests with a plugin, write their results, and return the exit status."""
    results = Path(os.environ.get("HOST_RESULTS", source)) / f"{name}.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-p", plugin.stem, "-p", "no:cacheprovider"]
    command += ["--timeout", "60", "--junit-xml", str(results), *tests]
    environ = os.environ | {"PYTHONPATH": str(plugin.parent), "TURNFOLD_NATS_URL": nats_url}
    return subprocess.run(command, cwd=source, env=environ, check=False).returncode
