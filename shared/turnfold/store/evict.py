"""Old messages leave the live window, in the transaction that found them too many."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from sqlalchemy import bindparam, select
from sqlalchemy.ext.asyncio import AsyncConnection

from turnfold.core.eviction import Due, Evict, Load, Trigger
from turnfold.messages import Message
from turnfold.ports import Rules
from turnfold.store.bulk import bulk_update
from turnfold.store.rows import FACTS, message_of
from turnfold.store.schema import compactions, messages
from turnfold.store.sessions import Records, SessionRow

_LIVE = (
    select(*FACTS, messages.c.body)
    .where(messages.c.sid.in_(bindparam("sids", expanding=True)), messages.c.compaction_id.is_(None))
    .order_by(messages.c.sid, messages.c.position)
)
_MARK = bulk_update(messages, where=("sid", "position"), values=("compaction_id",))


async def evict(
    connection: AsyncConnection, changed: Sequence[SessionRow], rules: Rules, records: Records, *, now_ms: int | None = None
) -> int:
    """Evict from each of these sessions what is due; how many compactions that opened."""
    due: dict[int, tuple[SessionRow, Due]] = {}
    for session in changed:
        policy = rules.policy(session.agent_wishes, session.wishes)
        window = rules.model_window(session.model, policy)
        found = rules.due(Load(session.live_messages, session.live_tokens), policy, window)
        if found is not None:
            due[session.sid] = (session, found)
    if not due:
        return 0
    return len(await evict_from(connection, due, rules, records, now_ms=now_ms))


async def evict_from(
    connection: AsyncConnection, due: dict[int, tuple[SessionRow, Due]], rules: Rules, records: Records, *, now_ms: int | None = None
) -> dict[int, int]:
    """Evict from these locked sessions, each for its reason; the compaction opened for each session that lost messages."""
    live: defaultdict[int, list[tuple[Message, str]]] = defaultdict(list)
    for row in await connection.execute(_LIVE, {"sids": list(due)}):
        live[row[0]].append((message_of(row), row[-1]))
    rows: list[dict[str, Any]] = []
    marks: list[tuple[int, int, int]] = []
    opened: dict[int, int] = {}
    for sid, (session, reason) in due.items():
        policy = rules.policy(session.agent_wishes, session.wishes)
        at_ms = now_ms if now_ms is not None else session.last_event_at_ms or 0
        decision = rules.decide([message for message, _ in live[sid]], policy, reason.trigger, at_ms)
        if not isinstance(decision, Evict):
            continue
        compaction_id = opened[sid] = rules.new_id()
        bodies = {message.position: body for message, body in live[sid]}
        rows.append(_open(session, reason, decision, bodies, compaction_id, at_ms, rules, records))
        marks += [(compaction_id, sid, message.position) for message in decision.evicted]
    if rows:
        await connection.execute(compactions.insert(), rows)
        await _MARK.run(connection, marks)
    return opened


def _open(
    session: SessionRow,
    reason: Due,
    decision: Evict,
    bodies: dict[int, str],
    compaction_id: int,
    at_ms: int,
    rules: Rules,
    records: Records,
) -> dict[str, Any]:
    evicted = decision.evicted
    before = session.window_tokens
    counted = [message for message in evicted if not message.role.is_system]
    session.live_messages -= len(counted)
    session.live_tokens -= sum(message.tokens for message in counted)
    session.compactions += 1
    session.revision += 1
    digest, digest_tokens = rules.digest([(message, bodies[message.position]) for message in evicted])
    kept = len(bodies) - len(evicted)
    records.seal(
        session,
        "evicted",
        at_ms=at_ms,
        compaction_id=compaction_id,
        tokens_before=before,
        trigger=str(reason.trigger),
        evicted=len(evicted),
        kept=kept,
        first=evicted[0].message_id,
        last=evicted[-1].message_id,
        model=session.model,
    )
    records.tell(
        session,
        "context.compressed",
        compaction_id=str(compaction_id),
        trigger=str(reason.trigger),
        original_count=len(bodies),
        compressed_count=kept,
        estimated_tokens=session.live_tokens,
        budget_tokens=reason.budget_tokens,
    )
    return {
        "compaction_id": compaction_id,
        "sid": session.sid,
        "ordinal": session.compactions,
        "trigger": str(reason.trigger),
        "status": "pending",
        "first_position": evicted[0].position,
        "last_position": evicted[-1].position,
        "messages_evicted": len(evicted),
        "tokens_evicted": sum(message.tokens for message in evicted),
        "tokens_before": before,
        "digest": digest,
        "digest_tokens": digest_tokens,
        "next_attempt_at_ms": at_ms,
        "requested_at_ms": at_ms,
    }


REQUESTED = Due(Trigger.REQUEST, 0)
