"""Proof, from SQL and from what readers were told, that a history is what was published: laws L1 to L3, L5 to L7, L10, L12 and the audit."""

import json
import sqlite3
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from tests.published import MARK, Json, Published, Reading, messages_of
from tests.running_system import Streamed
from turnfold.client import OutgoingEvent
from turnfold.contracts.subjects import TURN_COMPLETED
from turnfold.core.history.audit_chain import SEALED_FIELDS, row_hash
from turnfold.core.history.validation import validation_errors
from turnfold.messages import MESSAGES_PER_EVENT, SessionKey

Row = sqlite3.Row
SHOWN_FAULTS = 12
AMPLE_TOKENS = 100_000
SETTLED = frozenset({"committed", "restored", "rejected", "failed", "stale"})
ENDS_OF_EVICTIONS = frozenset({"pending", "running", "committed", "restored"})


class Checker:
    """The faults of one database. `stream` is all that the stream of events holds: it decides order, and what had to be stored.

    With `is_mixed`, workers of the previous release took part. They count fewer fields, so tokens are not added up.
    """

    def __init__(
        self,
        database: Path,
        published: Published,
        stream: Sequence[Streamed],
        *,
        is_settled: bool = True,
        is_mixed: bool = False,
    ) -> None:
        self._path = database
        self._published = published
        self._stream = stream
        self._is_settled = is_settled
        self._is_mixed = is_mixed
        self._seqs = self._seqs_of_events()
        self._first = {name: seqs[0] for name, seqs in self._seqs.items()}
        self._summaries: dict[tuple[str, str, int], Row] = {}
        self._places: dict[SessionKey, dict[str, tuple[int, int | None]]] = defaultdict(dict)
        self._speaks_for: dict[tuple[str, str, int], frozenset[int]] = {}
        self._faults: list[str] = []
        self._fault = self._faults.append

    def faults(self) -> list[str]:
        """A sentence for each fault; empty when every law holds."""
        with closing(
            sqlite3.connect(f"file:{self._path}?mode=rw", uri=True, timeout=30)
        ) as connection:
            # Not `mode=ro`: SQLite checks no constraints of a file that it may only read.
            connection.execute("PRAGMA query_only = ON")
            connection.row_factory = sqlite3.Row
            self._ask: Callable[..., list[Row]] = lambda statement, *values: connection.execute(
                statement, values
            ).fetchall()
            connection.execute("BEGIN")
            self._integrity()
            self._where()
            self._stored()
            self._order()
            self._sums()
            self._compactions()
            self._versions()
            self._audit()
            self._dead_letters()
            self._ingested()
        self._readings()
        self._backwards()
        self._pages()
        self._lists()
        return self._faults

    def _integrity(self) -> None:
        told = self._ask("PRAGMA quick_check")[0][0]
        if told != "ok":
            self._fault(f"the file is damaged: {told}")
        if self._ask("PRAGMA foreign_key_check"):
            self._fault("a row refers to a session that is not there")

    def _where(self) -> None:
        """What is stored of each message, for those who were told of it."""
        for row in self._ask("SELECT * FROM messages_view"):
            key, taken_by = SessionKey(row["agent_id"], row["session_id"]), row["compaction_id"]
            self._places[key][row["message_id"]] = (
                row["position"],
                None if taken_by is None else int(taken_by),
            )

    # --- L1, L2: stored once, as it was

    def _stored(self) -> None:
        ids = Counter(
            (row["agent_id"], row["session_id"], row["message_id"])
            for row in self._ask("SELECT * FROM messages_view")
        )
        self._told("stored more than once", [key for key, times in ids.items() if times > 1])
        wanted: dict[tuple[str, ...], tuple[OutgoingEvent, Json]] = {}
        possible: set[tuple[str, ...]] = set()
        in_stream = set(self._first)
        for name, event in self._published.attempted.items():
            key: tuple[str, str] = (event.key.agent_id, event.key.session_id)
            known: dict[tuple[str, ...], tuple[OutgoingEvent, Json]] = {
                (*key, f"{event.event_id}#{index}"): (event, one)
                for index, one in enumerate(messages_of(event))
            }
            possible.update(known)
            if name in in_stream:
                wanted |= known
        lost_by_stream = [name for name in self._published.acknowledged if name not in in_stream]
        self._told("acknowledged by the stream and not in it", lost_by_stream)
        self._told("in the stream and not stored", [key for key in wanted if key not in ids])
        self._told("stored and never published", [key for key in ids if key not in possible])
        bodies = self._ask(
            "SELECT s.agent_id, s.session_id, m.event_id || '#' || (m.position % 1024) AS message_id, m.body, m.original"
            "  FROM messages m JOIN sessions s USING (sid)"
        )
        altered = [
            key
            for row in bodies
            if (key := tuple(row)[:3]) in wanted and not _is_kept(row, *wanted[key])
        ]
        self._told("stored otherwise than published", altered)

    # --- L3: the order is the stream's

    def _seqs_of_events(self) -> dict[tuple[str, str], list[int]]:
        """Where the stream holds each valid event."""
        found: dict[tuple[str, str], list[int]] = {}
        by_payload = {event.payload: name for name, event in self._published.attempted.items()}
        for entry in self._stream:
            name = by_payload.get(entry.payload)
            if name is not None and entry.payload not in self._published.bad:
                found.setdefault(name, []).append(entry.seq)
        return found

    def _order(self) -> None:
        first = self._first
        stored: defaultdict[SessionKey, list[tuple[int, str]]] = defaultdict(list)
        for row in self._ask("SELECT * FROM messages_view ORDER BY agent_id, session_id, position"):
            event_id, _, index = row["message_id"].rpartition("#")
            stored[SessionKey(row["agent_id"], row["session_id"])].append(
                (row["position"], row["message_id"])
            )
            seq = first.get((row["agent_id"], event_id))
            if seq is not None and row["position"] != seq * MESSAGES_PER_EVENT + int(index):
                self._fault(
                    f"{row['message_id']} stands at {row['stream_seq']}, the stream has it first at {seq}"
                )
        for key, messages in stored.items():
            order = [
                event_id
                for event_id in self._published.order[key]
                if (key.agent_id, event_id) in first
            ]
            expected = [
                f"{one}#{i}"
                for one in order
                for i in range(len(messages_of(self._published.attempted[key.agent_id, one])))
            ]
            found = [message_id for _, message_id in messages]
            if found != expected and sorted(found) == sorted(expected):
                place = next(
                    index
                    for index, (a, b) in enumerate(zip(found, expected, strict=True))
                    if a != b
                )
                self._fault(
                    f"{key.session_id}: message {place} is {found[place]}, published was {expected[place]}"
                )

    # --- every message in one state, and the counters say so

    def _sums(self) -> None:
        states: defaultdict[tuple[str, str], Counter[str]] = defaultdict(Counter)
        tokens: Counter[tuple[str, str]] = Counter()
        for row in self._ask("SELECT agent_id, session_id, state, tokens FROM messages_view"):
            states[row["agent_id"], row["session_id"]][row["state"]] += 1
            tokens[row["agent_id"], row["session_id"]] += row["tokens"]
        for row in self._ask("SELECT * FROM sessions_view"):
            key = row["agent_id"], row["session_id"]
            counted = states[key]
            told = {state: row[f"messages_{state}"] for state in ("live", "pending", "covered")}
            if (
                told != {state: counted[state] for state in told}
                or row["messages_total"] != counted.total()
            ):
                self._fault(
                    f"{key}: the session says {told} of {row['messages_total']}, its messages {dict(counted)}"
                )
            if row["tokens_total"] != tokens[key] and not self._is_mixed:
                self._fault(
                    f"{key}: the session says {row['tokens_total']} tokens, its messages {tokens[key]}"
                )
            if self._is_settled and told["pending"]:
                self._fault(f"{key}: {told['pending']} messages are still pending")
        counters = self._ask(
            "SELECT s.session_id, s.live_messages, s.live_tokens, count(m.position) AS messages, coalesce(sum(m.tokens), 0) AS tokens"
            "  FROM sessions s LEFT JOIN messages m ON m.sid = s.sid AND m.compaction_id IS NULL AND NOT (m.role IN ('system', 'developer') AND m.position % 1024 = 0)"
            " GROUP BY s.sid"
        )
        for row in counters:
            is_wrong = row["live_messages"] != row["messages"]
            if is_wrong or (row["live_tokens"] != row["tokens"] and not self._is_mixed):
                self._fault(
                    f"{row['session_id']}: the triggers look at {tuple(row)[1:3]}, live are {tuple(row)[3:]}"
                )

        there = self._pairs("SELECT agent_id, count(*) FROM sessions GROUP BY agent_id")
        told_of = self._pairs("SELECT agent_id, total FROM session_counts WHERE total <> 0")
        if there != told_of:
            self._fault(f"agents have {there} sessions, counted are {told_of}")

    def _compactions(self) -> None:
        counted = self._ask(
            "SELECT c.*, s.session_id, count(m.position) AS marked, min(m.position) AS first_marked, max(m.position) AS last_marked"
            "  FROM compactions c JOIN sessions s USING (sid) LEFT JOIN messages m ON m.compaction_id = c.compaction_id AND m.sid = c.sid"
            " GROUP BY c.compaction_id"
        )
        for row in counted:
            name = f"{row['session_id']}, compaction {row['ordinal']}"
            if row["marked"] != row["messages_evicted"]:
                self._fault(
                    f"{name}: it says {row['messages_evicted']} evicted, {row['marked']} are marked"
                )
            if (
                row["marked"]
                and not row["first_position"]
                <= row["first_marked"]
                <= row["last_marked"]
                <= row["last_position"]
            ):
                self._fault(f"{name}: a message lies outside its span")
            if row["is_covered"] != (row["status"] == "committed" and row["messages_evicted"] > 0):
                self._fault(f"{name}: {row['status']} and covered {bool(row['is_covered'])}")
            if row["messages_evicted"] and row["status"] not in ENDS_OF_EVICTIONS:
                self._fault(
                    f"{name}: it evicted {row['messages_evicted']} messages and ended {row['status']}"
                )
            # A stand-in waits until the model may be asked again, and what it rewrites is in force meanwhile.
            if self._is_settled and row["status"] not in SETTLED and row["trigger"] != "stand_in":
                self._fault(f"{name}: still {row['status']}")
        self._told(
            "evicted by a compaction of another session, or of none",
            self._ask(
                "SELECT m.sid, m.position FROM messages m LEFT JOIN compactions c USING (compaction_id)"
                " WHERE m.compaction_id IS NOT NULL AND (c.sid IS NULL OR c.sid != m.sid)"
            ),
        )

    # --- L10: versions

    def _versions(self) -> None:
        added: defaultdict[tuple[int, int], set[int]] = defaultdict(set)
        for row in self._ask("SELECT sid, version, compaction_id FROM coverage"):
            added[row["sid"], row["version"]].add(row["compaction_id"])
        evicted = {
            row["compaction_id"]: row["messages_evicted"]
            for row in self._ask("SELECT * FROM compactions")
        }
        activations = {
            row["sid"]: row["version"]
            for row in self._ask("SELECT sid, version FROM summary_activations ORDER BY ordinal")
        }
        versions: defaultdict[int, list[Row]] = defaultdict(list)
        stored = self._ask(
            "SELECT s.agent_id, s.session_id, v.* FROM summaries v JOIN sessions s USING (sid) ORDER BY sid, v.version"
        )
        for row in stored:
            versions[row["sid"]].append(row)
            name = row["agent_id"], row["session_id"], row["version"]
            base = self._speaks_for.get((*name[:2], row["base_version"]), frozenset())
            self._summaries[name], self._speaks_for[name] = (
                row,
                base | added[row["sid"], row["version"]],
            )
            covered = sum(evicted[one] for one in self._speaks_for[name])
            if row["messages_covered"] != covered:
                self._fault(
                    f"{name}: it says {row['messages_covered']} messages, covered are {covered}"
                )
        for session in self._ask("SELECT * FROM sessions"):
            numbers = [row["version"] for row in versions[session["sid"]]]
            if numbers != list(range(1, session["versions"] + 1)):
                self._fault(
                    f"{session['session_id']}: versions {numbers}, counted {session['versions']}"
                )
            if session["version"] != activations.get(session["sid"]) or (
                numbers and session["version"] not in numbers
            ):
                self._fault(
                    f"{session['session_id']}: in force is {session['version']}, last activated {activations.get(session['sid'])}"
                )

    # --- the audit chain

    def _audit(self) -> None:
        chains: defaultdict[tuple[str, str], list[Row]] = defaultdict(list)
        for row in self._ask("SELECT * FROM audit ORDER BY audit_id"):
            chains[row["agent_id"], row["session_id"]].append(row)
        for session in self._ask("SELECT * FROM sessions"):
            key = session["agent_id"], session["session_id"]
            seal = ""
            for ordinal, row in enumerate(chains[key], start=1):
                sealed = {name: row[name] for name in (*SEALED_FIELDS, "actor")}
                if (
                    row["ordinal"] != ordinal
                    or row["prev_hash"] != seal
                    or row["hash"] != row_hash(seal, sealed)
                ):
                    self._fault(f"{key}: audit row {ordinal} does not continue the chain")
                seal = row["hash"]
            if (session["audit_rows"], session["audit_hash"]) != (len(chains[key]), seal):
                self._fault(
                    f"{key}: {session['audit_rows']} audit rows were sealed, {len(chains[key])} are there"
                )
        for phase, table in (
            ("evicted", "compactions WHERE messages_evicted > 0"),
            ("summary_done", "summaries"),
        ):
            rows = self._ask("SELECT count(*) FROM audit WHERE phase = ?", phase)[0][0]
            there = self._ask(f"SELECT count(*) FROM {table}")[0][0]
            if rows != there:
                self._fault(f"{there} of {table}, {rows} audit rows say {phase}")

    # --- the rest of the stream

    def _dead_letters(self) -> None:
        found = {
            row["stream_seq"]: row["reason"]
            for row in self._ask("SELECT stream_seq, reason FROM dead_letters_view")
        }
        expected = {
            entry.seq: reason
            for entry in self._stream
            if (reason := self._published.bad.get(entry.payload)) is not None
        }
        if found != expected:
            self._fault(
                f"dead letters {_some(found.items() ^ expected.items())} differ from what was published"
            )

    def _ingested(self) -> None:
        ranges = self._pairs("SELECT first_seq, last_seq FROM ingested_ranges")
        expected = {(1, self._stream[-1].seq)} if self._stream else set()
        if self._is_settled and ranges != expected:
            self._fault(f"ingested are {ranges}, the stream ends at {expected}")
        if self._is_settled and (unsent := self._ask("SELECT count(*) FROM outbox")[0][0]):
            self._fault(f"{unsent} notices were not sent")

    # --- what readers were told

    def _readings(self) -> None:
        told: defaultdict[str, int] = defaultdict(int)
        for reading in self._published.readings:
            for text in reading_faults(reading):
                told[f"{reading.key}: {text}"] += 1
            summary = reading.answer["summary"]
            fault = self._summary_fault(reading, summary) if summary is not None else None
            for text in [fault] if fault is not None else self._torn(reading):
                told[f"{reading.key}: {text}"] += 1
        for text, times in told.items():
            self._fault(f"{text} ({times} times)")

    def _torn(self, reading: Reading) -> Iterator[str]:
        """What speaks against the answer being one state of the session: what its version covers, and everything else."""
        key, account, summary = reading.key, reading.answer["account"], reading.answer["summary"]
        version = summary["version"] if summary is not None else 0
        if account["covered"] != (summary["covers"]["messages"] if summary is not None else 0):
            yield f"version {version} and {account['covered']} covered messages"
        covered = self._speaks_for.get((key.agent_id, key.session_id, version), frozenset())
        places = self._places[key]
        shown = {one for one in reading.answer["message_ids"] if one is not None}
        if strangers := shown - places.keys():
            yield f"shown and not stored: {_some(strangers)}"
        if twice := {one for one in shown & places.keys() if places[one][1] in covered}:
            yield f"shown beside version {version}, which covers it: {_some(twice)}"
        if reading.answer["fresh"]:
            missing = [
                one
                for one in self._first_messages(reading)
                if one not in shown and places.get(one, (0, None))[1] not in covered
            ]
            if len(missing) > account["folded"] + account["pending_digested"]:
                yield f"neither shown nor covered by version {version}: {_some(missing)}"
        changed = [
            one
            for one, message in zip(
                reading.answer["message_ids"], reading.answer["messages"], strict=False
            )
            if one is not None and not self._is_published(key, one, message)
        ]
        if len(changed) > account["trimmed"] + account["pending_shown"]:
            yield f"shown otherwise than published, and not trimmed: {_some(changed)}"

    def _first_messages(self, reading: Reading) -> Iterator[str]:
        """The messages that were acknowledged before a window was asked for: those of the first events of their session."""
        left = reading.acknowledged
        for event_id in self._published.order[reading.key]:
            messages = len(messages_of(self._published.attempted[reading.key.agent_id, event_id]))
            if messages > left:
                return
            left -= messages
            yield from (f"{event_id}#{index}" for index in range(messages))

    def _is_published(self, key: SessionKey, message_id: str, told: Json) -> bool:
        event_id, _, index = message_id.rpartition("#")
        event = self._published.attempted.get((key.agent_id, event_id))
        if event is None:
            return False
        published = messages_of(event)[int(index)]
        return (
            told == published if event.kind == TURN_COMPLETED else published.items() <= told.items()
        )

    def _backwards(self) -> None:
        """Who asks after somebody else was answered sees at least what that one saw."""
        of_session: defaultdict[SessionKey, list[Reading]] = defaultdict(list)
        for reading in self._published.readings:
            of_session[reading.key].append(reading)
        for key, readings in of_session.items():
            ended, seen = deque(sorted(readings, key=lambda one: one.ended)), [0, 0, 0]
            for reading in sorted(readings, key=lambda one: one.began):
                while ended[0].ended < reading.began:
                    seen = list(map(max, seen, _progress(ended.popleft())))
                if any(now < before for now, before in zip(_progress(reading), seen, strict=True)):
                    self._fault(
                        f"{key}: version, messages and covered were {seen} and then {_progress(reading)}"
                    )

    def _pages(self) -> None:
        for page in self._published.pages:
            told = page.answer["messages"]
            positions = [one["position"] for one in told]
            if positions != sorted(set(positions)):
                self._fault(f"{page.key}: a page of originals is out of order: {positions}")
            for one in told:
                event_id, _, index = one["message_id"].rpartition("#")
                # Where a copy was stored before the event that it is a copy of, that one took its place later.
                seqs = self._seqs.get((page.key.agent_id, event_id), [])
                if one["position"] not in [seq * MESSAGES_PER_EVENT + int(index) for seq in seqs]:
                    self._fault(
                        f"{page.key}: {one['message_id']} was told at {one['position']}, the stream has it at {seqs}"
                    )
                if not self._is_published(page.key, one["message_id"], one["message"]):
                    self._fault(
                        f"{page.key}: {one['message_id']} was told otherwise than published"
                    )

    def _lists(self) -> None:
        for listed in self._published.lists:
            told = listed.answer["summaries"]
            numbers = sorted(one["version"] for one in told)
            if numbers != list(range(1, len(told) + 1)) or sum(
                one["in_force"] for one in told
            ) != bool(told):
                self._fault(
                    f"{listed.key}: told were versions {numbers}, in force {[one['version'] for one in told if one['in_force']]}"
                )
            for one in told:
                stored = self._summaries.get(
                    (listed.key.agent_id, listed.key.session_id, one["version"])
                )
                if stored is None or (one["kind"], one["tokens"]) != (
                    stored["kind"],
                    stored["tokens"],
                ):
                    self._fault(
                        f"{listed.key}: version {one['version']} was told otherwise than it is stored"
                    )

    def _summary_fault(self, reading: Reading, summary: Json) -> str | None:
        """A version says the same for ever; only a small budget shortens what is told of it."""
        stored = self._summaries.get(
            (reading.key.agent_id, reading.key.session_id, summary["version"])
        )
        if stored is None:
            return f"version {summary['version']} was told and is not stored"
        if summary["covers"]["messages"] != stored["messages_covered"]:
            return f"version {summary['version']} was told to cover {summary['covers']['messages']}, it covers {stored['messages_covered']}"
        if reading.answer["window"]["budget_tokens"] < AMPLE_TOKENS:
            return None
        if (summary["text"], summary["tokens"], summary["ledger"]) != (
            stored["text"],
            stored["tokens"],
            json.loads(stored["ledger"]),
        ):
            return f"version {summary['version']} was told otherwise than it is stored"
        return None

    def _pairs(self, statement: str) -> set[tuple[Any, ...]]:
        return set(map(tuple, self._ask(statement)))

    def _told(self, text: str, found: Sequence[Any]) -> None:
        if found:
            self._fault(
                f"{len(found)} messages or events {text}: {_some(tuple(one) for one in found)}"
            )


def reading_faults(reading: Reading) -> Iterator[str]:
    """What is wrong with one answer, whatever the database holds by now."""
    answer = reading.answer
    account, window, messages = answer["account"], answer["window"], answer["messages"]
    parts = ("shown", "folded", "covered", "pending_shown", "pending_digested")
    if sum(account[name] for name in parts) != account["total"]:
        yield f"the account does not add up: {account}"
    if window["tokens"] > window["budget_tokens"]:
        yield f"{window['tokens']} tokens in a budget of {window['budget_tokens']}"
    if wrong := validation_errors(messages):
        yield f"the window may not be sent: {wrong[:3]}"
    if len(answer["message_ids"]) != len(messages) or window["messages"] != len(messages):
        yield f"{len(messages)} messages, {len(answer['message_ids'])} ids"
    named = [one for one in answer["message_ids"] if one is not None]
    if len(set(named)) != len(named):
        yield "a message is shown twice"
    if strangers := {one[MARK] for one in messages if MARK in one} - {reading.key.agent_id}:
        yield f"messages of other agents: {strangers}"
    if account["total"] > account["folded"] and not messages:
        yield "the window is empty"
    if account["total"] > reading.attempted:
        yield f"{account['total']} messages, only {reading.attempted} were ever published"
    if answer["fresh"] and account["total"] < reading.acknowledged:
        yield f"called fresh with {account['total']} messages, {reading.acknowledged} were acknowledged before"


def faults_in_notices(database: Path, notices: Iterable[tuple[str, Json]]) -> list[str]:
    """Compactions and versions that nobody was told of."""
    told = Counter(
        (subject.split(".")[0] + "." + subject.split(".")[1], _noticed(said))
        for subject, said in notices
    )
    found: list[str] = []
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True, timeout=30)) as connection:
        for (compaction_id,) in connection.execute(
            "SELECT CAST(compaction_id AS TEXT) FROM compactions WHERE messages_evicted > 0"
        ):
            if not told["context.compressed", compaction_id]:
                found.append(f"nobody was told of compaction {compaction_id}")
        versions = connection.execute(
            "SELECT s.agent_id, s.session_id, v.version FROM summaries v JOIN sessions s USING (sid)"
        )
        found += [
            f"nobody was told of version {row}"
            for row in versions
            if not told["summary.updated", "/".join(map(str, row))]
        ]
    return found


def _progress(reading: Reading) -> list[int]:
    """What only grows in a session of which nothing is undone: its version, its messages, and those that are covered."""
    summary, account = reading.answer["summary"], reading.answer["account"]
    return [summary["version"] if summary is not None else 0, account["total"], account["covered"]]


def _noticed(said: Mapping[str, Any]) -> str:
    return (
        said["compaction_id"]
        if "compaction_id" in said
        else f"{said['agent_id']}/{said['session_id']}/{said['version']}"
    )


def _is_kept(row: Row, event: OutgoingEvent, published: Json) -> bool:
    """Whether a stored message is the published one: to the byte in a turn, its content and call id in a result."""
    if event.kind == TURN_COMPLETED:
        return row["body"].encode() in event.payload
    stored = json.loads(row["body"])
    content = json.loads(row["original"]) if row["original"] is not None else stored["content"]
    return bool(
        content == published["content"] and stored["tool_call_id"] == published["tool_call_id"]
    )


def _some(found: Iterable[Any]) -> str:
    listed = sorted(map(str, found))
    return ", ".join(listed[:SHOWN_FAULTS]) + (
        f" and {len(listed) - SHOWN_FAULTS} more" if len(listed) > SHOWN_FAULTS else ""
    )
