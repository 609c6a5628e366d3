"""The figures of a cell that ran."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, linear_regression

from tests.benchmarks.cell_samples import Sample
from tests.benchmarks.cell_texts import CellSettings
from tests.benchmarks.figures import RATIO, Figure

WARM_SHARE = 1 / 3
MESSAGES_A_TURN = 4


@dataclass(slots=True)
class CellRun:
    """The observations of a run: its samples, the totals of the agents, and the backlog at the end."""

    settings: CellSettings
    filled_messages: int
    samples: list[Sample] = field(default_factory=list)
    agents: Sample = field(default_factory=dict)
    lags: Sequence[int] = ()
    processes: dict[str, int] = field(default_factory=dict)
    stored_messages: int = 0
    dead_letters: int = 0
    unstored_events: int = 0
    open_jobs: int = 0
    drained_seconds: float = 0.0
    broken_audits: Sequence[str] = ()
    audited: int = 0
    logged: dict[str, int] = field(default_factory=dict)


def figures(run: CellRun) -> Iterator[Figure]:
    """All figures, what was seen by agents first."""
    for what, value, unit in (
        *_seen_by_agents(run),
        *_lags(run),
        *_summaries(run),
        *_used(run),
        *_held(run),
        *_left(run),
    ):
        yield Figure(what, value, unit)
    for what, share in sorted(_limits(run).items(), key=lambda one: -one[1]):
        yield Figure(f"of its limit: {what}", share, RATIO)


Row = tuple[str, float, str]


def _seen_by_agents(run: CellRun) -> Iterator[Row]:
    seconds, agents = run.settings.minutes * 60, run.agents
    yield "agents", run.settings.agents, ""
    yield "length of the run", run.settings.minutes, "min"
    yield "turns", agents.get("turns", 0) / seconds, "1/s"
    yield "events", agents.get("events", 0) / seconds, "1/s"
    yield "messages", agents.get("messages", 0) / seconds, "1/s"
    yield "windows", agents.get("windows", 0) / seconds, "1/s"
    yield "windows answered", agents.get("answered", 0) / seconds, "1/s"
    yield "a window", agents.get("reply_bytes", 0) / max(1, agents.get("answered", 0)), "bytes"
    for name, of in (
        ("late", "steps of agents begin late by"),
        ("ack", "acknowledgement"),
        ("window", "window"),
        ("refusal", "refusal of a window"),
    ):
        for which in ("p50", "p99", "max"):
            if (value := agents.get(f"{name}_{which}_ms")) is not None:
                yield f"{of}, {which}", value, "ms"
    yield "windows that were not fresh", agents.get("stale", 0), ""
    yield "requests shed", agents.get("shed", 0), ""
    for what in sorted(agents):
        if "failed" in what:
            yield what, agents[what], ""


def _lags(run: CellRun) -> Iterator[Row]:
    lags = sorted(run.lags) or [0]
    yield "events that were not stored yet, p50", lags[len(lags) // 2], ""
    yield "events that were not stored yet, p99", lags[int(len(lags) * 0.99)], ""
    yield "events that were not stored yet, most", lags[-1], ""


def _summaries(run: CellRun) -> Iterator[Row]:
    first, last = run.samples[0], run.samples[-1]
    evictions = last["evictions"] - first["evictions"]
    yield "evictions", evictions, ""
    yield "evictions of 1,000 turns", 1000 * evictions / max(1, run.agents.get("turns", 0)), ""
    yield "summaries", last["summaries"] - first["summaries"], ""
    yield "summaries being written, mean", fmean(one["running"] for one in run.samples), ""
    for name, of in (
        ("pending", "summaries due and not begun"),
        ("oldest_seconds", "age of the oldest open summary"),
        ("unindexed_sessions", "sessions with words to index"),
    ):
        unit = "s" if name == "oldest_seconds" else ""
        yield f"{of}, most", max(one[name] for one in run.samples), unit
        yield f"{of}, at the end", last[name], unit
    yield "summaries still open after the run and its wait", run.open_jobs, ""
    yield "time until none was open", run.drained_seconds, "s"


def _used(run: CellRun) -> Iterator[Row]:
    for part, cores in sorted(_cores(run).items(), key=lambda one: -one[1]):
        yield f"processor, {_named(run, part)}", cores, "cores"
    yield "processor, the whole machine", _machine_cores(run), "cores"
    turns = max(1, run.agents.get("turns", 0))
    for part in ("worker", "receiver", "summarizer", "query", "postgres"):
        first, last = run.samples[0]["used"], run.samples[-1]["used"]
        used = last.get(part, 0.0) - first.get(part, 0.0)
        yield f"processor a turn, {part}", 1000 * used / turns, "ms"


def _held(run: CellRun) -> Iterator[Row]:
    warm = run.samples[int(len(run.samples) * WARM_SHARE) :]
    hours = [one["seconds"] / 3600 for one in warm]
    for part in run.processes:
        held = [one["held"].get(part, 0.0) for one in warm]
        yield f"memory, {_named(run, part)}, at the end", held[-1], "MB"
        if len(held) > 1:
            yield (
                f"memory, {_named(run, part)}, slope",
                linear_regression(hours, held).slope,
                "MB/hour",
            )
    first, last = run.samples[0]["database_bytes"], run.samples[-1]["database_bytes"]
    yield "database, at the start", first / 1e6, "MB"
    yield "database, at the end", last / 1e6, "MB"
    yield "database, a message", (last - first) / max(1, run.agents.get("messages", 0)), "bytes"


def _left(run: CellRun) -> Iterator[Row]:
    published = run.filled_messages + run.agents.get("messages", 0)
    yield "messages published and not stored", published - run.stored_messages, ""
    yield "events published and not stored", run.unstored_events, ""
    yield "dead letters", run.dead_letters, ""
    yield "audits verified", run.audited, ""
    yield "audits that are broken", len(run.broken_audits), ""
    for name, times in sorted(run.logged.items()):
        yield f"logged: {name}", times, ""


def _limits(run: CellRun) -> Mapping[str, float]:
    """The use of each limited resource: a core for each process, all cores, and the places of jobs."""
    shares = {
        f"a core for each of {_named(run, part)}": cores / max(1, run.processes[part])
        for part, cores in _cores(run).items()
        if part not in ("agents", "model", "postgres")
    }
    shares["all cores"] = _machine_cores(run) / (os.cpu_count() or 1)
    places = run.settings.concurrency * max(1, run.processes.get("worker", 1))
    shares["places of summary jobs"] = fmean(one["running"] for one in run.samples) / places
    return shares


def _cores(run: CellRun) -> dict[str, float]:
    first, last = run.samples[0], run.samples[-1]
    seconds = max(1e-9, last["seconds"] - first["seconds"])
    return {
        part: (used - first["used"].get(part, 0.0)) / seconds for part, used in last["used"].items()
    }


def _machine_cores(run: CellRun) -> float:
    first, last = run.samples[0], run.samples[-1]
    seconds: float = max(1e-9, last["seconds"] - first["seconds"])
    spent: float = last["machine_seconds"] - first["machine_seconds"]
    return spent / seconds


def _named(run: CellRun, part: str) -> str:
    number = run.processes.get(part, 1)
    return part if number == 1 else f"{part} ({number} processes)"
