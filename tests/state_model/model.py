"""A state model of the store: sessions, messages, compactions, versions and their transitions.

The state machine in `tests/property/test_states.py` applies the same calls to this model and to a
database, and compares the results. Decisions come from `turnfold.core`, as in the store. The model
has no usage, campaigns, erasures, search, notices, audit log, digests, idle sessions or agents. It
retracts messages, but not those that were evicted.
"""

from collections.abc import Sequence
from dataclasses import replace
from operator import itemgetter
from typing import NamedTuple

from tests.state_model.state import CommittedVersion, Compaction, SessionState
from turnfold.contracts.requests import (
    PolicyRequest,
)
from turnfold.core.eviction.batch import Eviction, RestoreHold, plan_evictions
from turnfold.core.eviction.choose import first_eviction
from turnfold.core.eviction.triggers import (
    SUMMARY_DELAY_MS,
    FiredTrigger,
    Trigger,
    TriggerLimits,
    is_allowed,
    load_of,
)
from turnfold.core.policy.overrides import PolicyOverrides
from turnfold.core.policy.presets import Commit, Mode, Policy
from turnfold.core.summary.fair_share import JobSlots
from turnfold.errors import BadRequest, Conflict, LostLease
from turnfold.messages import AgentId, CompactionId, EventId, SessionKey
from turnfold.ports.admin import ActiveVersion
from turnfold.ports.compact import (
    FailureStatus,
    Job,
    JobKind,
    JobStatus,
    RegenerateOptions,
    Version,
)
from turnfold.ports.ingest import DecodedEvent, Installation

REFUSED_STAND_INS = 3


class Claim(NamedTuple):
    """The fields of a claimed job that the model decides; see `turnfold.ports.compact.Job`."""

    key: SessionKey
    compaction_ids: tuple[CompactionId, ...]
    writes: JobKind
    base_version: int | None
    cooling: str | None


class StateModel:
    """All sessions of an installation, oldest first. Each method is one transaction."""

    def __init__(self, installation: Installation) -> None:
        self._installation = installation
        self._events: dict[tuple[AgentId, EventId], DecodedEvent] = {}
        self.sessions: dict[SessionKey, SessionState] = {}

    # --- events and requests

    def ingest(self, events: Sequence[DecodedEvent]) -> None:
        """Store each event once, at its lowest sequence, and evict what that makes due.

        An event is refused if its id belongs to another event of the agent.
        """
        new_seqs: dict[SessionKey, list[int]] = {}
        for event in sorted(events, key=lambda event: event.stream_seq):
            name = event.key.agent_id, event.event_id
            known = self._events.get(name)
            is_other = known and (known.key, known.digest) != (event.key, event.digest)
            if is_other or (known and known.stream_seq < event.stream_seq):
                continue
            self._events[name] = event
            session = self.sessions.setdefault(event.key, SessionState(event.key))
            seqs = new_seqs.setdefault(event.key, [])
            session.events[event.event_id] = event
            if known is None:
                seqs.append(event.stream_seq)
                requests = [message for message in event.messages if message.role == "user"]
                session.rounds += sum(not message.is_meta for message in requests)
        for key, session in self.sessions.items():
            if key in new_seqs:
                self._evict_after(session, new_seqs[key])

    def set_policy(self, key: SessionKey, request: PolicyRequest, now_ms: int) -> None:
        """Set overrides of a session, and evict what becomes due."""
        session = self.sessions.setdefault(key, SessionState(key))
        session.wishes = session.wishes.changed(
            preset=request.preset, mode=request.mode, overrides=request.overrides
        )
        self._evict_now(session, self._triggers(session), now_ms)

    def compact_now(self, key: SessionKey, now_ms: int) -> CompactionId | None:
        """Evict what the policy allows; return the compaction, None if nothing would leave."""
        if key not in self.sessions:
            return None
        session = self.sessions[key]
        if self._policy(session).mode is Mode.OFF:
            raise Conflict("the session's mode is off")
        return self._evict_now(session, [FiredTrigger(Trigger.REQUEST, 0)], now_ms)

    # --- evictions

    def _policy(self, session: SessionState) -> Policy:
        return self._installation.policy(PolicyOverrides(), session.wishes)

    def _triggers(self, session: SessionState) -> Sequence[FiredTrigger]:
        policy = self._policy(session)
        window = self._installation.model_window(None, policy)
        return TriggerLimits.of(policy, model_window=window).fired(session.load)

    def _evict_after(self, session: SessionState, new_seqs: Sequence[int]) -> None:
        """Evict what new events made due."""
        policy = self._policy(session)
        if policy.commit is Commit.ON_SUMMARY:
            last_event_at_ms = max(event.at_ms for event in session.events.values())
            self._evict_now(session, self._triggers(session), last_event_at_ms)
            return
        window = self._installation.model_window(None, policy)
        hold = RestoreHold(session.held_to_tokens, session.tokens_total)
        for eviction in plan_evictions(
            session.live, new_seqs, session.rounds, policy, model_window=window, hold=hold
        ):
            self._leave(
                session, self._open(session, eviction.due.trigger, eviction.at_ms), eviction
            )

    def _evict_now(
        self, session: SessionState, triggers: Sequence[FiredTrigger], now_ms: int
    ) -> CompactionId | None:
        """Evict for the first trigger that gains enough, or plan that if summaries come first."""
        is_requested = any(fired.trigger is Trigger.REQUEST for fired in triggers)
        if session.tokens_total < session.held_to_tokens and not is_requested:
            return None
        policy, live = self._policy(session), session.live
        is_planned = policy.commit is Commit.ON_SUMMARY
        plans = [row for row in session.compactions if row.is_plan and row.is_open]
        if triggers and is_planned and plans:
            return plans[0].compaction_id
        due, evicted = first_eviction(
            triggers, live, policy, now_ms=now_ms, factor=session.load.factor
        )
        if due is None:
            return None
        row = self._open(session, due.trigger, now_ms)
        if is_planned:
            row.is_plan = True
            if due.trigger is not Trigger.REQUEST:
                row.next_attempt_at_ms = max(row.next_attempt_at_ms, session.cooldown_until_ms)
        else:
            self._leave(session, row, Eviction(due, evicted, session.load, now_ms))
        return row.compaction_id

    def _open(
        self,
        session: SessionState,
        trigger: Trigger,
        now_ms: int,
        delay_ms: int = SUMMARY_DELAY_MS,
        wanted: RegenerateOptions | None = None,
    ) -> Compaction:
        """Open a compaction that has evicted nothing yet."""
        row = Compaction(
            compaction_id=CompactionId(str(self._installation.new_id())),
            ordinal=len(session.compactions) + 1,
            trigger=trigger,
            tokens_before=session.window_tokens,
            requested_at_ms=now_ms,
            next_attempt_at_ms=now_ms + delay_ms,
            wanted=wanted,
        )
        session.compactions.append(row)
        return row

    def _leave(self, session: SessionState, row: Compaction, eviction: Eviction) -> None:
        """Take the messages of an eviction out of the window."""
        # The load is that of the moment: later events of the same batch are not in it.
        row.tokens_before = eviction.load.tokens + session.summary_tokens
        row.evicted = frozenset(message.message_id for message in eviction.evicted)
        row.evicted_at_ms, row.is_plan = eviction.at_ms, False
        session.rounds -= eviction.load.rounds
        session.delay_after_failure()

    # --- jobs

    def claim(self, slots: JobSlots, lease_ms: int, now_ms: int) -> list[Claim]:
        """Claim due compactions: one job per session, the longest waiting first."""
        waiting = [
            (due_ms, session)
            for session in self.sessions.values()
            if (due_ms := session.due_since_ms(now_ms)) is not None
        ]
        waiting.sort(key=itemgetter(0))
        chosen = slots.allocate([(session, session.key.agent_id) for _, session in waiting])
        claims = [self._claim(session, lease_ms, now_ms) for session in chosen]
        return [claim for claim in claims if claim is not None]

    def _claim(self, session: SessionState, lease_ms: int, now_ms: int) -> Claim | None:
        rows = session.claimable(now_ms)
        folds = [
            row.next_attempt_at_ms for row in session.compactions if row.is_fold and row.is_open
        ]
        if rows[0].kind is JobKind.REGENERATED and folds:
            rows[0].requeue(min(folds))
            return None
        if rows[0].is_plan and not self._still_fires(session, rows[0]):
            rows[0].end("stale", now_ms)
            return None
        fence = 1 + max(row.fence for row in rows)
        attempt = 1 + max(row.attempts for row in rows)
        for row in session.compactions:
            if row in rows:
                row.status, row.lease_until_ms = "running", now_ms + lease_ms
                row.fence, row.attempts = fence, attempt
            elif row.status == "running":
                row.status, row.lease_until_ms = "pending", None
        newest, ids = rows[-1], tuple(row.compaction_id for row in rows)
        is_next = newest.kind is JobKind.NEXT and not newest.is_plan
        is_cooling = is_next and now_ms < session.cooldown_until_ms
        reason = session.cooldown_reason if is_cooling else None
        return Claim(session.key, ids, newest.kind, session.version, reason)

    def _still_fires(self, session: SessionState, plan: Compaction) -> bool:
        """Return whether a planned eviction is due now, and name the trigger that fires."""
        if plan.trigger is Trigger.REQUEST:
            return is_allowed(plan.trigger, self._policy(session).mode)
        fired = [due.trigger for due in self._triggers(session)]
        if fired and plan.trigger not in fired:
            plan.trigger = fired[0]
        return bool(fired)

    def _held(self, job: Job) -> tuple[SessionState, list[Compaction]]:
        """Return the session and the compactions of a job, if its worker still holds them."""
        session = self.sessions[job.key]
        rows = session.rows(job.compaction_ids)
        if any(row.status != "running" or row.fence != job.fence for row in rows):
            raise LostLease(job.compaction_ids[-1])
        return session, rows

    def renew(self, job: Job, lease_ms: int, now_ms: int) -> None:
        """Extend the lease of a job."""
        for row in self._held(job)[1]:
            row.lease_until_ms = now_ms + lease_ms

    def commit(
        self, job: Job, content: Version, leaving: Eviction | None, reason: str | None, now_ms: int
    ) -> int:
        """Store a version, in force unless it was regenerated; return its number."""
        session, rows = self._held(job)
        newest, is_activated = rows[-1], job.writes is not JobKind.REGENERATED
        added = session.added_by(job) | ({newest.compaction_id} if leaving else set())
        is_restored = any(row.status == "restored" for row in session.rows(added))
        if is_restored or (is_activated and session.version != job.base_version):
            raise LostLease(newest.compaction_id)
        if leaving is not None:
            if not is_allowed(leaving.due.trigger, self._policy(session).mode):
                raise LostLease(newest.compaction_id)
            self._leave(session, newest, replace(leaving, load=session.load, at_ms=now_ms))
        number = len(session.versions) + 1
        for row in rows:
            row.end("committed", now_ms)
            row.version = number
        base = job.base_version if is_activated else job.wanted.from_version
        covers = session.covers(base) | added
        is_stand_in = content.draft.kind == "extractive" and reason is not None
        version = CommittedVersion(number, base, newest.compaction_id, content, covers, is_stand_in)
        session.versions.append(version)
        if is_activated:
            session.activate(number, now_ms)
            self._cool_down(session, job, content, reason, now_ms)
            self._fold(session, now_ms)
        for row in rows:
            row.tokens_after = session.window_tokens
        return number

    def _cool_down(
        self, session: SessionState, job: Job, content: Version, reason: str | None, now_ms: int
    ) -> None:
        """End the cooldown if the model answered; otherwise plan to replace its stand-in."""
        if content.draft.kind == "llm":
            session.failures, session.cooldown_until_ms, session.cooldown_reason = 0, 0, None
        elif reason is not None:
            if job.cooling is None:
                session.cool_down(reason, now_ms)
            self._open_stand_in(session, now_ms)

    def fail(self, job: Job, ending: FailureStatus, reason: str | None, now_ms: int) -> None:
        """End a job without a version."""
        session, rows = self._held(job)
        for row in rows:
            row.end(str(ending), now_ms)
        if ending is JobStatus.STALE:
            return
        if job.writes is not JobKind.REGENERATED:
            session.cool_down(reason or str(ending), now_ms)
        if job.planned and ending is JobStatus.FAILED:
            delay_ms = session.cooldown_until_ms - now_ms
            self._open(session, rows[-1].trigger, now_ms, delay_ms).is_plan = True
        newest = [row for row in session.compactions if row.kind is not JobKind.REGENERATED]
        refused = [row.kind is JobKind.STAND_IN and row.status == "rejected" for row in newest]
        is_refused = len(refused) >= REFUSED_STAND_INS and all(refused[-REFUSED_STAND_INS:])
        if job.writes is JobKind.STAND_IN and not is_refused:
            self._open_stand_in(session, now_ms)

    def retry_later(self, job: Job, retry_at_ms: int) -> None:
        """Return a job whose attempt failed."""
        for row in self._held(job)[1]:
            row.requeue(retry_at_ms)
        self.sessions[job.key].delay_after_failure()

    def discard(self, job: Job, now_ms: int) -> None:
        """Record a version that came too late; compactions that are still held become due."""
        for row in self.sessions[job.key].rows(job.compaction_ids):
            if row.status == "running" and row.fence == job.fence:
                row.give_back(now_ms)

    # --- versions

    def promote(self, key: SessionKey, number: int, over: int | None, now_ms: int) -> ActiveVersion:
        """Put a version in force, if none of its evictions was restored."""
        session = self.sessions[key]
        version = session.find_version(number)
        if version is None:
            raise BadRequest("version: there is no such version")
        if over is not None and session.version != over:
            raise Conflict("another version is in force")
        if number == session.version:
            return session.active
        if any(row.status == "restored" for row in session.rows(version.covers)):
            raise Conflict("it covers messages that were restored")
        session.requeue_running(now_ms)
        session.activate(number, now_ms)
        return self._fold(session, now_ms)

    def restore(self, key: SessionKey, compaction_id: CompactionId, now_ms: int) -> ActiveVersion:
        """Undo an eviction: its messages are live again, and the version before is in force."""
        session = self.sessions[key]
        row = session.rows([compaction_id])[0]
        if row.status == "restored":
            return session.active
        committed = [row for row in session.compactions if row.status == "committed"]
        later = [(other.version or 0, other.ordinal) for other in committed if other.evicted]
        if not row.evicted or (row.version and max(later) > (row.version, row.ordinal)):
            raise Conflict("it evicted nothing, or a later compaction was committed")
        was_covered = row.is_covered
        session.requeue_running(now_ms, also_regenerations=True)
        row.status, row.is_covered = "restored", False
        row.lease_until_ms, row.restored_at_ms = None, now_ms
        restored = [m for m in session.live if m.message_id in row.evicted]
        session.rounds += load_of(restored).rounds
        session.held_to_tokens = session.tokens_total + self._policy(session).min_gain_tokens
        for plan in session.compactions:
            if plan.is_plan and plan.is_open and plan.trigger is not Trigger.REQUEST:
                plan.end("stale", now_ms)
        version = session.find_version(row.version)
        if was_covered and version is not None:
            session.activate(version.base, now_ms)
            base = session.find_version(version.base)
            if base is not None and base.is_stand_in and not session.uncovered:
                self._open_stand_in(session, now_ms)
            self._fold(session, now_ms)
        return session.active

    def regenerate(self, key: SessionKey, wanted: RegenerateOptions, now_ms: int) -> CompactionId:
        """Open a compaction that writes a version beside the one in force."""
        session = self.sessions[key]
        if session.version is None:
            raise Conflict("no version is in force yet")
        if not session.covers(wanted.from_version) < session.covers(session.version):
            raise BadRequest("from_version: nothing lies between")
        for row in session.compactions:
            if row.is_open and row.trigger is Trigger.REGENERATE and row.wanted == wanted:
                return row.compaction_id
        row = self._open(session, Trigger.REGENERATE, now_ms, 0, wanted)
        return row.compaction_id

    def _fold(self, session: SessionState, now_ms: int) -> ActiveVersion:
        """Open a compaction for evictions that lost their version, if there are any."""
        if session.uncovered:
            delay_ms = max(SUMMARY_DELAY_MS, session.cooldown_until_ms - now_ms)
            self._open(session, Trigger.REQUEST, now_ms, delay_ms)
            session.delay_after_failure()
        return session.active

    def _open_stand_in(self, session: SessionState, now_ms: int) -> None:
        delay_ms = max(session.cooldown_until_ms - now_ms, 0)
        self._open(session, Trigger.STAND_IN, now_ms, delay_ms, RegenerateOptions())
