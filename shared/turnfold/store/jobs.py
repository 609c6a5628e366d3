"""Compaction rows as durable jobs: claimed under a lease, fenced, committed by compare-and-swap."""

import json
from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy import Connection, Select, func, literal_column, or_, select, text, update

from turnfold.core.precedence import Wishes
from turnfold.core.presets import Policy
from turnfold.core.sources import Previous
from turnfold.errors import LostLease
from turnfold.messages import MESSAGES_PER_EVENT, CompactionId
from turnfold.ports import Evicted, Job, JobInput, Version
from turnfold.store.engine import Database
from turnfold.store.rows import FACTS, message_of
from turnfold.store.schema import compactions, messages, summaries
from turnfold.store.sessions import Records, SessionRow, lock_by_sid, write_back

# Written out and not as parameters, or no planner sees that the index of open rows answers it.
_is_open = compactions.c.status.in_([literal_column("'pending'"), literal_column("'running'")])
_is_running = _is_open & (compactions.c.status == "running")


class SqlJobs:
    """The jobs in a database; see `turnfold.ports.JobStore`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def claim(self, *, limit: int, lease_ms: int, now_ms: int, policy: Callable[[Wishes, Wishes], Policy]) -> Sequence[Job]:
        """Take sessions whose jobs are due: all their open rows, under one lease each."""
        due = await self._database.snapshot(lambda connection: _due(connection, limit, now_ms))
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

    async def load(self, job: Job) -> JobInput:
        """Read what a claimed job summarises."""

        def load(connection: Connection) -> JobInput:
            return JobInput(tuple(_evicted(connection, job)), _previous(connection, job), _request(connection, job.sid))

        return await self._database.snapshot(load)

    async def renew(self, job: Job, *, lease_ms: int, now_ms: int) -> None:
        """Keep the lease; `LostLease` when it is somebody else's by now."""
        await self._database.write(lambda connection: _change_mine(connection, job, lease_until_ms=now_ms + lease_ms))

    async def commit(self, job: Job, version: Version, *, reason: str | None, now_ms: int) -> int:
        """Put a new version in force over its base; the number it got.

        Raises:
            LostLease: another worker has the job, or another version took force: nothing was changed.
        """
        return await self._database.write(lambda connection: _commit(connection, job, version, reason, now_ms))

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
        """When the next job is due; None when there is none. What waits for another job of its session waits for that one's lease."""
        running = select(compactions.c.sid).where(_is_running)
        when = func.coalesce(compactions.c.lease_until_ms, compactions.c.next_attempt_at_ms)
        is_next = (compactions.c.status == "running") | compactions.c.sid.not_in(running)

        def earliest(connection: Connection) -> int | None:
            return connection.execute(select(func.min(when)).where(_is_open, is_next)).scalar()

        return await self._database.snapshot(earliest)


def _change_mine(connection: Connection, job: Job, **values: Any) -> None:
    """Change the rows of a job while they are ours.

    Raises:
        LostLease: they are somebody else's.
    """
    ids = [int(one) for one in job.compaction_ids]
    mine = compactions.c.compaction_id.in_(ids) & (compactions.c.status == "running") & (compactions.c.fence == job.fence)
    if connection.execute(update(compactions).where(mine).values(**values)).rowcount != len(ids):
        raise LostLease(job.compaction_ids[-1])


def _commit(connection: Connection, job: Job, version: Version, reason: str | None, now_ms: int) -> int:
    session = lock_by_sid(connection, [job.sid]).get(job.sid)
    if session is None or session.version != job.base_version:
        raise LostLease(job.compaction_ids[-1])
    session.versions += 1
    number, draft = session.versions, version.draft
    _change_mine(
        connection, job, status="committed", is_covered=True, lease_until_ms=None, version=number, reason=reason, finished_at_ms=now_ms,
        tokens_after=session.live_tokens + version.tokens,
    )  # fmt: skip
    connection.execute(summaries.insert(), _summary_row(job, version, number, _covers(connection, job), now_ms))
    before = _tokens_before(connection, job)
    session.version, session.summary_tokens = number, version.tokens
    session.revision += 1
    records = Records()
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


def _due(connection: Connection, limit: int, now_ms: int) -> list[int]:
    """Sessions with a row that is due, and none that somebody works on."""
    busy = select(compactions.c.sid).where(_is_running, compactions.c.lease_until_ms > now_ms)
    waiting = or_(compactions.c.next_attempt_at_ms <= now_ms, compactions.c.status == "running")
    statement = (
        select(compactions.c.sid)
        .where(_is_open, waiting, compactions.c.sid.not_in(busy))
        .group_by(compactions.c.sid)
        .order_by(func.min(compactions.c.next_attempt_at_ms))
        .limit(limit)
    )
    return list((connection.execute(statement)).scalars())


def _take(connection: Connection, session: SessionRow, policy: Policy, lease_ms: int, now_ms: int, records: Records) -> Job | None:
    mine = (compactions.c.sid == session.sid, _is_open, text("NOT is_covered"))
    rows = (connection.execute(select(compactions).where(*mine).order_by(compactions.c.ordinal))).all()
    if not rows or any(row.status == "running" and row.lease_until_ms > now_ms for row in rows):
        return None
    fence = max(row.fence for row in rows) + 1
    attempt = max(row.attempts for row in rows) + 1
    values = {"status": "running", "fence": fence, "attempts": attempt, "lease_until_ms": now_ms + lease_ms}
    connection.execute(update(compactions).where(*mine).values(**values))
    ids = tuple(CompactionId(str(row.compaction_id)) for row in rows)
    records.seal(
        session, "summary_start", at_ms=now_ms, compaction_id=rows[-1].compaction_id, attempt=attempt, fence=fence, compactions=len(ids),
        model=session.model,
    )  # fmt: skip
    return Job(session.key, session.sid, ids, fence, attempt, session.version, policy, session.model)


def _evicted(connection: Connection, job: Job) -> list[Evicted]:
    ids = [int(one) for one in job.compaction_ids]
    evicted: list[Evicted] = []
    for row in connection.execute(select(compactions).where(compactions.c.compaction_id.in_(ids))).all():
        chosen = (
            select(*FACTS, messages.c.is_error, messages.c.body)
            .where(
                messages.c.sid == job.sid,
                messages.c.position.between(row.first_position, row.last_position),
                messages.c.compaction_id == row.compaction_id,
            )
            .order_by(messages.c.position)
        )
        evicted += [Evicted(message_of(one), bool(one[-2]), one[-1]) for one in map(tuple[Any, ...], connection.execute(chosen))]
    return sorted(evicted, key=lambda one: one.message.position)


def _previous(connection: Connection, job: Job) -> Previous | None:
    if job.base_version is None:
        return None
    where = (summaries.c.sid == job.sid) & (summaries.c.version == job.base_version)
    row = (connection.execute(select(summaries).where(where))).one()
    return Previous(row.text, json.loads(row.sections), tuple(json.loads(row.ledger)))


def _request(connection: Connection, sid: int) -> str | None:
    """The body of the newest live request."""
    statement = (
        select(messages.c.body)
        .where(messages.c.sid == sid, messages.c.compaction_id.is_(None), messages.c.role == "user", ~messages.c.is_meta)
        .order_by(messages.c.position.desc())
        .limit(1)
    )
    body: str | None = (connection.execute(statement)).scalar()
    return body


def _tokens_before(connection: Connection, job: Job) -> int:
    """What live messages and summary counted before the first of these evictions."""
    first = compactions.c.compaction_id == int(job.compaction_ids[0])
    return int((connection.execute(select(compactions.c.tokens_before).where(first))).scalar_one())


def _covers(connection: Connection, job: Job) -> dict[str, Any]:
    """What the new version speaks for: what its base did, and the rows it adds."""
    ids = [int(one) for one in job.compaction_ids]
    added = select(
        func.min(compactions.c.first_position), func.max(compactions.c.last_position), func.sum(compactions.c.messages_evicted)
    ).where(compactions.c.compaction_id.in_(ids))
    first, last, count = (connection.execute(added)).one()
    base_columns = (summaries.c.first_position, summaries.c.last_position, summaries.c.messages_covered)
    is_base = (summaries.c.sid == job.sid) & (summaries.c.version == job.base_version)
    base = (connection.execute(select(*base_columns).where(is_base))).one_or_none() if job.base_version is not None else None
    if base is not None:
        first, last, count = min(first, base[0]), max(last, base[1]), count + base[2]
    at_or_after = select(messages).where(messages.c.sid == job.sid, messages.c.position >= first).order_by(messages.c.position)
    at_or_before = select(messages).where(messages.c.sid == job.sid, messages.c.position <= last).order_by(messages.c.position.desc())
    return {
        "first_position": first,
        "last_position": last,
        "covers_first": _message_id(connection, at_or_after),
        "covers_last": _message_id(connection, at_or_before),
        "messages_covered": count,
    }


def _message_id(connection: Connection, nearest: Select[*tuple[Any, ...]]) -> str:
    statement = nearest.with_only_columns(messages.c.event_id, messages.c.position).limit(1)
    event_id, position = (connection.execute(statement)).one()
    return f"{event_id}#{position % MESSAGES_PER_EVENT}"


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
        "created_at_ms": now_ms,
        **covers,
    }
