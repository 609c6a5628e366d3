"""Every block of code in the pages runs against a live system, or says why it cannot."""

import ast
import asyncio
import json
import os
import re
import shlex
import sys
import tomllib
from asyncio.subprocess import PIPE, STDOUT, Process
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from importlib.machinery import PathFinder
from pathlib import Path
from signal import SIGTERM
from typing import Any

import pytest
from ruamel.yaml import YAML
from typer.main import get_group

from tests.environment import clean_environ
from tests.page_blocks import PAGES, ROOT, WALKED, Block, blocks
from tests.ports import free_port
from tests.running_system import START_SECONDS, System, eventually, running_system
from turnfold.cli.application import application

WALKS = (
    ("tutorial.md", "what-was-seen.md", "auditors.md", "failures.md", "operations.md"),
    ("proxy.md",),
    ("security.md",),
)
"""Pages whose blocks build on each other, the later on the earlier."""
READ_ELSEWHERE = {
    ("auditors.md", "sql"): "tests/integration/test_audit.py",
    ("litellm.md", "py"): "tests/hosts/litellm/test_example.py",
}
"""Blocks that the test of another file reads from the page and runs."""
HOST_PAGES = ROOT / "docs" / "integrations"
PROGRAMS = sorted((ROOT / "examples").rglob("*.py"))
COMMANDS = ("curl", "docker", "make", "nats", "pip", "python", "sh", "turnfold")
INSTALLS = re.compile(r"(pip install [^|;&]*|turnfold up( --proxy https://\S+)?)\s*(#.*)?")
"""A line that only installs packages, which a test has, or starts a system, which it does itself."""
DATA = ("json", "yaml", "text", "mermaid")
TIME_OF_WALK = "2026-11-20T14:17:00Z"
IDS_OF_WALK = ("AGENT SESSION", "guide mia")
DEFAULT_HTTP_URL = "http://127.0.0.1:8080"
PORTS = ("4222", "8080", "8090", "8100")
EXAMPLE_SECONDS = 60.0
EXAMPLES_AT_ONCE = 2

TOOLS = {
    "nats": """\
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
""",
    "sqlite3": """\
import sqlite3
import sys

for row in sqlite3.connect(sys.argv[1], uri=True).execute(sys.argv[2]):
    print(*row, sep="|")
""",
}
"""Stand-ins for these programs, with the options that the documentation uses."""


def environment(nats_url: str, tools: Path) -> dict[str, str]:
    """The variables of an example. Its `python` finds the system; commands find it by its data."""
    path = os.pathsep.join([str(tools), str(Path(sys.executable).parent), os.environ["PATH"]])
    return clean_environ({"PATH": path, "NATS_URL": nats_url})


async def ran(block: Block, code: str, folder: Path, environ: Mapping[str, str]) -> str:
    """The output of a block."""
    command = ("python", "-c", code) if block.language == "python" else ("sh", "-euc", code)
    child = await asyncio.create_subprocess_exec(
        *command, cwd=folder, env=environ, stdout=PIPE, stderr=PIPE
    )
    async with asyncio.timeout(EXAMPLE_SECONDS):
        out, err = await child.communicate()
    assert child.returncode == 0, (
        f"{block.page}: status {child.returncode} from\n{code}\n{err.decode()[-2_000:]}"
    )
    return out.decode()


@asynccontextmanager
async def started(
    code: str, told: str, folder: Path, environ: Mapping[str, str]
) -> AsyncGenerator[None]:
    """Run a command that goes on, from when it has printed what the page says."""
    log = folder / f"{free_port()}.log"

    async def is_ready() -> bool:
        assert child.returncode is None, log.read_text()[-2_000:]
        return told in log.read_text()

    with log.open("wb") as out:
        # `exec`, so that the signal below ends the command and not the shell alone.
        child: Process = await asyncio.create_subprocess_exec(
            "sh", "-euc", f"exec {code}", cwd=folder, env=environ, stdout=out, stderr=STDOUT
        )
    try:
        await eventually(is_ready, seconds=START_SECONDS, told=log.read_text)
        yield
    finally:
        if child.returncode is None:
            child.send_signal(SIGTERM)
        await child.wait()


async def walk(pages: Sequence[str], tools: Path, folder: Path) -> None:
    """Do what pages say, in order, on ports that are free."""
    ports = {port: str(free_port()) for port in PORTS}
    environ = environment(f"nats://127.0.0.1:{ports['4222']}", tools)
    environ["TURNFOLD_DATA_DIR"] = str(folder / ".turnfold")
    services = {"TURNFOLD_HTTP_PORT": ports["8080"], "TURNFOLD_PROXY_PORT": ports["8090"]}
    now = datetime.now(UTC)

    def here(text: str) -> str:
        text = re.sub(r"\b(4222|8080|8090|8100)\b", lambda port: ports[port[0]], text)
        text = text.replace("turnfold up", f"turnfold up --nats-port {ports['4222']}")
        text = text.replace(TIME_OF_WALK, now.isoformat(timespec="milliseconds"))
        return text.replace(*IDS_OF_WALK).replace("/etc/nats/", "")

    async with AsyncExitStack() as stack:
        for block in (one for page in pages for one in walked(page)):
            code, told = here(block.code), here(block.told)
            if block.kind == "file":
                (folder / block.name).write_text(code)
            elif block.kind == "start":
                await stack.enter_async_context(started(code, told, folder, environ | services))
            else:
                out = await ran(block, code, folder, environ)
                assert told in out, f"{block.page}: {code}\n{out}"
            # The next step may look back at what this one has left.
            now = datetime.now(UTC)


def walked(page: str) -> Iterator[Block]:
    """The blocks of a page that build on each other."""
    return (block for block in blocks(ROOT / "docs" / page) if block.kind in WALKED)


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the programs that examples use, and a `python` whose clients find the system."""
    directory = tmp_path_factory.mktemp("tools")
    python = f'#!/bin/sh\nTURNFOLD_NATS_URL=$NATS_URL exec "{sys.executable}" "$@"\n'
    programs = {name: f"#!{sys.executable}\n{text}" for name, text in TOOLS.items()}
    for name, text in {"python": python, **programs}.items():
        (directory / name).write_text(text)
        (directory / name).chmod(0o755)
    return directory


@pytest.mark.proves("O2", "O3", "W5", "V5")
async def test_every_example_runs_and_prints_what_the_page_says(
    tmp_path: Path, tools: Path
) -> None:
    # Those of integrations run beside their frameworks, in tests/hosts.
    pages = [page for page in PAGES if page.parent != HOST_PAGES]
    found = [block for page in pages for block in blocks(page) if block.kind == "run"]
    # More at once would starve the system that they talk to, on a machine with few cores.
    places = asyncio.Semaphore(EXAMPLES_AT_ONCE)

    async def printed_by(block: Block, system: System) -> str:
        environ = environment(system.nats_url, tools)
        environ["TURNFOLD_DATA_DIR"] = str(system.data_dir)
        async with places:
            return await ran(
                block, block.code.replace(DEFAULT_HTTP_URL, system.http_url), ROOT, environ
            )

    async with running_system(tmp_path / "system") as system:
        printed = await asyncio.gather(*(printed_by(block, system) for block in found))

    assert {block.language for block in found} == {"python", "sh"}
    for block, out in zip(found, printed, strict=True):
        assert block.told in out, block.code


@pytest.mark.proves("O2", "V5")
@pytest.mark.parametrize("pages", WALKS, ids=lambda pages: pages[0])
async def test_the_steps_of_a_page_lead_where_it_says(
    pages: Sequence[str], tmp_path: Path, tools: Path
) -> None:
    await walk(pages, tools, tmp_path)


def unrun(page: Path) -> list[Block]:
    """The blocks of a page that no test runs, and that do not say why."""
    in_walks = {name for pages in WALKS for name in pages}
    return [
        block
        for block in blocks(page)
        if not (
            block.kind == "not run"
            or (block.kind == "run" and (page.parent != HOST_PAGES or is_tested_by_a_host(page)))
            or (block.kind in WALKED and page.name in in_walks)
            or (page.name, block.language) in READ_ELSEWHERE
            or (block.language in DATA and not block.code.startswith(COMMANDS))
            or all(INSTALLS.fullmatch(line) for line in block.code.splitlines())
        )
    ]


def is_tested_by_a_host(page: Path) -> bool:
    """Whether a test beside the framework runs the Python of the page."""
    tests = (ROOT / "tests" / "hosts").rglob("test_example.py")
    texts = [path.read_text() for path in tests]
    return any(f'page("{page.name}")' in text for text in texts)


@pytest.mark.proves("V5")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_each_block_of_a_page_runs_in_a_test_or_says_why_not(page: Path) -> None:
    fences = re.findall(r"^ *```\w", page.read_text(encoding="utf-8"), re.MULTILINE)
    found = list(blocks(page))

    assert len(found) == len(fences), "a block has no language, or a mark that cannot be read"
    assert not unrun(page)
    for block in found:
        for path in re.findall(r"tests/[\w/]+\.py", block.name):
            assert (ROOT / path).exists(), f"{block.name}: there is no {path}"


@pytest.mark.parametrize(
    "text",
    [
        '```python\nprint("hello")\n```\n',
        "```sh\nturnfold sessions\n```\n",
        "```sql\nSELECT 1\n```\n",
        "```text\nturnfold sessions\n```\n",
        "1. Do this:\n\n    ```sh\n    pip install turnfold\n    turnfold sessions\n    ```\n",
        '<!-- step: prints "ada" -->\n```sh\nturnfold sessions\n```\n',
        "<!-- file: agent.py -->\n```python\nimport turnfold\n```\n",
    ],
)
def test_a_block_of_a_new_page_is_missed_until_a_test_runs_it(text: str, tmp_path: Path) -> None:
    page = tmp_path / "new-page.md"
    page.write_text(text)

    assert len(unrun(page)) == 1


def test_a_block_that_another_test_runs_is_read_by_that_test() -> None:
    for (page, _), path in READ_ELSEWHERE.items():
        assert f'"{page}"' in (ROOT / path).read_text(), path


def test_each_program_of_the_examples_runs_in_a_test() -> None:
    tests = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))

    for path in (ROOT / "examples").rglob("*.py"):
        assert f'"{path.name}"' in tests or f"examples/{path.name}" in tests, path.name


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.name)
def test_a_program_of_the_examples_imports_no_other_in_place_of_a_package(path: Path) -> None:
    statements = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))

    imported = [
        *(name.name for node in statements if isinstance(node, ast.Import) for name in node.names),
        *(node.module or "" for node in statements if isinstance(node, ast.ImportFrom)),
    ]

    # `python PATH` searches the folder of the program first.
    found = [PathFinder.find_spec(name.partition(".")[0], [str(path.parent)]) for name in imported]
    assert found == [None] * len(imported)


def test_each_block_of_data_can_be_read() -> None:
    for block in (block for page in PAGES for block in blocks(page)):
        if block.language == "json":
            json.loads(block.code)
        if block.language == "yaml":
            assert YAML(typ="safe").load(block.code), block.code


def test_an_extra_that_a_page_installs_is_there() -> None:
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)

    named = {
        name for names in re.findall(r"\bturnfold\[([\w,-]+)\]", text) for name in names.split(",")
    }

    assert named
    assert not named - set(project["optional-dependencies"])


def commands_of(page: Path) -> Iterator[list[str]]:
    """The words of every `turnfold` command that a page names, in blocks and in sentences."""
    text = page.read_text(encoding="utf-8")
    lines = [
        line for block in blocks(page) if block.language == "sh" for line in block.code.splitlines()
    ]
    named = [line.partition(" #")[0].strip() for line in lines]
    named += re.findall(
        r"(?<!`)`([^`\n]+)`(?!`)",
        re.sub(r"^ *```.*?^ *```$", "", text, flags=re.MULTILINE | re.DOTALL),
    )
    for command in named:
        words = command.replace("…", " … ").split()
        if words[:1] == ["turnfold"] and "=" not in words[0]:
            yield words[1:]


def fault_of(words: Sequence[str]) -> str:
    """The fault in the words of a command; empty without one."""
    command: Any = get_group(application())
    for number, word in enumerate(words):
        children = getattr(command, "commands", None)
        if children is not None and word in children:
            command = children[word]
        elif children is not None and re.fullmatch(r"[a-z]+", word):
            return f"there is no command {' '.join(words[: number + 1])}"
        elif word.startswith("-"):
            known = {name for option in command.params for name in option.opts} | {"-h", "--help"}
            if word.partition("=")[0].rstrip(",") not in known:
                return f"there is no option {word} of turnfold {' '.join(words[:number])}"
    return ""


@pytest.mark.proves("V5")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_each_command_that_a_page_names_is_there_with_its_options(page: Path) -> None:
    assert not [fault for words in commands_of(page) if (fault := fault_of(words))]


@pytest.mark.parametrize(
    "command", ["fly", "summaries fly", "sessions --fast", "context a b --top=1"]
)
def test_a_command_or_option_that_is_not_there_is_a_fault(command: str) -> None:
    assert fault_of(shlex.split(command))
