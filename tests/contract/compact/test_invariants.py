"""The invariants that every store test ends with report each violation that is put into a sound store."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from tests.invariants import Row, SessionSeen, StoreSnapshot, faults
from tests.store_fixtures import (
    KEY,
    NOON,
    Stores,
    assistant,
    result,
    retracted,
    summary,
    turn,
    turns,
    user,
)
from turnfold.messages import AgentId, CompactionId, SessionId, SessionKey

Break = Callable[[SessionSeen], SessionSeen]


def message(place: int, **facts: Any) -> Break:
    """Change a message."""

    def change(seen: SessionSeen) -> SessionSeen:
        stored = list(seen.messages)
        one = stored[place]
        stored[place] = one._replace(message=replace(one.message, **facts))
        return replace(seen, messages=tuple(stored))

    return change


def entry(name: str, place: int, **facts: Any) -> Break:
    """Change a compaction, a version or an audit row."""

    def change(seen: SessionSeen) -> SessionSeen:
        entries = list(getattr(seen, name))
        entries[place] = entries[place]._replace(**facts)
        changes: dict[str, Any] = {name: tuple(entries)}
        return replace(seen, **changes)

    return change


def added(name: str, place: int, **numbers: int) -> Break:
    """Add to numbers of a compaction, a version or an audit row."""
    return lambda seen: entry(
        name,
        place,
        **{one: getattr(getattr(seen, name)[place], one) + more for one, more in numbers.items()},
    )(seen)


def cut(name: str, kept: slice) -> Break:
    """Keep a part."""
    return lambda seen: replace(seen, **{name: getattr(seen, name)[kept]})


def runs_twice(seen: SessionSeen) -> SessionSeen:
    def running(row: Row, fence: int) -> Row:
        return row._replace(status="running", fence=fence, lease_until_ms=NOON)

    return replace(seen, rows=tuple(map(running, seen.rows, range(len(seen.rows)))))


BROKEN: Mapping[str, Break] = {
    "positions do not rise": cut("messages", slice(None, None, -1)),
    "has its messages at": lambda seen: replace(
        seen, events=dict.fromkeys(seen.events, max(seen.events.values()))
    ),
    "messages of no event": lambda seen: replace(seen, events={}),
    "the counters say": lambda seen: replace(
        seen, counters=replace(seen.counters, live_tokens=seen.counters.live_tokens + 1)
    ),
    "retracted, and not": lambda seen: replace(
        seen,
        retracted=(
            *seen.retracted,
            seen.retracted[0]._replace(message=seen.messages[0].message),
        ),
    ),
    "is paired": message(-1, answers=None),
    "grouping lost or doubled": cut("messages", slice(None, None, -1)),
    "compactions are numbered": entry("rows", 0, ordinal=2),
    "messages of no compaction": message(0, compaction_id=CompactionId("99")),
    "evicted 10 messages": added("rows", 0, messages_evicted=1),
    "a lease without a runner": entry("rows", 0, lease_until_ms=NOON),
    "covered by nobody": entry("rows", 0, is_covered=False),
    "committed without a version": entry("rows", 0, version=None),
    "evicted or restored at no time": entry("rows", 0, evicted_at_ms=None),
    "spans 0 to 1": lambda seen: replace(seen, spans={1: (0, 1)}),
    "two jobs run": runs_twice,
    "versions have a gap": cut("versions", slice(1, None)),
    "version 2 says": added("versions", 1, messages_covered=-1),
    "version 2 builds on 2": entry("versions", 1, base_version=2),
    "speaks for less": lambda seen: replace(
        seen, speaks_for={**seen.speaks_for, 2: frozenset({2})}
    ),
    "the audit chain breaks": entry("audit", 0, reason="another"),
    "the audit knows of": entry("audit", 0, phase="rejected"),
    "tokens before": added("audit", 0, tokens_before=1, tokens_after=1),
    "tokens became": added("audit", 0, tokens_after=1),
    "tokens after": lambda seen: entry(
        "rows", 0, tokens_after=(seen.rows[0].tokens_after or 0) + 1
    )(seen),
}
"""By a part of the fault that is reported."""


async def test_each_broken_invariant_is_reported(stores: Stores) -> None:
    for first_seq in (1, 8):
        await stores.ingest(*turns(first_seq, 7))
        (job,) = await stores.claim()
        await stores.jobs.commit(job, summary(), reason=None, now_ms=NOON)
    await stores.ingest(turn(20, user("look"), assistant(None, "a")), result(21, "a", "found"))
    await stores.ingest(retracted(22, "e14#1"))
    seen = await stores.seen()
    session = seen.sessions[KEY]
    another = SessionKey(AgentId(KEY.agent_id), SessionId("s-2"))
    wholes: dict[str, StoreSnapshot] = {
        "ingested ranges meet": replace(seen, ingested=((1, 5), (6, 22))),
        "sessions are counted": replace(seen, counted={}),
        "an event is stored 2 times": replace(seen, sessions={KEY: session, another: session}),
    }
    wholes |= {
        fault: replace(seen, sessions={KEY: change(session)}) for fault, change in BROKEN.items()
    }

    assert faults(seen) == []
    assert [
        (fault, faults(broken))
        for fault, broken in wholes.items()
        if not any(fault in found for found in faults(broken))
    ] == []
