"""Compaction rows as durable jobs: claimed under a lease, fenced, committed by compare-and-swap."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from operator import itemgetter
from secrets import randbits
from typing import Any, NamedTuple

from sqlalchemy import (
    Connection,
    Integer,
    bindparam,
    func,
    literal_column,
    or_,
    select,
    update,
)

from turnfold.core.eviction.eviction import Eviction, FiredTrigger, Trigger
from turnfold.core.policy.overrides import PolicyOverrides
from turnfold.core.policy.presets import Policy
from turnfold.core.summary.fair_share import JobSlots
from turnfold.core.summary.sources import PreviousSummary
from turnfold.errors import LostLease
from turnfold.messages import MESSAGES_PER_EVENT, AgentId, CompactionId
from turnfold.ports.compact import EvictedMessage, FailureStatus, Job, JobInput, JobKind, Version
from turnfold.store.compact.chunks import SqlModelCallStore, delete_chunk_summaries
from turnfold.store.compact.coverage import (
    ADD,
    RewriteScope,
    any_restored,
    covered_by,
    record_activation,
    rewrite_scope,
    uncovered,
)
from turnfold.store.compact.rewriting import end_rewriting, open_stand_in, wanted_of
from turnfold.store.database.engine import Database
from turnfold.store.database.message_rows import FACTS, message_of
from turnfold.store.database.predicates import (
    is_covered,
    is_live,
    is_open,
    is_running,
    is_uncovered,
)
from turnfold.store.database.schema import compactions, messages, sessions, summaries
from turnfold.store.database.session_rows import SessionJournal, SessionRow, lock_by_sid, write_back
from turnfold.store.database.statements import BulkInsert, Prepared, PreparedIn, bulk_update
from turnfold.store.ingest.evict import mark_evicted, planned

_of_session = compactions.c.sid == bindparam("of_sid")

_busy = select(compactions.c.sid).where(
    is_running, compactions.c.lease_until_ms > bindparam("now_ms")
)
_due = (
    select(compactions.c.sid, func.min(compactions.c.next_attempt_at_ms).label("due_ms"))
    .where(
        is_open,
        or_(
            compactions.c.next_attempt_at_ms <= bindparam("now_ms"),
            is_running,
        ),
        compactions.c.sid.not_in(_busy),
    )
    .group_by(compactions.c.sid)
    .subquery("due")
)
_turns = (
    select(
        _due.c.sid,
        _due.c.due_ms,
        sessions.c.agent_id,
        func.row_number()
        .over(partition_by=sessions.c.agent_id, order_by=(_due.c.due_ms, _due.c.sid))
        .label("turn"),
    )
    .join(sessions, sessions.c.sid == _due.c.sid)
    .subquery("turns")
)
_DUE = Prepared(
    select(_turns.c.sid, _turns.c.agent_id)
    .order_by(_turns.c.turn, _turns.c.due_ms, _turns.c.sid)
    .limit(bindparam("most", type_=Integer)),
    ("now_ms", "most"),
)
"""Sessions with a row that is due, and none that somebody works on: the first of each agent, then the second of each, and so on."""

# What waits for another job of its session waits for that one's lease.
_NEXT_DUE = Prepared(
    select(
        func.min(func.coalesce(compactions.c.lease_until_ms, compactions.c.next_attempt_at_ms))
    ).where(
        is_open,
        is_running | compactions.c.sid.not_in(select(compactions.c.sid).where(is_running)),
    ),
    (),
)
_to_write = (_of_session, is_open, is_uncovered)
_TO_WRITE = Prepared(
    select(
        *(
            compactions.c[name]
            for name in (
                "compaction_id", "status", "fence", "attempts", "lease_until_ms", "next_attempt_at_ms", "first_position", "trigger",
                "budget_tokens", "wanted", "tokens_evicted", "trace",
            )
        )
    )
    .where(*_to_write)
    .order_by(compactions.c.ordinal),
    ("of_sid",),
)  # fmt: skip
_is_chosen = compactions.c.compaction_id.in_(bindparam("chosen", expanding=True))
_RANGES = PreparedIn(
    select(
        *(compactions.c[name] for name in ("compaction_id", "first_position", "last_position"))
    ).where(_is_chosen),
    "chosen",
)
_ADDED = PreparedIn(
    select(
        func.min(compactions.c.first_position),
        func.max(compactions.c.last_position),
        func.sum(compactions.c.messages_evicted),
    ).where(_is_chosen),
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
    .where(
        _of_messages,
        messages.c.position.between(bindparam("first"), bindparam("last")),
        is_live,
    )
    .order_by(messages.c.position),
    ("of_sid", "first", "last"),
)
_REQUEST = Prepared(
    select(messages.c.body)
    .where(
        _of_messages,
        is_live,
        messages.c.role == literal_column("'user'"),
        ~messages.c.is_meta,
    )
    .order_by(messages.c.position.desc())
    .limit(literal_column("1")),
    ("of_sid",),
)
_named = select(messages.c.event_id, messages.c.position).limit(literal_column("1"))
_AT_OR_AFTER = Prepared(
    _named.where(_of_messages, messages.c.position >= bindparam("at")).order_by(
        messages.c.position
    ),
    ("of_sid", "at"),
)
_AT_OR_BEFORE = Prepared(
    _named.where(_of_messages, messages.c.position <= bindparam("at")).order_by(
        messages.c.position.desc()
    ),
    ("of_sid", "at"),
)
_is_version = (summaries.c.sid == bindparam("of_sid"), summaries.c.version == bindparam("number"))
_BASE = Prepared(
    select(*(summaries.c[name] for name in ("text", "sections", "ledger", "depth", "kind"))).where(
        *_is_version
    ),
    ("of_sid", "number"),
)
_BASE_SPAN = Prepared(
    select(
        *(summaries.c[name] for name in ("first_position", "last_position", "messages_covered"))
    ).where(*_is_version),
    ("of_sid", "number"),
)
_IS_THERE = Prepared(
    select(sessions.c.sid).where(sessions.c.sid == bindparam("of_sid")), ("of_sid",)
)
_of_covered = (_of_session, is_covered)
_COVERED_TOKENS = Prepared(
    select(func.sum(compactions.c.tokens_evicted)).where(*_of_covered), ("of_sid",)
)
_EVICTING = PreparedIn(
    select(compactions.c.compaction_id)
    .where(_is_chosen, compactions.c.messages_evicted > literal_column("0"))
    .order_by(compactions.c.ordinal),
    "chosen",
)


_MINE = PreparedIn(
    select(compactions.c.compaction_id, compactions.c.fence, compactions.c.messages_evicted)
    .where(_is_chosen, is_running)
    .order_by(compactions.c.compaction_id)
    .with_for_update(),
    "chosen",
)
_BEGIN = bulk_update(
    compactions, where=("compaction_id",), values=("status", "fence", "attempts", "lease_until_ms")
)
_FINISH = bulk_update(
    compactions,
    where=("compaction_id",),
    values=(
        "status",
        "is_covered",
        "lease_until_ms",
        "version",
        "reason",
        "finished_at_ms",
        "tokens_after",
    ),
)
_COVER = bulk_update(compactions, where=("compaction_id",), values=("is_covered",))
_SUMMARY = (
    "sid", "version", "base_version", "compaction_id", "kind", "style", "model", "prompt_version", "text", "sections", "ledger", "tokens",
    "text_tokens", "cuts", "depth", "prompt_tokens", "completion_tokens", "cost", "created_at_ms", "first_position", "last_position",
    "covers_first", "covers_last", "messages_covered",
)  # fmt: skip
_ADD_SUMMARY = BulkInsert(summaries, _SUMMARY)
_summary_values = itemgetter(*_SUMMARY)


class SqlJobStore(SqlModelCallStore):
    """The jobs in a database; see `turnfold.ports.compact.JobStore`."""

    def __init__(
        self, database: Database, *, new_id: Callable[[], int] = lambda: randbits(62)
    ) -> None:
        self._database = database
        self._new_id = new_id

    async def claim(
        self,
        places: JobSlots,
        *,
        lease_ms: int,
        now_ms: int,
        policy: Callable[[PolicyOverrides, PolicyOverrides], Policy],
    ) -> Sequence[Job]:
        """Take sessions whose jobs are due: all their open rows, under one lease each."""
        # As many as agents hold might have to let others go first.
        most = places.free + sum(places.held.values())
        waiting = await self._database.snapshot(
            lambda connection: _DUE.rows(connection, now_ms, most)
        )
        due = places.allocate([(sid, AgentId(agent_id)) for sid, agent_id in waiting])
        if not due:
            return []

        def claim(connection: Connection) -> list[Job]:
            found = lock_by_sid(connection, due)
            locked = [found[sid] for sid in due if sid in found]
            records = SessionJournal()
            taken = [
                _take(
                    connection,
                    session,
                    policy(session.agent_wishes, session.wishes),
                    lease_ms,
                    now_ms,
                    records,
                )
                for session in locked
            ]
            records.write(connection)
            write_back(connection, locked)
            return [job for job in taken if job is not None]

        return await self._database.write(claim)

    async def load(self, job: Job, *, now_ms: int, by_model: bool = True) -> JobInput:
        """Read what a claimed job summarises. A model does not build on what was only extracted: it reads the originals of that.

        Raises:
            LostLease: its session was erased meanwhile.
        """

        def load(connection: Connection) -> JobInput:
            if not _IS_THERE.rows(connection, job.sid):
                raise LostLease(job.compaction_ids[-1])
            request = _request(connection, job.sid)
            match job.writes:
                case JobKind.REGENERATED:
                    return _given(
                        connection,
                        job,
                        _adds(connection, job),
                        _base(connection, job.sid, job.wanted.from_version),
                        request,
                    )
                case JobKind.STAND_IN:
                    again = _retold(connection, job)
                    return _given(
                        connection,
                        job,
                        again.compaction_ids,
                        _base(connection, job.sid, again.base_version),
                        request,
                    )
                case JobKind.NEXT:
                    leaving = (
                        planned(connection, job.sid, job.planned, job.policy, now_ms=now_ms)
                        if job.planned
                        else None
                    )
                    given = _next(connection, job, request, by_model=by_model)
                    if leaving is None:
                        return given
                    evicted = sorted(
                        [*given.evicted, *_leaving(connection, job, leaving)],
                        key=lambda one: one.message.position,
                    )
                    return replace(given, evicted=tuple(evicted), leaving=leaving)

        return await self._database.snapshot(load)

    async def renew(self, job: Job, *, lease_ms: int, now_ms: int) -> None:
        """Keep the lease; `LostLease` when it is somebody else's by now."""
        await self._database.write(
            lambda connection: _change_mine(connection, job, lease_until_ms=now_ms + lease_ms)
        )

    async def commit(
        self,
        job: Job,
        version: Version,
        *,
        leaving: Eviction | None = None,
        reason: str | None,
        now_ms: int,
    ) -> int:
        """Store a new version; in force over its base unless it was regenerated. What was planned leaves with it. The number it got.

        Raises:
            LostLease: another worker has the job, or another version took force: nothing was changed.
        """
        return await self._database.write(
            lambda connection: _commit(
                connection, job, version, leaving, reason, now_ms, self._new_id
            )
        )

    async def fail(
        self,
        job: Job,
        *,
        ending: FailureStatus,
        reason: str | None,
        detail: str,
        now_ms: int,
        model: str | None = None,
    ) -> None:
        """End a compaction that evicted nothing and comes to nothing: all is as before; `LostLease` when it was not ours any more.

        `model` was to write.
        """
        await self._database.write(
            lambda connection: _end(
                connection, job, ending, reason, detail, now_ms, self._new_id, model
            )
        )

    async def retry_later(
        self,
        job: Job,
        *,
        reason: str,
        detail: str,
        retry_at_ms: int,
        now_ms: int,
        model: str | None = None,
    ) -> None:
        """Return a job whose attempt failed, to be tried again; `LostLease` when it was not ours any more. `model` was to write."""

        def give_back(connection: Connection) -> None:
            session = lock_by_sid(connection, [job.sid]).get(job.sid)
            _change_mine(
                connection,
                job,
                status="pending",
                lease_until_ms=None,
                reason=reason,
                next_attempt_at_ms=retry_at_ms,
            )
            if session is None:
                raise LostLease(job.compaction_ids[-1])
            records, newest = SessionJournal(), int(job.compaction_ids[-1])
            records.add_audit_row(
                session, "attempt_failed", at_ms=now_ms, compaction_id=newest, reason=reason, attempt=job.attempt, model=model,
                detail=detail[:300],
            )  # fmt: skip
            records.add_notice(
                session,
                "compaction.failed",
                compaction_id=str(newest),
                reason=reason,
                attempts=job.attempt,
                next_attempt_at=retry_at_ms,
            )
            records.write(connection)
            write_back(connection, [session])

        await self._database.write(give_back)

    async def discard(self, job: Job, *, now_ms: int) -> None:
        """Record that what was written came too late; rows that are still ours are due again."""

        def discard(connection: Connection) -> None:
            session = lock_by_sid(connection, [job.sid]).get(job.sid)
            if session is None:
                return
            connection.execute(
                update(compactions)
                .where(_is_mine(job))
                .values(status="pending", lease_until_ms=None, next_attempt_at_ms=now_ms)
            )
            records = SessionJournal()
            records.add_audit_row(
                session, "stale", at_ms=now_ms, compaction_id=int(job.compaction_ids[-1]), attempt=job.attempt, fence=job.fence,
                base_version=job.base_version, detail="written too late",
            )  # fmt: skip
            records.write(connection)
            write_back(connection, [session])

        await self._database.write(discard)

    async def end_leases(self) -> None:
        """End every lease: for the one who knows that nobody else works, such as a new holder of the writer lock."""
        await self._database.write(
            lambda connection: connection.execute(
                update(compactions).where(is_running).values(lease_until_ms=0)
            )
        )

    async def next_due_ms(self) -> int | None:
        """When the next job is due; None when there is none."""
        ((due_ms,),) = await self._database.snapshot(_NEXT_DUE.rows)
        return None if due_ms is None else int(due_ms)


# --- claiming


class _Open(NamedTuple):
    """An open compaction, as far as a claim looks at it."""

    compaction_id: int
    status: str
    fence: int
    attempts: int
    lease_until_ms: int | None
    next_attempt_at_ms: int
    first_position: int | None
    trigger: str
    budget_tokens: int
    wanted: str | None
    tokens_evicted: int
    trace: str | None

    @property
    def writes(self) -> JobKind:
        return _WRITES.get(self.trigger, JobKind.NEXT)

    @property
    def is_plan(self) -> bool:
        return self.writes is JobKind.NEXT and self.first_position is None

    def is_due(self, now_ms: int) -> bool:
        return self.status == "running" or self.next_attempt_at_ms <= now_ms


_WRITES = {str(Trigger.STAND_IN): JobKind.STAND_IN, str(Trigger.REGENERATE): JobKind.REGENERATED}


def _take(
    connection: Connection,
    session: SessionRow,
    policy: Policy,
    lease_ms: int,
    now_ms: int,
    records: SessionJournal,
) -> Job | None:
    rows = [_Open(*row) for row in _TO_WRITE.rows(connection, session.sid)]
    if any(row.status == "running" and (row.lease_until_ms or 0) > now_ms for row in rows):
        return None
    chosen = _first_due(rows, now_ms)
    if not chosen:
        return None
    newest, ids = chosen[-1], [row.compaction_id for row in chosen]
    # One job runs in a session: whoever held another one and let the lease run out has lost it now.
    others = [
        row.compaction_id
        for row in rows
        if row.status == "running" and row.compaction_id not in ids
    ]
    if others:
        lost = compactions.c.compaction_id.in_(others)
        connection.execute(
            update(compactions).where(lost).values(status="pending", lease_until_ms=None)
        )
    fence, attempt = max(row.fence for row in chosen) + 1, max(row.attempts for row in chosen) + 1
    _BEGIN.run(connection, [("running", fence, attempt, now_ms + lease_ms, one) for one in ids])
    records.add_audit_row(
        session,
        "summary_start",
        at_ms=now_ms,
        compaction_id=newest.compaction_id,
        attempt=attempt,
        fence=fence,
        compactions=len(ids),
        session_model=session.model,
    )
    is_cooling = (
        newest.writes is JobKind.NEXT and not newest.is_plan and now_ms < session.cooldown_until_ms
    )
    return Job(
        session.key, session.sid, tuple(CompactionId(str(one)) for one in ids), fence, attempt, session.version, policy, session.model,
        planned=FiredTrigger(Trigger(newest.trigger), newest.budget_tokens) if newest.is_plan else None,
        writes=newest.writes,
        wanted=wanted_of(newest.wanted),
        cooling=session.cooldown_reason if is_cooling else None,
        tokens_evicted=sum([row.tokens_evicted for row in chosen]),
        summary_tokens=session.summary_tokens,
        traces=tuple([row.trace for row in chosen if row.trace]),
    )  # fmt: skip


def _first_due(rows: Sequence[_Open], now_ms: int) -> Sequence[_Open]:
    """The rows of one job: what has left comes first, then what is planned, then what a version says is said again."""
    left = [row for row in rows if row.writes is JobKind.NEXT and not row.is_plan]
    for group in (left, [row for row in rows if row.is_plan]):
        if any(row.is_due(now_ms) for row in group):
            return group
    again = [row for row in rows if row.writes is not JobKind.NEXT and row.is_due(now_ms)]
    again.sort(key=lambda row: row.writes is JobKind.REGENERATED)
    return again[:1]


# --- what a job reads


class _Base(NamedTuple):
    """The version that a new one is written on: what it says, and how far away the originals are."""

    previous: PreviousSummary
    depth: int
    kind: str


def _base(connection: Connection, sid: int, version: int | None) -> _Base | None:
    if version is None:
        return None
    ((told, sections, ledger, *rest),) = _BASE.rows(connection, sid, version)
    return _Base(PreviousSummary(told, json.loads(sections), tuple(json.loads(ledger))), *rest)


def _adds(connection: Connection, job: Job) -> list[int]:
    """The evictions that a job's version speaks for besides those of its base."""
    match job.writes:
        case JobKind.STAND_IN:
            return []
        case JobKind.REGENERATED:
            whole = covered_by(connection, job.sid, job.base_version)
            return [
                one
                for (one,) in _EVICTING.rows(
                    connection,
                    sorted(whole - covered_by(connection, job.sid, job.wanted.from_version)),
                )
            ]
        case JobKind.NEXT:
            return [
                *uncovered(connection, job.sid),
                *(one for (one,) in _EVICTING.rows(connection, _ids(job))),
            ]


def _next(connection: Connection, job: Job, request: str | None, *, by_model: bool) -> JobInput:
    adds, base = _adds(connection, job), _base(connection, job.sid, job.base_version)
    if base is not None and _is_to_be_rebuilt(connection, job, base.depth):
        return _given(
            connection,
            job,
            [*covered_by(connection, job.sid, job.base_version), *adds],
            None,
            request,
        )
    if base is not None and base.kind == "extractive" and by_model:
        again = _retold(connection, job)
        return _given(
            connection,
            job,
            [*again.compaction_ids, *adds],
            _base(connection, job.sid, again.base_version),
            request,
        )
    return _given(connection, job, adds, base, request)


def _given(
    connection: Connection,
    job: Job,
    compaction_ids: Sequence[int],
    base: _Base | None,
    request: str | None,
) -> JobInput:
    """These evictions on top of this version."""
    evicted = tuple(_evicted(connection, job.sid, compaction_ids))
    return JobInput(
        evicted, base.previous if base else None, request, depth=base.depth + 1 if base else 1
    )


def _retold(connection: Connection, job: Job) -> RewriteScope:
    """What only extractive versions say so far; nothing where a model wrote the one in force."""
    assert job.base_version is not None
    return rewrite_scope(
        connection, job.sid, job.base_version, max_tokens=job.policy.rebuild_max_tokens
    )


def _evicted(
    connection: Connection, sid: int, compaction_ids: Sequence[int]
) -> list[EvictedMessage]:
    rows: list[Sequence[Any]] = []
    for compaction_id, first, last in _RANGES.rows(connection, list(compaction_ids)):
        if first is not None:
            rows += _EVICTED.rows(connection, sid, first, last, compaction_id)
    return sorted(
        (EvictedMessage(message_of(row), bool(row[-2]), row[-1]) for row in rows),
        key=lambda one: one.message.position,
    )


def _leaving(connection: Connection, job: Job, leaving: Eviction) -> list[EvictedMessage]:
    """The texts of what is about to leave."""
    wanted = {message.position for message in leaving.evicted}
    rows = _STILL_LIVE.rows(
        connection, job.sid, leaving.evicted[0].position, leaving.evicted[-1].position
    )
    return [
        EvictedMessage(message_of(row), bool(row[-2]), row[-1]) for row in rows if row[1] in wanted
    ]


def _is_to_be_rebuilt(connection: Connection, job: Job, depth: int) -> bool:
    """Whether the originals are to be read again, against drift: every so many versions, while they are not too many."""
    every, most = job.policy.rebuild_every_versions, job.policy.rebuild_max_tokens
    if not every or depth < every:
        return False
    ((tokens,),) = _COVERED_TOKENS.rows(connection, job.sid)
    return int(tokens or 0) <= most


def _request(connection: Connection, sid: int) -> str | None:
    """The body of the newest live request."""
    return next((body for (body,) in _REQUEST.rows(connection, sid)), None)


# --- how a job ends


def _is_mine(job: Job) -> Any:
    return (
        compactions.c.compaction_id.in_(_ids(job))
        & (compactions.c.status == "running")
        & (compactions.c.fence == job.fence)
    )


def _held(connection: Connection, job: Job) -> dict[int, int]:
    """The rows of a job, locked while they are ours, and how many messages left with each.

    Raises:
        LostLease: they are somebody else's.
    """
    mine = {
        one: evicted
        for one, fence, evicted in _MINE.rows(connection, _ids(job))
        if fence == job.fence
    }
    if len(mine) != len(job.compaction_ids):
        raise LostLease(job.compaction_ids[-1])
    return mine


def _change_mine(connection: Connection, job: Job, **values: Any) -> None:
    """Change the rows of a job while they are ours.

    Raises:
        LostLease: they are somebody else's.
    """
    if connection.execute(
        update(compactions).where(_is_mine(job)).values(**values)
    ).rowcount != len(job.compaction_ids):
        raise LostLease(job.compaction_ids[-1])


def _commit(
    connection: Connection,
    job: Job,
    version: Version,
    leaving: Eviction | None,
    reason: str | None,
    now_ms: int,
    new_id: Callable[[], int],
) -> int:
    session = lock_by_sid(connection, [job.sid]).get(job.sid)
    takes_force = job.writes is not JobKind.REGENERATED
    if session is None or (takes_force and session.version != job.base_version):
        raise LostLease(job.compaction_ids[-1])
    session.versions += 1
    number, draft, records, newest = (
        session.versions,
        version.draft,
        SessionJournal(),
        int(job.compaction_ids[-1]),
    )
    at_first = session.window_tokens
    if leaving is not None:
        mark_evicted(
            connection, session, newest, leaving, records, model=draft.model, now_ms=now_ms
        )
    replaced = session.window_tokens
    adds = _adds(connection, job)
    if any_restored(connection, adds):
        raise LostLease(job.compaction_ids[-1])
    after = session.live_tokens + (version.tokens if takes_force else session.summary_tokens)
    mine = _held(connection, job)
    _FINISH.run(
        connection,
        [
            ("committed", takes_force and evicted > 0, None, number, reason, now_ms, after, one)
            for one, evicted in mine.items()
        ],
    )
    if takes_force:
        _COVER.run(connection, [(True, one) for one in adds])
    base_version = job.base_version if takes_force else job.wanted.from_version
    row = _summary_row(
        job, version, number, base_version, _covers(connection, job, base_version, adds), now_ms
    )
    _ADD_SUMMARY.run(connection, [_summary_values(row)])
    ADD.run(connection, [(job.sid, number, one) for one in adds])
    if takes_force:
        record_activation(connection, session, number, version.tokens, at_ms=now_ms)
    records.add_audit_row(
        session,
        "summary_done",
        at_ms=now_ms,
        compaction_id=newest,
        reason=reason,
        tokens_before=replaced,
        tokens_after=after,
        version=number,
        base_version=base_version,
        in_force=takes_force,
        kind=draft.kind,
        model=draft.model,
        style=version.style,
        prompt_version=version.prompt_version,
        compactions=len(job.compaction_ids),
        attempts=job.attempt,
        prompt_tokens=draft.prompt_tokens,
        completion_tokens=draft.completion_tokens,
        cost=draft.cost,
        calls_truncated=version.calls_truncated,
        results_truncated=version.results_truncated,
        seconds=version.seconds,
    )
    if leaving is not None:
        records.add_audit_row(
            session, "selective_done", at_ms=now_ms, compaction_id=newest, tokens_before=at_first, tokens_after=after, version=number,
            evicted=len(leaving.evicted), model=draft.model,
        )  # fmt: skip
    beside, before = {} if takes_force else {"in_force": False}, _tokens_before(connection, job)
    records.add_notice(
        session,
        "summary.updated",
        version=number,
        kind=draft.kind,
        tokens_before=before,
        tokens_after=after,
        **beside,
    )
    if takes_force:
        end_rewriting(connection, session, records, now_ms=now_ms)
        _remember_the_model(connection, session, job, draft.kind, reason, records, now_ms, new_id)
    delete_chunk_summaries(connection, job.sid)
    records.write(connection)
    write_back(connection, [session])
    return number


def _remember_the_model(
    connection: Connection, session: SessionRow, job: Job, kind: str, reason: str | None, records: SessionJournal, now_ms: int,
    new_id: Callable[[], int],
) -> None:  # fmt: skip
    """Whether the model answered; where it did not, it rests, and writes the version again when it may be asked."""
    if kind == "llm":
        session.succeeded()
    elif reason is not None:
        if job.cooling is None:
            session.failed(reason, at_ms=now_ms)
        open_stand_in(connection, session, records, new_id(), now_ms=now_ms)


_ENDED_AS = {
    FailureStatus.REJECTED: "rejected",
    FailureStatus.FAILED: "rollback",
    FailureStatus.STALE: "stale",
}
"""The phase of the audit that tells of an ending."""

REFUSED_STAND_INS = 3
"""A provider that is down is asked until it answers; a model whose answers are refused, so often, and then with the next eviction."""


def _end(
    connection: Connection, job: Job, ending: FailureStatus, reason: str | None, detail: str, now_ms: int, new_id: Callable[[], int],
    model: str | None,
) -> None:  # fmt: skip
    session = lock_by_sid(connection, [job.sid]).get(job.sid)
    _change_mine(
        connection,
        job,
        status=str(ending),
        lease_until_ms=None,
        reason=reason,
        finished_at_ms=now_ms,
    )
    delete_chunk_summaries(connection, job.sid)
    if session is None:
        raise LostLease(job.compaction_ids[-1])
    records, newest = SessionJournal(), int(job.compaction_ids[-1])
    records.add_audit_row(
        session,
        _ENDED_AS[ending],
        at_ms=now_ms,
        compaction_id=newest,
        reason=reason,
        attempt=job.attempt,
        model=model,
        detail=detail[:300],
    )
    if ending is not FailureStatus.STALE:
        records.add_notice(
            session,
            "compaction.failed",
            compaction_id=str(newest),
            reason=reason,
            attempts=job.attempt,
            next_attempt_at=None,
        )
        if job.writes is not JobKind.REGENERATED:
            session.failed(reason or str(ending), at_ms=now_ms)
        if job.writes is JobKind.STAND_IN and (
            ending is FailureStatus.FAILED or session.failures <= REFUSED_STAND_INS
        ):
            open_stand_in(connection, session, records, new_id(), now_ms=now_ms)
    records.write(connection)
    write_back(connection, [session])


def _tokens_before(connection: Connection, job: Job) -> int:
    """What live messages and summary counted before the first of these evictions."""
    ((tokens,),) = _TOKENS_BEFORE.rows(connection, _ids(job)[:1])
    return int(tokens)


def _covers(
    connection: Connection, job: Job, base_version: int | None, adds: Sequence[int]
) -> dict[str, Any]:
    """What the new version speaks for: what its base did, and the evictions it adds."""
    added = _ADDED.rows(connection, list(adds))
    spans = [
        (int(first), int(last), int(count)) for first, last, count in added if first is not None
    ]
    if base_version is not None:
        spans += [
            (int(first), int(last), int(count))
            for first, last, count in _BASE_SPAN.rows(connection, job.sid, base_version)
        ]
    first, last = min(span[0] for span in spans), max(span[1] for span in spans)
    return {
        "first_position": first,
        "last_position": last,
        "covers_first": _message_id(*_AT_OR_AFTER.rows(connection, job.sid, first)),
        "covers_last": _message_id(*_AT_OR_BEFORE.rows(connection, job.sid, last)),
        "messages_covered": sum(span[2] for span in spans),
    }


def _message_id(row: Sequence[Any]) -> str:
    event_id, position = row
    return f"{event_id}#{position % MESSAGES_PER_EVENT}"


def _ids(job: Job) -> list[int]:
    return [int(one) for one in job.compaction_ids]


def _summary_row(
    job: Job,
    version: Version,
    number: int,
    base_version: int | None,
    covers: dict[str, Any],
    now_ms: int,
) -> dict[str, Any]:
    draft = version.draft
    return {
        "sid": job.sid,
        "version": number,
        "base_version": base_version,
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
        "prompt_tokens": draft.prompt_tokens,
        "completion_tokens": draft.completion_tokens,
        "cost": draft.cost,
        "created_at_ms": now_ms,
        **covers,
    }
