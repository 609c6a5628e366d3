"""The state of one session in the state model: its messages, compactions and versions.

`tests.state_model.model` changes this state. Messages, counts and states are derived from the events
and the compactions at each call. That is slow, but nothing can get out of step.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from turnfold.core.eviction.triggers import SessionLoad, Trigger
from turnfold.core.history.pairing import CallPosition, ResultPosition, match_results
from turnfold.core.policy.overrides import PolicyOverrides
from turnfold.core.summary.cooldown import cooldown_ms
from turnfold.messages import (
    MESSAGES_PER_EVENT,
    CompactionId,
    Message,
    MessageId,
    Role,
    SessionKey,
    position_of,
)
from turnfold.ports.admin import ActiveVersion
from turnfold.ports.compact import Job, JobKind, RegenerateOptions, Version
from turnfold.ports.ingest import DecodedEvent


@dataclass(slots=True, kw_only=True)
class Compaction:
    """A compaction; `evicted` holds its messages.

    `is_plan` says that the messages leave only when the summary is committed.
    """

    compaction_id: CompactionId
    ordinal: int
    trigger: Trigger
    tokens_before: int
    requested_at_ms: int
    next_attempt_at_ms: int
    evicted: frozenset[MessageId] = frozenset()
    evicted_at_ms: int | None = None
    is_plan: bool = False
    wanted: RegenerateOptions | None = None
    status: str = "pending"
    is_covered: bool = False
    attempts: int = 0
    fence: int = 0
    lease_until_ms: int | None = None
    version: int | None = None
    tokens_after: int | None = None
    finished_at_ms: int | None = None
    restored_at_ms: int | None = None

    @property
    def is_open(self) -> bool:
        """Whether a worker must still write its summary."""
        return self.status in ("pending", "running")

    @property
    def kind(self) -> JobKind:
        """The version that its job writes."""
        kinds = {Trigger.STAND_IN: JobKind.STAND_IN, Trigger.REGENERATE: JobKind.REGENERATED}
        return kinds.get(self.trigger, JobKind.NEXT)

    @property
    def is_fold(self) -> bool:
        """Whether it is for evictions that lost their version."""
        return self.kind is JobKind.NEXT and not self.evicted and not self.is_plan

    def is_due(self, now_ms: int) -> bool:
        """Whether a worker may claim it, if the session has no lease."""
        return self.status == "running" or self.next_attempt_at_ms <= now_ms

    def requeue(self, due_ms: int) -> None:
        """Return it from its worker, to be claimed again at `due_ms`."""
        self.status, self.lease_until_ms, self.next_attempt_at_ms = "pending", None, due_ms

    def give_back(self, now_ms: int) -> None:
        """Return it from its worker without an attempt."""
        self.requeue(now_ms)
        self.attempts -= 1

    def end(self, status: str, now_ms: int) -> None:
        """End its job."""
        self.status, self.lease_until_ms, self.finished_at_ms = status, None, now_ms


class CommittedVersion(NamedTuple):
    """A committed version; `covers` are the evictions that it and its bases summarize."""

    number: int
    base: int | None
    compaction_id: CompactionId
    content: Version
    covers: frozenset[CompactionId]
    is_stand_in: bool


@dataclass(slots=True)
class SessionState:
    """One session.

    `activations` are the versions that came into force, with their times. `rounds` counts the
    requests since the last eviction. `held_to_tokens` is the total number of tokens at which
    restored messages may be evicted again.
    """

    key: SessionKey
    wishes: PolicyOverrides = field(default_factory=PolicyOverrides)
    events: dict[str, DecodedEvent] = field(default_factory=dict)
    compactions: list[Compaction] = field(default_factory=list)
    versions: list[CommittedVersion] = field(default_factory=list)
    activations: list[tuple[int, int | None]] = field(default_factory=list)
    rounds: int = 0
    failures: int = 0
    cooldown_until_ms: int = 0
    cooldown_reason: str | None = None
    held_to_tokens: int = 0

    # --- messages

    @property
    def messages(self) -> list[Message]:
        """All messages but retracted ones in stream order, with what evictions depend on."""
        messages, retracted = self.all_messages
        messages = [message for message in messages if message.position not in retracted]
        evicted_by = {
            message_id: row.compaction_id
            for row in self.compactions
            if row.status != "restored"
            for message_id in row.evicted
        }
        for message in messages:
            message.compaction_id = evicted_by.get(message.message_id)
        return messages

    @property
    def all_messages(self) -> tuple[list[Message], dict[int, int]]:
        """All messages with retracted ones, and the retraction of each of those by position."""
        return _messages(sorted(self.events.values(), key=lambda event: event.stream_seq))

    @property
    def live(self) -> list[Message]:
        """The messages in the window."""
        return [message for message in self.messages if message.compaction_id is None]

    @property
    def load(self) -> SessionLoad:
        """The counts that triggers compare with their limits."""
        counted = [message.tokens for message in self.live if not message.is_pinnable]
        return SessionLoad(len(counted), sum(counted), self.rounds)

    @property
    def tokens_total(self) -> int:
        """The tokens of all messages, wherever they are."""
        return sum(message.tokens for message in self.messages)

    @property
    def window_tokens(self) -> int:
        """The tokens of the live messages and of the summary in force."""
        return self.load.tokens + self.summary_tokens

    # --- compactions

    def rows(self, ids: Iterable[CompactionId]) -> list[Compaction]:
        """Return the compactions with these ids, oldest first."""
        chosen = frozenset(ids)
        return [row for row in self.compactions if row.compaction_id in chosen]

    @property
    def pending(self) -> list[Compaction]:
        """Evictions that the version in force does not cover."""
        rows = [row for row in self.compactions if row.evicted and row.status != "restored"]
        return [row for row in rows if not row.is_covered]

    @property
    def uncovered(self) -> frozenset[CompactionId]:
        """Pending evictions that were committed: the version in force does not build on theirs."""
        return frozenset(row.compaction_id for row in self.pending if row.status == "committed")

    def due_since_ms(self, now_ms: int) -> int | None:
        """Return since when compactions wait for a worker; None if none may be claimed."""
        if any((row.lease_until_ms or 0) > now_ms for row in self.compactions):
            return None
        due = [row for row in self.compactions if row.is_open and row.is_due(now_ms)]
        return min((row.next_attempt_at_ms for row in due), default=None)

    def claimable(self, now_ms: int) -> list[Compaction]:
        """Return the compactions of one job: evicted messages first, then plans, then rewrites."""
        rows = [row for row in self.compactions if row.is_open]
        if now_ms < self.cooldown_until_ms:
            rows = [row for row in rows if row.is_due(now_ms) or not row.is_fold]
        by_kind = {kind: [row for row in rows if row.kind is kind] for kind in JobKind}
        groups = [
            [row for row in by_kind[JobKind.NEXT] if not row.is_plan],
            [row for row in by_kind[JobKind.NEXT] if row.is_plan],
            *([row] for row in by_kind[JobKind.STAND_IN]),
            *([row] for row in by_kind[JobKind.REGENERATED]),
        ]
        return next(group for group in groups if any(row.is_due(now_ms) for row in group))

    # --- versions

    @property
    def version(self) -> int | None:
        """The number of the version in force."""
        return self.activations[-1][1] if self.activations else None

    @property
    def active(self) -> ActiveVersion:
        """The version in force, and the number of messages that it does not cover."""
        return ActiveVersion(self.version, sum(len(row.evicted) for row in self.pending))

    @property
    def summary_tokens(self) -> int:
        """The tokens of the summary in force."""
        version = self.find_version(self.version)
        return version.content.tokens if version else 0

    def find_version(self, number: int | None) -> CommittedVersion | None:
        """Return the version with this number."""
        return next((version for version in self.versions if version.number == number), None)

    def covers(self, number: int | None) -> frozenset[CompactionId]:
        """Return the evictions that a version covers; none without a version."""
        version = self.find_version(number)
        return version.covers if version else frozenset()

    def added_by(self, job: Job) -> frozenset[CompactionId]:
        """Return the evictions that the version of a job covers beyond those of its base."""
        if job.writes is JobKind.STAND_IN:
            return frozenset()
        if job.writes is JobKind.REGENERATED:
            return self.covers(job.base_version) - self.covers(job.wanted.from_version)
        evicting = [row for row in self.rows(job.compaction_ids) if row.evicted]
        lost = self.uncovered if job.folds else frozenset()
        return lost.union(row.compaction_id for row in evicting)

    def activate(self, number: int | None, now_ms: int) -> None:
        """Put a version in force; end compactions that rewrite the version before."""
        self.activations.append((now_ms, number))
        covered = self.covers(number)
        for row in self.compactions:
            row.is_covered = row.compaction_id in covered and row.status == "committed"
            if row.is_open and (row.is_fold or row.kind is JobKind.STAND_IN):
                row.end("stale", now_ms)

    def requeue_running(self, now_ms: int, *, also_regenerations: bool = False) -> None:
        """Make running jobs start again, because the version that they build on is replaced.

        A regeneration builds on a version that it names, and reads messages that may be restored.
        """
        for row in self.compactions:
            is_concerned = also_regenerations or row.kind is not JobKind.REGENERATED
            if row.status == "running" and is_concerned:
                row.give_back(now_ms)

    def delay_after_failure(self) -> None:
        """Let evictions wait for the next attempt at those that failed."""
        waiting = [row for row in self.compactions if row.status == "pending"]
        waiting = [row for row in waiting if row.kind is JobKind.NEXT and not row.is_plan]
        until_ms = max((row.next_attempt_at_ms for row in waiting if row.attempts), default=0)
        for row in waiting:
            row.next_attempt_at_ms = max(row.next_attempt_at_ms, until_ms)

    def cool_down(self, reason: str, now_ms: int) -> None:
        """Let the model rest after a failure."""
        self.failures += 1
        self.cooldown_until_ms = now_ms + cooldown_ms(self.failures)
        self.cooldown_reason = reason


def _named(events: Iterable[DecodedEvent]) -> dict[int, int]:
    """Return the positions that retractions name, each with the first of these retractions."""
    named: dict[int, int] = {}
    positions: dict[str, int] = {}
    for event in events:
        if event.retraction is not None:
            ids, after, is_all = event.retraction
            if after is not None:
                first = positions.get(after, event.stream_seq * MESSAGES_PER_EVENT)
                ids = tuple([name for name, position in positions.items() if position > first])
            for message_id in positions if is_all else ids:
                if message_id in positions:
                    named.setdefault(positions[message_id], event.stream_seq)
        for index, _ in enumerate(event.messages):
            positions[f"{event.event_id}#{index}"] = position_of(event.stream_seq, index)
    return named


def _messages(events: Sequence[DecodedEvent]) -> tuple[list[Message], dict[int, int]]:
    """Return the messages of events, and the retractions of those that are retracted.

    Each result refers to the call that it answers.
    """
    named = _named(events)
    messages: dict[int, Message] = {}
    calls: defaultdict[str, list[CallPosition]] = defaultdict(list)
    results: defaultdict[str, list[ResultPosition]] = defaultdict(list)
    for event in events:
        for index, decoded in enumerate(event.messages):
            position = position_of(event.stream_seq, index)
            message = Message(position, event.event_id, index, Role(decoded.role), decoded.tokens)
            message.is_meta = decoded.is_meta
            message.calls, message.created_at_ms = decoded.calls, event.at_ms
            messages[position] = message
            by = named.get(position)
            for call in decoded.calls:
                calls[call.call_id].append(CallPosition(position, call.slot, by))
            if decoded.tool_call_id and decoded.content_digest is not None:
                result = ResultPosition(position, decoded.content_digest, by)
                results[decoded.tool_call_id].append(result)
    for call_id, positions in results.items():
        for position, match in match_results(calls[call_id], positions).items():
            messages[position].answers, messages[position].is_copy = match.answers, match.is_copy
            if match.retracted_seq is not None:
                named[position] = match.retracted_seq
    return list(messages.values()), named
