"""Requests that change a session: policy overrides, compaction and erasure."""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import ColumnElement, Connection, func, select, update

from turnfold.contracts.requests import (
    PolicyRequest,
)
from turnfold.core.history.audit_chain import LOCAL
from turnfold.core.policy.overrides import PolicyOverrides
from turnfold.core.policy.presets import Mode, preset_named
from turnfold.core.summary.cooldown import COOLDOWN_MAX_MS
from turnfold.core.summary.gate import Reason
from turnfold.errors import BadRequest, Conflict
from turnfold.messages import AgentId, CompactionId, SessionId, SessionKey
from turnfold.ports.compact import JobStatus
from turnfold.ports.ingest import Installation
from turnfold.store.database.engine import SqlStore, insert_for
from turnfold.store.database.instance_lock import lock_storing
from turnfold.store.database.predicates import has_status, is_open
from turnfold.store.database.schema import agents, audit, compactions, sessions
from turnfold.store.database.session_rows import (
    AgentChain,
    SessionChange,
    SessionJournal,
    lock_by_key,
)
from turnfold.store.ingest.erase import EraseResult, Erasure, erase_some
from turnfold.store.ingest.erased_letters import ErasureScope, erase_letters
from turnfold.store.ingest.evict import REQUESTED, evict_now
from turnfold.store.ingest.tombstones import ALL_SESSIONS


class SqlSessionCommands(SqlStore):
    """Carry out requests that write. `actor` is recorded in the audit."""

    async def set_policy(
        self,
        key: SessionKey | AgentId,
        request: PolicyRequest,
        *,
        installation: Installation,
        now_ms: int,
        actor: str = LOCAL,
    ) -> Mapping[str, Any]:
        """Set the policy overrides of a session or an agent, and evict what becomes due.

        Return the overrides as they are now.
        """
        if isinstance(key, SessionKey):
            return await self._database.write(
                lambda connection: _set_for_session(
                    connection, key, request, installation, now_ms, actor
                )
            )
        return await self._database.write(
            lambda connection: _set_for_agent(connection, key, request, installation, now_ms, actor)
        )

    async def compact_now(
        self, key: SessionKey, *, installation: Installation, now_ms: int, actor: str = LOCAL
    ) -> CompactionId | None:
        """Evict what the policy allows; return the compaction, or None if nothing would leave.

        Raises:
            Conflict: the session's mode is `off`.
        """
        return await self._database.write(
            lambda connection: _compact(connection, key, installation, now_ms, actor)
        )

    async def erase(
        self,
        key: SessionKey | AgentId,
        *,
        last_seq: int,
        now_ms: int,
        actor: str = LOCAL,
        prefix: str | None = None,
    ) -> EraseResult:
        """Erase a session, or all sessions of an agent, or those whose ids begin with a prefix.

        No query finds these sessions afterwards; `SqlErasureStore.delete_rows` deletes their rows.
        Events at or below `last_seq`, and events that were stored before, are not stored again.
        Each transaction erases at most a hundred sessions, so that ingest does not wait for all.
        """
        scope = ErasureScope.of(key, prefix)
        erasure = Erasure(last_seq, now_ms, scope.reason, actor)
        letters_to, letters = await erase_letters(self._database, scope)
        total, is_last = EraseResult(dead_letters=letters), False
        while not is_last:
            erased, is_last = await self._database.write(
                lambda connection: erase_some(connection, scope, erasure, letters_to=letters_to)
            )
            total = EraseResult(*map(sum, zip(total, erased, strict=True)))
        return total


def _set_for_session(
    connection: Connection,
    key: SessionKey,
    request: PolicyRequest,
    installation: Installation,
    now_ms: int,
    actor: str,
) -> Mapping[str, Any]:
    # Before the session is locked: erasures take these two locks in the same order.
    lock_storing(connection)
    session = lock_by_key(connection, [key], create=installation.max_sessions).get(key)
    if session is None:
        raise Conflict(
            f"the agent has {installation.max_sessions} sessions, and may have no more; "
            "erase some, or set TURNFOLD_MAX_SESSIONS_PER_AGENT"
        )
    before, session.wishes = (
        session.wishes,
        _changed_overrides(session.wishes, request, installation),
    )
    _check(installation, session.agent_wishes, session.wishes)
    session.revision += 1
    if session.last_event_at_ms is not None:
        session.renew_idle_time(installation)
    values = session.wishes._asdict()
    connection.execute(update(sessions).where(sessions.c.sid == session.sid).values(**values))
    change = SessionChange(connection, session, SessionJournal(actor), now_ms)
    if changes := session.wishes.differences(before):
        change.add_audit_row("policy", **changes)
        _end_waiting(connection, compactions.c.sid == session.sid, now_ms)
    # A tighter policy may make an eviction due, and no event may ever arrive to notice it.
    evict_now(change, None, installation)
    change.journal.write(connection, [session])
    return {**key._asdict(), **_overrides_as_json(session.wishes)}


def _set_for_agent(
    connection: Connection,
    agent_id: AgentId,
    request: PolicyRequest,
    installation: Installation,
    now_ms: int,
    actor: str,
) -> Mapping[str, Any]:
    # The row of the agent is the lock of its audit chain, so it must exist first. An UPDATE locks
    # it, and so waits for an erasure that may delete it.
    made = insert_for(connection)(agents).values(agent_id=agent_id)
    same = {"agent_id": made.excluded.agent_id}
    connection.execute(made.on_conflict_do_update(index_elements=["agent_id"], set_=same))
    row = connection.execute(
        select(agents).where(agents.c.agent_id == agent_id).with_for_update()
    ).one()
    before = PolicyOverrides(row.preset, row.mode, row.overrides)
    wishes = _changed_overrides(before, request, installation)
    _check(installation, wishes, PolicyOverrides())
    values = wishes._asdict()
    connection.execute(update(agents).where(agents.c.agent_id == agent_id).values(**values))
    if changes := wishes.differences(before):
        _record_for_agent(connection, agent_id, changes, now_ms, actor)
    # A policy changes windows, so no reply that was cached for the old revision is valid.
    is_agent = sessions.c.agent_id == agent_id
    # All transactions lock sessions in this order. An UPDATE takes them as it finds them.
    ordered = select(sessions.c.sid).where(is_agent).order_by(sessions.c.sid).with_for_update()
    connection.execute(select(func.count()).select_from(ordered.subquery()))
    changed = {"revision": sessions.c.revision + 1}
    then, now = (installation.policy(it, PolicyOverrides()) for it in (before, wishes))
    if (then.idle_seconds, then.mode) != (now.idle_seconds, now.mode):
        # The next search for idle sessions examines them, each by its own policy.
        changed["idle_at_ms"] = sessions.c.last_event_at_ms
    connection.execute(update(sessions).where(is_agent).values(**changed))
    if changes:
        _end_waiting(
            connection, compactions.c.sid.in_(select(sessions.c.sid).where(is_agent)), now_ms
        )
    return {"agent_id": agent_id, **_overrides_as_json(wishes)}


def _end_waiting(connection: Connection, is_chosen: ColumnElement[bool], now_ms: int) -> None:
    """Make compactions due that wait for the next day, as their model or its quota may differ."""
    waits = (
        is_open & has_status(JobStatus.PENDING),
        compactions.c.reason == str(Reason.RATE_LIMITED),
        # A provider that limits its rate is waited for, which takes less time.
        compactions.c.next_attempt_at_ms > now_ms + COOLDOWN_MAX_MS,
    )
    connection.execute(
        update(compactions).where(is_chosen, *waits).values(next_attempt_at_ms=now_ms)
    )


def _record_for_agent(
    connection: Connection, agent_id: AgentId, changes: Mapping[str, Any], now_ms: int, actor: str
) -> None:
    """Append an audit row to the agent's own chain (empty session id); its row is locked."""
    is_chain = (audit.c.agent_id == agent_id) & (audit.c.session_id == ALL_SESSIONS)
    newest = select(audit.c.ordinal, audit.c.hash).where(is_chain)
    end = connection.execute(newest.order_by(audit.c.ordinal.desc()).limit(1)).first()
    key = SessionKey(agent_id, SessionId(ALL_SESSIONS))
    journal = SessionJournal(actor)
    ordinal, digest = (0, "") if end is None else end
    journal.add_audit_row(AgentChain(key, ordinal, digest), "policy", at_ms=now_ms, **changes)
    journal.write(connection, ())


def _compact(
    connection: Connection, key: SessionKey, installation: Installation, now_ms: int, actor: str
) -> CompactionId | None:
    session = lock_by_key(connection, [key]).get(key)
    if session is None:
        return None
    if session.policy(installation).mode is Mode.OFF:
        raise Conflict(
            "the session's mode is off: nothing is evicted; set it to manual or auto first"
        )
    change = SessionChange(connection, session, SessionJournal(actor), now_ms)
    opened = evict_now(change, REQUESTED, installation)
    change.journal.write(connection, [session])
    return CompactionId(str(opened)) if opened is not None else None


def _changed_overrides(
    wishes: PolicyOverrides, request: PolicyRequest, installation: Installation
) -> PolicyOverrides:
    try:
        if request.preset is not None:
            preset_named(request.preset)
        installation.allowance.check_overrides(request.overrides or {})
    except ValueError as error:
        raise BadRequest(str(error)) from None
    return wishes.changed(preset=request.preset, mode=request.mode, overrides=request.overrides)


def _check(installation: Installation, agent: PolicyOverrides, session: PolicyOverrides) -> None:
    try:
        installation.policy(agent, session)
    except ValueError as error:
        raise BadRequest(str(error)) from None


def _overrides_as_json(wishes: PolicyOverrides) -> dict[str, Any]:
    return {"preset": wishes.preset, "mode": wishes.mode, "overrides": wishes.numbers()}
