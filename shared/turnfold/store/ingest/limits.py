"""The windows of models as providers reported them, per session and model."""

from collections.abc import Mapping
from typing import Final

from sqlalchemy import bindparam, func, literal_column, select

from turnfold.core.eviction.limits import LimitReport, newest_limits
from turnfold.messages import MESSAGES_PER_EVENT, position_of
from turnfold.store.database.schema import reported_limits, usage_reports
from turnfold.store.database.statements import BulkInsert, Prepared, SupportsStatements

ALWAYS_MS: Final = 1 << 62
"""Later than every event."""
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
        usage_reports.c.position > bindparam("after"),
        usage_reports.c.model == bindparam("of_model"),
        usage_reports.c.at_ms <= bindparam("until_ms"),
    ),
    ("of_sid", "after", "of_model", "until_ms"),
)


def limits_of(
    connection: SupportsStatements, sid: int, until_ms: int = ALWAYS_MS
) -> Mapping[str, int]:
    """Return the limits of a session by model, in tokens, as known at a time.

    The newest report of a model counts, or the largest call that succeeded after it.
    """
    rows = _REPORTED.rows(connection, sid, until_ms)
    newest = newest_limits(LimitReport(*row) for row in rows)
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
