"""What a store keeps, in dictionaries: events as they came, who evicted what, versions, and the audit. All else is derived."""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from secrets import randbits
from typing import Any, NamedTuple

from turnfold.contracts.subjects import session_subject
from turnfold.core.eviction.eviction import SessionLoad, cooldown_ms
from turnfold.core.eviction.usage import UsageState
from turnfold.core.history.as_of import (
    Activation,
    AsOf,
    AtMessage,
    AtTime,
    AtVersion,
    EvictionSpan,
    SessionTimeline,
    StateAsOf,
    VersionSpan,
    state_as_of,
)
from turnfold.core.history.audit_chain import WORKER, row_hash
from turnfold.core.history.pairing import CallPosition, MatchedResult, ResultPosition, match_results
from turnfold.core.history.states import state_of
from turnfold.core.policy.overrides import PolicyOverrides
from turnfold.core.summary.sources import ChunkSummary
from turnfold.errors import BadRequest
from turnfold.messages import (
    AgentId,
    CompactionId,
    EventId,
    Message,
    MessageId,
    Priority,
    Role,
    SessionKey,
    State,
    position_of,
)
from turnfold.ports.admin import Notice
from turnfold.ports.compact import RegenerateOptions
from turnfold.ports.ingest import DecodedEvent
from turnfold.ports.query import (
    AuditRow,
    DeadLetterRow,
    OriginalMessage,
    SessionCounts,
    SessionSnapshot,
    StoredSummary,
)

Range = tuple[int, int]


@dataclass(slots=True)
class Compaction:
    """An eviction that is also a job; `evicted` names its messages: none yet where they leave with their summary (`is_plan`)."""

    compaction_id: CompactionId
    ordinal: int
    trigger: str
    evicted: frozenset[MessageId]
    tokens_evicted: int
    tokens_before: int
    digest: str
    digest_tokens: int
    requested_at_ms: int
    next_attempt_at_ms: int
    status: str = "pending"
    is_covered: bool = False
    attempts: int = 0
    fence: int = 0
    lease_until_ms: int | None = None
    reason: str | None = None
    version: int | None = None
    tokens_after: int | None = None
    finished_at_ms: int | None = None
    budget_tokens: int = 0
    is_plan: bool = False
    evicted_at_ms: int = 0
    restored_at_ms: int | None = None
    wanted: RegenerateOptions | None = None
    trace: str | None = None

    @property
    def messages_evicted(self) -> int:
        """How many messages left."""
        return len(self.evicted)

    @property
    def is_open(self) -> bool:
        """Whether it is still to be summarised."""
        return self.status in ("pending", "running")

    def is_leased(self, now_ms: int) -> bool:
        """Whether somebody works on it."""
        return self.lease_until_ms is not None and self.lease_until_ms > now_ms


class Kept(NamedTuple):
    """A stored message with its texts, as a session's events tell it."""

    message: Message
    body: str
    original: str | None
    is_error: bool


@dataclass(slots=True)
class Session:
    """One session; its messages are those of its events, in stream order."""

    sid: int
    key: SessionKey
    wishes: PolicyOverrides = field(default_factory=PolicyOverrides)
    events: dict[EventId, DecodedEvent] = field(default_factory=dict)
    compactions: list[Compaction] = field(default_factory=list)
    summaries: list[StoredSummary] = field(default_factory=list)
    version: int | None = None
    audit: list[AuditRow] = field(default_factory=list)
    revision: int = 0
    last_event_at_ms: int | None = None
    depths: dict[int, int] = field(default_factory=dict)
    rounds: int = 0
    idle_at_ms: int | None = None
    gauge: UsageState = field(default_factory=UsageState)
    speaks_for: dict[int | None, frozenset[CompactionId]] = field(
        default_factory=lambda: {None: frozenset()}
    )
    reigns: list[Activation] = field(default_factory=list)
    failures: int = 0
    cooldown_until_ms: int = 0
    cooldown_reason: str | None = None
    held_to_tokens: int = 0

    @property
    def in_stream_order(self) -> list[DecodedEvent]:
        """The events, however they came."""
        return sorted(self.events.values(), key=lambda arrival: arrival.stream_seq)

    @property
    def model(self) -> str | None:
        """The model of the newest event that names one."""
        return next((one.model for one in reversed(self.in_stream_order) if one.model), None)

    @property
    def evicted_by(self) -> dict[MessageId, Compaction]:
        """The compaction that took each message that is not live."""
        return {
            message_id: row
            for row in self.compactions
            if row.status != "restored"
            for message_id in row.evicted
        }

    @property
    def kept(self) -> list[Kept]:
        """Every message, paired."""
        evicted_by = self.evicted_by
        made = [one for arrival in self.in_stream_order for one in _messages(arrival)]
        verdicts = _paired(made)
        found = []
        for one in made:
            row = evicted_by.get(one.message.message_id)
            verdict = verdicts.get(one.message.position, MatchedResult(None, False))
            paired = replace(
                one.message,
                answers=verdict.answers,
                is_copy=verdict.is_copy,
                compaction_id=row.compaction_id if row else None,
            )
            found.append(one._replace(message=paired))
        return found

    @property
    def live(self) -> list[Kept]:
        """The messages that nothing evicted."""
        return [one for one in self.kept if one.message.compaction_id is None]

    @property
    def summary(self) -> StoredSummary | None:
        """The version in force."""
        return next((one for one in self.summaries if one.version == self.version), None)

    def version_of(self, number: int | None) -> StoredSummary | None:
        """A version by its number."""
        return next((one for one in self.summaries if one.version == number), None)

    @property
    def live_load(self) -> SessionLoad:
        """What the triggers look at."""
        counted = [one.message.tokens for one in self.live if not one.message.role.is_system]
        return SessionLoad(len(counted), sum(counted), self.rounds, self.gauge.factor)

    @property
    def window_tokens(self) -> int:
        """Live messages and the summary in force together."""
        return self.live_load.tokens + (self.summary.tokens if self.summary else 0)

    @property
    def pending(self) -> list[Compaction]:
        """Evictions that no summary speaks for yet."""
        return [
            row
            for row in self.compactions
            if row.evicted and not row.is_covered and row.status != "restored"
        ]

    @property
    def tokens_total(self) -> int:
        """What all its messages count."""
        return sum(one.message.tokens for one in self.kept)

    @property
    def held_tokens(self) -> int:
        """How many tokens must still come before triggers may evict what was restored."""
        return max(0, self.held_to_tokens - self.tokens_total)

    def reign(self, version: int | None, *, at_ms: int) -> None:
        """Put a version in force: what it speaks for is covered, and nothing else."""
        self.version = version
        self.reigns.append(Activation(at_ms, version))
        for row in self.compactions:
            row.is_covered = (
                row.compaction_id in self.speaks_for[version] and row.status == "committed"
            )

    def failed(self, reason: str, *, at_ms: int) -> None:
        """The model gave nothing: it rests."""
        self.failures += 1
        self.cooldown_until_ms, self.cooldown_reason = at_ms + cooldown_ms(self.failures), reason

    def then(self, moment: AsOf) -> StateAsOf:
        """Where its messages were at a moment."""
        kept = {one.message.message_id: one.message for one in self.kept}
        evictions = [
            EvictionSpan(
                int(row.compaction_id),
                min(places),
                max(places),
                len(places),
                row.evicted_at_ms,
                row.restored_at_ms,
            )
            for row in self.compactions
            if (places := [kept[message_id].position for message_id in row.evicted])
        ]
        versions = []
        for one in self.summaries:
            spoken = {int(row) for row in self.speaks_for[one.version]}
            added = spoken - {int(row) for row in self.speaks_for[one.base_version]}
            last = max(row.last_position for row in evictions if row.compaction_id in spoken)
            versions.append(
                VersionSpan(
                    one.version, one.base_version, one.created_at_ms, last, frozenset(added)
                )
            )
        past = SessionTimeline(tuple(versions), tuple(self.reigns), tuple(evictions))
        match moment:
            case AtVersion(version=number):
                named = next((one for one in versions if one.version == number), None)
                if named is None:
                    raise BadRequest(f"as_of: there is no version {number} in this session")
                until = max(self._newest_by(named.created_at_ms), named.last_position)
                return state_as_of(named.created_at_ms, until, past, in_force=number)
            case AtMessage(event_id=event_id, index=index):
                message = kept.get(MessageId(f"{event_id}#{index}"))
                if message is None:
                    raise BadRequest("as_of: this session has no message of that id")
                return state_as_of(message.created_at_ms, message.position, past)
            case AtTime(at_ms=at_ms):
                return state_as_of(at_ms, self._newest_by(at_ms), past)

    def kept_then(self, state: StateAsOf) -> list[Kept]:
        """The messages that were live or pending then, paired as they were."""
        rows = {int(row.compaction_id): row for row in self.compactions}
        pending = {
            message_id: rows[one.compaction_id].compaction_id
            for one in state.pending
            for message_id in rows[one.compaction_id].evicted
        }
        was_there = {
            message_id for one in state.later for message_id in rows[one.compaction_id].evicted
        }
        was_there |= {one.message.message_id for one in self.live}
        was_there -= {
            message_id for one in state.undone for message_id in rows[one.compaction_id].evicted
        }
        found = []
        for one in self.kept:
            message = one.message
            if message.position <= state.until and (
                message.message_id in was_there or message.message_id in pending
            ):
                answers = (
                    message.answers
                    if message.answers and message.answers.position <= state.until
                    else None
                )
                row = pending.get(message.message_id)
                found.append(
                    one._replace(message=replace(message, answers=answers, compaction_id=row))
                )
        return found

    def _newest_by(self, at_ms: int) -> int:
        return max(
            (one.message.position for one in self.kept if one.message.created_at_ms <= at_ms),
            default=0,
        )

    def original(self, one: Kept) -> OriginalMessage:
        """A message as a history shows it."""
        row = self.evicted_by.get(one.message.message_id)
        state: State = state_of(
            is_evicted=row is not None, is_covered=row is not None and row.is_covered
        )
        return OriginalMessage(
            one.message.message_id, one.message.position, state, one.body, one.original
        )

    def facts(self, agent_wishes: PolicyOverrides) -> SessionSnapshot:
        """The session as its row in a database would have it."""
        messages = [one.message for one in self.kept]
        load = self.live_load
        return SessionSnapshot(
            self.sid, self.wishes, agent_wishes, self.model, self.revision, len(messages), sum(one.tokens for one in messages),
            load.messages, load.tokens, self.gauge.factor, self.version, len(self.summaries), len(self.compactions), len(self.audit),
            self.audit[-1].hash if self.audit else "", self.last_event_at_ms,
        )  # fmt: skip

    def counts(self, agent_wishes: PolicyOverrides) -> SessionCounts:
        """What it holds."""
        facts = self.facts(agent_wishes)
        return SessionCounts(
            self.key.agent_id, self.key.session_id, facts.model, self.wishes.preset or agent_wishes.preset,
            self.wishes.mode or agent_wishes.mode, facts.messages_total, len(self.live), sum(row.messages_evicted for row in self.pending),
            facts.tokens_total, facts.live_tokens, facts.factor, facts.version, facts.versions, facts.compactions, facts.audit_rows,
            facts.audit_hash, facts.last_event_at_ms, self.gauge.tokens, self.gauge.evictions, self.failures, self.cooldown_until_ms,
            self.cooldown_reason, self.sid,
        )  # fmt: skip


class Erasure(NamedTuple):
    """A tombstone: nothing at or below the sequence comes back, and the audit goes on behind these rows."""

    last_seq: int
    audit: tuple[AuditRow, ...] = ()


@dataclass(slots=True)
class Memory:
    """Everything a store keeps.

    `letter_keys` says whose a dead letter is and `payloads` what is kept of it, by sequence; `copies`, where else an event came.
    """

    agents: dict[AgentId, PolicyOverrides] = field(default_factory=dict)
    sessions: dict[SessionKey, Session] = field(default_factory=dict)
    dead_letters: list[DeadLetterRow] = field(default_factory=list)
    ingested: list[Range] = field(default_factory=list)
    outbox: list[Notice] = field(default_factory=list)
    chunks: dict[CompactionId, list[ChunkSummary]] = field(default_factory=dict)
    spending: dict[tuple[AgentId, int], int] = field(default_factory=dict)
    told: int = 0
    new_id: Callable[[], int] = lambda: randbits(62)
    made: int = 0
    letters: int = 0
    erasures: dict[SessionKey | AgentId, Erasure] = field(default_factory=dict)
    erased_events: set[tuple[AgentId, EventId]] = field(default_factory=set)
    purges: set[int] = field(default_factory=set)
    copies: dict[SessionKey, set[int]] = field(default_factory=dict)
    letter_keys: dict[int, SessionKey | None] = field(default_factory=dict)
    payloads: dict[int, bytes] = field(default_factory=dict)

    def session(self, key: SessionKey) -> Session:
        """The session of a key, made if need be; the audit of one that was erased goes on."""
        if key not in self.sessions:
            self.made += 1
            self.sessions[key] = Session(
                self.made, key, audit=list(self.erasures.get(key, Erasure(0)).audit)
            )
        return self.sessions[key]

    def sessions_of(self, agent_id: AgentId) -> int:
        """How many sessions an agent has."""
        return sum(key.agent_id == agent_id for key in self.sessions)

    def wishes_of(self, agent_id: AgentId) -> PolicyOverrides:
        """What an agent wants for all its sessions."""
        return self.agents.get(agent_id, PolicyOverrides())

    def add_ingested(self, ranges: Iterable[Range]) -> None:
        """Count sequences as ingested."""
        joined: list[Range] = []
        for first, last in sorted([*self.ingested, *ranges]):
            if joined and first <= joined[-1][1] + 1:
                joined[-1] = (joined[-1][0], max(joined[-1][1], last))
            else:
                joined.append((first, last))
        self.ingested = joined

    def seal(
        self,
        session: Session,
        phase: str,
        *,
        at_ms: int,
        compaction_id: CompactionId | None = None,
        reason: str | None = None,
        tokens_before: int | None = None,
        tokens_after: int | None = None,
        **details: Any,
    ) -> None:
        """Add an audit row to the session's chain."""
        row: dict[str, Any] = {
            "ordinal": len(session.audit) + 1,
            "at_ms": at_ms,
            **session.key._asdict(),
            "compaction_id": None if compaction_id is None else int(compaction_id),
            "phase": phase,
            "reason": reason,
            "tokens_before": tokens_before,
            "tokens_after": tokens_after,
            "details": json.dumps(details),
            "actor": WORKER,
        }
        prev_hash = session.audit[-1].hash if session.audit else ""
        session.audit.append(AuditRow(**row, prev_hash=prev_hash, hash=row_hash(prev_hash, row)))

    def tell(self, session: Session, subject: str, **fields: Any) -> None:
        """Add a notice about the session."""
        self.told += 1
        seal = {"rows": len(session.audit), "hash": session.audit[-1].hash}
        payload = json.dumps({**session.key._asdict(), **fields, "audit": seal})
        self.outbox.append(Notice(self.told, session_subject(subject, session.key), payload))


def _messages(arrival: DecodedEvent) -> Iterable[Kept]:
    for index, weighed in enumerate(arrival.messages):
        message = Message(
            position_of(arrival.stream_seq, index),
            arrival.event_id,
            index,
            Role(weighed.role),
            weighed.tokens,
            weighed.content_tokens,
            weighed.reasoning_tokens,
            weighed.characters,
            weighed.lines,
            Priority(weighed.priority),
            weighed.calls,
            is_meta=arrival.is_meta and weighed.role == "user",
            is_irregular=weighed.is_irregular,
            is_truncated=arrival.is_truncated,
            cuts=weighed.cuts,
            created_at_ms=arrival.at_ms,
            is_error=arrival.is_error,
        )
        yield Kept(message, weighed.body, weighed.original, arrival.is_error)


def _paired(kept: Iterable[Kept]) -> dict[int, MatchedResult]:
    calls: dict[str, list[CallPosition]] = {}
    results: dict[str, list[ResultPosition]] = {}
    for one in kept:
        for call in one.message.calls:
            calls.setdefault(call.call_id, []).append(CallPosition(one.message.position, call.slot))
        body = json.loads(one.body)
        call_id = body.get("tool_call_id")
        if one.message.role is Role.TOOL and isinstance(call_id, str) and call_id:
            digest = json.dumps(body.get("content"), sort_keys=True).encode()
            results.setdefault(call_id, []).append(ResultPosition(one.message.position, digest))
    return {
        at: verdict
        for call_id, seen in results.items()
        for at, verdict in match_results(calls.get(call_id, ()), seen).items()
    }
