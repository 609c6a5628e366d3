"""Test integrations with their frameworks: `python -m tests.hosts [HOST...]`, as `scripts/hosts` does.

A host is a lock in `requirements/hosts`, an extra, and a folder here. Each has an environment in
`.hosts`, made when it is missing or its lock has changed. Its tests write JUnit files to
`$HOST_RESULTS`: one row of the table for each.
"""

import argparse
import os
import re
import subprocess
import sys
import time
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from importlib.metadata import distributions
from pathlib import Path
from xml.etree import ElementTree as ET

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parents[2]
LOCKS = ROOT / "requirements" / "hosts"
UV = (sys.executable, "-m", "uv", "--quiet")


@dataclass(frozen=True, slots=True)
class Host:
    """A framework, and the environment of its tests."""

    name: str
    is_newest: bool

    @property
    def environment(self) -> Path:
        """The directory of the virtual environment."""
        return ROOT / ".hosts" / (f"{self.name}-newest" if self.is_newest else self.name)

    @property
    def python(self) -> Path:
        """The interpreter of the environment."""
        return self.environment / "bin" / "python"

    @property
    def results(self) -> Path:
        """Where the tests write what they found."""
        return self.environment / "results"

    @property
    def version(self) -> str:
        """The installed version of the framework."""
        packages = next(self.environment.glob("lib/python3*/site-packages"))
        installed = {found.name: found.version for found in distributions(path=[str(packages)])}
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        [framework, *_] = re.findall(r"^[\w-]+", extras["optional-dependencies"][self.name][0])
        return installed.get(framework, "?")

    def prepare(self) -> None:
        """Make the environment, unless it is what it would become."""
        lock, wanted = LOCKS / f"{self.name}.txt", LOCKS / f"{self.name}.in"
        made_from = sha256(lock.read_bytes() + (ROOT / "pyproject.toml").read_bytes()).hexdigest()
        stamp = self.environment / "made-from"
        if not self.is_newest and stamp.exists() and stamp.read_text() == made_from:
            return
        stamp.unlink(missing_ok=True)
        _run(*UV, "venv", "--allow-existing", "--python", sys.executable, self.environment)
        install = (*UV, "pip", "install", "--python", self.python)
        if self.is_newest:
            _run(*install, "--upgrade", "-r", wanted, "--editable", f".[{self.name}]")
        else:
            _run(*UV, "pip", "sync", "--python", self.python, "--require-hashes", lock)
            _run(*install, "--no-deps", "--no-build-isolation", "--editable", ".")
        stamp.write_text(made_from)

    def test(self, *, is_quick: bool) -> bool:
        """Run the tests, a quick run without the long ones; return whether all passed."""
        self.results.mkdir(exist_ok=True)
        for old in self.results.glob("*.xml"):
            old.unlink()
        command = [self.python, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        command += ["--confcutdir", "tests/hosts", "-o", "filterwarnings=default"]
        command += ["--junit-xml", self.results / "own.xml"]
        command += [Path("tests/hosts") / self.name.replace("-", "_")]
        environ = os.environ | {
            "HOST_RESULTS": str(self.results),
            "HOSTS_QUICK": "1" if is_quick else "",
            "MAIN_PYTHON": sys.executable,
        }
        ended = subprocess.run(
            [str(word) for word in command],
            env=environ,
            check=False,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        # In one piece, because other hosts may run at the same time.
        sys.stdout.write(f"== {self.name}\n{ended.stdout}\n")
        sys.stdout.flush()
        return ended.returncode == 0


@dataclass(frozen=True, slots=True)
class HostOutcome:
    """The result of the tests of a host; `fault` says why its environment could not be made."""

    host: Host
    has_passed: bool
    seconds: float
    fault: str = ""


def outcome_of(host: Host, *, is_quick: bool) -> HostOutcome:
    """Make the environment of a host and run its tests."""
    begun = time.monotonic()
    try:
        host.prepare()
    except subprocess.CalledProcessError as error:
        return HostOutcome(host, False, time.monotonic() - begun, str(error))
    has_passed = host.test(is_quick=is_quick)
    return HostOutcome(host, has_passed, time.monotonic() - begun)


@dataclass(frozen=True, slots=True)
class Results:
    """The results in one JUnit file."""

    name: str
    outcomes: Counter[str]
    reasons: Counter[str]


def results_of(host: Host) -> Iterator[Results]:
    """Read the results of a host: its own tests here, then those of the framework."""
    for path in sorted(host.results.glob("*.xml"), key=lambda path: (path.stem != "own", path)):
        outcomes, reasons = Counter[str](), Counter[str]()
        for case in ET.parse(path).iter("testcase"):
            skipped = case.find("skipped")
            if skipped is not None:
                reasons[skipped.get("message", "")] += 1
            failed = case.find("failure") is not None or case.find("error") is not None
            outcomes["deselected" if skipped is not None else "failed" if failed else "passed"] += 1
        yield Results(path.stem, outcomes, reasons)


def main() -> int:
    """Test the hosts and print the table; return 1 if a test failed."""
    known = sorted(path.stem for path in LOCKS.glob("*.txt"))
    parser = argparse.ArgumentParser(prog="scripts/hosts", description=__doc__)
    parser.add_argument("hosts", nargs="*", metavar="HOST", help=f"one of {', '.join(known)}")
    parser.add_argument("--quick", action="store_true", help="leave out the long tests")
    parser.add_argument("--at-once", type=int, default=1, metavar="N", help="hosts at a time")
    options = parser.parse_args()
    names = options.hosts or known
    if unknown := set(names) - set(known):
        parser.error(f"unknown host {', '.join(sorted(unknown))}; known are {', '.join(known)}")
    os.chdir(ROOT)
    hosts = [Host(name, is_newest=os.environ.get("NEWEST") == "1") for name in names]
    with ThreadPoolExecutor(options.at_once) as threads:
        outcomes = list(threads.map(partial(outcome_of, is_quick=options.quick), hosts))
    _show(outcomes)
    return 0 if all(outcome.has_passed for outcome in outcomes) else 1


def _show(outcomes: Sequence[HostOutcome]) -> None:
    """Print the table, and why tests were left out."""
    table = Table("host", "version", "tests", "passed", "failed", "deselected", "seconds")
    reasons: list[str] = []
    for outcome in outcomes:
        host = outcome.host
        if outcome.fault:
            table.add_row(host.name, "none", "", "", "", "", f"{outcome.seconds:.0f}")
            reasons.append(f"{host.name}: no environment: {outcome.fault}")
            continue
        for results in results_of(host):
            figures = [str(results.outcomes[one]) for one in ("passed", "failed", "deselected")]
            seconds = f"{outcome.seconds:.0f}" if results.name == "own" else ""
            table.add_row(host.name, host.version, results.name, *figures, seconds)
            reasons += (
                f"{host.name} {results.name}, {count} deselected: {reason}"
                for reason, count in results.reasons.most_common()
            )
    console = Console()
    console.print(table)
    for reason in reasons:
        console.print(reason, soft_wrap=True, markup=False, highlight=False)


def _run(*words: object) -> None:
    environ = os.environ | {"UV_SYSTEM_CERTS": "1", "UV_PYTHON_DOWNLOADS": "never"}
    subprocess.run([str(word) for word in words], env=environ, check=True)


if __name__ == "__main__":
    sys.exit(main())
