"""Calibration: factors learned from reported usage, and until when a report is valid."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from sqlalchemy import (
    Connection,
    Integer,
    Select,
    String,
    Table,
    bindparam,
    case,
    func,
    literal_column,
    or_,
    select,
    union_all,
)

from turnfold.core.eviction.triggers import Trigger
from turnfold.core.eviction.usage import (
    COMPACTIONS_LOOKED_AT,
    NEVER_MS,
    REPORTS_LOOKED_AT,
    ReportDelta,
    calibration_factor,
)
from turnfold.messages import MESSAGES_PER_EVENT, position_of
from turnfold.ports.query import END_POSITION
from turnfold.store.database.message_rows import named_place
from turnfold.store.database.predicates import answer_place, is_of_kept, is_open, is_uncovered
from turnfold.store.database.schema import (
    compactions,
    events,
    messages,
    retracted_messages,
    sessions,
    usage_reports,
)
from turnfold.store.database.session_rows import SessionRow
from turnfold.store.database.statements import (
    PAIRS,
    BulkInsert,
    Prepared,
    PreparedIn,
    PreparedPairs,
    bulk_update,
)

TEACHES_NONE: Final = ""
"""The agent of reports that teach no factor; see `judge_reports`.

They stay, because they show how large a call of the model may be.
"""

_newest = (
    select(usage_reports)
    .where(
        usage_reports.c.agent_id == bindparam("agent_id"),
        usage_reports.c.model == bindparam("model"),
        is_of_kept(usage_reports.c.sid),
    )
    .order_by(usage_reports.c.position.desc())
    .limit(bindparam("most", type_=Integer))
)
_REPORTED = Prepared(
    _newest.with_only_columns(usage_reports.c.position), ("agent_id", "model", "most")
)
_later = _newest.subquery("later")
_earlier, _before, _between, _first = (
    usage_reports.alias("earlier"),
    usage_reports.alias("before"),
    messages.alias("between"),
    messages.alias("first"),
)
_previous = (
    select(func.max(answer_place(_before)))
    .where(
        _before.c.sid == _later.c.sid,
        answer_place(_before) < answer_place(_later),
        _before.c.agent_id == _later.c.agent_id,
    )
    .scalar_subquery()
)
# Joined before any message is read. Otherwise PostgreSQL walks a session from its first message for
# each report.
_step = (
    select(
        _later.c.sid,
        _later.c.position,
        _later.c.at_ms,
        (_later.c.prompt_tokens - _earlier.c.prompt_tokens).label("more_tokens"),
        answer_place(_earlier).label("since"),
        answer_place(_later).label("until"),
        _earlier.c.model,
    )
    .select_from(_later)
    .join(
        _earlier,
        (_earlier.c.sid == _later.c.sid)
        & (answer_place(_earlier) == _previous)
        & (_earlier.c.agent_id == _later.c.agent_id),
    )
    .cte("step")
    .prefix_with("MATERIALIZED", dialect="postgresql")
)
_called_after = (
    select(_first.c.created_at_ms)
    .where(
        _first.c.sid == _step.c.sid,
        _first.c.position < _step.c.since - _step.c.since % literal_column(str(MESSAGES_PER_EVENT)),
    )
    .order_by(_first.c.position.desc())
    .limit(literal_column("1"))
    .scalar_subquery()
)
_is_system = _between.c.role.in_([literal_column("'system'"), literal_column("'developer'")])
_is_shown = or_(
    _between.c.role != literal_column("'tool'"), _between.c.answers_position.is_not(None)
)
_ZERO, _ONE = literal_column("0", Integer), literal_column("1", Integer)
_DIFFERENCES = Prepared(
    select(
        _step.c.sid,
        _step.c.position,
        func.coalesce(_called_after, _ZERO),
        _step.c.at_ms,
        _step.c.more_tokens,
        func.sum(case((_is_shown, _between.c.tokens), else_=_ZERO)),
        # A new system message replaces another one, and the agent decides whether old reasoning is
        # sent again.
        func.sum(case((or_(_is_system, _between.c.reasoning_tokens > _ZERO), _ONE), else_=_ZERO)),
        _step.c.model,
    )
    .select_from(_step)
    .join(
        _between,
        (_between.c.sid == _step.c.sid)
        & (_between.c.position >= _step.c.since)
        & (_between.c.position < _step.c.until),
    )
    .group_by(*_step.c)
    .order_by(_step.c.position.desc()),
    ("agent_id", "model", "most"),
)
_COMPACTED = PreparedIn(
    select(
        compactions.c.sid,
        compactions.c.requested_at_ms,
        compactions.c.finished_at_ms,
        compactions.c.restored_at_ms,
    )
    .join(sessions, sessions.c.sid == compactions.c.sid)
    .where(
        compactions.c.ordinal > sessions.c.compactions - literal_column(str(COMPACTIONS_LOOKED_AT))
    ),
    sessions.c.sid,
)
_last = compactions.alias("last")
_does_not_rewrite = compactions.c.trigger.not_in(
    [literal_column(f"'{trigger}'", String) for trigger in Trigger if trigger.rewrites]
)
# Any row, not only the last: an older eviction may wait while a newer one was restored.
_any_open = (
    select(literal_column("1"))
    .where(compactions.c.sid == PAIRS.c.a, is_uncovered, is_open, _does_not_rewrite)
    .correlate(PAIRS)
    .exists()
)
_last_ordinal = (
    select(func.max(compactions.c.ordinal))
    .where(compactions.c.sid == PAIRS.c.a, compactions.c.ordinal <= PAIRS.c.b, _does_not_rewrite)
    .correlate(PAIRS)
    .scalar_subquery()
)
_LAST_COMPACTIONS = PreparedPairs(
    select(
        _last.c.sid,
        _any_open,
        _last.c.requested_at_ms,
        _last.c.finished_at_ms,
        _last.c.restored_at_ms,
    ).where(_last.c.sid == PAIRS.c.a, _last.c.ordinal == _last_ordinal),
    (compactions.c.sid.type, compactions.c.ordinal.type),
)


def _answers(table: Table) -> Select[*tuple[Any, ...]]:
    of_event = events.c.stream_seq * literal_column(str(MESSAGES_PER_EVENT))
    return (
        select(table.c.position)
        .join(events, events.c.sid == table.c.sid)
        .where(
            events.c.agent_id == bindparam("agent_id"),
            events.c.event_id == bindparam("event_id"),
            events.c.sid == bindparam("of_sid"),
            events.c.stream_seq < bindparam("before"),
            table.c.position == of_event + bindparam("of_index"),
            table.c.role == literal_column("'assistant'"),
        )
    )


# A retracted answer was one, too: what its report counted does not depend on the retraction.
_ANSWER = Prepared(
    select(union_all(_answers(messages), _answers(retracted_messages)).subquery()),
    ("agent_id", "event_id", "of_sid", "before", "of_index"),
)
_WAITING = Prepared(
    select(usage_reports).where(
        usage_reports.c.sid == bindparam("of_sid"),
        usage_reports.c.position >= bindparam("since"),
        answer_place(usage_reports) == usage_reports.c.position,
        usage_reports.c.message_id.is_not(None),
    ),
    ("of_sid", "since"),
)
_ABOUT = Prepared(
    select(answer_place(usage_reports), usage_reports.c.position, usage_reports.c.agent_id)
    .where(
        usage_reports.c.sid == bindparam("of_sid"),
        answer_place(usage_reports).between(bindparam("since"), bindparam("until")),
    )
    .order_by(answer_place(usage_reports), usage_reports.c.position),
    ("of_sid", "since", "until"),
)
_RETRACTED = Prepared(
    select(
        func.min(retracted_messages.c.position).label("first"), retracted_messages.c.retracted_seq
    )
    .where(
        retracted_messages.c.sid == bindparam("of_sid"),
        retracted_messages.c.retracted_seq >= bindparam("since"),
    )
    .group_by(retracted_messages.c.retracted_seq)
    .order_by("first"),
    ("of_sid", "since"),
)
_PLACED = bulk_update(usage_reports, where=("sid", "position"), values=("answer_position",))
_JUDGED = bulk_update(usage_reports, where=("sid", "position"), values=("agent_id",))


class ReportRow(NamedTuple):
    """A row of `usage_reports`; `position` is that of its event."""

    sid: int
    position: int
    agent_id: str
    model: str
    prompt_tokens: int
    at_ms: int
    message_id: str | None
    answer_position: int | None


INSERT_REPORTS = BulkInsert(usage_reports, ReportRow._fields)


def place_reports(connection: Connection, agent_id: str, sid: int, seq: int) -> None:
    """Have reports from a sequence on stand with the answers that they name, if these are stored.

    The answer must stand before the report in the stream; otherwise the report stands by itself.
    """
    reports = [ReportRow(*row) for row in _WAITING.rows(connection, sid, position_of(seq, 0))]
    places = [_answer_of(connection, agent_id, report) for report in reports]
    rows = [(place, sid, report.position) for place, report in zip(places, reports, strict=True)]
    _PLACED.run(connection, rows)
    if places:
        # Not those about later answers: each report may name the first one of a long session.
        judge_reports(connection, agent_id, sid, min(places), max(places))


def _answer_of(connection: Connection, agent_id: str, report: ReportRow) -> int:
    place = named_place(report.message_id or "")
    if place is None:
        return report.position
    (event_id, index), seq = place, report.position // MESSAGES_PER_EVENT
    rows = _ANSWER.rows(connection, agent_id, event_id, report.sid, seq, index)
    return int(rows[0][0]) if rows else report.position


def judge_reports(
    connection: Connection, agent_id: str, sid: int, since: int, until: int = END_POSITION
) -> None:
    """Decide which reports about answers at these positions teach: a function of the stream.

    Of several about one answer, the first one does. None does if the answer or a message before
    it was retracted later: only one of two reports counted that message.
    """
    changed: list[tuple[str, int, int]] = []
    reports = _ABOUT.rows(connection, sid, since, until)
    retracted = _RETRACTED.rows(connection, sid, since // MESSAGES_PER_EVENT) if reports else ()
    parts, counted_until, known = iter(retracted), 0, None
    part = next(parts, None)
    for answer, position, by in reports:
        while part is not None and part[0] <= answer:
            counted_until = max(counted_until, position_of(part[1], 0))
            part = next(parts, None)
        teacher = agent_id if answer >= counted_until and answer != known else TEACHES_NONE
        known = answer
        if teacher != by:
            changed.append((teacher, sid, position))
    _JUDGED.run(connection, changed)


def calibration_cutoff(connection: Connection, sessions: Sequence[SessionRow]) -> Mapping[int, int]:
    """Return when the last compaction of each session ended: a far time if any is open, -1 if none.

    Times are ms since 1970. Rewriting compactions do not count.
    """
    rows = _LAST_COMPACTIONS.rows(
        connection, [(session.sid, session.compactions) for session in sessions]
    )
    cutoffs = {
        sid: NEVER_MS if any_open else max(begun, finished_ms or 0, restored_ms or 0)
        for sid, any_open, begun, finished_ms, restored_ms in rows
    }
    return {session.sid: cutoffs.get(session.sid, -1) for session in sessions}


class Calibrator:
    """The factors of one transaction, from stored reports and from its own evictions."""

    def __init__(self, connection: Connection, new_reports: int = 0) -> None:
        self._connection = connection
        self._most = REPORTS_LOOKED_AT + new_reports
        self._known: dict[tuple[str, str], tuple[list[int], list[ReportDelta]]] = {}
        self._compacted: defaultdict[int, list[int]] = defaultdict(list)
        self._looked_up: set[int] = set()

    def evicted(self, sid: int, at_ms: int) -> None:
        """Add an eviction that is not stored yet."""
        self._compacted[sid].append(at_ms)

    def factor(self, agent_id: str, model: str | None, seq: int | None = None) -> float:
        """Return the factor of an agent and a model, from reports up to a stream sequence.

        Factors are learned per agent, so that one agent cannot change windows of another.
        """
        if model is None:
            return 1.0
        reports, differences = self._read(agent_id, model)
        last = position_of(
            (1 << 53) // MESSAGES_PER_EVENT if seq is None else seq, MESSAGES_PER_EVENT - 1
        )
        # As if the batch had ended with this event, so that the size of batches changes nothing.
        looked_at = [position for position in reports if position <= last][:REPORTS_LOOKED_AT]
        if not looked_at:
            return 1.0
        known = [
            difference
            for difference in differences
            if looked_at[-1] // MESSAGES_PER_EVENT <= difference.seq <= last // MESSAGES_PER_EVENT
        ]
        return calibration_factor(known, self._compacted)

    def _read(self, agent_id: str, model: str) -> tuple[list[int], list[ReportDelta]]:
        """Return the positions of the newest reports and their differences, newest first."""
        key = (agent_id, model)
        if key not in self._known:
            reports = [
                position
                for (position,) in _REPORTED.rows(self._connection, agent_id, model, self._most)
            ]
            rows = (
                _DIFFERENCES.rows(self._connection, agent_id, model, self._most) if reports else ()
            )
            differences = [
                ReportDelta(
                    sid,
                    position // MESSAGES_PER_EVENT,
                    since_ms,
                    until_ms,
                    int(grown),
                    int(counted),
                )
                for sid, position, since_ms, until_ms, grown, counted, unfit, earlier_model in rows
                if not unfit and earlier_model == model
            ]
            self._look_up({difference.session for difference in differences})
            self._known[key] = (reports, differences)
        return self._known[key]

    def _look_up(self, sids: set[int]) -> None:
        """Read the times of the newest compactions of these sessions."""
        missing = sorted(sids - self._looked_up)
        self._looked_up |= sids
        for sid, *moments in _COMPACTED.rows(self._connection, missing):
            self._compacted[sid] += [at_ms for at_ms in moments if at_ms is not None]
