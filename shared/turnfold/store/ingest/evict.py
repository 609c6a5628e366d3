"""Evict old messages, in the transaction that stored the events which made this due."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, bindparam, func, select, update

from turnfold.contracts.subjects import TOOL_RESULT, TURN_COMPLETED
from turnfold.core.eviction.eviction import (
    SUMMARY_DELAY_MS,
    Evict,
    Eviction,
    FiredTrigger,
    RestoreHold,
    Trigger,
    clamp_keep_tokens,
    decide_eviction,
    fired_triggers,
    first_eviction,
    load_of,
    plan_evictions,
)
from turnfold.core.eviction.usage import UsageInput, UsageReading, usage_trigger
from turnfold.core.policy.presets import Commit, Policy
from turnfold.core.summary.digest import digest_eviction, digest_messages
from turnfold.errors import LostLease
from turnfold.messages import CompactionId, Message
from turnfold.observability.tracing import span
from turnfold.ports.ingest import DecodedEvent, Installation
from turnfold.store.database.message_rows import EVICTABLE, evictable_of
from turnfold.store.database.predicates import is_live, is_planned
from turnfold.store.database.schema import compactions, messages
from turnfold.store.database.session_rows import SessionJournal, SessionRow
from turnfold.store.database.statements import (
    Bulk,
    BulkInsert,
    Prepared,
    PreparedIn,
    PreparedPairs,
    bulk_update,
)
from turnfold.store.ingest.usage import Calibrator, calibration_cutoff

_LIVE = PreparedIn(
    select(*EVICTABLE)
    .where(messages.c.sid.in_(bindparam("sids", expanding=True)), is_live)
    .order_by(messages.c.sid, messages.c.position),
    "sids",
)
_between = (messages.c.sid == bindparam("of_sid")) & messages.c.position.between(
    bindparam("first"), bindparam("last")
)
_pairs = PreparedPairs.pairs
_TEXTS = PreparedPairs(
    select(messages.c.position, messages.c.body).where(
        messages.c.sid == _pairs.c.a, messages.c.position == _pairs.c.b
    ),
    (messages.c.sid.type, messages.c.position.type),
)
_MARK = Bulk(
    update(messages).where(_between, is_live).values(compaction_id=bindparam("by")),
    ("by", "of_sid", "first", "last"),
)
_LEFT = Prepared(
    select(func.count())
    .select_from(messages)
    .where(_between, messages.c.compaction_id == bindparam("by")),
    ("of_sid", "first", "last", "by"),
)
_PLANNED = Prepared(
    select(compactions.c.compaction_id).where(
        compactions.c.sid == bindparam("of_sid"),
        is_planned,
    ),
    ("of_sid",),
)
_CARRIED_OUT = bulk_update(
    compactions,
    where=("compaction_id",),
    values=(
        "first_position",
        "last_position",
        "messages_evicted",
        "tokens_evicted",
        "tokens_before",
        "evicted_at_ms",
    ),
)
_OPENED = (
    "compaction_id", "sid", "ordinal", "trigger", "status", "budget_tokens", "first_position", "last_position", "messages_evicted", "tokens_evicted",
    "tokens_before", "next_attempt_at_ms", "requested_at_ms", "evicted_at_ms", "trace", "actor",
    "digest", "digest_tokens",
)  # fmt: skip
_OPEN = BulkInsert(compactions, _OPENED)
_ASKED_BY = Prepared(
    select(compactions.c.actor).where(compactions.c.compaction_id == bindparam("by")), ("by",)
)


def evict(
    connection: Connection,
    changed: Sequence[SessionRow],
    new: Mapping[int, Mapping[int, UsageReading | None]],
    arrived: Mapping[int, DecodedEvent],
    learning: Calibrator,
    installation: Installation,
    records: SessionJournal,
) -> int:
    """Evict what became due in these sessions; return how many compactions were opened.

    `new` maps sessions to the sequences of their new events and to reported usage. `arrived` holds
    those events.
    """
    readings = {
        sid: {seq: one for seq, one in some.items() if one is not None} for sid, some in new.items()
    }
    metered = [
        session
        for session in changed
        if _has_to_be_metered(session, readings.get(session.sid, {}), installation)
    ]
    settled_ms = calibration_cutoff(connection, metered)
    due = [
        session for session in changed if session.sid in settled_ms or _fired(session, installation)
    ]
    opening = _Opening(connection, installation, records, arrived)
    live = _live(connection, due)
    for session in due:
        policy = installation.policy(session.agent_wishes, session.wishes)
        window = installation.model_window(session.model, policy)
        here = live[session.sid]
        meter = _meter(
            session, settled_ms.get(session.sid, -1), readings.pop(session.sid, {}), learning
        )
        gauge, seq = meter.gauge, 0
        usage_limit = usage_trigger(policy.reserve_tokens, model_window=window)
        if policy.commit is Commit.ON_SUMMARY:
            session.gauge = gauge = meter.after(0, gauge, usage_limit)
            if session.held_tokens:
                continue
            found = fired_triggers(
                session.load._replace(reported_tokens=gauge.fresh_tokens),
                policy,
                model_window=window,
            )
            newest = max(new.get(session.sid, ()), default=0)
            opening.plan(
                session, found, here, policy, at_ms=session.last_event_at_ms or 0, seq=newest
            )
            continue
        hold = RestoreHold(session.held_to_tokens, session.tokens_total)
        for eviction in plan_evictions(
            here,
            tuple(new.get(session.sid, ())),
            session.rounds,
            policy,
            model_window=window,
            meter=meter,
            hold=hold,
        ):
            opening.open(session, eviction, here)
            gauge, seq = eviction.gauge, eviction.seq
        session.gauge = meter.after(seq, gauge, usage_limit)
    for session in changed:
        if newer := readings.get(session.sid):
            session.gauge = session.gauge.told(newer[max(newer)], limit=0)
    return opening.store()


def _has_to_be_metered(
    session: SessionRow, readings: Mapping[int, UsageReading], installation: Installation
) -> bool:
    """Return whether reported usage may exceed its limit, or end a series of evictions. Rare."""
    reported = max([one.tokens for one in readings.values()], default=0)
    if session.usage_evictions and reported:
        return True
    reported = max(reported, session.reported_tokens)
    if not reported:
        return False
    policy = installation.policy(session.agent_wishes, session.wishes)
    limit = usage_trigger(
        policy.reserve_tokens, model_window=installation.model_window(session.model, policy)
    )
    return 0 < limit < reported


def _meter(
    session: SessionRow, settled_ms: int, readings: Mapping[int, UsageReading], learning: Calibrator
) -> UsageInput:
    def learn(seq: int, at_ms: int) -> float:
        learning.evicted(session.sid, at_ms)
        return learning.factor(session.key.agent_id, session.model, seq)

    return UsageInput(session.gauge._replace(settled_ms=settled_ms), readings, learn)


def evict_now(
    connection: Connection,
    session: SessionRow,
    reason: FiredTrigger | None,
    installation: Installation,
    records: SessionJournal,
    *,
    now_ms: int,
) -> int | None:
    """Evict from one locked session on request; without `reason`, only if a trigger fires."""
    found = (reason,) if reason else _fired(session, installation)
    if not found or (session.held_tokens and reason is not REQUESTED):
        return None
    policy = installation.policy(session.agent_wishes, session.wishes)
    live = _live(connection, [session])[session.sid]
    opening = _Opening(connection, installation, records)
    if policy.commit is Commit.ON_SUMMARY:
        opened = opening.plan(session, found, live, policy, at_ms=now_ms)
    else:
        due, evicted = first_eviction(found, live, policy, now_ms=now_ms)
        if due is None:
            return None
        eviction = Eviction(due, evicted, len(live), session.load, now_ms).seen_at(
            live, session.load, now_ms
        )
        opened = opening.open(session, eviction, live)
        learning = Calibrator(connection)
        learning.evicted(session.sid, now_ms)
        factor = learning.factor(session.key.agent_id, session.model, live[-1].stream_seq)
        session.gauge = session.gauge.evicted(by_report=False, factor=factor)
    opening.store()
    return opened


def planned(
    connection: Connection, sid: int, due: FiredTrigger, policy: Policy, *, now_ms: int
) -> Eviction | None:
    """Return the eviction that a planned compaction comes to now; None if nothing would leave."""
    live = [evictable_of(row) for row in _LIVE.rows(connection, [sid])]
    decision = decide_eviction(live, clamp_keep_tokens(policy, due), due.trigger, now_ms=now_ms)
    return (
        Eviction(due, decision.evicted, len(live), load_of(live), now_ms)
        if isinstance(decision, Evict)
        else None
    )


def mark_evicted(
    connection: Connection,
    session: SessionRow,
    compaction_id: int,
    eviction: Eviction,
    records: SessionJournal,
    *,
    model: str | None,
    now_ms: int,
) -> None:
    """Carry out a planned eviction, in the transaction that commits its summary.

    Raises:
        LostLease: one of its messages is not live any more.
    """
    evicted = eviction.evicted
    ((actor,),) = _ASKED_BY.rows(connection, compaction_id)
    # Messages may have come since it was planned.
    eviction = eviction.seen_at(_live(connection, [session])[session.sid], session.load, now_ms)
    before = _let_go(
        session, compaction_id, eviction, records, checkpoint=None, model=model, actor=actor
    )
    session.gauge = session.gauge.evicted(
        by_report=eviction.due.trigger is Trigger.USAGE, factor=session.factor
    )
    _MARK.run(
        connection, [(compaction_id, session.sid, one.position, one.position) for one in evicted]
    )
    ((left,),) = _LEFT.rows(
        connection, session.sid, evicted[0].position, evicted[-1].position, compaction_id
    )
    if left != len(evicted):
        raise LostLease(CompactionId(str(compaction_id)))
    tokens = sum([one.tokens for one in evicted])
    _CARRIED_OUT.run(
        connection,
        [
            (
                evicted[0].position,
                evicted[-1].position,
                len(evicted),
                tokens,
                before,
                now_ms,
                compaction_id,
            )
        ],
    )


def _fired(session: SessionRow, installation: Installation) -> Sequence[FiredTrigger]:
    """Return the triggers that all live messages fire; if they fire none, no part of them does."""
    policy = installation.policy(session.agent_wishes, session.wishes)
    return fired_triggers(
        session.load, policy, model_window=installation.model_window(session.model, policy)
    )


def _live(connection: Connection, sessions: Sequence[SessionRow]) -> Mapping[int, list[Message]]:
    live: defaultdict[int, list[Message]] = defaultdict(list)
    for row in _LIVE.rows(connection, [session.sid for session in sessions]):
        live[row[0]].append(evictable_of(row))
    return live


def quoted_texts(connection: Connection, places: Sequence[tuple[int, int]]) -> Mapping[int, str]:
    """Return message texts by position."""
    # A position is made from a sequence of the stream: no two sessions have one in common.
    return {row[0]: row[1] for row in _TEXTS.rows(connection, places)}


CHECKPOINTS = {TOOL_RESULT: "precheck", TURN_COMPLETED: "check"}
"""Audit names of the moment of a check: when a tool returned, or when a turn was over."""


def _let_go(
    session: SessionRow, compaction_id: int, eviction: Eviction, records: SessionJournal, *, checkpoint: str | None, model: str | None = None,
    actor: str | None = None,
) -> int:  # fmt: skip
    """Subtract evicted messages from the counters; add audit row and notice; return tokens before.

    `model` is set if it has summarized them already. `actor` is set if it differs from that of the
    transaction.
    """
    evicted, due = eviction.evicted, eviction.due
    before = eviction.load.tokens + session.summary_tokens
    after = before - eviction.tokens
    session.live_messages -= sum([not message.role.is_system for message in evicted])
    session.live_tokens -= eviction.tokens
    session.rounds -= eviction.load.rounds
    session.revision += 1
    records.add_audit_row(
        session,
        "evicted",
        at_ms=eviction.at_ms,
        compaction_id=compaction_id,
        tokens_before=before,
        tokens_after=after,
        actor=actor,
        trigger=str(due.trigger),
        **eviction.counts(),
        first=evicted[0].message_id,
        last=evicted[-1].message_id,
        checkpoint=checkpoint,
        model=model,
        session_model=session.model,
        **_escalation(eviction),
    )
    records.add_notice(
        session,
        "context.compressed",
        compaction_id=str(compaction_id),
        trigger=str(due.trigger),
        original_count=eviction.live,
        compressed_count=len(eviction.stays),
        estimated_tokens=after,
        budget_tokens=due.budget_tokens,
    )
    return before


def _escalation(eviction: Eviction) -> dict[str, Any]:
    """Return the audit fields of an eviction that had to keep the minimum."""
    return {"is_escalated": True, "is_over": eviction.is_over} if eviction.is_escalated else {}


def _runs(live: Sequence[Message], evicted: Sequence[Message]) -> list[tuple[int, int]]:
    """Return evicted messages as ranges of positions that contain no other live message."""
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


NOTHING: Mapping[int, DecodedEvent] = {}


class _Opening:
    """The compactions that one transaction opens."""

    def __init__(
        self,
        connection: Connection,
        installation: Installation,
        records: SessionJournal,
        arrived: Mapping[int, DecodedEvent] = NOTHING,
    ) -> None:
        self._connection = connection
        self._installation = installation
        self._records = records
        self._arrived = arrived
        self._rows: list[tuple[Any, ...]] = []
        self._evicted: dict[int, tuple[int, Sequence[Message]]] = {}
        self._marks: list[tuple[int, int, int, int]] = []

    def open(self, session: SessionRow, eviction: Eviction, live: Sequence[Message]) -> int:
        """Evict messages, given all live ones; return the id of the compaction."""
        compaction_id = self._installation.new_id()
        trace = self._trace(eviction.seq)
        with span(
            "evict", parent=trace, compaction_id=str(compaction_id), messages=len(eviction.evicted)
        ) as evicting:
            self._open(session, compaction_id, eviction, live, evicting.trace or trace)
        return compaction_id

    def _open(
        self,
        session: SessionRow,
        compaction_id: int,
        eviction: Eviction,
        live: Sequence[Message],
        trace: str | None,
    ) -> None:
        evicted, due = eviction.evicted, eviction.due
        checkpoint = self._checkpoint(eviction.seq)
        before = _let_go(session, compaction_id, eviction, self._records, checkpoint=checkpoint)
        session.compactions += 1
        self._marks += [
            (compaction_id, session.sid, first, last) for first, last in _runs(live, evicted)
        ]
        all_tokens = sum([message.tokens for message in evicted])
        self._rows.append(
            (
                compaction_id, session.sid, session.compactions, str(due.trigger), "pending", due.budget_tokens, evicted[0].position,
                evicted[-1].position, len(evicted), all_tokens, before, eviction.at_ms + SUMMARY_DELAY_MS, eviction.at_ms, eviction.at_ms,
                trace, self._records.asked_by,
            )
        )  # fmt: skip
        self._evicted[compaction_id] = session.sid, evicted

    def _trace(self, seq: int) -> str | None:
        """Return the traceparent of the event that caused the eviction, if it has one."""
        return self._arrived[seq].trace if seq in self._arrived else None

    def _checkpoint(self, seq: int) -> str | None:
        """Return the checkpoint at which the event caused the eviction; None without an event."""
        subject = self._arrived[seq].subject if seq in self._arrived else ""
        return next(
            (
                name
                for kind, name in CHECKPOINTS.items()
                if subject == kind or subject.startswith(f"{kind}.")
            ),
            None,
        )

    def plan(
        self,
        session: SessionRow,
        found: Sequence[FiredTrigger],
        live: Sequence[Message],
        policy: Policy,
        *,
        at_ms: int,
        seq: int = 0,
    ) -> int | None:
        """Plan a compaction whose messages leave with their summary; return it or an open one.

        None if nothing would leave. During a cooldown of the model only a request opens one.
        """
        already = _PLANNED.rows(self._connection, session.sid) if found else ()
        if already:
            return int(already[0][0])
        due, _ = first_eviction(found, live, policy, now_ms=at_ms)
        if due is None:
            return None
        compaction_id = self._installation.new_id()
        session.compactions += 1
        before = session.window_tokens
        self._records.add_audit_row(
            session, "selective_start", at_ms=at_ms, compaction_id=compaction_id, tokens_before=before, trigger=str(due.trigger),
            live=len(live), session_model=session.model, checkpoint=self._checkpoint(seq),
        )  # fmt: skip
        begins_ms = at_ms + SUMMARY_DELAY_MS
        if due.trigger is not Trigger.REQUEST:
            begins_ms = max(begins_ms, session.cooldown_until_ms)
        self._rows.append(
            (
                compaction_id, session.sid, session.compactions, str(due.trigger), "pending", due.budget_tokens, None, None, 0, 0, before,
                begins_ms, at_ms, None, self._trace(seq), self._records.asked_by,
            )
        )  # fmt: skip
        return compaction_id

    def store(self) -> int:
        """Write the compactions with their digests; return how many."""
        digests = self._digests()
        _OPEN.run(self._connection, [(*row, *digests.get(row[0], ("", 0))) for row in self._rows])
        _MARK.run(self._connection, self._marks)
        return len(self._rows)

    def _digests(self) -> Mapping[int, tuple[str, int]]:
        """Return the digest of each eviction, with its tokens; all texts are read at once."""
        quoted = {
            compaction_id: (sid, digest_messages(evicted))
            for compaction_id, (sid, evicted) in self._evicted.items()
        }
        places = [(sid, message.position) for sid, some in quoted.values() for message in some]
        texts = quoted_texts(self._connection, places)
        return {
            compaction_id: digest_eviction(evicted, texts, count=self._installation.count)
            for compaction_id, (_, evicted) in self._evicted.items()
        }


REQUESTED = FiredTrigger(Trigger.REQUEST, 0)
