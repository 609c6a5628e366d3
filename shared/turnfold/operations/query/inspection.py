"""Answer requests about an installation or a whole session: totals, jobs, erasures, timelines."""

from bisect import bisect_left
from collections.abc import Collection, Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple

from turnfold.core.history.audit_chain import NO_ROWS, chain_fault, end_fault
from turnfold.errors import UnknownSession
from turnfold.messages import SessionKey, State
from turnfold.operations.query.replies import place_of, place_text, with_times
from turnfold.ports.inspection import (
    CompactionFilter,
    CompactionRow,
    InspectionStore,
    SessionStrip,
)
from turnfold.ports.query import END_POSITION, HistoryStore

MARKS_MOST = 500
"""The most marks of each kind on a timeline, the newest ones."""
AUDIT_PAGE = 1_000


class StripPart(NamedTuple):
    """Neighboring messages of one state."""

    state: State
    messages: int
    first_position: int
    last_position: int


async def stats(
    agent_ids: Collection[str] | None, *, windows: int | None, store: InspectionStore
) -> dict[str, Any]:
    """Return the totals of these agents or of all; `windows` are counts of this process."""
    totals = await store.totals(agent_ids)
    held = totals.live_tokens + totals.summary_tokens
    saved = max(0, totals.tokens - held)
    return totals._asdict() | {"tokens_saved": saved, "windows": windows}


async def compactions(
    chosen: CompactionFilter,
    *,
    agent_ids: Collection[str] | None,
    limit: int,
    store: InspectionStore,
) -> dict[str, Any]:
    """Return the newest open or failed compactions."""
    rows = await store.compactions(chosen, agent_ids=agent_ids, limit=limit)
    return {"compactions": [compaction_json(row) for row in rows], "next_before": None}


async def compactions_of(
    key: SessionKey, *, before: int | None, limit: int, store: InspectionStore
) -> dict[str, Any]:
    """Return a page of a session's compactions, newest first."""
    rows = await store.compactions_of(key, before=before, limit=limit)
    return {
        "compactions": [compaction_json(row) for row in rows],
        "next_before": rows[-1].ordinal if len(rows) == limit else None,
    }


async def erasures(
    *, agent_ids: Collection[str] | None, after: str | None, limit: int, store: InspectionStore
) -> dict[str, Any]:
    """Return a page of erasures, newest first; `next_after` is null on the last page."""
    place = None if after is None else place_of(after)
    rows = await store.erasures(agent_ids=agent_ids, after=place, limit=limit)
    return {
        "next_after": place_text(rows[-1].place) if len(rows) == limit else None,
        "erasures": [with_times(row._asdict()) for row in rows],
    }


def compaction_json(row: CompactionRow) -> dict[str, Any]:
    """Return a compaction in the form of the contract."""
    return with_times(row._asdict()) | {"compaction_id": str(row.compaction_id)}


async def timeline(key: SessionKey, *, parts: int, store: InspectionStore) -> dict[str, Any]:
    """Return the messages of a session by state, as at most about `parts` neighboring groups."""
    strip = await store.strip(key)
    groups = strip_parts(strip, parts)
    return {
        "messages": sum(group.messages for group in groups),
        "in_force": strip.in_force,
        "parts": [group._asdict() | {"state": str(group.state)} for group in groups],
        "compactions": [compaction_json(row) for row in strip.compactions[-MARKS_MOST:]],
        "versions": [with_times(mark._asdict()) for mark in strip.versions[-MARKS_MOST:]],
    }


def strip_parts(strip: SessionStrip, most: int) -> list[StripPart]:
    """Group the messages of a session by state, in order.

    Groups of one state are joined up to a share of 1 / `most` of all messages, so there are about
    as many as that, and more only where states alternate. A group never splits an eviction.
    """
    evicted = [part for row in strip.compactions if (part := _evicted_part(row)) is not None]
    total = len(strip.live) + len(strip.retracted) + sum(part.messages for part in evicted)
    share = max(1, -(-total // most))
    runs = [*evicted, *_live_parts(strip, evicted, share), *_retracted_parts(strip, evicted)]
    parts: list[StripPart] = []
    for run in sorted(runs, key=attrgetter("first_position")):
        last = parts[-1] if parts else None
        if last is not None and last.state is run.state and last.messages + run.messages <= share:
            parts[-1] = last._replace(
                messages=last.messages + run.messages,
                last_position=max(last.last_position, run.last_position),
            )
        else:
            parts.append(run)
    return parts


def _evicted_part(row: CompactionRow) -> StripPart | None:
    """Return the messages that a compaction keeps out of the window, if there are any."""
    is_out = row.evicted_at_ms is not None and row.restored_at_ms is None
    if not (is_out and row.messages) or row.first_position is None:
        return None
    last = row.first_position if row.last_position is None else row.last_position
    state = State.COVERED if row.is_covered else State.PENDING
    return StripPart(state, row.messages, row.first_position, last)


def _live_parts(
    strip: SessionStrip, evicted: Sequence[StripPart], share: int
) -> Iterator[StripPart]:
    """Return live messages in groups that end before each eviction and retracted message."""
    live, begin = strip.live, 0
    for place in sorted(
        [*(part.first_position for part in evicted), *strip.retracted, END_POSITION]
    ):
        until = bisect_left(live, place)
        for first in range(begin, until, share):
            last = min(first + share, until) - 1
            yield StripPart(State.LIVE, last - first + 1, live[first], live[last])
        begin = max(begin, until)


def _retracted_parts(strip: SessionStrip, evicted: Sequence[StripPart]) -> Iterator[StripPart]:
    """Return retracted messages in groups without another message between them."""
    starts = sorted(part.first_position for part in evicted)

    def neighbors(position: int) -> tuple[int, int]:
        return bisect_left(strip.live, position), bisect_left(starts, position)

    for _, group in groupby(strip.retracted, key=neighbors):
        positions = list(group)
        yield StripPart(State.RETRACTED, len(positions), positions[0], positions[-1])


async def audit_check(key: SessionKey, *, store: HistoryStore) -> dict[str, Any]:
    """Recompute the hash chain of a session's audit.

    The end of the chain is read before the rows, so that a row written meanwhile is not a fault,
    and again if there are more rows, so that forged rows at the end are.
    """
    end = await store.chain_end(key)
    rows, fault, hashes = 0, None, [""]
    while fault is None:
        page = await store.audit(key, after=rows, limit=AUDIT_PAGE)
        fault = chain_fault((row._asdict() for row in page), hashes)
        rows += len(page)
        if len(page) < AUDIT_PAGE:
            break
    if not rows and end is None:
        raise UnknownSession
    end = end or NO_ROWS
    if fault is None:
        later = await store.chain_end(key) if rows > end.rows else end
        fault = end_fault(hashes, end, later or NO_ROWS)
    return {"rows": rows, "is_intact": fault is None, "fault": fault}
