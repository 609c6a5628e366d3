"""What commands print on a terminal of some width, without what differs between runs."""

import asyncio
import contextlib
import io
import os
import pty
import re
import shlex
from collections.abc import Iterator, Mapping
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any
from unittest.mock import patch

import turnfold.cli
from tests import forked_processes as forked

SECONDS = 90.0
ASSIGNMENT = re.compile(r"[A-Z_]+=\S*")


class Terminal(io.StringIO):
    """A terminal, as far as commands look at it."""

    def isatty(self) -> bool:
        return True


def columns(width: int) -> dict[str, str]:
    """The variables that tell a command its terminal."""
    return {"COLUMNS": str(width), "TERM": "xterm", "NO_COLOR": "1"}


def split(command: str) -> tuple[dict[str, str], list[str]]:
    """The variables that stand before a command, as in a shell, and its words."""
    words = shlex.split(command)
    environ = {}
    while words and ASSIGNMENT.fullmatch(words[0]):
        name, _, environ[name] = words.pop(0).partition("=")
    return environ, words


def prompt(command: str) -> str:
    """The command as a person types it."""
    environ, _ = split(command)
    before = "".join(f"{name}={value} " for name, value in environ.items())
    return f"$ {before}turnfold {command.removeprefix(before)}"


def normalized(text: str) -> str:
    """The text without what differs between runs, each part of the same length."""
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
    text = re.sub(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", "2026-01-02T03:04:05.678901Z", text)
    text = re.sub(
        r"\d{4}-\d\d-\d\d([T ])\d\d:\d\d:\d\d(\.\d{3})?",
        lambda found: f"2026-01-02{found[1]}03:04:05{'.678' if found[2] else ''}",
        text,
    )
    text = re.sub(r"\b\d\d:\d\d:\d\d\.\d{3}\b", "03:04:05.678", text)
    text = re.sub(r"\b\d{4}-\d\d-\d\d \d\d:\d\d(?!:)", "2026-01-02 03:04", text)
    text = re.sub(r"^\d{4}-\d\d-\d\d +\n", "2026-01-02\n", text, flags=re.MULTILINE)
    text = re.sub(r"\b[0-9a-f]{64}\b", "5e" * 32, text)
    text = re.sub(r"\btoken:[0-9a-f]{12}\b", "token:5e5e5e5e5e5e", text)
    text = re.sub(r"(?<=  )[0-9a-f]{8}(?=\s*$)", "5e5e5e5e", text, flags=re.MULTILINE)
    text = re.sub(r"\S+ \(nats://127.0.0.1:\d+\)", "DATA (nats://127.0.0.1:4222)", text)
    text = re.sub(r"nats://127\.0\.0\.1:\d+", "nats://127.0.0.1:4222", text)
    text = re.sub(r"http://127\.0\.0\.1:\d+", "http://127.0.0.1:8080", text)
    text = re.sub(r"\b(port[ =]|listen on 127\.0\.0\.1:)\d{4,5}\b", r"\g<1>8080", text)
    text = re.sub(r"\b(pid[ =]|process )\d+", r"\g<1>101", text)
    # Where the line is broken depends on the numbers.
    text = re.sub(r"(ready at \S+ ·)(?:[^\n]+\n)+", r"\1 nats (pid 101), …\n", text)
    text = re.sub(r"\b(agent-ada|worker)-[A-Z2-7]{8}\b", r"\1-AAAAAAAA", text)
    text = re.sub(r"\bU[A-Z2-7]{55}\b", "U" + "A" * 55, text)
    text = re.sub(r"\btf_[\w-]{43}", "tf_" + "A" * 43, text)
    text = re.sub(r"\b\d{15,19}\b", "1234567890123456789", text)
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"


def run(command: str, width: int) -> str:
    """The output of a command on a terminal, and its status if that is not 0."""
    environ, words = split(command)
    out, err = Terminal(), io.StringIO()
    mask = os.umask(0o077)
    status: Any = 0
    with (
        patch.dict(os.environ, columns(width) | environ),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            turnfold.cli.main(words)
        except SystemExit as ended:
            status = ended.code or 0
        finally:
            os.umask(mask)
    said = "".join(
        line for line in err.getvalue().splitlines(keepends=True) if "system: " not in line
    )
    told = f"(status {status})\n" if status else ""
    return f"{prompt(command)}\n{normalized(out.getvalue() + said)}{told}\n"


async def run_service(command: str, told: str, width: int, environ: Mapping[str, str]) -> str:
    """The output of a service on a terminal until it has printed `told`; then it is stopped."""
    variables, words = split(command)
    ours, its = pty.openpty()
    stdin, held = Pipe(duplex=False)
    with stdin, Connection(its, readable=False) as terminal:
        variables = {**environ, **columns(width), **variables}
        process = await asyncio.to_thread(
            forked.begun, forked.service_on_terminal, words, variables, stdin, terminal
        )
    try:
        async with asyncio.timeout(SECONDS):
            printed = await asyncio.to_thread(lambda: "".join(_lines(ours, told)))
    finally:
        process.terminate()
        # What it prints at its end has no fixed order, and no terminal may be full meanwhile.
        await asyncio.to_thread(lambda: "".join(_lines(ours, None)))
        await forked.ended(process)
        held.close()
        os.close(ours)
    return f"{prompt(command)}\n{normalized(printed)}\n"


def _lines(terminal: int, told: str | None) -> Iterator[str]:
    """The lines that are printed, up to the one that has this text, or all of them."""
    line = b""
    while True:
        try:
            piece = os.read(terminal, 1)
        except OSError:
            # Linux reports the end of the last process on a terminal as an error.
            piece = b""
        line += piece
        if piece in (b"", b"\n"):
            text = line.decode().replace("\r", "")
            yield text
            line = b""
            if not piece or (told is not None and told in text):
                return
