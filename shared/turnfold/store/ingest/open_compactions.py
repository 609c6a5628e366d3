"""Open compactions within a transaction: mark messages, write digests, audit rows and notices."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, bindparam, func, literal_column, select, update

from turnfold.contracts.subjects import TOOL_RESULT, TURN_COMPLETED, USAGE_REPORTED
from turnfold.core.eviction.batch import Eviction, are_oldest
from turnfold.core.eviction.choose import first_eviction
from turnfold.core.eviction.triggers import SUMMARY_DELAY_MS, FiredTrigger, Trigger, load_of
from turnfold.core.policy.presets import Policy
from turnfold.core.summary.eviction_digest import digest_eviction, digest_messages
from turnfold.messages import Message
from turnfold.observability.tracing import span
from turnfold.ports.compact import JobStatus
from turnfold.ports.ingest import DecodedEvent, Installation
from turnfold.store.database import sequence_ranges as ranges
from turnfold.store.database.predicates import (
    has_status,
    in_range,
    is_live,
    is_planned,
    is_uncovered,
    of_compactions,
)
from turnfold.store.database.schema import compactions, messages
from turnfold.store.database.session_rows import SessionJournal, SessionRow
from turnfold.store.database.statements import (
    PAIRS,
    Bulk,
    BulkInsert,
    Prepared,
    PreparedIn,
    PreparedPairs,
)

_TEXTS = PreparedPairs(
    select(messages.c.position, messages.c.body).where(
        messages.c.sid == PAIRS.c.a, messages.c.position == PAIRS.c.b
    ),
    (messages.c.sid.type, messages.c.position.type),
)
MARK_EVICTED = Bulk(
    update(messages).where(in_range(messages), is_live).values(compaction_id=bindparam("by")),
    ("by", "of_sid", "first", "last"),
)
_PLANNED = Prepared(
    select(compactions.c.compaction_id).where(of_compactions, is_planned), ("of_sid",)
)
_waits = (
    is_uncovered,
    has_status(JobStatus.PENDING),
    # Plans and rewritten versions have jobs of their own.
    compactions.c.first_position.is_not(None),
)
_FAILED = PreparedIn(
    select(compactions.c.sid, func.max(compactions.c.next_attempt_at_ms))
    .where(*_waits, compactions.c.attempts > literal_column("0"))
    .group_by(compactions.c.sid),
    compactions.c.sid,
)
_OPENED = (
    "compaction_id", "sid", "ordinal", "trigger", "is_by_budget", "status", "budget_tokens",
    "first_position",
    "last_position", "messages_evicted", "tokens_evicted", "tokens_before", "next_attempt_at_ms",
    "requested_at_ms", "evicted_at_ms", "trace", "actor", "digest", "digest_tokens",
)  # fmt: skip
_OPEN = BulkInsert(compactions, _OPENED)


def quoted_texts(connection: Connection, places: Sequence[tuple[int, int]]) -> Mapping[int, str]:
    """Return message texts by position."""
    # A position is made from a sequence of the stream: no two sessions have one in common.
    return {row[0]: row[1] for row in _TEXTS.rows(connection, places)}


def planned_id(connection: Connection, sid: int) -> int | None:
    """Return the compaction whose messages leave with their summary, if one is open."""
    rows = _PLANNED.rows(connection, sid)
    return int(rows[0][0]) if rows else None


def delay_after_failure(connection: Connection, sids: Collection[int]) -> None:
    """Let the evictions of locked sessions wait for the next attempt at those that failed.

    One job summarizes them in order: whichever is due first takes the others along.
    """
    for sid, until_ms in _FAILED.rows(connection, sorted(sids)):
        connection.execute(
            update(compactions)
            .where(compactions.c.sid == sid, *_waits, compactions.c.next_attempt_at_ms < until_ms)
            .values(next_attempt_at_ms=until_ms)
        )


def change_compactions(
    connection: Connection, compaction_ids: Collection[int], **values: Any
) -> None:
    """Change columns of these compactions, whose session is locked."""
    are_chosen = compactions.c.compaction_id.in_(compaction_ids)
    connection.execute(update(compactions).where(are_chosen).values(**values))


CHECKPOINTS = {TOOL_RESULT: "precheck", TURN_COMPLETED: "check", USAGE_REPORTED: "report"}
"""Audit names of the moment of a check: a tool returned, a turn was over, usage was reported."""


def subtract_evicted(
    session: SessionRow, compaction_id: int, eviction: Eviction, journal: SessionJournal, *,
    checkpoint: str | None, model: str | None = None, actor: str | None = None,
) -> int:  # fmt: skip
    """Subtract evicted messages from the counters; add audit row and notice; return tokens before.

    `model` is set if it has summarized them already. `actor` is set if it differs from that of the
    transaction.
    """
    evicted, due, left = eviction.evicted, eviction.due, load_of(eviction.evicted)
    before = eviction.load.tokens + session.summary_tokens
    after = before - left.tokens
    session.live_messages -= left.messages
    session.live_tokens -= left.tokens
    session.rounds -= eviction.load.rounds
    session.revision += 1
    journal.add_audit_row(
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
    journal.add_notice(
        session,
        "context.compressed",
        compaction_id=str(compaction_id),
        trigger=str(due.trigger),
        original_count=len(evicted) + len(eviction.stays),
        compressed_count=len(eviction.stays),
        estimated_tokens=after,
        budget_tokens=due.budget_tokens,
    )
    return before


def _escalation(eviction: Eviction) -> dict[str, Any]:
    """Return the audit fields of an eviction that had to keep the minimum."""
    return {"is_escalated": True, "is_over": eviction.is_over} if eviction.is_escalated else {}


def _runs(live: Sequence[Message], evicted: Sequence[Message]) -> list[ranges.Range]:
    """Return evicted messages as ranges of positions that contain no other live message."""
    # Ranges, because one UPDATE marks thousands of messages. What stays, such as instructions, ends
    # a range.
    if are_oldest(evicted, live):
        return [(evicted[0].position, evicted[-1].position)]
    leaving = {message.position for message in evicted}
    return ranges.stretches((message.position, message.position in leaving) for message in live)


def trigger_columns(trigger: Trigger) -> tuple[str, bool | None]:
    """Return `trigger` and `is_by_budget`, so that workers before revision 1004 read a row."""
    if trigger is Trigger.BUDGET:
        return str(Trigger.TOKENS), True
    return str(trigger), None


NOTHING: Mapping[int, DecodedEvent] = {}


class CompactionOpener:
    """The compactions that one transaction opens."""

    def __init__(
        self,
        connection: Connection,
        installation: Installation,
        journal: SessionJournal,
        arrived: Mapping[int, DecodedEvent] = NOTHING,
    ) -> None:
        self._connection = connection
        self._installation = installation
        self._journal = journal
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
        before = subtract_evicted(
            session, compaction_id, eviction, self._journal, checkpoint=checkpoint
        )
        session.compactions += 1
        self._marks += [
            (compaction_id, session.sid, first, last) for first, last in _runs(live, evicted)
        ]
        all_tokens = sum([message.tokens for message in evicted])
        self._rows.append(
            (
                compaction_id, session.sid, session.compactions, *trigger_columns(due.trigger),
                JobStatus.PENDING, due.budget_tokens, evicted[0].position, evicted[-1].position,
                len(evicted), all_tokens, before, eviction.at_ms + SUMMARY_DELAY_MS, eviction.at_ms,
                eviction.at_ms, trace, self._journal.asked_by,
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
        triggers: Sequence[FiredTrigger],
        live: Sequence[Message],
        policy: Policy,
        *,
        at_ms: int,
        seq: int = 0,
    ) -> int | None:
        """Plan a compaction whose messages leave with their summary; return it or an open one.

        None if nothing would leave. During a cooldown of the model only a request opens one.
        """
        known = planned_id(self._connection, session.sid) if triggers else None
        # At most one plan per session: two would summarize the same messages.
        if known is not None:
            if triggers[0].trigger is Trigger.REQUEST:
                # Somebody asks for what waits already: from now on it is theirs, and due now.
                change_compactions(
                    self._connection, [known], trigger=str(Trigger.REQUEST), is_by_budget=None,
                    budget_tokens=0, next_attempt_at_ms=at_ms + SUMMARY_DELAY_MS,
                    actor=self._journal.asked_by,
                )  # fmt: skip
            return known
        due, _ = first_eviction(triggers, live, policy, now_ms=at_ms, factor=session.factor)
        if due is None:
            return None
        compaction_id = self._installation.new_id()
        session.compactions += 1
        before = session.window_tokens
        self._journal.add_audit_row(
            session, "selective_start", at_ms=at_ms, compaction_id=compaction_id,
            tokens_before=before, trigger=str(due.trigger), live=len(live),
            session_model=session.model, checkpoint=self._checkpoint(seq),
        )  # fmt: skip
        begins_ms = at_ms + SUMMARY_DELAY_MS
        # Somebody who asks wants an attempt now, also during a cooldown.
        if due.trigger is not Trigger.REQUEST:
            begins_ms = max(begins_ms, session.cooldown_until_ms)
        self._rows.append(
            (
                compaction_id, session.sid, session.compactions, *trigger_columns(due.trigger),
                JobStatus.PENDING, due.budget_tokens, None, None, 0, 0, before, begins_ms, at_ms,
                None, self._trace(seq), self._journal.asked_by,
            )
        )  # fmt: skip
        return compaction_id

    def store(self) -> int:
        """Write the compactions with their digests; return how many."""
        digests = self._digests()
        _OPEN.run(self._connection, [(*row, *digests.get(row[0], ("", 0))) for row in self._rows])
        # After the insert, because the new rows have to wait as well.
        if self._evicted:
            delay_after_failure(self._connection, {sid for sid, _ in self._evicted.values()})
        MARK_EVICTED.run(self._connection, self._marks)
        return len(self._rows)

    def _digests(self) -> Mapping[int, tuple[str, int]]:
        """Return the digest of each eviction, with its tokens; all texts are read at once."""
        quoted = {
            compaction_id: (sid, digest_messages(evicted))
            for compaction_id, (sid, evicted) in self._evicted.items()
        }
        places = [
            (sid, message.position)
            for sid, messages_quoted in quoted.values()
            for message in messages_quoted
        ]
        texts = quoted_texts(self._connection, places)
        return {
            compaction_id: digest_eviction(evicted, texts, count=self._installation.count)
            for compaction_id, (_, evicted) in self._evicted.items()
        }
