"""Findings of `turnfold doctor` from metrics of a running system, with advice.

All functions are pure, so that each can be tested alone.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from turnfold.access.bearers import is_loopback
from turnfold.cli.output import counted

if TYPE_CHECKING:
    from turnfold.bus.health import BusHealth
    from turnfold.store.database.health import DatabaseHealth

SKEW_MS = 2_000
LAG_MS = 60_000
STUCK_MS = 600_000
MAX_ATTEMPTS = 10
"""The number of attempts above which a worker must have died during some of them.

Failed attempts count as well, but the third failure ends a job.
"""
NEARLY_FULL, FULL = 0.8, 0.98
DISK_WARNING, DISK_FAILED = (0.05, 1 << 30), (0.01, 200 << 20)
"""The free share and bytes of a disk below which `doctor` reports it."""

Outcome = Literal["ok", "unknown", "warning", "failed"]


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check, with advice if it is not `ok`; `unknown` if it cannot be checked."""

    check: str
    outcome: Outcome
    found: str
    advice: str = ""


def of_disk_writes(is_always: bool | None, monitoring_url: str) -> Finding:
    """Check that NATS writes events to disk before it acknowledges them."""
    if is_always is None:
        finding_text = f"unknown: no monitoring port answers at {monitoring_url}"
        advice = (
            "name the monitoring port of the server with --monitoring,"
            " or check that its configuration has sync_interval: always"
        )
        return Finding("disk writes", "unknown", finding_text, advice)
    if is_always:
        return Finding("disk writes", "ok", "events are on disk before they are acknowledged")
    advice = "set `jetstream { sync_interval: always }` in the configuration of the server"
    return Finding(
        "disk writes",
        "warning",
        "events are acknowledged before they are on disk: a power cut loses some",
        advice,
    )


def of_belonging(owner: str, created: str) -> Finding:
    """Check that the database belongs to the stream of this bus, by the creation time of both."""
    if owner == created:
        return Finding("one system", "ok", "the database belongs to this bus")
    found = f"the database belongs to the stream created at {owner}, the bus has one of {created}"
    advice = "correct TURNFOLD_NATS_URL or TURNFOLD_DATABASE_URL: they name two systems"
    return Finding("one system", "failed", found, advice)


def of_clock(name: str, clock_ms: int, *, own_ms: int) -> Finding:
    """Check that another clock agrees with this one, because leases and ages compare the two."""
    skew_ms = clock_ms - own_ms
    if abs(skew_ms) <= SKEW_MS:
        return Finding(f"clock of the {name}", "ok", "agrees with this machine's")
    finding_text = (
        f"{abs(skew_ms) / 1000:,.1f} s {'ahead of' if skew_ms > 0 else 'behind'} this machine's"
    )
    return Finding(
        f"clock of the {name}",
        "warning",
        finding_text,
        "synchronize the clocks of all machines with NTP: job leases depend on them",
    )


def of_lag(bus: "BusHealth", *, has_writer: bool | None) -> Finding:
    """Check that a worker fetches events and keeps up.

    `has_writer` tells whether a worker holds the lock of a SQLite file. It is None on PostgreSQL.
    """
    lag = f"{bus.waiting:,} events wait, {bus.in_hand:,} are being processed"
    if not bus.asking and has_writer:
        advice = (
            "a worker holds the database and does not fetch events: read its log, and restart it"
        )
        return Finding(
            "worker",
            "failed",
            f"a worker holds the writer lock, but none fetches events; {lag}",
            advice,
        )
    if not bus.asking:
        return Finding(
            "worker",
            "failed",
            f"no worker fetches events; {lag}",
            "start `turnfold worker`, or read its log",
        )
    if bus.lag_ms > LAG_MS:
        advice = "read the log of the worker; on PostgreSQL start more workers"
        return Finding(
            "worker",
            "warning",
            f"the oldest event has waited for {bus.lag_ms / 1000:,.0f} s; {lag}",
            advice,
        )
    return Finding("worker", "ok", f"fetches events; {lag}")


def of_room(bus: "BusHealth") -> Finding:
    """Check that the stream of events is not full."""
    bounds = ((bus.bytes, bus.max_bytes, "bytes"), (bus.messages, bus.max_messages, "events"))
    shares = [
        (used / limit, f"{used:,} of {limit:,} {unit}") for used, limit, unit in bounds if limit > 0
    ]
    if not shares:
        return Finding("stream", "ok", f"{bus.messages:,} events, {bus.bytes:,} bytes, no limit")
    share, finding_text = max(shares)
    advice = (
        "raise TURNFOLD_STREAM_MAX_BYTES and run `turnfold migrate`,"
        " or lower TURNFOLD_STREAM_RETENTION_HOURS"
    )
    if share >= FULL:
        return Finding(
            "stream", "failed", f"full: {finding_text}; no event can be published", advice
        )
    if share >= NEARLY_FULL:
        return Finding("stream", "warning", finding_text, advice)
    return Finding("stream", "ok", finding_text)


def of_work(health: "DatabaseHealth", *, now_ms: int, is_outbox_moving: bool) -> Iterator[Finding]:
    """Check that summaries are written, notices are published, and events are accepted."""
    faults = []
    if health.overdue and health.oldest_due_ms is not None:
        overdue_minutes = (now_ms - health.oldest_due_ms) / 60_000
        faults.append(
            f"{health.overdue:,} are due and no worker claims them,"
            f" the oldest for {overdue_minutes:,.0f} min"
        )
    if health.abandoned:
        faults.append(
            f"{health.abandoned:,} were started by a worker that ended,"
            " and no other worker continues them"
        )
    if faults:
        advice = (
            "read the log of the worker; restart it if it runs but is not busy,"
            " otherwise start more workers or raise TURNFOLD_SUMMARY_CONCURRENCY"
        )
        yield Finding("jobs", "failed", "; ".join(faults), advice)
    elif health.retried:
        advice = (
            "workers die while they process these jobs: read their logs,"
            " and `turnfold audit` of the sessions in compactions_view"
        )
        yield Finding(
            "jobs",
            "warning",
            f"{health.retried:,} were started more than {MAX_ATTEMPTS} times",
            advice,
        )
    else:
        yield Finding("jobs", "ok", "none is stuck")
    if health.outbox and not is_outbox_moving:
        advice = (
            "read the log of the worker for loop.delayed,"
            " and check that the stream of notices accepts messages"
        )
        yield Finding("notices", "failed", f"{health.outbox:,} wait, and none is published", advice)
    else:
        yield Finding("notices", "ok", f"{health.outbox:,} wait")
    if health.dead_letters:
        advice = (
            "see the reasons with `turnfold deadletters list`;"
            " after a fix run `turnfold deadletters replay --all`"
        )
        yield Finding(
            "dead letters",
            "warning",
            f"{counted(health.dead_letters, 'event')} could not be stored",
            advice,
        )
    else:
        yield Finding("dead letters", "ok", "none to replay")


def of_disk(path: str, *, free: int, total: int) -> Finding:
    """Check the free space of the disk that holds a path."""
    finding_text = f"{free / (1 << 30):,.1f} GiB of {total / (1 << 30):,.1f} GiB are free at {path}"
    outcome: Outcome = "ok"
    for name, (share, least) in (("warning", DISK_WARNING), ("failed", DISK_FAILED)):
        if free < share * total or free < least:
            outcome = "failed" if name == "failed" else "warning"
    advice = (
        "make room: on a full disk no event is stored, and NATS refuses all until it is restarted;"
        " TURNFOLD_STREAM_RETENTION_HOURS and retain_days limit how long data is kept"
    )
    return Finding("disk", outcome, finding_text, advice if outcome != "ok" else "")


def of_exposure(host: str, *, checks_tokens: bool) -> Finding:
    """Check that HTTP is not open to other machines without authentication."""
    if checks_tokens or is_loopback(host):
        return Finding(
            "exposure",
            "ok",
            f"HTTP listens on {host}{' and checks tokens' if checks_tokens else ''}",
        )
    advice = "set TURNFOLD_HTTP_TOKENS, or check that a proxy in front authenticates callers"
    return Finding(
        "exposure", "warning", f"HTTP listens on {host} and does not authenticate callers", advice
    )
