"""Old messages leave the live window, in the transaction that found them too many."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import bindparam, select
from sqlalchemy.ext.asyncio import AsyncConnection

from turnfold.core.eviction import Due, Evict, Eviction, Load, Trigger
from turnfold.messages import Message
from turnfold.ports import Rules
from turnfold.store.bulk import PreparedIn, bulk_update
from turnfold.store.rows import FACTS, message_of
from turnfold.store.schema import compactions, messages
from turnfold.store.sessions import Records, SessionRow

_LIVE = PreparedIn(
    select(*FACTS, messages.c.body)
    .where(messages.c.sid.in_(bindparam("sids", expanding=True)), messages.c.compaction_id.is_(None))
    .order_by(messages.c.sid, messages.c.position),
    "sids",
)
_MARK = bulk_update(messages, where=("sid", "position"), values=("compaction_id",))


async def evict(
    connection: AsyncConnection, changed: Sequence[SessionRow], new_seqs: Mapping[int, Sequence[int]], rules: Rules, records: Records
) -> int:
    """Evict what became due as these events of each session were stored; how many compactions that opened."""
    due = [session for session in changed if _is_due(session, rules)]
    if not due:
        return 0
    opening = _Opening(rules, records)
    live = await _live(connection, due)
    for session in due:
        policy = rules.policy(session.agent_wishes, session.wishes)
        window = rules.model_window(session.model, policy)
        texts = {message.position: body for message, body in live[session.sid]}
        for eviction in rules.evictions([message for message, _ in live[session.sid]], new_seqs.get(session.sid, ()), policy, window):
            opening.open(session, eviction, texts)
    return await opening.store(connection)


async def evict_now(
    connection: AsyncConnection, session: SessionRow, reason: Due | None, rules: Rules, records: Records, *, now_ms: int
) -> int | None:
    """Evict from one locked session, on request (`reason` None: only if its triggers say so); the compaction that opened."""
    if reason is None and not _is_due(session, rules):
        return None
    policy = rules.policy(session.agent_wishes, session.wishes)
    load = Load(session.live_messages, session.live_tokens)
    due = reason or rules.due(load, policy, rules.model_window(session.model, policy))
    live = (await _live(connection, [session]))[session.sid]
    decision = rules.decide([message for message, _ in live], policy, due.trigger, now_ms) if due else None
    if due is None or not isinstance(decision, Evict):
        return None
    opening = _Opening(rules, records)
    opened = opening.open(
        session, Eviction(due, decision.evicted, len(live), load, now_ms), {message.position: body for message, body in live}
    )
    await opening.store(connection)
    return opened


def _is_due(session: SessionRow, rules: Rules) -> bool:
    """Whether all live messages together set off a trigger; where they do not, no part of them does."""
    policy = rules.policy(session.agent_wishes, session.wishes)
    window = rules.model_window(session.model, policy)
    return rules.due(Load(session.live_messages, session.live_tokens), policy, window) is not None


async def _live(connection: AsyncConnection, sessions: Sequence[SessionRow]) -> Mapping[int, list[tuple[Message, str]]]:
    live: defaultdict[int, list[tuple[Message, str]]] = defaultdict(list)
    for row in await _LIVE.rows(connection, [session.sid for session in sessions]):
        live[row[0]].append((message_of(row), row[-1]))
    return live


class _Opening:
    """The compactions that one transaction opens."""

    def __init__(self, rules: Rules, records: Records) -> None:
        self._rules = rules
        self._records = records
        self._rows: list[dict[str, Any]] = []
        self._marks: list[tuple[int, int, int]] = []

    def open(self, session: SessionRow, eviction: Eviction, texts: Mapping[int, str]) -> int:
        """Take these messages out of the session's live ones; the compaction that stands for it."""
        evicted, due = eviction.evicted, eviction.due
        compaction_id = self._rules.new_id()
        before = eviction.load.tokens + session.summary_tokens
        counted = [message for message in evicted if not message.role.is_system]
        tokens = sum(message.tokens for message in counted)
        session.live_messages -= len(counted)
        session.live_tokens -= tokens
        session.compactions += 1
        session.revision += 1
        kept = eviction.live - len(evicted)
        self._records.seal(
            session,
            "evicted",
            at_ms=eviction.at_ms,
            compaction_id=compaction_id,
            tokens_before=before,
            trigger=str(due.trigger),
            evicted=len(evicted),
            kept=kept,
            first=evicted[0].message_id,
            last=evicted[-1].message_id,
            model=session.model,
        )
        self._records.tell(
            session,
            "context.compressed",
            compaction_id=str(compaction_id),
            trigger=str(due.trigger),
            original_count=eviction.live,
            compressed_count=kept,
            estimated_tokens=before - tokens,
            budget_tokens=due.budget_tokens,
        )
        digest, digest_tokens = self._rules.digest([(message, texts[message.position]) for message in evicted])
        self._marks += [(compaction_id, session.sid, message.position) for message in evicted]
        self._rows.append(
            {
                "compaction_id": compaction_id,
                "sid": session.sid,
                "ordinal": session.compactions,
                "trigger": str(due.trigger),
                "status": "pending",
                "first_position": evicted[0].position,
                "last_position": evicted[-1].position,
                "messages_evicted": len(evicted),
                "tokens_evicted": sum(message.tokens for message in evicted),
                "tokens_before": before,
                "digest": digest,
                "digest_tokens": digest_tokens,
                "next_attempt_at_ms": eviction.at_ms,
                "requested_at_ms": eviction.at_ms,
            }
        )
        return compaction_id

    async def store(self, connection: AsyncConnection) -> int:
        """Write them; how many there are."""
        if self._rows:
            await connection.execute(compactions.insert(), self._rows)
            await _MARK.run(connection, self._marks)
        return len(self._rows)


REQUESTED = Due(Trigger.REQUEST, 0)
