"""The documentation is true: its links lead somewhere, and tests prove what it says."""

import asyncio
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.page_blocks import PAGES, ROOT, blocks

LINK = re.compile(r"\]\((?!https?://)(?P<path>[^)#\s]*)(?:#(?P<heading>[^)\s]*))?\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
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
    r"^- \*\*(?P<ids>[A-Z]\d+(?:, [A-Z]\d+)*)\*\* (\*(?P<gap>[a-z ]+)\*: )?(?P<promise>[^*]+)"
    r" \((?P<where>[^()]*)\)$",
    re.MULTILINE,
)
GAPS = {None, "partly", "not yet"}
PROVED = re.compile(r"\.proves\(([^)]*)\)")


ARROW = re.compile(
    r"^\| (?P<letter>[a-z]) \|.*\| `(?P<file>[^`]+)::(?P<test>[^`]+)` \|$", re.MULTILINE
)
DRAWN = re.compile(r"^    \S+ --> \S+: (?P<letter>[a-z])$", re.MULTILINE)


class Promise(NamedTuple):
    """A line of the page of guarantees: its requirements and cases, and the files that show it."""

    ids: list[str]
    gap: str | None
    paths: list[str]


def promises() -> list[Promise]:
    rows = ROW.finditer(GUARANTEES.read_text(encoding="utf-8"))
    return [
        Promise(
            match["ids"].split(", "),
            match["gap"],
            [word for word in re.findall(r"`([^`]+)`", match["where"]) if "/" in word],
        )
        for match in rows
    ]


@pytest.mark.proves("V5")
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


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "docs/architecture.md"])
def test_the_modules_that_contributors_are_led_to_are_there(page: str) -> None:
    text = FENCE.sub("", (ROOT / page).read_text(encoding="utf-8"))
    modules = [
        path.as_posix()
        for folder in ("shared", "services", "migrations", "tests", "examples")
        for path in (ROOT / folder).rglob("*.py")
    ]

    for named in re.findall(r"`([\w/]+\.py)`", text):
        assert any(module.endswith(f"/{named}") for module in modules), named


def test_the_members_of_classes_that_contributors_are_led_to_are_there() -> None:
    guide = FENCE.sub("", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"))
    modules = [
        path.read_text(encoding="utf-8")
        for folder in ("shared", "services")
        for path in (ROOT / folder).rglob("*.py")
    ]

    for name, member in re.findall(r"`([A-Z]\w+)\.(\w+)`", guide):
        of_class = [text for text in modules if re.search(rf"^class {name}\b", text, re.MULTILINE)]
        is_member = re.compile(rf"def {member}\b|\b{member}(?::| =)")
        assert any(map(is_member.search, of_class)), f"{name}.{member}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_can_be_pasted_into_a_shell_that_reads_comments_as_arguments(page: Path) -> None:
    """Zsh does so unless told otherwise: `keys token support  # for one agent` names six agents."""
    code = "\n".join(block.code for block in blocks(page) if block.language == "sh")

    assert not re.findall(r"^.*(?:^|\s)#\s.*$", code, re.MULTILINE)


def test_the_guarantees_name_every_requirement_and_case_once() -> None:
    named = [id for promise in promises() for id in promise.ids]

    assert sorted(set(named)) == sorted(IDS)
    assert len(named) == len(set(named))
    assert {promise.gap for promise in promises()} <= GAPS


def test_a_guarantee_names_files_that_are_there_and_tests_that_prove_it() -> None:
    for promise in promises():
        ids = set(promise.ids)
        assert promise.gap == "not yet" or promise.paths, f"{ids} is kept, and no file shows it"
        for path in promise.paths:
            assert (ROOT / path).exists(), f"{ids} names {path}, which is not there"
        tests = [path for path in promise.paths if Path(path).name.startswith("test_")]
        proved = {path: ids & proved_in(ROOT / path) for path in tests}
        for path in tests:
            assert proved[path], f"{ids} names {path}, which does not prove it"
        unproved = ids.difference(*proved.values())
        assert not (tests and unproved), f"no file proves {unproved}"


def test_what_a_test_proves_is_not_called_missing() -> None:
    unproved = {id for promise in promises() if promise.gap == "not yet" for id in promise.ids}
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
