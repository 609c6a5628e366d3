"""The package as an index shows it: a README that stands alone, and metadata that help to find it."""

import re
import subprocess
import sys
import tomllib
import zipfile
from email import message_from_string
from email.message import Message
from pathlib import Path

import pytest

from turnfold.cli.keys import KEYS_DIR
from turnfold.cli.up import DATA_DIR

ROOT = Path(__file__).parents[2]
VERSION: str = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    [wheel] = folder.iterdir()
    return wheel


@pytest.fixture(scope="module")
def metadata(wheel: Path) -> Message:
    """The metadata of the wheel; the README is its payload."""
    with zipfile.ZipFile(wheel) as packed:
        [name] = [name for name in packed.namelist() if name.endswith(".dist-info/METADATA")]
        return message_from_string(packed.read(name).decode())


def test_the_readme_of_the_package_needs_no_file_and_no_diagram(metadata: Message) -> None:
    readme = str(metadata.get_payload())

    assert metadata["Description-Content-Type"] == "text/markdown"
    assert "# Turnfold" in readme
    assert "## Use it from an agent" in readme
    assert not re.findall(r"\]\((?!https://)[^)]*\)", readme)
    assert "```mermaid" not in readme
    assert "<!--" not in readme


def test_the_metadata_name_license_versions_and_what_it_is_for(metadata: Message) -> None:
    classifiers = metadata.get_all("Classifier") or []

    assert metadata["Version"] == VERSION
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Keywords"]
    assert "Typing :: Typed" in classifiers
    assert any(one.startswith("Development Status") for one in classifiers)
    assert any(one.startswith("Intended Audience") for one in classifiers)


def test_the_wheel_has_types_pages_and_conversations_but_no_tests(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as packed:
        names = packed.namelist()

    assert {"turnfold/py.typed", "turnfold/cli/conversations/support-chat.jsonl"} <= set(names)
    assert any(name.startswith("turnfold_query/console/templates/") for name in names)
    assert not [name for name in names if name.startswith(("tests/", "docs/"))]


def test_the_changelog_has_a_section_for_the_notes_of_this_version() -> None:
    first = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)

    assert first
    assert first[1] in {"Unreleased", VERSION}


def test_a_release_takes_the_place_of_no_other_files(tmp_path: Path) -> None:
    (tmp_path / "notes").touch()

    made = subprocess.run(
        ["sh", ROOT / "scripts" / "release", tmp_path], capture_output=True, text=True, check=False
    )

    assert made.returncode == 1
    assert f"{tmp_path} holds other files" in made.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["notes"]


@pytest.mark.parametrize("folder", [DATA_DIR, KEYS_DIR, Path("secrets")])
def test_no_commit_takes_the_data_and_the_keys_that_commands_leave_in_a_checkout(
    folder: Path,
) -> None:
    asked = ["git", "check-ignore", "--quiet", f"{folder}/worker-UBSAZJD5.nk"]

    assert subprocess.run(asked, cwd=ROOT, check=False).returncode == 0
