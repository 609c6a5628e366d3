"""Intake and requests in memory: events are kept, and old messages leave by the same rules as everywhere."""

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from itertools import pairwise
from typing import Any

from turnfold.contracts.events import claimed_key
from turnfold.contracts.requests import PolicyRequest
from turnfold.core.eviction.eviction import (
    SUMMARY_DELAY_MS,
    Eviction,
    FiredTrigger,
    RestoreHold,
    Trigger,
    fired_triggers,
    first_eviction,
    idle_at_ms,
    plan_evictions,
)
from turnfold.core.eviction.usage import UsageInput, UsageReading, usage_trigger
from turnfold.core.history.audit_chain import LOCAL
from turnfold.core.policy.overrides import PolicyOverrides
from turnfold.core.policy.presets import Commit, Mode, preset_named
from turnfold.core.summary.digest import digest_eviction
from turnfold.errors import BadRequest, Conflict
from turnfold.messages import AgentId, CompactionId, EventId, SessionKey
from turnfold.ports.admin import EraseResult
from turnfold.ports.ingest import (
    NO_PAYLOADS,
    PAYLOAD_KEPT_BYTES,
    DeadLetter,
    DecodedEvent,
    IngestResult,
    Installation,
)
from turnfold.ports.query import DeadLetterRow
from turnfold.testing.erasures import erased, turned_away
from turnfold.testing.kept import Compaction, Kept, Memory, Range, Session
from turnfold.testing.usage import MemoryCalibrator, settled_ms


class MemoryIntake:
    """See `turnfold.ports.ingest.IngestStore`."""

    _memory: Memory

    async def ingest(
        self,
        arrivals: Sequence[DecodedEvent],
        dead: Sequence[DeadLetter],
        *,
        installation: Installation,
        payloads: Mapping[int, bytes] = NO_PAYLOADS,
    ) -> IngestResult:
        """Keep a batch: each event once, at the lowest sequence it came with."""
        sequences = [arrival.stream_seq for arrival in arrivals] + [
            letter.stream_seq for letter in dead
        ]
        given = len(arrivals) + len(dead)
        arrivals = [
            one
            for one in arrivals
            if not turned_away(self._memory, one.key, one.stream_seq, one.event_id)
        ]
        dead = [
            one
            for one in dead
            if not any(
                turned_away(self._memory, key, one.stream_seq)
                for key in (one.key, claimed_key(one.payload))
            )
        ]
        letters = list(dead)
        new: list[DecodedEvent] = []
        duplicates = given - len(arrivals) - len(dead)
        known_before = set(self._memory.sessions)
        arrivals, refused = self._admitted(
            sorted(arrivals, key=lambda arrival: arrival.stream_seq), installation.max_sessions
        )
        letters += [_refused(one, "too_many_sessions", payloads) for one in refused]
        changed: dict[SessionKey, Session] = {}
        new_seqs: dict[SessionKey, list[int]] = {}
        readings: dict[SessionKey, dict[int, UsageReading]] = {}
        nameless = {
            key
            for key in sorted({arrival.key for arrival in arrivals})
            if self._memory.session(key).model is None
        }
        for arrival in arrivals:
            session, event_id = self._memory.session(arrival.key), arrival.event_id
            known = self._known(session.key.agent_id, event_id)
            if known is None:
                new.append(arrival)
                new_seqs.setdefault(session.key, []).append(arrival.stream_seq)
                if arrival.report is not None:
                    reading = UsageReading(arrival.stream_seq, arrival.at_ms, arrival.report.tokens)
                    readings.setdefault(session.key, {})[arrival.stream_seq] = reading
                self._came(session, max(session.last_event_at_ms or 0, arrival.at_ms), installation)
                session.rounds += (
                    0
                    if arrival.is_meta
                    else sum(message.role == "user" for message in arrival.messages)
                )
            elif known.key != session.key or not _says_the_same(known, arrival):
                letters.append(_refused(arrival, "event_id_reused", payloads))
                continue
            else:
                duplicates += 1
                if arrival.stream_seq != known.stream_seq:
                    self._memory.copies.setdefault(session.key, set()).add(
                        max(arrival.stream_seq, known.stream_seq)
                    )
                if arrival.stream_seq > known.stream_seq:
                    continue
                session.gauge = session.gauge.moved(
                    known.stream_seq, arrival.stream_seq, arrival.at_ms
                )
            session.events[event_id] = arrival
            if known is not None and known.at_ms == session.last_event_at_ms:
                self._came(session, max(one.at_ms for one in session.events.values()), installation)
            changed[session.key] = session
        evictions, learning = 0, MemoryCalibrator(self._memory)
        for session in sorted(changed.values(), key=lambda session: session.sid):
            session.revision += 1
            naming = [one.stream_seq for one in new if one.key == session.key and one.model]
            if session.key in nameless and naming:
                session.gauge = session.gauge._replace(
                    factor=learning.factor(session, min(naming) - 1)
                )
            evictions += self._evict(
                session,
                new_seqs.get(session.key, []),
                readings.get(session.key, {}),
                installation,
                learning,
            )
        for key in [
            key
            for key, session in self._memory.sessions.items()
            if key not in known_before and not session.events
        ]:
            del self._memory.sessions[key]
        self._bury(letters)
        self._memory.add_ingested((seq, seq) for seq in sequences)
        return IngestResult(
            len(new),
            sum(len(arrival.messages) for arrival in new),
            duplicates,
            len(letters),
            evictions,
        )

    def _came(self, session: Session, at_ms: int, installation: Installation) -> None:
        session.last_event_at_ms = at_ms
        session.idle_at_ms = idle_at_ms(
            at_ms, installation.policy(self._memory.wishes_of(session.key.agent_id), session.wishes)
        )

    def _admitted(
        self, arrivals: Sequence[DecodedEvent], most: int
    ) -> tuple[list[DecodedEvent], list[DecodedEvent]]:
        """Those whose session is there or may be made, and the others."""
        admitted: list[DecodedEvent] = []
        refused: list[DecodedEvent] = []
        for arrival in arrivals:
            may_be = (
                arrival.key in self._memory.sessions
                or self._memory.sessions_of(arrival.key.agent_id) < most
            )
            (admitted if may_be else refused).append(arrival)
            if may_be:
                self._memory.session(arrival.key)
        return admitted, refused

    async def mark_ingested(self, ranges_: Sequence[Range]) -> None:
        """Count sequences that the stream no longer holds as ingested."""
        self._memory.add_ingested(ranges_)

    async def gaps(self, *, up_to: int = 0) -> Sequence[Range]:
        """The sequences that are not ingested, up to the highest one that is, or up to this one where that is higher."""
        behind = pairwise([(0, 0), *self._memory.ingested, (up_to + 1, up_to + 1)])
        return [
            (before[1] + 1, after[0] - 1) for before, after in behind if after[0] > before[1] + 1
        ]

    async def ingested_to(self) -> int:
        """The sequence up to which none is missing."""
        return next((last for first, last in self._memory.ingested if first == 1), 0)

    def backfill_lock(self) -> AbstractAsyncContextManager[None]:
        """There is nobody to take turns with."""
        return nullcontext()

    def _evict(
        self,
        session: Session,
        new_seqs: Sequence[int],
        readings: Mapping[int, UsageReading],
        installation: Installation,
        learning: MemoryCalibrator,
    ) -> int:
        policy = installation.policy(self._memory.wishes_of(session.key.agent_id), session.wishes)
        live = session.live
        window = installation.model_window(session.model, policy)
        usage_limit = usage_trigger(policy.reserve_tokens, model_window=window)
        meter = UsageInput(
            session.gauge._replace(settled_ms=settled_ms(session)), readings, learning.of(session)
        )
        gauge, seq = meter.gauge, 0
        if policy.commit is Commit.ON_SUMMARY:
            session.gauge = meter.after(0, gauge, usage_limit)
            if session.held_tokens:
                return 0
            load = session.live_load._replace(reported_tokens=session.gauge.fresh_tokens)
            before = len(session.compactions)
            due = fired_triggers(load, policy, model_window=window)
            _plan(
                self._memory,
                session,
                due,
                installation,
                session.last_event_at_ms or 0,
                seq=max(new_seqs, default=0),
            )
            return len(session.compactions) - before
        hold = RestoreHold(session.held_to_tokens, session.tokens_total)
        done = plan_evictions(
            [kept.message for kept in live],
            new_seqs,
            session.rounds,
            policy,
            model_window=window,
            meter=meter,
            hold=hold,
        )
        for eviction in done:
            _open(self._memory, session, eviction, live, installation)
            gauge, seq = eviction.gauge, eviction.seq
        session.gauge = meter.after(seq, gauge, usage_limit)
        return len(done)

    def _known(self, agent_id: AgentId, event_id: EventId) -> DecodedEvent | None:
        sessions = (
            session for key, session in self._memory.sessions.items() if key.agent_id == agent_id
        )
        return next(
            (session.events[event_id] for session in sessions if event_id in session.events), None
        )

    def _bury(self, letters: Iterable[DeadLetter]) -> None:
        rows = self._memory.dead_letters
        buried = {row.stream_seq for row in rows}
        for one in letters:
            if one.stream_seq not in buried:
                buried.add(one.stream_seq)
                self._memory.letters += 1
                self._memory.letter_keys[one.stream_seq] = one.key
                self._memory.payloads[one.stream_seq] = one.payload
                rows.append(
                    DeadLetterRow(
                        self._memory.letters,
                        one.at_ms,
                        one.subject,
                        one.stream_seq,
                        one.reason,
                        one.detail,
                        one.size_bytes,
                        None,
                    )
                )


class MemoryIdle:
    """See `turnfold.ports.ingest.IdleStore`."""

    _memory: Memory

    async def evict_idle(self, *, limit: int, installation: Installation, now_ms: int) -> int:
        """Look at sessions that have fallen idle; how many were looked at."""
        idle = [
            one
            for one in self._memory.sessions.values()
            if one.idle_at_ms is not None and one.idle_at_ms <= now_ms
        ][:limit]
        for session in idle:
            session.idle_at_ms = None
            if (
                installation.policy(
                    self._memory.wishes_of(session.key.agent_id), session.wishes
                ).mode
                is Mode.AUTO
            ):
                _evict_now(
                    self._memory, session, (FiredTrigger(Trigger.IDLE, 0),), installation, now_ms
                )
        return len(idle)

    async def next_idle_ms(self) -> int | None:
        """When the next session falls idle."""
        return min(
            (
                one.idle_at_ms
                for one in self._memory.sessions.values()
                if one.idle_at_ms is not None
            ),
            default=None,
        )


class MemoryChanges:
    """See `turnfold.ports.admin.SessionCommands`."""

    _memory: Memory

    async def set_policy(
        self,
        key: SessionKey | AgentId,
        request: PolicyRequest,
        *,
        installation: Installation,
        now_ms: int,
        actor: str = LOCAL,  # noqa: ARG002
    ) -> Mapping[str, Any]:
        """Set what a session or an agent wants, and evict what that makes due."""
        if not isinstance(key, SessionKey):
            wishes = _wished(self._memory.wishes_of(key), request, installation)
            _check(installation, wishes, PolicyOverrides())
            self._memory.agents[key] = wishes
            for session in self._memory.sessions.values():
                session.revision += session.key.agent_id == key
            return {
                "agent_id": key,
                "preset": wishes.preset,
                "mode": wishes.mode,
                "overrides": wishes.numbers(),
            }
        known = self._memory.sessions.get(key)
        if known is None and self._memory.sessions_of(key.agent_id) >= installation.max_sessions:
            raise Conflict("the agent may have no more sessions")
        wishes = _wished(known.wishes if known else PolicyOverrides(), request, installation)
        _check(installation, self._memory.wishes_of(key.agent_id), wishes)
        session = self._memory.session(key)
        if changes := wishes.differences(session.wishes):
            self._memory.seal(session, "policy", at_ms=now_ms, **changes)
        session.wishes = wishes
        session.revision += 1
        policy = installation.policy(self._memory.wishes_of(key.agent_id), wishes)
        _evict_now(
            self._memory,
            session,
            fired_triggers(
                session.live_load,
                policy,
                model_window=installation.model_window(session.model, policy),
            ),
            installation,
            now_ms,
        )
        return {
            **key._asdict(),
            "preset": wishes.preset,
            "mode": wishes.mode,
            "overrides": wishes.numbers(),
        }

    async def compact_now(
        self,
        key: SessionKey,
        *,
        installation: Installation,
        now_ms: int,
        actor: str = LOCAL,  # noqa: ARG002
    ) -> CompactionId | None:
        """Evict what the policy would let go; None when there is nothing."""
        session = self._memory.sessions.get(key)
        if session is None:
            return None
        if (
            installation.policy(self._memory.wishes_of(key.agent_id), session.wishes).mode
            is Mode.OFF
        ):
            raise Conflict("the session's mode is off")
        return _evict_now(
            self._memory, session, (FiredTrigger(Trigger.REQUEST, 0),), installation, now_ms
        )

    async def erase(
        self,
        key: SessionKey | AgentId,
        *,
        last_seq: int,
        now_ms: int,
        actor: str = LOCAL,  # noqa: ARG002
    ) -> EraseResult:
        """Erase a session or all of an agent; nothing at or below this sequence comes back."""
        return erased(self._memory, key, last_seq, now_ms)


def _evict_now(
    memory: Memory,
    session: Session,
    found: Sequence[FiredTrigger],
    installation: Installation,
    now_ms: int,
) -> CompactionId | None:
    live, load = session.live, session.live_load
    if session.held_tokens and not any(one.trigger is Trigger.REQUEST for one in found):
        return None
    policy = installation.policy(memory.wishes_of(session.key.agent_id), session.wishes)
    if policy.commit is Commit.ON_SUMMARY:
        return _plan(memory, session, found, installation, now_ms)
    due, evicted = first_eviction(found, [kept.message for kept in live], policy, now_ms=now_ms)
    if due is None:
        return None
    factor = MemoryCalibrator(memory).of(session)(live[-1].message.stream_seq, now_ms)
    session.gauge = session.gauge.evicted(by_report=False, factor=factor)
    eviction = Eviction(due, evicted, len(live), load, now_ms).seen_at(
        [one.message for one in live], load, now_ms
    )
    return _open(memory, session, eviction, live, installation)


def _plan(
    memory: Memory,
    session: Session,
    found: Sequence[FiredTrigger],
    installation: Installation,
    at_ms: int,
    *,
    seq: int = 0,
) -> CompactionId | None:
    """Open a compaction whose messages leave when its summary stands; the one that is open already, where one is."""
    for row in session.compactions if found else ():
        if row.is_plan and row.is_open:
            return row.compaction_id
    policy = installation.policy(memory.wishes_of(session.key.agent_id), session.wishes)
    due, _ = first_eviction(found, [kept.message for kept in session.live], policy, now_ms=at_ms)
    if due is None:
        return None
    rests_until = session.cooldown_until_ms if due.trigger is not Trigger.REQUEST else 0
    row = Compaction(
        CompactionId(str(installation.new_id())), len(session.compactions) + 1, str(due.trigger), frozenset(), 0, session.window_tokens, "", 0,
        at_ms, max(at_ms + SUMMARY_DELAY_MS, rests_until), budget_tokens=due.budget_tokens, is_plan=True,
        trace=_trace(session, seq),
    )  # fmt: skip
    session.compactions.append(row)
    memory.seal(
        session,
        "selective_start",
        at_ms=at_ms,
        compaction_id=row.compaction_id,
        tokens_before=row.tokens_before,
    )
    return row.compaction_id


def _open(
    memory: Memory,
    session: Session,
    eviction: Eviction,
    live: Sequence[Kept],
    installation: Installation,
) -> CompactionId:
    """Take these messages out of the live ones; the compaction that stands for it."""
    due, evicted = eviction.due, eviction.evicted
    bodies = {one.message.position: one.body for one in live}
    digest, digest_tokens = digest_eviction(evicted, bodies, count=installation.count)
    row = Compaction(
        CompactionId(str(installation.new_id())),
        len(session.compactions) + 1,
        str(due.trigger),
        frozenset(message.message_id for message in evicted),
        sum(message.tokens for message in evicted),
        eviction.load.tokens + (session.summary.tokens if session.summary else 0),
        digest,
        digest_tokens,
        eviction.at_ms,
        eviction.at_ms + SUMMARY_DELAY_MS,
        evicted_at_ms=eviction.at_ms,
        trace=_trace(session, eviction.seq),
    )
    session.compactions.append(row)
    tell_eviction(memory, session, row, eviction)
    return row.compaction_id


def _trace(session: Session, seq: int) -> str | None:
    """The trace of the event that set something off."""
    return next((one.trace for one in session.events.values() if one.stream_seq == seq), None)


def tell_eviction(
    memory: Memory, session: Session, row: Compaction, eviction: Eviction, model: str | None = None
) -> None:
    """Say that messages have left under this row, which `model` has summarised."""
    session.revision += 1
    session.rounds -= eviction.load.rounds
    before, after = row.tokens_before, row.tokens_before - eviction.tokens
    memory.seal(
        session,
        "evicted",
        at_ms=eviction.at_ms,
        compaction_id=row.compaction_id,
        tokens_before=before,
        tokens_after=after,
        trigger=row.trigger,
        **eviction.counts(),
        model=model,
        session_model=session.model,
        is_escalated=eviction.is_escalated,
    )
    memory.tell(
        session,
        "context.compressed",
        compaction_id=row.compaction_id,
        trigger=row.trigger,
        original_count=eviction.live,
        compressed_count=len(eviction.stays),
        estimated_tokens=after,
        budget_tokens=eviction.due.budget_tokens,
    )


def _says_the_same(known: DecodedEvent, again: DecodedEvent) -> bool:
    return known.digest == again.digest or (_parsed(known), known.is_error) == (
        _parsed(again),
        again.is_error,
    )


def _parsed(arrival: DecodedEvent) -> list[Any]:
    return [json.loads(message.body) for message in arrival.messages]


def _refused(arrival: DecodedEvent, reason: str, payloads: Mapping[int, bytes]) -> DeadLetter:
    payload = payloads.get(arrival.stream_seq, b"")
    kept = payload[:PAYLOAD_KEPT_BYTES]
    return DeadLetter(
        arrival.stream_seq,
        arrival.at_ms,
        arrival.subject,
        reason,
        "refused",
        len(payload),
        kept,
        arrival.key,
    )


def _wished(
    wishes: PolicyOverrides, request: PolicyRequest, installation: Installation
) -> PolicyOverrides:
    try:
        preset_named(request.preset or "balanced")
        installation.allowance.check_overrides(request.overrides or {})
    except ValueError as error:
        raise BadRequest(str(error)) from None
    return wishes.changed(preset=request.preset, mode=request.mode, overrides=request.overrides)


def _check(installation: Installation, agent: PolicyOverrides, session: PolicyOverrides) -> None:
    try:
        installation.policy(agent, session)
    except ValueError as error:
        raise BadRequest(str(error)) from None
