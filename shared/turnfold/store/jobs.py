"""Compaction rows as durable jobs: claimed under a lease, fenced, committed by compare-and-swap."""

import json
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Connection, Integer, bindparam, func, literal_column, or_, select, text, update

from turnfold.core.eviction import Due, Eviction, Trigger
from turnfold.core.precedence import Wishes
from turnfold.core.presets import Policy
from turnfold.core.sources import Previous
from turnfold.errors import LostLease
from turnfold.messages import MESSAGES_PER_EVENT, CompactionId
from turnfold.ports import Ending, Evicted, Job, JobInput, Version
from turnfold.store.bulk import Prepared, PreparedIn
from turnfold.store.engine import Database
from turnfold.store.evict import leave, planned
from turnfold.store.rows import FACTS, message_of
from turnfold.store.schema import compactions, messages, summaries
from turnfold.store.sessions import Records, SessionRow, lock_by_sid, write_back
from turnfold.store.usage import Learning

# Written out and not as parameters, or no planner sees that the index of open rows answers it.
_is_open = compactions.c.status.in_([literal_column("'pending'"), literal_column("'running'")])
_is_running = _is_open & (compactions.c.status == literal_column("'running'"))
_of_session = compactions.c.sid == bindparam("of_sid")

_busy = select(compactions.c.sid).where(_is_running, compactions.c.lease_until_ms > bindparam("now_ms"))
_DUE = Prepared(
    select(compactions.c.sid)
    .where(
        _is_open,
        or_(compactions.c.next_attempt_at_ms <= bindparam("now_ms"), compactions.c.status == literal_column("'running'")),
        compactions.c.sid.not_in(_busy),
    )
    .group_by(compactions.c.sid)
    .order_by(func.min(compactions.c.next_attempt_at_ms))
    .limit(bindparam("most", type_=Integer)),
    ("now_ms", "most"),
)
"""Sessions with a row that is due, and none that somebody works on."""

# What waits for another job of its session waits for that one's lease.
_NEXT_DUE = Prepared(
    select(func.min(func.coalesce(compactions.c.lease_until_ms, compactions.c.next_attempt_at_ms))).where(
        _is_open, _is_running | compactions.c.sid.not_in(select(compactions.c.sid).where(_is_running))
    ),
    (),
)
_to_write = (_of_session, _is_open, text("NOT is_covered"))
_TO_WRITE = Prepared(
    select(
        *(
            compactions.c[name]
            for name in ("compaction_id", "status", "fence", "attempts", "lease_until_ms", "first_position", "trigger", "budget_tokens")
        )
    )
    .where(*_to_write)
    .order_by(compactions.c.ordinal),
    ("of_sid",),
)
_is_chosen = compactions.c.compaction_id.in_(bindparam("chosen", expanding=True))
_RANGES = PreparedIn(
    select(*(compactions.c[name] for name in ("compaction_id", "first_position", "last_position"))).where(_is_chosen), "chosen"
)
_ADDED = PreparedIn(
    select(func.min(compactions.c.first_position), func.max(compactions.c.last_position), func.sum(compactions.c.messages_evicted)).where(
        _is_chosen
    ),
    "chosen",
)
_TOKENS_BEFORE = PreparedIn(select(compactions.c.tokens_before).where(_is_chosen), "chosen")

_of_messages = messages.c.sid == bindparam("of_sid")
_EVICTED = Prepared(
    select(*FACTS, messages.c.is_error, messages.c.body)
    .where(
        _of_messages,
        messages.c.position.between(bindparam("first"), bindparam("last")),
        messages.c.compaction_id == bindparam("by"),
    )
    .order_by(messages.c.position),
    ("of_sid", "first", "last", "by"),
)
_STILL_LIVE = Prepared(
    select(*FACTS, messages.c.is_error, messages.c.body)
    .where(_of_messages, messages.c.position.between(bindparam("first"), bindparam("last")), messages.c.compaction_id.is_(None))
    .order_by(messages.c.position),
    ("of_sid", "first", "last"),
)
_REQUEST = Prepared(
    select(messages.c.body)
    .where(_of_messages, messages.c.compaction_id.is_(None), messages.c.role == literal_column("'user'"), ~messages.c.is_meta)
    .order_by(messages.c.position.desc())
    .limit(literal_column("1")),
    ("of_sid",),
)
_named = select(messages.c.event_id, messages.c.position).limit(literal_column("1"))
_AT_OR_AFTER = Prepared(_named.where(_of_messages, messages.c.position >= bindparam("at")).order_by(messages.c.position), ("of_sid", "at"))
_AT_OR_BEFORE = Prepared(
    _named.where(_of_messages, messages.c.position <= bindparam("at")).order_by(messages.c.position.desc()), ("of_sid", "at")
)
_BASE = Prepared(
    select(
        *(summaries.c[name] for name in ("text", "sections", "ledger", "first_position", "last_position", "messages_covered", "depth"))
    ).where(summaries.c.sid == bindparam("of_sid"), summaries.c.version == bindparam("number")),
    ("of_sid", "number"),
)
_is_covered = (_of_session, text("is_covered"))
_COVERED_TOKENS = Prepared(select(func.sum(compactions.c.tokens_evicted)).where(*_is_covered), ("of_sid",))
_COVERED = Prepared(
    select(*FACTS, messages.c.is_error, messages.c.body)
    .where(
        _of_messages,
        messages.c.position.between(bindparam("first"), bindparam("last")),
        messages.c.compaction_id.in_(select(compactions.c.compaction_id).where(*_is_covered)),
    )
    .order_by(messages.c.position),
    ("of_sid", "first", "last"),
)


class SqlJobs:
    """The jobs in a database; see `turnfold.ports.JobStore`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def claim(self, *, limit: int, lease_ms: int, now_ms: int, policy: Callable[[Wishes, Wishes], Policy]) -> Sequence[Job]:
        """Take sessions whose jobs are due: all their open rows, under one lease each."""
        due = await self._database.snapshot(lambda connection: [sid for (sid,) in _DUE.rows(connection, now_ms, limit)])
        if not due:
            return []

        def claim(connection: Connection) -> list[Job]:
            locked = list(lock_by_sid(connection, due).values())
            records = Records()
            taken = [
                _take(connection, session, policy(session.agent_wishes, session.wishes), lease_ms, now_ms, records) for session in locked
            ]
            records.write(connection)
            write_back(connection, locked)
            return [job for job in taken if job is not None]

        return await self._database.write(claim)

    async def load(self, job: Job, *, now_ms: int) -> JobInput:
        """Read what a claimed job summarises."""

        def load(connection: Connection) -> JobInput:
            leaving = planned(connection, job.sid, job.planned, job.policy, now_ms=now_ms) if job.planned else None
            evicted = _leaving(connection, job, leaving) if leaving else _evicted(connection, job)
            request, base = _request(connection, job.sid), _base(connection, job)
            if base is None:
                return JobInput(tuple(evicted), None, request, leaving)
            if _is_to_be_rebuilt(connection, job, base.depth):
                originals = sorted([*_covered(connection, job, base), *evicted], key=lambda one: one.message.position)
                return JobInput(tuple(originals), None, request, leaving)
            return JobInput(tuple(evicted), base.previous, request, leaving, base.depth + 1)

        return await self._database.snapshot(load)

    async def renew(self, job: Job, *, lease_ms: int, now_ms: int) -> None:
        """Keep the lease; `LostLease` when it is somebody else's by now."""
        await self._database.write(lambda connection: _change_mine(connection, job, lease_until_ms=now_ms + lease_ms))

    async def commit(self, job: Job, version: Version, *, leaving: Eviction | None = None, reason: str | None, now_ms: int) -> int:
        """Put a new version in force over its base, and let go what was planned to leave with it; the number it got.

        Raises:
            LostLease: another worker has the job, or another version took force: nothing was changed.
        """
        return await self._database.write(lambda connection: _commit(connection, job, version, leaving, reason, now_ms))

    async def end(self, job: Job, *, ending: Ending, reason: str | None, detail: str, now_ms: int) -> None:
        """End a planned compaction that comes to nothing: everything is as it was before; `LostLease` when it was not ours any more."""
        await self._database.write(lambda connection: _end(connection, job, ending, reason, detail, now_ms))

    async def give_back(self, job: Job, *, reason: str, detail: str, retry_at_ms: int, now_ms: int) -> None:
        """Return a job whose attempt failed, to be tried again; `LostLease` when it was not ours any more."""

        def give_back(connection: Connection) -> None:
            session = lock_by_sid(connection, [job.sid]).get(job.sid)
            _change_mine(connection, job, status="pending", lease_until_ms=None, reason=reason, next_attempt_at_ms=retry_at_ms)
            if session is None:
                raise LostLease(job.compaction_ids[-1])
            records, newest = Records(), int(job.compaction_ids[-1])
            records.seal(
                session, "attempt_failed", at_ms=now_ms, compaction_id=newest, reason=reason, attempt=job.attempt, detail=detail[:300]
            )
            records.tell(
                session, "compaction.failed", compaction_id=str(newest), reason=reason, attempts=job.attempt, next_attempt_at=retry_at_ms
            )
            records.write(connection)
            write_back(connection, [session])

        await self._database.write(give_back)

    async def end_leases(self) -> None:
        """End every lease: for the one who knows that nobody else works, such as a new holder of the writer lock."""
        await self._database.write(lambda connection: connection.execute(update(compactions).where(_is_running).values(lease_until_ms=0)))

    async def next_due_ms(self) -> int | None:
        """When the next job is due; None when there is none."""
        ((due_ms,),) = await self._database.snapshot(_NEXT_DUE.rows)
        return None if due_ms is None else int(due_ms)


def _change_mine(connection: Connection, job: Job, **values: Any) -> None:
    """Change the rows of a job while they are ours.

    Raises:
        LostLease: they are somebody else's.
    """
    ids = _ids(job)
    mine = compactions.c.compaction_id.in_(ids) & (compactions.c.status == "running") & (compactions.c.fence == job.fence)
    if connection.execute(update(compactions).where(mine).values(**values)).rowcount != len(ids):
        raise LostLease(job.compaction_ids[-1])


def _commit(connection: Connection, job: Job, version: Version, leaving: Eviction | None, reason: str | None, now_ms: int) -> int:
    session = lock_by_sid(connection, [job.sid]).get(job.sid)
    if session is None or session.version != job.base_version:
        raise LostLease(job.compaction_ids[-1])
    session.versions += 1
    number, draft, records = session.versions, version.draft, Records()
    if leaving is not None:
        leave(connection, session, int(job.compaction_ids[-1]), leaving, records)
    _change_mine(
        connection, job, status="committed", is_covered=True, lease_until_ms=None, version=number, reason=reason, finished_at_ms=now_ms,
        tokens_after=session.live_tokens + version.tokens,
    )  # fmt: skip
    connection.execute(summaries.insert(), _summary_row(job, version, number, _covers(connection, job), now_ms))
    before = _tokens_before(connection, job)
    session.version, session.summary_tokens = number, version.tokens
    session.factor = Learning(connection).factor(session.key.agent_id, session.model)
    session.revision += 1
    records.seal(
        session,
        "summary_done",
        at_ms=now_ms,
        compaction_id=int(job.compaction_ids[-1]),
        reason=reason,
        tokens_before=before,
        tokens_after=session.window_tokens,
        version=number,
        base_version=job.base_version,
        kind=draft.kind,
        model=draft.model,
        style=version.style,
        prompt_version=version.prompt_version,
        compactions=len(job.compaction_ids),
        attempts=job.attempt,
        prompt_tokens=draft.prompt_tokens,
        completion_tokens=draft.completion_tokens,
        cost=draft.cost,
    )
    records.tell(session, "summary.updated", version=number, kind=draft.kind, tokens_before=before, tokens_after=session.window_tokens)
    records.write(connection)
    write_back(connection, [session])
    return number


_ENDED_AS = {Ending.REJECTED: "rejected", Ending.FAILED: "rollback", Ending.STALE: "stale"}
"""The phase of the audit that tells of an ending."""


def _end(connection: Connection, job: Job, ending: Ending, reason: str | None, detail: str, now_ms: int) -> None:
    session = lock_by_sid(connection, [job.sid]).get(job.sid)
    _change_mine(connection, job, status=str(ending), lease_until_ms=None, reason=reason, finished_at_ms=now_ms)
    if session is None:
        raise LostLease(job.compaction_ids[-1])
    records, newest = Records(), int(job.compaction_ids[-1])
    records.seal(session, _ENDED_AS[ending], at_ms=now_ms, compaction_id=newest, reason=reason, attempt=job.attempt, detail=detail[:300])
    if ending is not Ending.STALE:
        records.tell(session, "compaction.failed", compaction_id=str(newest), reason=reason, attempts=job.attempt, next_attempt_at=None)
    records.write(connection)
    write_back(connection, [session])


def _take(connection: Connection, session: SessionRow, policy: Policy, lease_ms: int, now_ms: int, records: Records) -> Job | None:
    rows = _TO_WRITE.rows(connection, session.sid)
    if not rows or any(status == "running" and lease_until_ms > now_ms for _, status, _, _, lease_until_ms, *_ in rows):
        return None
    # What has left already comes first; what is only planned is summarised by itself.
    rows = [row for row in rows if row[5] is not None] or rows
    ids, _, fences, attempts, _, positions, triggers, budgets = zip(*rows, strict=True)
    fence, attempt = max(fences) + 1, max(attempts) + 1
    values = {"status": "running", "fence": fence, "attempts": attempt, "lease_until_ms": now_ms + lease_ms}
    connection.execute(update(compactions).where(compactions.c.compaction_id.in_(ids)).values(**values))
    records.seal(
        session,
        "summary_start",
        at_ms=now_ms,
        compaction_id=ids[-1],
        attempt=attempt,
        fence=fence,
        compactions=len(ids),
        model=session.model,
    )
    named = tuple(CompactionId(str(one)) for one in ids)
    plan = Due(Trigger(triggers[-1]), budgets[-1]) if positions[-1] is None else None
    return Job(session.key, session.sid, named, fence, attempt, session.version, policy, session.model, plan)


def _evicted(connection: Connection, job: Job) -> list[Evicted]:
    rows: list[Sequence[Any]] = []
    for compaction_id, first, last in _RANGES.rows(connection, _ids(job)):
        rows += _EVICTED.rows(connection, job.sid, first, last, compaction_id)
    return sorted((Evicted(message_of(row), bool(row[-2]), row[-1]) for row in rows), key=lambda one: one.message.position)


def _leaving(connection: Connection, job: Job, leaving: Eviction) -> list[Evicted]:
    """The texts of what is about to leave."""
    wanted = {message.position for message in leaving.evicted}
    rows = _STILL_LIVE.rows(connection, job.sid, leaving.evicted[0].position, leaving.evicted[-1].position)
    return [Evicted(message_of(row), bool(row[-2]), row[-1]) for row in rows if row[1] in wanted]


class _Base(NamedTuple):
    """The version that a new one is written on: what it says, what it covers, and how far away the originals are."""

    previous: Previous
    first_position: int
    last_position: int
    messages_covered: int
    depth: int


def _base(connection: Connection, job: Job) -> _Base | None:
    if job.base_version is None:
        return None
    ((told, sections, ledger, *rest),) = _BASE.rows(connection, job.sid, job.base_version)
    return _Base(Previous(told, json.loads(sections), tuple(json.loads(ledger))), *rest)


def _is_to_be_rebuilt(connection: Connection, job: Job, depth: int) -> bool:
    """Whether the originals are to be read again, against drift: every so many versions, while they are not too many."""
    every, most = job.policy.rebuild_every_versions, job.policy.rebuild_max_tokens
    if not every or depth < every:
        return False
    ((tokens,),) = _COVERED_TOKENS.rows(connection, job.sid)
    return int(tokens or 0) <= most


def _covered(connection: Connection, job: Job, base: _Base) -> list[Evicted]:
    """The originals of all that a version speaks for."""
    rows = _COVERED.rows(connection, job.sid, base.first_position, base.last_position)
    return [Evicted(message_of(row), bool(row[-2]), row[-1]) for row in rows]


def _request(connection: Connection, sid: int) -> str | None:
    """The body of the newest live request."""
    return next((body for (body,) in _REQUEST.rows(connection, sid)), None)


def _tokens_before(connection: Connection, job: Job) -> int:
    """What live messages and summary counted before the first of these evictions."""
    ((tokens,),) = _TOKENS_BEFORE.rows(connection, _ids(job)[:1])
    return int(tokens)


def _covers(connection: Connection, job: Job) -> dict[str, Any]:
    """What the new version speaks for: what its base did, and the rows it adds."""
    ((first, last, count),) = _ADDED.rows(connection, _ids(job))
    base = _base(connection, job)
    if base is not None:
        first, last, count = min(first, base.first_position), max(last, base.last_position), count + base.messages_covered
    return {
        "first_position": first,
        "last_position": last,
        "covers_first": _message_id(*_AT_OR_AFTER.rows(connection, job.sid, first)),
        "covers_last": _message_id(*_AT_OR_BEFORE.rows(connection, job.sid, last)),
        "messages_covered": int(count),
    }


def _message_id(row: Sequence[Any]) -> str:
    event_id, position = row
    return f"{event_id}#{position % MESSAGES_PER_EVENT}"


def _ids(job: Job) -> list[int]:
    return [int(one) for one in job.compaction_ids]


def _summary_row(job: Job, version: Version, number: int, covers: dict[str, Any], now_ms: int) -> dict[str, Any]:
    draft = version.draft
    return {
        "sid": job.sid,
        "version": number,
        "base_version": job.base_version,
        "compaction_id": int(job.compaction_ids[-1]),
        "kind": draft.kind,
        "style": version.style,
        "model": draft.model,
        "prompt_version": version.prompt_version,
        "text": draft.text,
        "sections": json.dumps(draft.sections),
        "ledger": json.dumps(draft.ledger),
        "tokens": version.tokens,
        "text_tokens": version.text_tokens,
        "cuts": version.cuts or None,
        "depth": version.depth,
        "created_at_ms": now_ms,
        **covers,
    }
