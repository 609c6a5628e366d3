"""Old messages leave the live window, in the transaction that found them too many."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, bindparam, select, update

from turnfold.core.eviction import SUMMARY_DELAY_MS, Due, Evict, Eviction, Load, Trigger
from turnfold.messages import Message
from turnfold.ports import Rules
from turnfold.store.bulk import Bulk, BulkInsert, Prepared, PreparedIn
from turnfold.store.rows import EVICTABLE, evictable_of
from turnfold.store.schema import compactions, messages
from turnfold.store.sessions import Records, SessionRow

_LIVE = PreparedIn(
    select(*EVICTABLE)
    .where(messages.c.sid.in_(bindparam("sids", expanding=True)), messages.c.compaction_id.is_(None))
    .order_by(messages.c.sid, messages.c.position),
    "sids",
)
_between = (messages.c.sid == bindparam("of_sid")) & messages.c.position.between(bindparam("first"), bindparam("last"))
_TEXTS = Prepared(select(messages.c.position, messages.c.body).where(_between), ("of_sid", "first", "last"))
_MARK = Bulk(
    update(messages).where(_between, messages.c.compaction_id.is_(None)).values(compaction_id=bindparam("by")),
    ("by", "of_sid", "first", "last"),
)
_OPENED = (
    "compaction_id", "sid", "ordinal", "trigger", "status", "first_position", "last_position", "messages_evicted", "tokens_evicted",
    "tokens_before", "digest", "digest_tokens", "next_attempt_at_ms", "requested_at_ms",
)  # fmt: skip
_OPEN = BulkInsert(compactions, _OPENED)


def evict(
    connection: Connection, changed: Sequence[SessionRow], new_seqs: Mapping[int, Sequence[int]], rules: Rules, records: Records
) -> int:
    """Evict what became due as these events of each session were stored; how many compactions that opened."""
    due = [session for session in changed if _is_due(session, rules)]
    if not due:
        return 0
    opening = _Opening(connection, rules, records)
    live = _live(connection, due)
    for session in due:
        policy = rules.policy(session.agent_wishes, session.wishes)
        window = rules.model_window(session.model, policy)
        here = live[session.sid]
        for eviction in rules.evictions(here, new_seqs.get(session.sid, ()), policy, window):
            opening.open(session, eviction, here)
    return opening.store()


def evict_now(
    connection: Connection, session: SessionRow, reason: Due | None, rules: Rules, records: Records, *, now_ms: int
) -> int | None:
    """Evict from one locked session, on request (`reason` None: only if its triggers say so); the compaction that opened."""
    if reason is None and not _is_due(session, rules):
        return None
    policy = rules.policy(session.agent_wishes, session.wishes)
    load = Load(session.live_messages, session.live_tokens)
    due = reason or rules.due(load, policy, rules.model_window(session.model, policy))
    live = _live(connection, [session])[session.sid]
    decision = rules.decide(live, policy, due.trigger, now_ms) if due else None
    if due is None or not isinstance(decision, Evict):
        return None
    opening = _Opening(connection, rules, records)
    opened = opening.open(session, Eviction(due, decision.evicted, len(live), load, now_ms), live)
    opening.store()
    return opened


def _is_due(session: SessionRow, rules: Rules) -> bool:
    """Whether all live messages together set off a trigger; where they do not, no part of them does."""
    policy = rules.policy(session.agent_wishes, session.wishes)
    window = rules.model_window(session.model, policy)
    return rules.due(Load(session.live_messages, session.live_tokens), policy, window) is not None


def _live(connection: Connection, sessions: Sequence[SessionRow]) -> Mapping[int, list[Message]]:
    live: defaultdict[int, list[Message]] = defaultdict(list)
    for row in _LIVE.rows(connection, [session.sid for session in sessions]):
        live[row[0]].append(evictable_of(row))
    return live


def _runs(live: Sequence[Message], evicted: Sequence[Message]) -> list[tuple[int, int]]:
    """The evicted messages as ranges of positions that hold no other live message."""
    leaving = {message.position for message in evicted}
    runs: list[tuple[int, int]] = []
    is_open = False
    for message in live:
        if message.position not in leaving:
            is_open = False
        elif is_open:
            runs[-1] = (runs[-1][0], message.position)
        else:
            runs.append((message.position, message.position))
            is_open = True
    return runs


class _Opening:
    """The compactions that one transaction opens."""

    def __init__(self, connection: Connection, rules: Rules, records: Records) -> None:
        self._connection = connection
        self._rules = rules
        self._records = records
        self._rows: list[tuple[Any, ...]] = []
        self._marks: list[tuple[int, int, int, int]] = []

    def open(self, session: SessionRow, eviction: Eviction, live: Sequence[Message]) -> int:
        """Take these messages out of the session's live ones, all of which are given; the compaction that stands for it."""
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
        digest, digest_tokens = self._rules.digest(evicted, self._texts_of(session.sid))
        self._marks += [(compaction_id, session.sid, first, last) for first, last in _runs(live, evicted)]
        all_tokens = sum([message.tokens for message in evicted])
        self._rows.append(
            (
                compaction_id, session.sid, session.compactions, str(due.trigger), "pending", evicted[0].position, evicted[-1].position,
                len(evicted), all_tokens, before, digest, digest_tokens, eviction.at_ms + SUMMARY_DELAY_MS, eviction.at_ms,
            )
        )  # fmt: skip
        return compaction_id

    def _texts_of(self, sid: int) -> Callable[[Sequence[Message]], Mapping[int, str]]:
        """What reads the JSON texts of some of a session's messages, by position."""

        def texts(some: Sequence[Message]) -> Mapping[int, str]:
            if not some:
                return {}
            return {row[0]: row[1] for row in _TEXTS.rows(self._connection, sid, some[0].position, some[-1].position)}

        return texts

    def store(self) -> int:
        """Write them; how many there are."""
        _OPEN.run(self._connection, self._rows)
        _MARK.run(self._connection, self._marks)
        return len(self._rows)


REQUESTED = Due(Trigger.REQUEST, 0)
