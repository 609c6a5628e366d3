"""`turnfold demo`: start a system, replay conversations, show the results and stop."""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from threading import current_thread, main_thread
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.rule import Rule
from rich.text import Text

from turnfold.cli.audit_tables import show_trail
from turnfold.cli.connection import connected_client
from turnfold.cli.context import show_summary, show_window
from turnfold.cli.output import console
from turnfold.cli.parameters import named_directory
from turnfold.cli.recordings import Recording, load_recordings
from turnfold.cli.replay import ReplaySummary, progress, replayed
from turnfold.cli.tables import show_table, show_text
from turnfold.client import Client, Session, Summary, Window
from turnfold.core.text.lines import clip
from turnfold.errors import StartError, TurnfoldError
from turnfold.process.child_process import TURNFOLD
from turnfold.process.ready import die_with_parent
from turnfold.process.tasks import stop_signals
from turnfold.settings import Settings, read_settings

SHIPPED = Path(__file__).parent / "conversations"
IN_CHECKOUT = Path(__file__).parents[3] / "examples"
READY_SECONDS = 60.0
STOP_SECONDS = 20.0
FULL_BYTES = 2**20
"""A system with less room on its disk fails in many ways, most of which do not name the disk."""
EVENTS_PER_SECOND = 25.0
"""The rate of each session. At full speed, one batch and one eviction would take everything."""
LAST_MESSAGES = 4
SUMMARY_LINES = 14
LEDGER_ENTRIES = 6
AUDIT_ROWS = 8
RECALLED_TOKENS = 400
RECALL_TAG = "turnfold-recall"
LINE_CHARACTERS = 150
OTHER_SYSTEM = (
    "TURNFOLD_CONFIG",
    "TURNFOLD_DATABASE_URL",
    "TURNFOLD_DATA_DIR",
    "TURNFOLD_HTTP_",
    "TURNFOLD_NATS_",
    "TURNFOLD_PROXY_",
    "TURNFOLD_WORKER_HTTP_",
)
"""Prefixes of variables that would connect the demo to another system, or take its ports."""
NATS_SERVER = "TURNFOLD_NATS_SERVER"
"""The program to start, and no system."""


def demo(
    files: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FILE", help="Conversations (default: three that come with Turnfold)."
        ),
    ] = None,
    data_dir: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            parser=named_directory,
            help="Keep all data in this directory (default: delete it at the end).",
        ),
    ] = None,
) -> None:
    """Start the whole system, replay conversations, show the results, and stop it."""
    recordings = load_recordings(files or examples())
    # Signals are the main thread's.
    for number in stop_signals() if current_thread() is main_thread() else ():
        # As Ctrl-C does. By default, the system would go on without this command.
        signal.signal(number, signal.default_int_handler)
    with contextlib.ExitStack() as stack:
        if data_dir is None:
            directory = Path(
                stack.enter_context(
                    tempfile.TemporaryDirectory(prefix="turnfold-demo-", ignore_cleanup_errors=True)
                )
            )
        else:
            directory = data_dir
            # If the path is a file, opening the log reports that it is not a directory.
            with contextlib.suppress(FileExistsError):
                directory.mkdir(parents=True)
        try:
            asyncio.run(_demo(recordings, directory))
        except TurnfoldError as error:
            free_bytes = shutil.disk_usage(directory).free
            if free_bytes > FULL_BYTES:
                raise
            raise StartError(
                f"{error}; the disk of {directory} is full ({free_bytes:,} bytes are free):"
                " name a directory on another one with --data-dir"
            ) from error
    if data_dir is not None:
        typer.echo(
            f"All data is kept in {data_dir}. Restart with `turnfold up --data-dir {data_dir}`."
        )


def examples() -> list[str]:
    """Return the files of the conversations that come with the package, or with the checkout.

    Raises:
        StartError: neither has them.
    """
    for folder in (SHIPPED, IN_CHECKOUT):
        if files := sorted(str(path) for path in folder.glob("*.jsonl")):
            return files
    raise StartError("this installation has no conversations; name files: turnfold demo FILE...")


async def _demo(recordings: Sequence[Recording], data_dir: Path) -> None:
    out = console()
    out.print(Rule("starting: a nats-server, SQLite, a worker and a query service", align="left"))
    async with _started(data_dir) as ready:
        names = ", ".join(f"{name} (pid {pid})" for name, pid in ready["pids"].items())
        out.print(f"ready at {ready['http_url']} · {names}")
        # Not the settings of the environment, which may name another system.
        await _show(out, read_settings({"TURNFOLD_NATS_URL": ready["nats_url"]}), recordings)
        out.print(Rule("stopping", align="left"))


async def _show(out: Console, settings: Settings, recordings: Sequence[Recording]) -> None:
    async with connected_client(settings) as client:
        with progress(Console(stderr=True), disabled=not sys.stderr.isatty()) as bar:
            summaries = await replayed(client, recordings, bar, speed=EVENTS_PER_SECOND)
        # These short conversations fit every budget: a recall block would bring back what left.
        windows = [
            await client.session(*recording.key).context(recall=False) for recording in recordings
        ]
        out.print()
        show_table(out, "conversations", OVERVIEW, map(_overview, summaries, windows))
        for recording, summary, window in zip(recordings, summaries, windows, strict=True):
            await _show_session(out, client, recording, summary, window)


OVERVIEW = (
    "session",
    "messages",
    "window",
    "tokens_before",
    "tokens_after",
    "saved",
    "evictions",
    "summary_versions",
)


def _overview(summary: ReplaySummary, window: Window) -> dict[str, Any]:
    saved = 1 - window.tokens / summary.tokens_total if summary.tokens_total else 0.0
    return {
        "session": summary.session_id,
        "messages": summary.messages,
        "window": len(window.messages),
        "tokens_before": summary.tokens_total,
        "tokens_after": window.tokens,
        "saved": f"{saved:.0%}",
        "evictions": summary.evictions,
        "summary_versions": summary.summary_versions,
    }


async def _show_session(
    out: Console, client: Client, recording: Recording, summary: ReplaySummary, window: Window
) -> None:
    session = client.session(*recording.key)
    out.print()
    out.print(Rule(f"{summary.agent_id} / {summary.session_id}", align="left", style="bold"))
    if window.summary is not None:
        show_summary(out, window.summary, lines=SUMMARY_LINES, entries=LEDGER_ENTRIES)
    left_out = max(len(window.messages) - LAST_MESSAGES, 0)
    out.print(
        Text(
            f"the window for the model, without its first {left_out} messages:"
            if left_out
            else "the window for the model:",
            style="bold",
        )
    )
    show_window(out, window, with_summary=False, last=LAST_MESSAGES)
    versions = await session.summaries()
    if versions:
        show_table(out, "versions of the summary", VERSIONS, map(_version, versions))
    if recording.conversation.question is not None:
        await _show_recalled(out, session, recording.conversation.question)
    trail = [row async for row in session.audit_trail()]
    more = f" (the last {AUDIT_ROWS} of {len(trail)} rows)" if len(trail) > AUDIT_ROWS else ""
    if trail:
        show_trail(out, f"audit trail{more}", trail[-AUDIT_ROWS:])


async def _show_recalled(out: Console, session: Session, question: str) -> None:
    """Ask about an early turn, and show the messages that a small block recalls."""
    window = await session.context(recall={"query": question, "tokens": RECALLED_TOKENS})
    recalled = next(
        (
            str(message["content"])
            for message, message_id in zip(window.messages, window.message_ids, strict=True)
            if message_id is None and RECALL_TAG in str(message["content"])
        ),
        None,
    )
    out.print(Text(f"asked now: {question}", style="bold"))
    if recalled is None:
        out.print("  nothing is recalled: the window shows every message")
        return
    quoted = recalled.partition(f"<{RECALL_TAG}>")[2].partition(f"</{RECALL_TAG}>")[0].strip()
    out.print(Text("recalled from messages that left the window:", style="dim"))
    for line in quoted.split("\n"):
        show_text(out, Text(clip(line, LINE_CHARACTERS)), indent=2)


VERSIONS = ("version", "kind", "tokens", "covers_messages", "created_at")


def _version(summary: Summary) -> dict[str, Any]:
    return {
        "version": summary.version,
        "kind": summary.kind,
        "tokens": summary.tokens,
        "covers_messages": summary.covers.get("messages"),
        "created_at": summary.created_at,
    }


@asynccontextmanager
async def _started(data_dir: Path) -> AsyncGenerator[Mapping[str, Any], None]:
    """Run the system as a child process and yield its ready line.

    Raises:
        StartError: it exited, or was not ready within a minute. The text has the last line of
            its log.
    """
    log = data_dir / "demo.log"
    environ = {
        name: value
        for name, value in os.environ.items()
        if name == NATS_SERVER or not name.startswith(OTHER_SYSTEM)
    }
    ports = ("--nats-port", "0", "--http-port", "0")
    with log.open("ab") as errors:
        child = await asyncio.create_subprocess_exec(
            *TURNFOLD, "up", "--json", "--data-dir", str(data_dir), *ports,
            stdout=asyncio.subprocess.PIPE, stderr=errors, env=environ,
            preexec_fn=die_with_parent(signal.SIGTERM),
        )  # fmt: skip
    assert child.stdout is not None
    try:
        try:
            async with asyncio.timeout(READY_SECONDS):
                line = await child.stdout.readline()
        except TimeoutError:
            line = b""
        if not line:
            lines = log.read_text(encoding="utf-8", errors="replace").splitlines() or [
                "its log is empty"
            ]
            raise StartError(f"the system did not start: {lines[-1]}")
        # A full pipe would block the system as soon as it announces a new process.
        reading = asyncio.create_task(_drained(child.stdout))
        yield json.loads(line)
        reading.cancel()
    finally:
        if child.returncode is None:
            # `terminate` would reap a child that has just ended, and asyncio would miss it.
            with contextlib.suppress(ProcessLookupError):
                os.kill(child.pid, signal.SIGTERM)
            try:
                await asyncio.wait_for(child.wait(), STOP_SECONDS)
            except TimeoutError:
                child.kill()
                await child.wait()


async def _drained(stream: asyncio.StreamReader) -> None:
    while await stream.read(1 << 16):
        pass
