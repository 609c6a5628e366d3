"""The documentation is true: its examples run against a live system, its links lead somewhere, its tests prove what it says."""

import asyncio
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.running_system import System, running_system
from turnfold.core.policy.presets import PRESETS, Policy

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
EXAMPLE = re.compile(
    r'<!-- run: prints "(?P<told>[^\n]+)" -->\n```(?P<language>python|sh)\n(?P<code>.*?)```\n',
    re.DOTALL,
)
STEP = re.compile(
    r'<!-- (?:step: prints "(?P<told>[^\n]+)"|file: (?P<file>[\w.]+)) -->\n'
    r"```(?:python|sh)\n(?P<code>.*?)```\n",
    re.DOTALL,
)
WALKS = ("tutorial.md", "what-was-seen.md")
"""Pages whose blocks build on each other, the second on the first."""
TIME_OF_WALK = "2026-11-20T14:17:00Z"
LINK = re.compile(r"\]\((?!https?://)(?P<path>[^)#\s]*)(?:#(?P<heading>[^)\s]*))?\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
RUNNABLE = ("curl ", "nats request ")
DEFAULT_HTTP_URL = "http://127.0.0.1:8080"
EXAMPLE_SECONDS = 60.0
EXAMPLES_AT_ONCE = 2

NATS_COMMAND = """\
#!{python}
import asyncio
import os
import sys
import nats


async def main() -> None:
    *words, subject, body = sys.argv[1:]
    assert words == ["request", "--raw"], words
    client = await nats.connect(os.environ["NATS_URL"])
    print((await client.request(subject, body.encode(), timeout=10)).data.decode())
    await client.close()


asyncio.run(main())
"""
"""As much of the `nats` command as the documentation uses."""

GUARANTEES = ROOT / "docs" / "guarantees.md"
REQUIREMENTS = {
    "L": 12,
    "I": 7,
    "T": 5,
    "E": 7,
    "S": 10,
    "W": 8,
    "R": 4,
    "A": 6,
    "F": 3,
    "O": 6,
    "X": 4,
    "P": 6,
}
CASES_LEFT_OUT = {8, 11, 16, 23, 25, 26, 30, 35, 43, 44, 53, 55, 56}
ADDED = {
    "A7",
    "E8",
    "W9",
    "W10",
    "W11",
    "R5",
    "R6",
    "W12",
    "W13",
    "W14",
    "F4",
    "S11",
    "G1",
    "G2",
    "G3",
    "G4",
    "G5",
    "G6",
    "G8",
    "G9",
    "G7",
    "G10",
    "G11",
    *(f"O{number}" for number in (7, 8, 9, 10)),
    *(f"V{number}" for number in range(1, 7)),
    *(f"X{number}" for number in range(5, 10)),
} | {f"C{number}" for number in range(64, 83)}
"""Those of the later parts that are dealt with already."""
IDS = (
    ADDED
    | {
        f"{letter}{number}"
        for letter, last in REQUIREMENTS.items()
        for number in range(1, last + 1)
    }
    | {f"C{number}" for number in range(1, 64) if number not in CASES_LEFT_OUT}
)
ROW = re.compile(
    r"^\| (?P<id>[A-Z]\d+) \| (\*(?P<gap>[a-z ]+)\*: )?(?P<promise>[^|*]+) \|(?P<where>[^|]*)\|$",
    re.MULTILINE,
)
GAPS = {None, "partly", "not yet"}
PROVED = re.compile(r"\.proves\(([^)]*)\)")


ARROW = re.compile(
    r"^\| (?P<letter>[a-z]) \|.*\| `(?P<file>[^`]+)::(?P<test>[^`]+)` \|$", re.MULTILINE
)
DRAWN = re.compile(r"^    \S+ --> \S+: (?P<letter>[a-z])$", re.MULTILINE)


class Example(NamedTuple):
    """A block of code in a page, and what has to be among what it prints."""

    page: str
    language: str
    code: str
    told: str


class Step(NamedTuple):
    """A block of a walk: a file to write, or commands and what has to be among what they print."""

    file: str | None
    code: str
    told: str


class Promise(NamedTuple):
    """A row of the page of guarantees."""

    id: str
    gap: str | None
    where: str


def examples(page: Path) -> list[Example]:
    found = EXAMPLE.finditer(page.read_text(encoding="utf-8"))
    return [Example(page.name, match["language"], match["code"], match["told"]) for match in found]


def steps(name: str) -> list[Step]:
    found = STEP.finditer((ROOT / "docs" / name).read_text(encoding="utf-8"))
    return [Step(match["file"], match["code"], match["told"] or "") for match in found]


def promises() -> list[Promise]:
    rows = ROW.finditer(GUARANTEES.read_text(encoding="utf-8"))
    return [Promise(match["id"], match["gap"], match["where"].strip()) for match in rows]


async def ran(example: Example, system: System, tools: Path, *, folder: Path = ROOT) -> str:
    """What the example printed."""
    code = example.code.replace(DEFAULT_HTTP_URL, system.http_url)
    arguments = (
        (sys.executable, "-c", code) if example.language == "python" else ("sh", "-euc", code)
    )
    environ = {
        **os.environ,
        "PATH": os.pathsep.join([str(tools), str(Path(sys.executable).parent), os.environ["PATH"]]),
        "NATS_URL": system.nats_url,
        "TURNFOLD_NATS_URL": system.nats_url,
        "TURNFOLD_DATA_DIR": str(system.data_dir),
    }
    if example.language == "sh":
        # Commands find the system by its data directory, as the page says.
        del environ["TURNFOLD_NATS_URL"]
    child = await asyncio.create_subprocess_exec(
        *arguments,
        cwd=folder,
        env=environ,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(EXAMPLE_SECONDS):
        out, err = await child.communicate()
    assert child.returncode == 0, (
        f"{example.page}: status {child.returncode} from\n{code}\n{err.decode()[-2_000:]}"
    )
    return out.decode()


async def walk(page: str, system: System, tools: Path, folder: Path) -> None:
    """Do what a page says, in order."""
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    for step in steps(page):
        if step.file is not None:
            (folder / step.file).write_text(step.code)
            continue
        code = step.code.replace(TIME_OF_WALK, now)
        out = await ran(Example(page, "sh", code, step.told), system, tools, folder=folder)
        assert step.told in out, f"{page}: {code}\n{out}"


def tools_in(directory: Path) -> Path:
    """A directory with the `nats` command in it, and a `python` whose clients find the system."""
    directory.mkdir()
    python = directory / "python"
    python.write_text(f'#!/bin/sh\nTURNFOLD_NATS_URL=$NATS_URL exec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    command = directory / "nats"
    command.write_text(NATS_COMMAND.format(python=sys.executable))
    command.chmod(0o755)
    return directory


@pytest.mark.proves("O2", "O3", "W5", "V5")
async def test_every_example_runs_and_prints_what_the_page_says(tmp_path: Path) -> None:
    # Those of integrations run beside their frameworks, in tests/hosts.
    pages = [page for page in PAGES if page.parent.name != "integrations"]
    found = [example for page in pages for example in examples(page)]
    tools = tools_in(tmp_path / "tools")
    # More at once would starve the system that they talk to, on a machine with few cores.
    places = asyncio.Semaphore(EXAMPLES_AT_ONCE)

    async def printed_by(example: Example) -> str:
        async with places:
            return await ran(example, system, tools)

    async with running_system(tmp_path / "system") as system:
        printed = await asyncio.gather(*map(printed_by, found))
        folder = tmp_path / "walk"
        folder.mkdir()
        for page in WALKS:
            await walk(page, system, tools, folder)

    assert {example.language for example in found} == {"python", "sh"}
    for example, out in zip(found, printed, strict=True):
        assert example.told in out, example.code


def test_every_block_that_can_run_here_is_marked_to_be_run() -> None:
    text = EXAMPLE.sub("", "\n".join(page.read_text(encoding="utf-8") for page in PAGES))

    left = [
        block
        for block in FENCE.findall(STEP.sub("", text))
        if block.startswith("```python") or any(word in block for word in RUNNABLE)
    ]

    assert not left
    for name in WALKS:
        page = (ROOT / "docs" / name).read_text(encoding="utf-8")
        rest = FENCE.findall(STEP.sub("", page))
        assert all(".venv/bin/activate" in block for block in rest), name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_to_a_file_and_a_heading_that_are_there(page: Path) -> None:
    text = FENCE.sub("", page.read_text(encoding="utf-8"))

    for match in LINK.finditer(text):
        target = (page.parent / match["path"]).resolve() if match["path"] else page
        assert target.exists(), f"{match[0]} leads nowhere"
        if match["heading"]:
            assert match["heading"] in set(anchors(target)), f"{match[0]}: there is no such heading"


def anchors(page: Path) -> Iterator[str]:
    """The headings of a page as forges name them in links."""
    for heading in HEADING.findall(FENCE.sub("", page.read_text(encoding="utf-8"))):
        yield re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def test_the_guarantees_name_every_requirement_and_case_once() -> None:
    named = [promise.id for promise in promises()]

    assert sorted(set(named)) == sorted(IDS)
    assert len(named) == len(set(named))
    assert {promise.gap for promise in promises()} <= GAPS


def test_a_guarantee_names_files_that_are_there_and_tests_that_prove_it() -> None:
    for promise in promises():
        paths = [word for word in re.findall(r"`([^`]+)`", promise.where) if "/" in word]
        assert promise.gap == "not yet" or paths, f"{promise.id} is kept, and no file shows it"
        for path in paths:
            assert (ROOT / path).exists(), f"{promise.id} names {path}, which is not there"
            if Path(path).name.startswith("test_"):
                assert promise.id in proved_in(ROOT / path), (
                    f"{promise.id} names {path}, which does not prove it"
                )


def test_what_a_test_proves_is_not_called_missing() -> None:
    unproved = {promise.id for promise in promises() if promise.gap == "not yet"}
    tests = [path for path in (ROOT / "tests").rglob("test_*.py") if path != Path(__file__)]

    assert not {id: path.name for path in tests for id in proved_in(path) if id in unproved}
    assert {id for path in tests for id in proved_in(path)} <= IDS


def proved_in(path: Path) -> set[str]:
    """The ids that the tests of a file prove."""
    return {
        id
        for marked in PROVED.findall(path.read_text(encoding="utf-8"))
        for id in re.findall(r'"([A-Z]\d+)"', marked)
    }


@pytest.mark.proves("P1", "P2", "P3", "P4", "P5", "P6")
def test_the_page_on_presets_lists_every_number_in_which_they_differ() -> None:
    page = (ROOT / "docs" / "presets.md").read_text()

    told = page.partition("<!-- numbers of the presets -->\n\n")[2]

    assert told == _numbers_of_presets()


def _numbers_of_presets() -> str:
    names = ["balanced", *sorted(set(PRESETS) - {"balanced"})]
    rows = [
        f"| number | {' | '.join(f'`{name}`' for name in names)} |",
        f"|---|{'---|' * len(names)}",
    ]
    for field in fields(Policy):
        values = [getattr(PRESETS[name], field.name) for name in names]
        if len(set(values)) > 1:
            shown = [
                "" if number and value == values[0] else _shown(value)
                for number, value in enumerate(values)
            ]
            rows.append(f"| `{field.name}` | {' | '.join(shown)} |")
    return "\n".join(rows) + "\n"


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:,}" if isinstance(value, int) else str(value)


@pytest.mark.proves("W3")
async def test_the_worked_example_of_a_window_is_what_its_program_prints() -> None:
    told = (
        (ROOT / "docs" / "windows.md")
        .read_text()
        .partition("<!-- printed by examples/ladder.py -->\n")[2]
        .partition("\n\n")[0]
    )

    program = await asyncio.create_subprocess_exec(
        sys.executable, "examples/ladder.py", cwd=ROOT, stdout=asyncio.subprocess.PIPE
    )
    printed, _ = await program.communicate()

    assert program.returncode == 0
    assert printed.decode() == told + "\n"


@pytest.mark.proves("L10", "A1")
def test_each_arrow_of_a_compaction_has_a_letter_and_a_test() -> None:
    page = (ROOT / "docs" / "states.md").read_text(encoding="utf-8")
    named = {match["letter"]: (match["file"], match["test"]) for match in ARROW.finditer(page)}

    assert set(named) == {match["letter"] for match in DRAWN.finditer(page)} == set("abcdefgh")
    for file, test in named.values():
        assert f"def {test}(" in (ROOT / file).read_text(encoding="utf-8"), f"{file} has no {test}"
