"""The windows of models as providers reported them, per session and model.

`limits_of` reads them, also as of a time. `learn_limits` updates them with a batch of events.
"""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Final, NamedTuple

from sqlalchemy import bindparam, func, literal_column, select

from turnfold.core.eviction.reported_limits import (
    LimitReport,
    ModelCall,
    WindowChanges,
    changes_in_batch,
    newest_limits,
)
from turnfold.messages import MESSAGES_PER_EVENT, SessionKey, position_of
from turnfold.ports.ingest import DecodedEvent
from turnfold.store.database.message_rows import storable_key
from turnfold.store.database.predicates import answer_place
from turnfold.store.database.schema import reported_limits, usage_reports
from turnfold.store.database.session_rows import SessionJournal, SessionRow
from turnfold.store.database.statements import BulkInsert, Prepared, SupportsStatements

ALWAYS_MS: Final = 1 << 62
"""Later than every event."""
# Bounded, because a client may report as often as it likes, and each batch reads them.
_REPORTS_AT_MOST: Final = 256

INSERT_LIMITS = BulkInsert(reported_limits, ("sid", "stream_seq", "model", "limit_tokens", "at_ms"))
_REPORTED = Prepared(
    select(reported_limits.c.model, reported_limits.c.stream_seq, reported_limits.c.limit_tokens)
    .where(
        reported_limits.c.sid == bindparam("of_sid"),
        reported_limits.c.at_ms <= bindparam("until_ms"),
    )
    .order_by(reported_limits.c.stream_seq.desc())
    .limit(literal_column(str(_REPORTS_AT_MOST))),
    ("of_sid", "until_ms"),
)
_LARGEST_SINCE = Prepared(
    select(func.coalesce(func.max(usage_reports.c.prompt_tokens), literal_column("0"))).where(
        usage_reports.c.sid == bindparam("of_sid"),
        answer_place(usage_reports) > bindparam("after"),
        usage_reports.c.model == bindparam("of_model"),
        usage_reports.c.at_ms <= bindparam("until_ms"),
    ),
    ("of_sid", "after", "of_model", "until_ms"),
)


class NamedModel(NamedTuple):
    """The model of a session, and the sequence of the event that named it."""

    model: str | None
    seq: int


def limits_of(connection: SupportsStatements, sid: int, until_ms: int) -> Mapping[str, int]:
    """Return the limits of a session by model, in tokens, as known at a time.

    The newest report of a model counts, or the largest call that succeeded after it.
    """
    newest = _newest_reports(connection, sid, until_ms)
    return _raised(connection, sid, newest, until_ms)


def _newest_reports(
    connection: SupportsStatements, sid: int, until_ms: int = ALWAYS_MS
) -> Mapping[str, LimitReport]:
    return newest_limits(LimitReport(*row) for row in _REPORTED.rows(connection, sid, until_ms))


def _raised(
    connection: SupportsStatements,
    sid: int,
    newest: Mapping[str, LimitReport],
    until_ms: int = ALWAYS_MS,
) -> Mapping[str, int]:
    """Return the limits of these reports by model, or the largest call that succeeded after."""
    return {
        model: max(report.limit_tokens, _largest_since(connection, sid, report, until_ms))
        for model, report in newest.items()
    }


def _largest_since(
    connection: SupportsStatements, sid: int, report: LimitReport, until_ms: int
) -> int:
    """Return the prompt tokens of the largest call of the model after a report; 0 without one."""
    after = position_of(report.seq, MESSAGES_PER_EVENT - 1)
    ((tokens,),) = _LARGEST_SINCE.rows(connection, sid, after, report.model, until_ms)
    return int(tokens)


def learn_limits(
    connection: SupportsStatements,
    sessions: Mapping[SessionKey, SessionRow],
    limited: Collection[SessionKey],
    models: Mapping[SessionKey, NamedModel],
    new: Mapping[SessionKey, Sequence[DecodedEvent]],
    journal: SessionJournal,
) -> Mapping[int, WindowChanges]:
    """Update the windows that sessions learned from providers, and record this in the audit.

    `limited` are the sessions whose limits may have changed, `new` the new events of the batch.
    `models` are the models before the batch of sessions whose events may change the window. Return
    these changes.
    """
    changes: dict[int, WindowChanges] = {}
    # A set has no order, and audit rows are numbered.
    for key in sorted(models):
        session, before = sessions[key], sessions[key].limits
        named = [arrival for arrival in new.get(key, ()) if arrival.model]
        changes[session.sid] = changes_in_batch(*models[key], before, _calls_of(named))
        if key in limited:
            newest = _newest_reports(connection, session.sid)
            limits = _raised(connection, session.sid, newest)
            session.window_limits = json.dumps(limits) if limits else None
            seqs = {arrival.stream_seq for arrival in named}
            # If a report comes late, a newer one decides.
            reported = {
                report.model: report.limit_tokens
                for report in newest.values()
                if report.seq in seqs
            }
            _record_successes(session, {**before, **reported}, limits, journal)
    return changes


def _calls_of(arrivals: Iterable[DecodedEvent]) -> list[ModelCall]:
    """Return the calls of events that name their models, in order of the stream."""
    return [
        ModelCall(
            arrival.stream_seq,
            storable_key(arrival.model or ""),
            arrival.reported.limit_tokens if arrival.reported else None,
            arrival.report.prompt_tokens if arrival.report and arrival.answer is not None else 0,
        )
        for arrival in sorted(arrivals, key=attrgetter("stream_seq"))
    ]


def _record_successes(
    session: SessionRow,
    reported: Mapping[str, int],
    limits: Mapping[str, int],
    journal: SessionJournal,
) -> None:
    """Record the limits that a larger call has raised above those reported or known before."""
    for model in sorted(limits):
        if limits[model] > reported.get(model, 0):
            journal.add_audit_row(
                session,
                "window",
                at_ms=session.last_event_at_ms or 0,
                reason="success",
                model=model,
                limit_tokens=limits[model],
            )


def record_reports(
    sessions: Mapping[SessionKey, SessionRow],
    arrivals: Iterable[DecodedEvent],
    journal: SessionJournal,
) -> None:
    """Record the limits and overflows that events report."""
    for arrival in arrivals:
        reported = arrival.reported
        if reported is not None and (reported.limit_tokens or reported.is_overflow):
            journal.add_audit_row(
                sessions[arrival.key],
                "window",
                at_ms=arrival.at_ms,
                reason="overflow" if reported.is_overflow else "limit",
                model=storable_key(arrival.model or ""),
                limit_tokens=reported.limit_tokens,
                event_id=arrival.event_id,
            )
