"""What the figures of a running system mean, and what to do about it: plain functions, so that each can be tried."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from turnfold.access.bearers import is_loopback

if TYPE_CHECKING:
    from turnfold.bus.health import BusHealth
    from turnfold.store.database.health import DatabaseHealth

SKEW_MS = 2_000
LAG_MS = 60_000
STUCK_MS = 600_000
MOST_ATTEMPTS = 10
"""An attempt that fails is counted, and so is one whose worker died; the third failure ends a job, so many more mean deaths."""
NEARLY_FULL, FULL = 0.8, 0.98
DISK_WARNING, DISK_FAILED = (0.05, 1 << 30), (0.01, 200 << 20)
"""What is left of a disk, as a share and in bytes, below which there is something to say."""

Outcome = Literal["ok", "unknown", "warning", "failed"]


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check saw, and what to do about it when it is not `ok`; `unknown` is what cannot be seen from here."""

    check: str
    outcome: Outcome
    found: str
    advice: str = ""


def of_disk_writes(is_always: bool | None, monitoring_url: str) -> Finding:
    """Whether what the bus acknowledges is on its disk."""
    if is_always is None:
        found = f"cannot be seen: no monitoring port answers at {monitoring_url}"
        advice = "name the monitoring port of the server with --monitoring, or see that its configuration says sync_interval: always"
        return Finding("disk writes", "unknown", found, advice)
    if is_always:
        return Finding("disk writes", "ok", "an acknowledged event is on the disk")
    advice = "set `jetstream { sync_interval: always }` in the configuration of the server"
    return Finding(
        "disk writes",
        "warning",
        "events are acknowledged before they are on the disk: a power cut loses some",
        advice,
    )


def of_clock(name: str, clock_ms: int, *, own_ms: int) -> Finding:
    """Whether another clock agrees with ours: leases are told by one, ages by the other."""
    skew_ms = clock_ms - own_ms
    if abs(skew_ms) <= SKEW_MS:
        return Finding(f"clock of the {name}", "ok", "agrees with this machine's")
    found = f"{abs(skew_ms) / 1000:,.1f} s {'ahead of' if skew_ms > 0 else 'behind'} this machine's"
    return Finding(
        f"clock of the {name}",
        "warning",
        found,
        "have every machine keep its clock by NTP: leases of jobs depend on it",
    )


def of_lag(bus: "BusHealth", *, has_writer: bool | None) -> Finding:
    """Whether a worker asks for events, and keeps up; `has_writer` says whether one holds the lock of a SQLite file."""
    lag = f"{bus.waiting:,} events wait, {bus.in_hand:,} are in hand"
    if not bus.asking and has_writer:
        advice = "a worker holds the database and does not ask: see its log, and start it again"
        return Finding(
            "worker",
            "failed",
            f"one holds the writer's lock, and nobody asks for events; {lag}",
            advice,
        )
    if not bus.asking:
        return Finding(
            "worker",
            "failed",
            f"nobody asks for events; {lag}",
            "start `turnfold worker`, or see its log",
        )
    behind_ms = 0 if bus.oldest_ms is None else bus.clock_ms - bus.oldest_ms
    if behind_ms > LAG_MS:
        advice = "see the log of the worker; on PostgreSQL start more of them"
        return Finding(
            "worker",
            "warning",
            f"the oldest event waits for {behind_ms / 1000:,.0f} s; {lag}",
            advice,
        )
    return Finding("worker", "ok", f"asks for events; {lag}")


def of_room(bus: "BusHealth") -> Finding:
    """Whether the stream of events has room."""
    bounds = ((bus.bytes, bus.max_bytes, "bytes"), (bus.messages, bus.max_messages, "events"))
    shares = [
        (used / most, f"{used:,} of {most:,} {what}") for used, most, what in bounds if most > 0
    ]
    if not shares:
        return Finding("stream", "ok", f"{bus.messages:,} events, {bus.bytes:,} bytes, no limit")
    share, found = max(shares)
    advice = "raise TURNFOLD_STREAM_MAX_BYTES and run `turnfold migrate`, or lower TURNFOLD_STREAM_RETENTION_HOURS"
    if share >= FULL:
        return Finding("stream", "failed", f"full: {found}; nothing can be published", advice)
    return Finding(
        "stream",
        "warning" if share >= NEARLY_FULL else "ok",
        found,
        advice if share >= NEARLY_FULL else "",
    )


def of_work(health: "DatabaseHealth", *, now_ms: int, is_outbox_moving: bool) -> Iterator[Finding]:
    """Whether summaries are written, notices sent, and events taken as they are."""
    faults = []
    if health.overdue and health.oldest_due_ms is not None:
        faults.append(
            f"{health.overdue:,} are due and nobody takes them, the oldest for {(now_ms - health.oldest_due_ms) / 60_000:,.0f} min"
        )
    if health.abandoned:
        faults.append(
            f"{health.abandoned:,} were begun by somebody who is gone, and nobody goes on"
        )
    if faults:
        advice = "see the log of the worker; if it runs and is not busy, start it again, else start more or raise TURNFOLD_SUMMARY_CONCURRENCY"
        yield Finding("jobs", "failed", "; ".join(faults), advice)
    elif health.retried:
        advice = "a worker dies whenever it works on them: see its log, and `turnfold audit` of the sessions in compactions_view"
        yield Finding(
            "jobs",
            "warning",
            f"{health.retried:,} were begun more than {MOST_ATTEMPTS} times",
            advice,
        )
    else:
        yield Finding("jobs", "ok", "none is stuck")
    if health.outbox and not is_outbox_moving:
        advice = "see the log of the worker for work.delayed, and whether the stream of notices takes messages"
        yield Finding("notices", "failed", f"{health.outbox:,} wait, and none goes out", advice)
    else:
        yield Finding("notices", "ok", f"{health.outbox:,} wait")
    if health.dead_letters:
        advice = (
            "`turnfold deadletters list` says why; after a fix: `turnfold deadletters replay --all`"
        )
        yield Finding(
            "dead letters", "warning", f"{health.dead_letters:,} events could not be stored", advice
        )
    else:
        yield Finding("dead letters", "ok", "none that was not replayed")


def of_disk(path: str, *, free: int, total: int) -> Finding:
    """Whether the disk below a path has room."""
    found = f"{free / (1 << 30):,.1f} GiB of {total / (1 << 30):,.1f} GiB are free below {path}"
    outcome: Outcome = "ok"
    for name, (share, least) in (("warning", DISK_WARNING), ("failed", DISK_FAILED)):
        if free < share * total or free < least:
            outcome = "failed" if name == "failed" else "warning"
    advice = "make room: with a full disk nothing is stored; TURNFOLD_STREAM_RETENTION_HOURS and retain_days bound what is kept"
    return Finding("disk", outcome, found, advice if outcome != "ok" else "")


def of_exposure(host: str, *, checks_tokens: bool) -> Finding:
    """Whether HTTP is open to others without asking who they are."""
    if checks_tokens or is_loopback(host):
        return Finding(
            "exposure",
            "ok",
            f"HTTP listens on {host}{' and checks tokens' if checks_tokens else ''}",
        )
    advice = "set TURNFOLD_HTTP_TOKENS, or see that what stands in front of it checks who asks"
    return Finding(
        "exposure", "warning", f"HTTP listens on {host} and answers whoever reaches it", advice
    )
