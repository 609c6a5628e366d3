"""`turnfold replay`: publish recorded conversations as if they happened now."""

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Annotated, Any, TypeVar

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)

from turnfold.cli.connection import System, changing, system_here
from turnfold.cli.output import counted, print_rows
from turnfold.cli.recordings import Recording, Step, event_ids, events_of, load_recordings
from turnfold.client import Client, OutgoingEvent, Receipt, Session
from turnfold.errors import BadRequest, CannotFit, TooLarge, Unavailable, UnknownSession
from turnfold.messages import SessionKey
from turnfold.transcripts import Format

Result = TypeVar("Result")

IN_FLIGHT = 32
BATCH_EVENTS = 100
"""Events of a session in one batch, if no speed is set."""
EVENTS_COMPARED = 1_000
"""The first events of a recording, in one request; an erasure leaves none of them."""
WHOLE_WINDOW_TOKENS = 10_000_000
STALLED_SECONDS = 60.0
COLUMNS = (
    "agent_id",
    "session_id",
    "events",
    "messages",
    "evictions",
    "evicted",
    "summary_versions",
    "tokens_total",
    "tokens_live",
)


@dataclass(frozen=True, slots=True)
class ReplaySummary:
    """A session after a replay: the published events, and the result in the service.

    `evicted` counts messages that left the window. `tokens_live` counts the remaining ones, without
    the summary. `refused` counts events of the session that are dead letters.
    """

    agent_id: str
    session_id: str
    events: int
    messages: int
    evictions: int
    evicted: int
    summary_versions: int
    summary_version: int | None
    tokens_total: int
    tokens_live: int
    refused: int


def replay(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE", help="Conversation files, gzipped or not. Use - for standard input."
        ),
    ],
    agent: Annotated[
        str | None,
        typer.Option(
            metavar="AGENT", help="Agent id of all conversations (default: their own, or replay)."
        ),
    ] = None,
    form: Annotated[
        Format | None,
        typer.Option("--format", help="Format of the files (default: detected from the files)."),
    ] = None,
    step: Annotated[
        Step, typer.Option(help="Publish one event per turn or per message.")
    ] = Step.TURN,
    speed: Annotated[
        float | None,
        typer.Option(
            min=0.001, metavar="RATE", help="Events per second and session (default: no limit)."
        ),
    ] = None,
    wait_seconds: Annotated[
        float,
        typer.Option(
            min=0, metavar="SECONDS", help="Time to wait for summaries after all events are stored."
        ),
    ] = 10.0,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per session, each on a line.")
    ] = False,
) -> None:
    """Publish recorded conversations and show the result of each.

    Formats: this project's JSONL, saved histories, lists of OpenAI messages
    or items, and sessions of Claude Code, Codex and nanobot.

    A line on stderr counts what is not imported.

    Replaying a file again stores no event twice.
    """
    system = system_here(changes=True)
    left_out: dict[str, Mapping[str, int]] = {}
    recordings = load_recordings(files, agent, form, left_out=left_out)
    _report_left_out(left_out)
    summaries = asyncio.run(_replay(system, recordings, step, speed, wait_seconds))
    print_rows(
        "replayed",
        COLUMNS,
        (asdict(summary) for summary in summaries),
        as_json=as_json,
        empty="No conversations in these files.",
        headings=2,
    )
    if _report_refused(summaries):
        raise typer.Exit(1)


def _report_left_out(left_out: Mapping[str, Mapping[str, int]]) -> None:
    for file, counts in left_out.items():
        named = ", ".join(f"{kind} ({count})" for kind, count in counts.items())
        typer.echo(f"{file}: not imported: {named}", err=True)


def _report_refused(summaries: Sequence[ReplaySummary]) -> bool:
    """Name the sessions of which events are dead letters; return whether there are any."""
    refused = [summary for summary in summaries if summary.refused]
    for summary in refused:
        typer.echo(
            f"{summary.session_id}: {counted(summary.refused, 'event')} could not be stored; see"
            " `turnfold deadletters list`, and erase a session that changed"
            " before you replay it again",
            err=True,
        )
    return bool(refused)


async def _replay(
    system: System,
    recordings: Sequence[Recording],
    step: Step,
    speed: float | None,
    wait_seconds: float,
) -> list[ReplaySummary]:
    async with changing(system) as client:
        with progress(Console(stderr=True), disabled=not sys.stderr.isatty()) as bar:
            return await replayed(
                client, recordings, bar, step=step, speed=speed, wait_seconds=wait_seconds
            )


async def replayed(
    client: Client,
    recordings: Sequence[Recording],
    bar: Progress,
    *,
    step: Step = Step.TURN,
    speed: float | None = None,
    wait_seconds: float = 10.0,
) -> list[ReplaySummary]:
    """Publish all recordings, wait until they are stored, then wait for pending summaries.

    The wait for summaries takes at most `wait_seconds`.

    Raises:
        TooLarge: one message alone exceeds the size of an event.
        Unavailable: NATS or the services stopped answering, or no event was stored for a
            minute.
    """
    editions = await _for_each(
        recordings,
        lambda recording: _edition(client, recording, step),
        bar,
        "comparing",
    )
    counts = await _published(client, recordings, editions, bar, step, speed)
    refused = await _for_each(
        recordings,
        lambda recording: _ingested(
            client.session(*recording.key), len(recording.conversation.messages)
        ),
        bar,
        "storing",
    )
    refusals = dict(zip((recording.key for recording in recordings), refused, strict=True))
    deadline = time.monotonic() + wait_seconds
    await _for_each(
        recordings,
        lambda recording: _summarized(client.session(*recording.key), deadline),
        bar,
        "summarizing",
    )
    return await _for_each(
        recordings,
        lambda recording: _outcome(client, recording, counts, refusals),
        bar,
        "reading results",
    )


def progress(console: Console, *, disabled: bool = False) -> Progress:
    """Return a progress display with one bar per stage, which disappears at the end."""
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description:<12}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    return Progress(*columns, console=console, disable=disabled, transient=True)


async def _edition(client: Client, recording: Recording, step: Step) -> int:
    """Return how many earlier imports of a recording were erased.

    Raises:
        BadRequest: it is stored by another step, in events with other ids.
    """
    agent_id, session_id = recording.key
    most = min(len(recording.conversation.messages), EVENTS_COMPARED)
    editions: dict[Step, int] = {}
    for each in Step:
        edition = 0
        while await client.session(agent_id, session_id).erased_events(
            ids := [*islice(event_ids(recording, each, edition), most)]
        ):
            edition += 1
        editions[each] = edition
        if each is not step and await client.known_events(agent_id, ids):
            raise BadRequest(
                f"{session_id} was imported with --step {each} and would be stored twice;"
                " use that step, or import it for another --agent"
            )
    return editions[step]


async def _published(
    client: Client,
    recordings: Sequence[Recording],
    editions: Sequence[int],
    bar: Progress,
    step: Step,
    speed: float | None,
) -> dict[tuple[str, str], int]:
    """Publish all sessions concurrently; return the number of events per session."""
    counts: dict[tuple[str, str], int] = {recording.key: 0 for recording in recordings}
    task = bar.add_task(
        "publishing", total=sum(len(recording.conversation.messages) for recording in recordings)
    )

    def outgoing(recording: Recording, edition: int) -> Iterator[OutgoingEvent]:
        """Asked for the next event, the one before is published."""
        for event, messages in events_of(recording, step, edition):
            yield event
            counts[recording.key] += 1
            bar.advance(task, messages)

    async def paced(_event: OutgoingEvent, _receipt: Receipt) -> None:
        if speed is not None:
            await asyncio.sleep(1 / speed)

    # A batch would arrive at one moment, whatever the speed.
    at_once = BATCH_EVENTS if speed is None else 1
    await client.publish_sessions(
        map(outgoing, recordings, editions),
        in_flight=IN_FLIGHT,
        at_once=at_once,
        published=paced,
    )
    return counts


async def _ingested(session: Session, messages: int) -> int:
    """Wait until every event of the session is stored; return how many are dead letters instead.

    If no window fits, wait until the session has this number of messages.
    """
    newest, newest_at = -1, time.monotonic()
    while True:
        try:
            window = await session.context(
                max_tokens=WHOLE_WINDOW_TOKENS, bodies="changed", wait_ms=2_000, follow_budget=False
            )
            if window.fresh:
                return window.refused
            stored = (await _status(session)).get("messages_total") or 0
        # No window says how fresh it is, so the count decides.
        except (CannotFit, TooLarge):
            stored = (await _status(session)).get("messages_total") or 0
            if stored >= messages:
                return 0
            await asyncio.sleep(0.2)
        if stored != newest:
            newest, newest_at = stored, time.monotonic()
        elif time.monotonic() - newest_at > STALLED_SECONDS:
            raise Unavailable(
                f"nothing was stored for {STALLED_SECONDS:g} seconds;"
                " check that a worker runs (`turnfold doctor`)"
            )


async def _summarized(session: Session, deadline: float) -> None:
    while time.monotonic() < deadline:
        if not (await _status(session)).get("messages_pending"):
            return
        await asyncio.sleep(0.2)


async def _outcome(
    client: Client,
    recording: Recording,
    counts: Mapping[tuple[str, str], int],
    refusals: Mapping[SessionKey, int],
) -> ReplaySummary:
    session = client.session(*recording.key)
    status = await _status(session)
    trail = await present_trail(session) if status else []
    return ReplaySummary(
        agent_id=recording.key.agent_id,
        session_id=recording.key.session_id,
        events=counts[recording.key],
        messages=status.get("messages_total") or 0,
        evictions=sum(row["phase"] == "evicted" for row in trail),
        evicted=(status.get("messages_pending") or 0) + (status.get("messages_covered") or 0),
        summary_versions=status.get("summary_versions") or 0,
        summary_version=status.get("summary_version"),
        tokens_total=status.get("tokens_total") or 0,
        tokens_live=status.get("tokens_live") or 0,
        refused=refusals[recording.key],
    )


async def _status(session: Session) -> dict[str, Any]:
    """Return the counters of a session; empty while none of its events is stored."""
    try:
        return await session.status()
    except UnknownSession:
        return {}


async def present_trail(session: Session) -> list[dict[str, Any]]:
    """Return the audit rows of a session, without those of erased sessions of its name."""
    rows: list[dict[str, Any]] = []
    async for row in session.audit_trail():
        rows.append(row)
        if row["phase"] == "erased":
            rows.clear()
    return rows


async def _for_each(
    recordings: Sequence[Recording],
    work: Callable[[Recording], Awaitable[Result]],
    bar: Progress,
    description: str,
) -> list[Result]:
    """Run `work` on all recordings with limited concurrency; return the results in order.

    The first error cancels the rest.
    """
    slots = asyncio.Semaphore(IN_FLIGHT)
    progress_task = bar.add_task(description, total=len(recordings))

    async def run(recording: Recording) -> Result:
        async with slots:
            result = await work(recording)
        bar.advance(progress_task)
        return result

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(run(recording)) for recording in recordings]
    except BaseExceptionGroup as failures:
        # Without the group: the command prints a TurnfoldError as one line.
        raise failures.exceptions[0] from failures
    return [task.result() for task in tasks]
