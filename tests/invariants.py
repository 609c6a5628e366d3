"""What holds in every store at every moment: nothing lost, nothing doubled, order, versions without a gap."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, NamedTuple

from sqlalchemy import Connection, select

from turnfold.core.eviction.usage import UsageState
from turnfold.core.history.audit_chain import row_hash
from turnfold.core.history.blocks import group
from turnfold.core.history.pairing import (
    CallPosition,
    MatchedResult,
    ResultPosition,
    match_results,
)
from turnfold.messages import MESSAGES_PER_EVENT, CompactionId, Message, SessionKey
from turnfold.ports.query import (
    AuditRow,
)
from turnfold.store.database import schema
from turnfold.store.database.engine import Database
from turnfold.store.database.message_rows import FACTS, facts_of, message_of
from turnfold.store.database.predicates import ERASED_AGENT


class Stored(NamedTuple):
    """A message and its texts."""

    message: Message
    body: str
    original: str | None
    is_error: bool


class Retracted(NamedTuple):
    """A retracted message, and the marks of its retraction; see the table `retracted_messages`."""

    message: Message
    body: str
    seq: int
    named_seq: int | None


class Row(NamedTuple):
    """A compaction."""

    ordinal: int
    trigger: str
    status: str
    is_covered: bool
    messages_evicted: int
    tokens_evicted: int
    tokens_before: int
    tokens_after: int | None
    attempts: int
    fence: int
    reason: str | None
    version: int | None
    lease_until_ms: int | None
    next_attempt_at_ms: int
    requested_at_ms: int
    finished_at_ms: int | None
    evicted_at_ms: int | None
    restored_at_ms: int | None
    digest: str
    digest_tokens: int


class Version(NamedTuple):
    """A summary; `newest_row` is the ordinal of the compaction it names."""

    version: int
    base_version: int | None
    newest_row: int
    kind: str
    model: str | None
    text: str
    ledger: str
    tokens: int
    messages_covered: int
    created_at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """A session's row."""

    messages_total: int
    tokens_total: int
    live_messages: int
    live_tokens: int
    version: int | None
    versions: int
    compactions: int
    audit_rows: int
    audit_hash: str
    model: str | None
    last_event_at_ms: int | None
    wishes: tuple[str | None, str | None, str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSeen:
    """Everything a store holds of one session. Compactions go by their ordinals, which two stores share; `compaction_ids` are their ids.

    `spans` are the first and last position that a compaction's row names, where the store keeps them; `gauge` is what is
    known of the usage that its model reported. `speaks_for` names the rows of each version, `activations` which was in force when. `reports` are the
    events that may have no messages: those that name a model, and retractions.
    """

    counters: Counters
    messages: tuple[Stored, ...]
    retracted: tuple[Retracted, ...] = ()
    rows: tuple[Row, ...]
    versions: tuple[Version, ...]
    audit: tuple[AuditRow, ...]
    events: Mapping[str, int]
    reports: frozenset[str] = frozenset()
    spans: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    gauge: UsageState = field(default_factory=UsageState)
    speaks_for: Mapping[int, frozenset[int]] = field(default_factory=dict)
    activations: tuple[tuple[int, int | None], ...] = ()
    model_rests: tuple[int, int, str | None] = (0, 0, None)
    held_to_tokens: int = 0
    rounds: int = 0
    compaction_ids: tuple[CompactionId, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSnapshot:
    """Everything a store holds; `counted` is how many sessions it thinks that each agent has."""

    sessions: Mapping[SessionKey, SessionSeen]
    counted: Mapping[str, int]
    ingested: tuple[tuple[int, int], ...]
    dead_letters: tuple[tuple[int, str, str], ...]


def faults(seen: StoreSnapshot) -> list[str]:
    """What is wrong with a store, in words; nothing when all invariants hold."""
    found = [
        f"{key}: {fault}"
        for key, session in seen.sessions.items()
        for fault in _session_faults(session)
    ]
    reaches = [(0, -1), *seen.ingested]
    found += [
        f"ingested ranges meet: {before} {after}"
        for before, after in pairwise(reaches)
        if after[0] <= before[1] + 1
    ]
    agents = Counter(key.agent_id for key in seen.sessions)
    found += (
        [f"sessions are counted {dict(seen.counted)}, there are {dict(agents)}"]
        if seen.counted != agents
        else []
    )
    named = Counter(
        (key.agent_id, event_id)
        for key, session in seen.sessions.items()
        for event_id in session.events
    )
    return found + [
        f"an event is stored {times} times: {event}" for event, times in named.items() if times > 1
    ]


def _session_faults(session: SessionSeen) -> Iterable[str]:
    yield from _message_faults(session)
    yield from _retraction_faults(session)
    yield from _pairing_faults(session.messages, session.retracted)
    yield from _compaction_faults(session)
    yield from _version_faults(session)
    yield from _audit_faults(session)


def _message_faults(session: SessionSeen) -> Iterable[str]:
    messages = [one.message for one in session.messages]
    positions = [message.position for message in messages]
    if any(after <= before for before, after in pairwise(positions)):
        yield f"positions do not rise: {positions}"
    by_event: dict[str, list[int]] = {}
    for message in [*messages, *(entry.message for entry in session.retracted)]:
        by_event.setdefault(message.event_id, []).append(message.position)
    for event_id, seq in session.events.items():
        places = sorted(
            position - seq * MESSAGES_PER_EVENT for position in by_event.get(event_id, ())
        )
        has_none = not places and event_id not in session.reports
        if has_none or places != list(range(len(places))):
            yield f"event {event_id} of sequence {seq} has its messages at {places}"
    if strangers := {message.event_id for message in messages} - set(session.events):
        yield f"messages of no event: {strangers}"
    live = [
        message for message in messages if message.compaction_id is None and not message.is_pinnable
    ]
    found = replace(
        session.counters,
        messages_total=len(messages),
        tokens_total=sum(message.tokens for message in messages),
        live_messages=len(live),
        live_tokens=sum(message.tokens for message in live),
        version=session.activations[-1][1] if session.activations else None,
        versions=len(session.versions),
        compactions=len(session.rows),
        audit_rows=len(session.audit),
        audit_hash=session.audit[-1].hash if session.audit else "",
    )
    if found != session.counters:
        yield f"the counters say {session.counters} where the rows say {found}"


def _retraction_faults(session: SessionSeen) -> Iterable[str]:
    retracted = {entry.message.position for entry in session.retracted}
    if both := {one.message.position for one in session.messages} & retracted:
        yield f"retracted, and not: {both}"


def _pairing_faults(stored: Sequence[Stored], retracted: Sequence[Retracted] = ()) -> Iterable[str]:
    """Pairing is a function of the stream alone, and no block has lost a message."""
    calls: dict[str, list[CallPosition]] = {}
    results: dict[str, list[ResultPosition]] = {}
    named = {entry.message.position: entry.named_seq for entry in retracted}
    texts = [(one.message, one.body) for one in stored]
    texts += [(entry.message, entry.body) for entry in retracted]
    for message, text in texts:
        for call in message.calls:
            place = CallPosition(message.position, call.slot, named.get(message.position))
            calls.setdefault(call.call_id, []).append(place)
        body = json.loads(text)
        if (
            body["role"] == "tool"
            and isinstance(call_id := body.get("tool_call_id"), str)
            and call_id
        ):
            digest = json.dumps(body.get("content"), sort_keys=True).encode()
            results.setdefault(call_id, []).append(
                ResultPosition(message.position, digest, named.get(message.position))
            )
    verdicts = {
        place: verdict
        for call_id, seen in results.items()
        for place, verdict in match_results(calls.get(call_id, ()), seen).items()
    }
    taken_back = {entry.message.position: entry.seq for entry in retracted}
    for message, _ in texts:
        at = message.position
        verdict = verdicts.get(at, MatchedResult(None, False, named.get(at)))
        told = MatchedResult(message.answers, message.is_copy, taken_back.get(at))
        if told != verdict:
            yield f"{message.message_id} is paired {told}, the stream says {verdict}"
    messages = [one.message for one in stored]
    grouped = group(messages)
    again = [grouped.pinned] if grouped.pinned else []
    again += [message for block in grouped.blocks for message in block.stored] + list(grouped.loose)
    if sorted(again, key=lambda message: message.position) != messages:
        yield "grouping lost or doubled a message"


def _compaction_faults(session: SessionSeen) -> Iterable[str]:
    by_row = Counter(
        one.message.compaction_id
        for one in session.messages
        if one.message.compaction_id is not None
    )
    tokens: Counter[CompactionId | None] = Counter()
    places: dict[CompactionId | None, list[int]] = {}
    for one in session.messages:
        tokens[one.message.compaction_id] += one.message.tokens
        places.setdefault(one.message.compaction_id, []).append(one.message.position)
    if [row.ordinal for row in session.rows] != list(range(1, len(session.rows) + 1)):
        yield f"compactions are numbered {[row.ordinal for row in session.rows]}"
    retracted = {entry.message.compaction_id for entry in session.retracted}
    if strangers := set(by_row) - {CompactionId(str(row.ordinal)) for row in session.rows}:
        yield f"messages of no compaction: {strangers}"
    for row in session.rows:
        mine = CompactionId(str(row.ordinal))
        held = (0, 0) if row.status == "restored" else (row.messages_evicted, row.tokens_evicted)
        if (by_row[mine], tokens[mine]) != held:
            yield f"{row} evicted {by_row[mine]} messages of {tokens[mine]} tokens"
        if (row.status == "running") != (row.lease_until_ms is not None):
            yield f"a lease without a runner, or the other way round: {row}"
        spoken_for = row.ordinal in session.speaks_for.get(session.counters.version or 0, ())
        if row.is_covered != (
            spoken_for and row.messages_evicted > 0 and row.status == "committed"
        ):
            yield f"covered by nobody, or unsaid: {row}"
        if (row.status == "committed") != (row.version is not None and row.status != "restored"):
            yield f"committed without a version, or the other way round: {row}"
        if (row.status == "restored") != (row.restored_at_ms is not None) or (
            # Its messages may have come back from a retraction. The audit tells of it still.
            row.evicted_at_ms is None and (row.messages_evicted > 0 or mine in retracted)
        ):
            yield f"evicted or restored at no time: {row}"
        first, last = session.spans.get(row.ordinal, (0, 1 << 60))
        if any(not first <= position <= last for position in places.get(mine, ())):
            yield f"compaction {row.ordinal} spans {first} to {last}, and has messages at {places[mine]}"
    running = {(row.fence, row.lease_until_ms) for row in session.rows if row.status == "running"}
    if len(running) > 1:
        yield f"two jobs run in one session: {running}"


def _version_faults(session: SessionSeen) -> Iterable[str]:
    if [version.version for version in session.versions] != list(
        range(1, len(session.versions) + 1)
    ):
        yield f"versions have a gap: {[version.version for version in session.versions]}"
    for version in session.versions:
        covered = sum(
            row.messages_evicted
            for row in session.rows
            if row.ordinal in session.speaks_for[version.version]
        )
        # The count of an eviction goes down if one of its messages is retracted.
        is_in_force = version.version == session.counters.version
        if covered > version.messages_covered or (
            covered < version.messages_covered and (is_in_force or not session.retracted)
        ):
            yield f"version {version.version} says {version.messages_covered} messages where its rows hold {covered}"
        if version.base_version is not None and not 0 < version.base_version < version.version:
            yield f"version {version.version} builds on {version.base_version}"
        if (
            not session.speaks_for.get(version.base_version or 0, frozenset())
            <= session.speaks_for[version.version]
        ):
            yield f"version {version.version} speaks for less than version {version.base_version}, on which it builds"


def _audit_faults(session: SessionSeen) -> Iterable[str]:
    before = ""
    for number, row in enumerate(session.audit, start=1):
        sealed = row._asdict()
        if row.ordinal != number or row.prev_hash != before or row.hash != row_hash(before, sealed):
            yield f"the audit chain breaks at row {number}"
        before = row.hash
    phases = [row.phase for row in session.audit]
    # What was erased is told of still, and is there no more.
    phases = phases[len(phases) - phases[::-1].index("erased") :] if "erased" in phases else phases
    yield from _token_faults(session, session.audit[len(session.audit) - len(phases) :])
    evicted, done = phases.count("evicted"), phases.count("summary_done")
    if evicted != sum(row.evicted_at_ms is not None for row in session.rows) or done != len(
        session.versions
    ):
        yield f"the audit knows of {evicted} evictions and {done} versions"


def _token_faults(session: SessionSeen, audit: Sequence[AuditRow]) -> Iterable[str]:
    """Check the tokens of audit rows against the compactions and their messages."""
    tokens: Counter[CompactionId | None] = Counter()
    stored = [*(entry.message for entry in session.messages)]
    stored += [entry.message for entry in session.retracted]
    number = Counter(message.compaction_id for message in stored)
    for message in stored:
        if not message.is_pinnable:
            tokens[message.compaction_id] += message.tokens
    rows = dict(zip(map(int, session.compaction_ids), session.rows, strict=True))
    for sealed in audit:
        row = rows.get(sealed.compaction_id or 0)
        if row is None:
            continue
        before, after = sealed.tokens_before, sealed.tokens_after
        if sealed.phase == "evicted" and before != row.tokens_before:
            yield f"the audit says {before} tokens before {row}"
        if sealed.phase == "evicted" and row.status != "restored":
            mine = CompactionId(str(row.ordinal))
            left, went = tokens[mine], (before or 0) - (after or 0)
            # A retracted message that comes back is live, and its eviction does not count it.
            missing = json.loads(sealed.details)["evicted"] - number[mine]
            if None in (before, after) or missing < 0 or (went < left if missing else went != left):
                yield f"the audit says that {before} tokens became {after}, but {left} left: {row}"
        is_whole = sealed.phase == "summary_done" and "is_part" not in json.loads(sealed.details)
        if is_whole and row.status == "committed" and row.tokens_after != after:
            yield f"the audit says {after} tokens after {row}"


# --- what a store holds


async def seen_in_database(database: Database) -> StoreSnapshot:
    """Everything in a database, in one snapshot."""
    return await database.snapshot(_seen)


def _seen(connection: Connection) -> StoreSnapshot:
    def all_of(*columns: Any) -> Sequence[Any]:
        return connection.execute(select(*columns)).all()

    # Rows of erased sessions, which are deleted later, are no part of what a store holds.
    sessions = [row for row in all_of(schema.sessions) if row.agent_id != ERASED_AGENT]
    compactions = sorted(all_of(schema.compactions), key=lambda row: row.ordinal)
    ordinals = {row.compaction_id: row.ordinal for row in compactions}
    messages = all_of(
        *FACTS, schema.messages.c.original, schema.messages.c.is_error, schema.messages.c.body
    )
    retracted = schema.retracted_messages
    gone = all_of(
        *facts_of(retracted),
        *(retracted.c[n] for n in ("body", "retracted_seq", "named_seq")),
    )
    retracting = {(one.sid, one.stream_seq) for one in all_of(schema.retractions)}
    summaries = all_of(schema.summaries)
    coverage = all_of(schema.coverage)
    activations = sorted(all_of(schema.summary_activations), key=lambda one: one.ordinal)
    audit = all_of(*(schema.audit.c[name] for name in AuditRow._fields), schema.audit.c.audit_id)
    events = all_of(
        schema.events.c.sid,
        schema.events.c.event_id,
        schema.events.c.stream_seq,
        schema.events.c.envelope,
    )
    ingested = all_of(schema.ingested_ranges)
    counts = all_of(schema.session_counts)
    dead = all_of(
        schema.dead_letters.c.stream_seq,
        schema.dead_letters.c.reason,
        schema.dead_letters.c.subject,
    )

    def numbered(message: Message) -> Message:
        row = message.compaction_id
        return (
            message
            if row is None
            else replace(message, compaction_id=CompactionId(str(ordinals[int(row)])))
        )

    def session_of(row: Any) -> SessionSeen:
        mine = [one for one in compactions if one.sid == row.sid]
        return SessionSeen(
            counters=Counters(
                **{name: getattr(row, name) for name in Counters.__slots__ if name != "wishes"},
                wishes=(row.preset, row.mode, row.overrides),
            ),
            messages=tuple(
                sorted(
                    (Stored(numbered(message_of(one)), one[-1], one[-3], bool(one[-2])) for one in messages if one[0] == row.sid),
                    key=lambda one: one.message.position,
                )
            ),
            retracted=tuple(
                sorted(
                    (Retracted(numbered(message_of(one)), *one[-3:]) for one in gone if one[0] == row.sid),
                    key=lambda one: one.message.position,
                )
            ),
            rows=tuple(Row(*(getattr(one, name) for name in Row._fields)) for one in mine),
            versions=tuple(
                Version(
                    one.version, one.base_version, ordinals[one.compaction_id], one.kind, one.model, one.text, one.ledger, one.tokens,
                    one.messages_covered, one.created_at_ms,
                )
                for one in sorted(summaries, key=lambda one: one.version)
                if one.sid == row.sid
            ),
            audit=tuple(
                AuditRow(*one[:-1])
                for one in sorted(audit, key=lambda one: one.audit_id)
                if (one.agent_id, one.session_id) == (row.agent_id, row.session_id)
            ),
            events={one.event_id: one.stream_seq for one in events if one.sid == row.sid},
            reports=frozenset(
                one.event_id
                for one in events
                if one.sid == row.sid and ('"model":' in (one.envelope or "") or (one.sid, one.stream_seq) in retracting)
            ),
            spans={one.ordinal: (one.first_position, one.last_position) for one in mine if one.first_position is not None},
            gauge=UsageState(row.factor, row.reported_seq, row.reported_at_ms, row.reported_tokens, -1, row.usage_evictions),
            speaks_for=_closed(
                {one.version: one.base_version for one in summaries if one.sid == row.sid},
                [(one.version, ordinals[one.compaction_id]) for one in coverage if one.sid == row.sid],
            ),
            activations=tuple((one.at_ms, one.version) for one in activations if one.sid == row.sid),
            model_rests=(row.failures, row.cooldown_until_ms, row.cooldown_reason),
            held_to_tokens=row.held_to_tokens,
            rounds=row.rounds,
            compaction_ids=tuple(CompactionId(str(one.compaction_id)) for one in mine),
        )  # fmt: skip

    return StoreSnapshot(
        sessions={SessionKey(row.agent_id, row.session_id): session_of(row) for row in sessions},
        counted={row.agent_id: row.total for row in counts if row.total},
        ingested=tuple(sorted((row.first_seq, row.last_seq) for row in ingested)),
        dead_letters=tuple(sorted(tuple(row) for row in dead)),
    )


def _closed(
    bases: Mapping[int, int | None], added: Iterable[tuple[int, int]]
) -> dict[int, frozenset[int]]:
    """The rows of each version, those of its bases included."""
    added = list(added)
    found: dict[int, frozenset[int]] = {}
    for version in sorted(bases):
        mine = frozenset(row for by, row in added if by == version)
        found[version] = mine | found.get(bases[version] or 0, frozenset())
    return found
