"""Evict old messages, in the transaction that stores the events that made it due."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from sqlalchemy import Connection, bindparam, func, select

from turnfold.core.eviction.batch import (
    EVERY_EVENT_BELOW,
    Eviction,
    RestoreHold,
    is_examined,
    plan_evictions,
    staying,
)
from turnfold.core.eviction.budgets import (
    budgets_json,
    largest_budget,
    without_forgotten,
)
from turnfold.core.eviction.choose import first_eviction
from turnfold.core.eviction.reported_limits import LimitedModel, WindowChanges, limited_window
from turnfold.core.eviction.triggers import (
    FiredTrigger,
    Trigger,
    TriggerLimits,
    idle_at_ms,
    load_of,
    trigger_of_plan,
)
from turnfold.core.eviction.usage import UsageInput, UsageReading, relief_limit, usage_trigger
from turnfold.core.policy.presets import Commit, Policy
from turnfold.errors import LostLease
from turnfold.messages import CompactionId, Message, SessionKey
from turnfold.ports.ingest import DecodedEvent, Installation
from turnfold.store.database.message_rows import EVICTABLE, evictable_of
from turnfold.store.database.predicates import in_range, is_live, of_messages
from turnfold.store.database.schema import compactions, messages
from turnfold.store.database.session_rows import SessionChange, SessionJournal, SessionRow
from turnfold.store.database.statements import Prepared, PreparedIn, bulk_update
from turnfold.store.ingest.open_compactions import (
    MARK_EVICTED,
    CompactionOpener,
    planned_id,
    subtract_evicted,
)
from turnfold.store.ingest.usage import Calibrator, calibration_cutoff

_LIVE = PreparedIn(
    select(*EVICTABLE).where(is_live).order_by(messages.c.sid, messages.c.position),
    messages.c.sid,
)
_NUMBER = Prepared(
    select(func.count()).select_from(messages).where(of_messages, is_live), ("of_sid",)
)
_LEFT = Prepared(
    select(func.count())
    .select_from(messages)
    .where(in_range(messages), messages.c.compaction_id == bindparam("by")),
    ("of_sid", "first", "last", "by"),
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
_ASKED_BY = Prepared(
    select(compactions.c.actor).where(compactions.c.compaction_id == bindparam("by")), ("by",)
)


def evict(
    connection: Connection,
    changed: Sequence[SessionRow],
    new: Mapping[SessionKey, Sequence[DecodedEvent]],
    calibrator: Calibrator,
    installation: Installation,
    journal: SessionJournal,
    changes: Mapping[int, WindowChanges],
) -> int:
    """Evict what became due in these sessions; return how many compactions were opened.

    `new` holds the new events of each session. `changes` are those of its model and its window.
    """
    metered = [
        session
        for session in changed
        if session.sid in changes
        or _has_to_be_metered(session, new.get(session.key, ()), installation)
    ]
    settled_ms = calibration_cutoff(connection, metered)
    due = [
        session
        for session in changed
        if session.sid in settled_ms
        # If all live messages fire no trigger, no part of them does. By the smallest budget:
        # larger ones may be forgotten while events are examined.
        or _limits(
            session, installation, min((asked.tokens for asked in session.budgets), default=0)
        ).fired(session.load)
    ]
    arrived = {event.stream_seq: event for events in new.values() for event in events}
    opener = CompactionOpener(connection, installation, journal, arrived)
    # In one statement for all sessions of the batch.
    live = _live(connection, _with_live(connection, due, new, installation))
    examined = {session.sid for session in due}
    for session in changed:
        events = new.get(session.key, ())
        if session.sid in examined:
            of_session = changes.get(session.sid)
            settled = settled_ms.get(session.sid, -1)
            meter = _meter(session, settled, events, calibrator, of_session)
            _evict_session(session, live[session.sid], meter, installation, opener, of_session)
        elif readings := usage_readings(events):
            session.gauge = session.gauge.with_reading(readings[max(readings)], limit=0)
        _forget_budgets(session, installation)
    return opener.store()


def _with_live(
    connection: Connection,
    due: Sequence[SessionRow],
    new: Mapping[SessionKey, Sequence[DecodedEvent]],
    installation: Installation,
) -> list[SessionRow]:
    """Return the sessions whose live messages have to be read: it takes long to read thousands."""
    return [
        session
        for session in due
        if _may_evict(connection, session, new.get(session.key, ()), installation)
    ]


def _may_evict(
    connection: Connection,
    session: SessionRow,
    events: Sequence[DecodedEvent],
    installation: Installation,
) -> bool:
    """Return whether one of these events is examined, or may open a plan."""
    if session.live_messages < EVERY_EVENT_BELOW:
        return True
    is_planned = session.policy(installation).commit is Commit.ON_SUMMARY
    if is_planned and planned_id(connection, session.sid) is not None:
        return False
    if any(event.reported is not None for event in events):
        return True
    ((number,),) = _NUMBER.rows(connection, session.sid)
    return is_examined(number - sum(len(event.messages) for event in events), number)


def _forget_budgets(session: SessionRow, installation: Installation) -> None:
    """Remove the budgets that are too old by now. They count while this batch is examined."""
    if session.asked_budgets is not None:
        policy = session.policy(installation)
        at_ms = session.last_event_at_ms or 0
        session.asked_budgets = budgets_json(
            without_forgotten(session.budgets, policy, at_ms=at_ms)
        )


def usage_readings(events: Iterable[DecodedEvent]) -> dict[int, UsageReading]:
    """Return the usage that events report, by sequence."""
    return {
        event.stream_seq: UsageReading(event.stream_seq, event.at_ms, event.report.tokens)
        for event in events
        # A call that failed says nothing about the messages of the next one.
        if event.report is not None and not event.is_overflow
    }


def _evict_session(
    session: SessionRow,
    live: Sequence[Message],
    meter: UsageInput,
    installation: Installation,
    opener: CompactionOpener,
    changes: WindowChanges | None,
) -> None:
    """Evict from a session whatever its triggers demand, or plan it (`commit = on_summary`)."""
    policy = session.policy(installation)
    window = window_of(session, policy, installation)
    gauge, seq = meter.gauge, 0
    usage_limit = relief_limit(policy.reserve_tokens, model_window=window)
    if policy.commit is Commit.ON_SUMMARY:
        session.gauge = gauge = meter.after(0, gauge, usage_limit)
        # Restored messages stay until the session has grown to `held_to_tokens`.
        if not session.held_tokens:
            load = session.load._replace(
                reported_tokens=gauge.fresh_tokens,
                is_overflow=any(meter.is_overflow(seq, gauge) for seq in meter.overflows),
            )
            at_ms, newest = session.last_event_at_ms or 0, max(meter.times, default=0)
            asked = largest_budget(session.budgets, policy, at_ms=at_ms)
            fired = _limits(session, installation, asked).fired(load)
            opener.plan(session, fired, live, policy, at_ms=at_ms, seq=newest)
        return
    hold = RestoreHold(session.held_to_tokens, session.tokens_total)
    windows: dict[int, int] = {}
    if changes is not None:
        windows = {
            seq: _window_of_model(limited, policy, installation)
            for seq, limited in changes.after.items()
        }
        # As it was before the batch; `windows` changes it event by event.
        window = _window_of_model(changes.before, policy, installation)
    for eviction in plan_evictions(
        live,
        meter.times,
        session.rounds,
        policy,
        model_window=window,
        meter=meter,
        hold=hold,
        windows=windows,
    ):
        opener.open(session, eviction, live)
        gauge, seq = eviction.gauge, eviction.seq
    session.gauge = meter.after(seq, gauge, usage_limit)


def _has_to_be_metered(
    session: SessionRow, events: Sequence[DecodedEvent], installation: Installation
) -> bool:
    """Return whether reported usage may exceed its limit, or end a series of evictions. Rare."""
    if any(event.is_overflow for event in events):
        return True
    reported = max([reading.tokens for reading in usage_readings(events).values()], default=0)
    if session.usage_evictions and reported:
        return True
    reported = max(reported, session.reported_tokens)
    if not reported:
        return False
    policy = session.policy(installation)
    limit = usage_trigger(
        policy.reserve_tokens, model_window=window_of(session, policy, installation)
    )
    return 0 < limit < reported


def window_of(session: SessionRow, policy: Policy, installation: Installation) -> int:
    """Return the window of the session's model, as its provider reported it if it is smaller."""
    limited = LimitedModel(session.model, session.limits.get(session.model or ""))
    return _window_of_model(limited, policy, installation)


def _window_of_model(limited: LimitedModel, policy: Policy, installation: Installation) -> int:
    window = installation.model_window(limited.model, policy)
    return limited_window(window, limited.limit_tokens, policy)


def _meter(
    session: SessionRow,
    settled_ms: int,
    events: Sequence[DecodedEvent],
    calibrator: Calibrator,
    changes: WindowChanges | None,
) -> UsageInput:
    def learn(newest_seq: int, event_seq: int, at_ms: int) -> float:
        calibrator.evicted(session.sid, at_ms)
        model = session.model if changes is None else changes.at(event_seq).model
        return calibrator.factor(session.key.agent_id, model, newest_seq)

    return UsageInput(
        session.gauge._replace(settled_ms=settled_ms),
        usage_readings(events),
        learn,
        times={event.stream_seq: event.at_ms for event in events},
        reports=frozenset([event.stream_seq for event in events if event.reported is not None]),
        overflows=frozenset([event.stream_seq for event in events if event.is_overflow]),
        budgets=session.budgets,
    )


def evict_now(
    change: SessionChange, reason: FiredTrigger | None, installation: Installation
) -> int | None:
    """Evict from one locked session on request; without `reason`, only if a trigger fires."""
    connection, session, journal, now_ms = change
    policy = session.policy(installation)
    asked = largest_budget(session.budgets, policy, at_ms=now_ms)
    triggers = (reason,) if reason else _limits(session, installation, asked).fired(session.load)
    # A request overrides the hold of a restore. Idle time, budgets and a new policy do not.
    if not triggers or (session.held_tokens and reason is not REQUESTED):
        return None
    live = _live(connection, [session])[session.sid]
    opening = CompactionOpener(connection, installation, journal)
    if policy.commit is Commit.ON_SUMMARY:
        opened = opening.plan(session, triggers, live, policy, at_ms=now_ms)
    else:
        due, evicted = first_eviction(triggers, live, policy, now_ms=now_ms, factor=session.factor)
        if due is None:
            return None
        eviction = Eviction(due, evicted, session.load, now_ms, staying(live, evicted))
        opened = opening.open(session, eviction, live)
        calibrator = Calibrator(connection)
        calibrator.evicted(session.sid, now_ms)
        factor = calibrator.factor(session.key.agent_id, session.model, live[-1].stream_seq)
        session.gauge = session.gauge.evicted(by_report=False, factor=factor)
    opening.store()
    return opened


def fired_now(
    session: SessionRow, planned: FiredTrigger, installation: Installation, *, now_ms: int
) -> FiredTrigger | None:
    """Return the trigger that fires now for a planned eviction; None if none does any more."""
    policy = session.policy(installation)
    last_ms = session.last_event_at_ms or 0
    asked = largest_budget(session.budgets, policy, at_ms=max(now_ms, last_ms))
    idle_ms = idle_at_ms(last_ms, policy)
    # A plan leaves the window as it is, so what was reported since then is about this window.
    reported = session.gauge.fresh_tokens if planned.trigger is Trigger.USAGE else 0
    return trigger_of_plan(
        planned,
        _limits(session, installation, asked),
        session.load._replace(reported_tokens=reported),
        policy,
        asked_tokens=asked,
        is_idle=idle_ms is not None and idle_ms <= now_ms,
    )


def planned(
    connection: Connection,
    sid: int,
    due: FiredTrigger,
    policy: Policy,
    *,
    now_ms: int,
    factor: float,
) -> Eviction | None:
    """Return the eviction that a planned compaction comes to now; None if nothing would leave."""
    live = [evictable_of(row) for row in _LIVE.rows(connection, [sid])]
    _, evicted = first_eviction([due], live, policy, now_ms=now_ms, factor=factor)
    return Eviction(due, evicted, load_of(live), now_ms) if evicted else None


def mark_evicted(
    change: SessionChange, compaction_id: int, eviction: Eviction, *, model: str | None
) -> None:
    """Carry out a planned eviction, in the transaction that commits its summary.

    Raises:
        LostLease: one of its messages is not live any more.
    """
    connection, session, journal, now_ms = change
    evicted = eviction.evicted
    ((actor,),) = _ASKED_BY.rows(connection, compaction_id)
    # Messages may have come since it was planned.
    stays = staying(_live(connection, [session])[session.sid], evicted)
    eviction = replace(eviction, load=session.load, at_ms=now_ms, stays=stays)
    before = subtract_evicted(
        session, compaction_id, eviction, journal, checkpoint=None, model=model, actor=actor
    )
    session.gauge = session.gauge.evicted(
        by_report=eviction.due.trigger is Trigger.USAGE, factor=session.factor
    )
    # One position each, because messages that stay live may lie between two of them.
    MARK_EVICTED.run(
        connection,
        [(compaction_id, session.sid, message.position, message.position) for message in evicted],
    )
    first, last = evicted[0].position, evicted[-1].position
    ((left,),) = _LEFT.rows(connection, session.sid, first, last, compaction_id)
    # Another transaction evicted or restored some of them since the plan was loaded. The version
    # summarizes messages that do not leave, so nothing may be committed.
    if left != len(evicted):
        raise LostLease(CompactionId(str(compaction_id)))
    tokens = sum([leaving.tokens for leaving in evicted])
    row = (first, last, len(evicted), tokens, before, now_ms, compaction_id)
    _CARRIED_OUT.run(connection, [row])


def _limits(session: SessionRow, installation: Installation, asked_tokens: int) -> TriggerLimits:
    policy = session.policy(installation)
    window, is_read = window_of(session, policy, installation), bool(session.budgets)
    return TriggerLimits.of(policy, model_window=window, asked_tokens=asked_tokens, is_read=is_read)


def _live(connection: Connection, sessions: Sequence[SessionRow]) -> Mapping[int, list[Message]]:
    live: defaultdict[int, list[Message]] = defaultdict(list)
    for row in _LIVE.rows(connection, [session.sid for session in sessions]):
        live[row[0]].append(evictable_of(row))
    return live


REQUESTED = FiredTrigger(Trigger.REQUEST, 0)
