"""The image of the Dockerfile in a directory of this machine, without an engine."""

import json
import os
import re
import shlex
import shutil
import ssl
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
BUILD_SECONDS = 200


class Instruction(NamedTuple):
    """A line of the Dockerfile, those that go on joined."""

    word: str
    rest: str


def stages() -> list[list[Instruction]]:
    """The instructions of each stage, its FROM first."""
    text = re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE).replace(
        "\\\n", " "
    )
    found: list[list[Instruction]] = []
    for line in filter(None, text.splitlines()):
        word, _, rest = line.partition(" ")
        if word == "FROM":
            found.append([])
        if found:
            found[-1].append(Instruction(word, " ".join(rest.split())))
    return found


def copied(stage: list[Instruction]) -> set[str]:
    """The paths of the checkout that a stage copies."""
    words = [one.rest.split() for one in stage if one.word == "COPY" and "--from" not in one.rest]
    return {source.rstrip("/") for *sources, _ in words for source in sources}


class Image(NamedTuple):
    """The image of the Dockerfile: a directory that stands for the root, and the settings of the last stage."""

    root: Path
    environ: Mapping[str, str]
    entrypoint: list[str]
    healthcheck: list[str]

    def here(self, text: str) -> str:
        """The same with the image's own paths where they are here."""
        return re.sub(r"(?<![\w.-])/(opt/turnfold|data)\b", rf"{self.root}/\1", text)


def image_in(root: Path) -> Image:
    """The image as the last stage describes it."""
    last = stages()[-1]
    settings = dict(
        part.split("=", 1) for one in last if one.word == "ENV" for part in shlex.split(one.rest)
    )
    after = {one.word: one.rest for one in last}
    return Image(
        root,
        settings,
        json.loads(after["ENTRYPOINT"]),
        json.loads(after["HEALTHCHECK"].partition("CMD ")[2]),
    )


def build(image: Image) -> None:
    """Carry out the first stage as docker would."""
    root = image.root
    # Stands for the Python of the image that it begins from.
    subprocess.run([sys.executable, "-m", "venv", root / "usr"], check=True)
    (root / "opt").mkdir()
    environ = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("TURNFOLD_", "PYTHON", "VIRTUAL_ENV"))
    }
    environ["PATH"] = f"{root / 'usr' / 'bin'}:{os.environ['PATH']}"
    if ssl.create_default_context().get_ca_certs():
        environ["UV_SYSTEM_CERTS"] = "1"
    work = root / "src"
    for word, rest in stages()[0]:
        match word:
            case "WORKDIR":
                work.mkdir()
                assert rest == "/src"
            case "COPY":
                *sources, target = rest.split()
                for source in sources:
                    _copy(ROOT / source, work / target)
            case "RUN":
                subprocess.run(
                    ["sh", "-c", image.here(rest)],
                    cwd=work,
                    env=environ,
                    check=True,
                    timeout=BUILD_SECONDS,
                )
            case _:
                assert word == "FROM", f"the test does not know how to carry out {word}"


def _copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        target.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, target)
