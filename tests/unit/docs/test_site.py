"""The documentation site: generated pages name what the code has, and nothing is loaded from elsewhere."""

import json
import re
import subprocess
import sys
from dataclasses import fields
from hashlib import sha256
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from typer.main import get_group

from turnfold import errors
from turnfold.cli.application import application
from turnfold.contracts.catalog import REQUESTS
from turnfold.core.policy.presets import PRESETS, Policy
from turnfold.settings.parsers import SETTING_NAMES
from turnfold.settings.reading import SHORT_NAMES

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
SCRIPTS = ROOT / "scripts"
GENERATED = {"settings.md", "policy.md", "errors.md", "commands.md", "metrics.md", "requests.md"}
MERMAID = re.compile(r"^```mermaid\n(?P<source>.*?)^```\n", re.MULTILINE | re.DOTALL)

pytestmark = pytest.mark.proves("V5")


def script(name: str) -> ModuleType:
    """A script of the project as a module."""
    loader = SourceFileLoader(name.replace("-", "_"), str(SCRIPTS / name))
    spec = spec_from_loader(loader.name, loader)
    assert spec
    module = module_from_spec(spec)
    loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The generated pages by name."""
    folder = tmp_path_factory.mktemp("reference")
    subprocess.run([sys.executable, SCRIPTS / "reference-pages", folder], check=True)
    return {path.name: path.read_text(encoding="utf-8") for path in folder.iterdir()}


def leaves(group: Any, path: str) -> set[str]:
    """The full names of all commands of a group."""
    children = getattr(group, "commands", None)
    if children is None:
        return {path}
    return {
        leaf
        for name, child in children.items()
        if not child.hidden
        for leaf in leaves(child, f"{path} {name}")
    }


def test_the_generated_pages_name_each_setting_number_error_and_command(
    reference: dict[str, str],
) -> None:
    assert set(reference) == GENERATED
    for name in SETTING_NAMES:
        assert f"`TURNFOLD_{name.upper()}`" in reference["settings.md"] or name == "announce"
    for field in fields(Policy):
        assert f"| `{field.name}` |" in reference["policy.md"]
    assert all(f"`{preset}`" in reference["policy.md"] for preset in PRESETS)
    for error in errors.RequestError.__subclasses__():
        assert f"`turnfold.errors.{error.__name__}`" in reference["errors.md"]
    for name in leaves(get_group(application()), "turnfold"):
        assert f"## {name}\n" in reference["commands.md"]
    assert "\nturnfold erase [OPTIONS] AGENT [SESSION]\n" in reference["commands.md"]
    assert (
        "| `--newest COUNT` | Show the last COUNT messages; 0 shows all. [default: 20; "
        in (reference["commands.md"])
    )
    for name in REQUESTS:
        assert f"### {name}\n" in reference["requests.md"]


def test_the_page_on_events_and_the_generated_errors_name_all_reasons_of_dead_letters(
    reference: dict[str, str],
) -> None:
    events = (DOCS / "events.md").read_text(encoding="utf-8")
    described = events.partition("becomes a [dead letter](failures.md#dead-letters):")[2]

    told = re.findall(r"`([a-z_]+)`", described.partition("\n\n")[0])
    assert sorted(told) == sorted(errors.EventFault)
    for fault in errors.EventFault:
        assert f"| `{fault}` | {fault.meaning} |\n" in reference["errors.md"]


def meanings(page: str) -> dict[str, str]:
    """The names in the first column of the tables of a generated page, and their meanings."""
    rows = re.findall(r"^\| `(\w+)` \|[^|]*\| ([^|]+) \|$", page, re.MULTILINE)
    return {name: meaning.strip() for name, meaning in rows}


def test_the_code_describes_each_setting(reference: dict[str, str]) -> None:
    described = meanings(reference["settings.md"].partition("\n## Policy")[0])
    # `turnfold up` sets the first for its children; the page tells of the others in its text.
    names = set(SETTING_NAMES) - {"announce", "config", "mode", "context_window"}

    assert set(described) == {f"TURNFOLD_{name.upper()}" for name in names}
    assert all(described.values())
    assert all(f"`{name}`" in reference["settings.md"] for name in SHORT_NAMES)


def test_the_code_describes_each_policy_number(reference: dict[str, str]) -> None:
    described = meanings(reference["policy.md"])

    assert set(described) == {field.name for field in fields(Policy)}
    assert all(described.values())


def test_every_page_has_a_place_in_the_navigation() -> None:
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:")[2]
    named = set(re.findall(r"[\w./-]+\.md", nav))
    pages = {
        path.relative_to(DOCS).as_posix()
        for path in DOCS.rglob("*.md")
        if not re.match(r"0\d+-", path.name)
    }

    assert named == pages | {f"reference/{name}" for name in GENERATED}


def test_every_diagram_has_a_picture_that_was_drawn_from_its_text() -> None:
    for page in DOCS.rglob("*.md"):
        for number, match in enumerate(MERMAID.finditer(page.read_text(encoding="utf-8")), 1):
            picture = DOCS / "pictures" / f"{page.stem}-{number}.svg"
            digest = sha256(match["source"].encode()).hexdigest()[:12]
            assert f'data-source="{digest}"' in picture.read_text(encoding="utf-8"), page.name


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.html", '<script src="https://example.org/a.js"></script>'),
        ("a.html", '<img srcset="//example.org/a.png">'),
        ("a.html", '<img srcset="a.png 1x, https://example.org/a.png 2x">'),
        ("a.html", '<svg><use xlink:href="https://example.org/a.svg#a"></use></svg>'),
        ("a.html", '<link rel="stylesheet" href="https://example.org/a.css">'),
        ("a.html", '<p style="background: url(https://example.org/a.png)">'),
        ("a.html", "<style>@import 'https://example.org/a.css';</style>"),
        ("a.html", '<pre class="mermaid">flowchart</pre>'),
        ("a.css", "a { background: url(//example.org/a.png) }"),
        ("a.js", 'load("https://example.org/a.js")'),
    ],
)
def test_what_a_page_loads_from_elsewhere_is_a_fault(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)

    assert len(list(script("check-site").faults(tmp_path))) == 1


def test_what_a_page_links_to_or_loads_from_the_site_is_no_fault(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<a href="https://example.org">there</a><script src="../a.js"></script>'
        '<link rel="canonical" href="https://example.org/a"><img src="a.png">'
    )

    assert not list(script("check-site").faults(tmp_path))


@pytest.mark.parametrize(
    ("place", "boost", "faults"),
    [
        ("decisions/0029.html", {}, 1),
        ("decisions/0029.html", {"boost": 0.3}, 0),
        ("scale.html", {}, 0),
    ],
)
def test_a_decision_that_a_search_ranks_like_a_page_is_a_fault(
    tmp_path: Path, place: str, boost: dict[str, float], faults: int
) -> None:
    index = {"docs": [{"location": f"{place}#chosen"} | boost]}
    (tmp_path / "search").mkdir()
    (tmp_path / "search/search_index.json").write_text(json.dumps(index))

    assert len(list(script("check-site").ranked_too_high(tmp_path))) == faults
