"""What of the exact values of long coding sessions is still at hand at their end.

A session is replayed message by message through the product's own evictions, and each eviction is folded into the version
before it by the extractive summariser, as the product does. Then the values of all evicted messages are looked for in the
last ledger.

**A value** is what the simple expressions below find, and nothing else; they share nothing with `turnfold.core.text.values`. They
are held against the text of a message and against each string among the arguments of its calls:

- a URL; a UUID; a hash: 7 to 64 hexadecimal characters with digits and letters among them;
- a path: two or more names joined by slashes, absolute, relative or from the home directory, or a bare file name with one of
  a few well-known endings; relative ones of two names only where the last has an ending;
- an id: a ticket (`OPS-12`), an issue (`#12`), or a word of six characters and more with two letters and two digits;
- a number with its unit of time, size or share (`350 ms`, `2.5MB`, `80%`), or tokens, or pixels, or a price;
- a command: a step of the first line of a shell call, with all its words, at least two of them, in at most 120 characters.

**It is kept** when it stands in an entry to the letter, and no letter or digit stands before or after it there; so the end of
a path is kept with the path.
**It is named again** when a message that came after the eviction of one with it holds it too.
**The best possible number** is how many values fit into the ledger's tokens, the cheapest first, a space between two, with
nothing said about what they are or where they come from.
"""

import gzip
import json
import re
import tempfile
import time
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from tests.benchmarks.figures import Figure, middle
from tests.histories import History, Json, counter, data_directory, history
from tests.store_fixtures import KEY, new_sqlite, sql_stores, turn
from turnfold.core.eviction.batch import plan_evictions
from turnfold.core.policy.presets import Policy, preset_named
from turnfold.core.recall.quotes import quotable_text
from turnfold.core.summary.extractive.extract import extract
from turnfold.core.summary.ledger.entries import entry_values
from turnfold.core.summary.source_messages import open_request, sources_of
from turnfold.core.summary.sources import Draft, PreviousSummary, SummaryJob
from turnfold.core.text.tokens import text_of
from turnfold.core.text.values import values_in
from turnfold.errors import BadRequest
from turnfold.messages import Message
from turnfold.operations.query.search import found, question_of
from turnfold.ports.search import Scope

PRESETS = ("balanced", "static-buffer")
LEAST_MESSAGES = 200
MODEL_WINDOW = 200_000
CODING, OTHERS = "coding-*.jsonl.gz", "ops-*.jsonl.gz"
"""The sessions the goals speak of, and others of the same length nothing was fitted to."""

_ENDINGS = "py|js|ts|tsx|jsx|json|jsonl|md|txt|toml|yaml|yml|html|css|sh|go|rs|java|c|h|cpp|sql|log|csv|xml|lock|cfg|conf|ini"
URL = re.compile(r"https?://[^\s\"'<>`()\[\]{}|\\]+")
UUID = re.compile(r"\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b")
HASH = re.compile(r"(?<![\w-])(?=[0-9a-f]*\d)(?=[0-9a-f]*[a-f])[0-9a-f]{7,64}(?![\w-])")
PATH = re.compile(
    r"(?<![\w/.~@:-])(?:(?:~|\.{1,2})?(?:/[\w.@+-]+){2,}|(?:~|\.{1,2})/[\w.@+-]+|[\w.@-]+(?:/[\w.@+-]+){2,}"
    rf"|[\w.@-]+/[\w@+-]*\.\w{{1,5}}|[\w-][\w.-]*\.(?:{_ENDINGS}))(?![\w/-])"
)
ID = re.compile(
    r"(?<![\w-])(?:[A-Z]{2,8}-\d+|#\d{2,}|(?=\w*\d\w*\d)(?=\w*[A-Za-z]\w*[A-Za-z])\w{6,64})(?![\w-])"
)
MEASURE = re.compile(
    r"(?<![\w.,:/-])(?:\d[\d,]*(?:\.\d+)? ?(?:%|(?:ms|s|secs?|seconds?|mins?|minutes?|hours?|days?|weeks?|bytes|[kKMGT]i?B|px|tokens)\b)|[$€£]\d[\d,]*(?:\.\d+)?)"
)
STYLING = re.compile(r"\x1b?\[(?:\d{1,3};?){1,6}m")
STEPS = re.compile(r"""(?:[^;&|"']|(?<=>)&|"[^"]*"|'[^']*')+""")
SHELL_KEYS = ("command", "cmd")
COMMAND_CHARACTERS = 120
SHAPES = {"url": URL, "uuid": UUID, "hash": HASH, "path": PATH, "id": ID, "measure": MEASURE}

Search = Callable[[str], Awaitable[Sequence[str]]]
"""What finds messages of one session by a text: their ids, the best first."""


class Named(NamedTuple):
    """A value, and what it is."""

    kind: str
    text: str


@dataclass(frozen=True)
class Session:
    """A recorded session: its messages, where its own agent compacted it, and the values of each message."""

    name: str
    messages: tuple[Json, ...]
    compactions: tuple[Json, ...]
    history: History
    values: tuple[frozenset[Named], ...]


@dataclass
class Replay:
    """A session as the product left it: what was evicted when, by index of message, and the last version."""

    evicted_at: dict[int, int] = field(default_factory=dict)
    draft: Draft | None = None
    seconds: list[float] = field(default_factory=list)
    ledgers: list[int] = field(default_factory=list)


class Kept(NamedTuple):
    """How many of some values were kept."""

    kept: int
    of: int

    @property
    def share(self) -> float:
        """The kept among all."""
        return self.kept / self.of if self.of else 1.0


async def measure(folder: Path) -> AsyncIterator[Figure]:
    """Replay each session under each preset; nothing where there are no recordings."""
    for pattern, has_goal in ((CODING, True), (OTHERS, False)):
        recorded = list(sessions(pattern))
        for preset in PRESETS if recorded else ():
            for figure in figures(recorded, preset, has_goal=has_goal):
                yield figure
        loose: list[float] = []
        strict: list[float] = []
        for session in recorded:
            async with searching(session, folder) as search:
                some, first = await found_by(
                    search, session, replayed(session, preset_named(PRESETS[0]))
                )
            loose.append(100 * some.share)
            strict.append(100 * first.share)
        of = "coding" if has_goal else "ops"
        if recorded:
            goal = 99.0 if has_goal else None
            what = f"{of} sessions: a search for a value alone has a message with it among its first 5 hits, mean"
            yield Figure(what, mean(loose), "%", at_least=goal)
            yield Figure(
                f"{of} sessions: the same, and it is the first that named it", mean(strict), "%"
            )
        for session in recorded:
            for number, kept in enumerate(kept_by_their_agents(session), start=1):
                what = f"{session.name[:16]}: of all values before compaction {number}, kept by the agent's own summary"
                yield Figure(what, 100 * kept.share, "%")


def figures(found: Sequence[Session], preset: str, *, has_goal: bool) -> Iterator[Figure]:
    """What is shown of some sessions under one preset: each by itself, and the middle."""
    policy = preset_named(preset)
    again: list[float] = []
    best: list[float] = []
    covered: list[float] = []
    alone: list[float] = []
    again_alone: list[float] = []
    known: list[float] = []
    seconds: list[float] = []
    for session in found:
        done = replayed(session, policy)
        entries = done.draft.ledger if done.draft else ()
        back, all_values = named_again(session, done), evicted_values(session, done)
        most = best_number(all_values, policy.ledger_max_tokens)
        kept_back, kept = kept_in(entries, back), kept_in(entries, all_values)
        of = f"{preset}, {session.name[:16]}"
        yield Figure(
            f"{of}: of {len(back)} values named again, in the ledger", 100 * kept_back.share, "%"
        )
        what = f"{of}: of the best possible {most} of {len(all_values)}, in the ledger"
        yield Figure(what, 100 * kept.kept / max(most, 1), "%")
        yield Figure(f"{of}: ledger after {len(done.seconds)} versions", done.ledgers[-1], "tokens")
        yield Figure(f"{of}: of all values, in the ledger", 100 * kept.share, "%")
        covered.append(100 * kept.kept / max(best_cover(all_values, policy.ledger_max_tokens), 1))
        alone.append(100 * kept_alone(done.draft, all_values).kept / max(most, 1))
        again_alone.append(100 * kept_alone(done.draft, back).share)
        again.append(100 * kept_back.share)
        best.append(100 * kept.kept / max(most, 1))
        known.append(100 * found_by_values_in(session, done).share)
        seconds += done.seconds
    goals = (60.0, 80.0) if has_goal else (None, None)
    of = f"{preset}, {'coding' if has_goal else 'ops'} sessions"
    yield Figure(f"{of}: named again and in the ledger, mean", mean(again), "%", at_least=goals[0])
    yield Figure(f"{of}: of the best possible number, mean", mean(best), "%", at_least=goals[1])
    for name, shares in (
        ("named again and in the ledger", again),
        ("of the best possible number", best),
    ):
        yield Figure(f"{of}: {name}, least", min(shares), "%")
    yield Figure(
        f"{of}: named again and a value of an entry by itself, mean", mean(again_alone), "%"
    )
    yield Figure(
        f"{of}: values of an entry by themselves, of the best possible, mean", mean(alone), "%"
    )
    what = f"{of}: of the best possible where paths inside others count there too, mean"
    yield Figure(what, mean(covered), "%")
    yield Figure(f"{of}: values that values_in finds, mean", mean(known), "%")
    yield Figure(f"{of}: a version, median", 1000 * middle(seconds), "ms")


def mean(values: Sequence[float]) -> float:
    """The mean, or 0 of nothing."""
    return sum(values) / len(values) if values else 0.0


def sessions(pattern: str) -> Iterator[Session]:
    """The long recorded sessions of some files."""
    directory = data_directory()
    for path in sorted(directory.glob(pattern)) if directory else ():
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            for line in lines:
                one = json.loads(line)
                messages = one["messages"]
                if len(messages) >= LEAST_MESSAGES:
                    values = tuple(frozenset(named_in(message)) for message in messages)
                    yield Session(
                        one["id"],
                        tuple(messages),
                        tuple(one.get("compactions") or ()),
                        history(messages),
                        values,
                    )


def named_in(message: Mapping[str, Any]) -> Iterator[Named]:
    """Every value of a message."""
    if message["role"] in ("system", "developer"):
        return
    for text in texts_of(message):
        yield from named_in_text(text)
    for key, text in arguments_of(message):
        if key in SHELL_KEYS:
            for step in STEPS.findall(text.partition("\n")[0]):
                command = step.strip()
                if " " in command and command[0].isalpha() and len(command) <= COMMAND_CHARACTERS:
                    yield Named("command", command)


def named_in_text(text: str) -> Iterator[Named]:
    """The values of a text that are no commands; none of them stands inside another of a kind before it."""
    text = STYLING.sub(" ", text)
    for kind, shape in SHAPES.items():
        found = {match[0].rstrip(".,;:!?*") for match in shape.finditer(text)}
        yield from (Named(kind, value) for value in found if value)
        if found:
            text = shape.sub(" ", text)


def texts_of(message: Mapping[str, Any]) -> Iterator[str]:
    """The text of a message, and each string its calls were given."""
    yield text_of(message)
    yield from (text for _, text in arguments_of(message))


def arguments_of(message: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Each string among the arguments of a message's calls, and its key."""
    for call in message.get("tool_calls") or ():
        try:
            stack: list[tuple[str, Any]] = [
                ("", json.loads(call["function"]["arguments"], strict=False))
            ]
        except (ValueError, TypeError, KeyError):
            continue
        while stack:
            key, value = stack.pop()
            if isinstance(value, dict):
                stack.extend(value.items())
            elif isinstance(value, list):
                stack.extend((key, inner) for inner in value)
            elif isinstance(value, str):
                yield key, value


def replayed(session: Session, policy: Policy) -> Replay:
    """Let the messages come one by one, evict as the product does, and fold each eviction into the version before."""
    done = Replay()
    live: list[Message] = []
    rounds = 0
    for index, message in enumerate(session.history.stored.messages):
        live.append(message)
        rounds += message.is_request
        for eviction in plan_evictions(
            live, [message.stream_seq], rounds, policy, model_window=MODEL_WINDOW
        ):
            gone = {one.position for one in eviction.evicted}
            live = [one for one in live if one.position not in gone]
            rounds = 0
            done.evicted_at.update({one.stream_seq - 1: index for one in eviction.evicted})
            fold(done, session, eviction.evicted, index, policy)
    return done


def fold(
    done: Replay, session: Session, evicted: Sequence[Message], index: int, policy: Policy
) -> None:
    """Write the next version."""
    before, bodies = done.draft, session.history.bodies
    covered = [(one, bodies[one.position], one.is_error) for one in evicted]
    # As a store gives it back.
    previous = (
        PreviousSummary(before.text, json.loads(json.dumps(before.sections)), before.ledger)
        if before
        else None
    )
    newest = max(one.position for one in evicted)
    following = [
        json.loads(bodies[one.position])
        for one in session.history.stored.messages[: index + 1]
        if one.position > newest
    ]
    job = SummaryJob(
        sources=sources_of(covered),
        previous=previous,
        newest_request=open_request(previous, covered, following),
        following=tuple([quotable_text(body) for body in following]),
        style=str(policy.style),
        max_tokens=policy.summary_max_tokens,
        max_words=policy.summary_max_words,
        ledger_max_tokens=policy.ledger_max_tokens,
    )
    began = time.perf_counter()
    done.draft = extract(job, count=counter().__wrapped__)  # type: ignore[attr-defined]
    done.seconds.append(time.perf_counter() - began)
    done.ledgers.append(counter()("\n".join(done.draft.ledger)))


def evicted_values(session: Session, done: Replay) -> frozenset[Named]:
    """Every value of an evicted message."""
    return frozenset().union(*(session.values[index] for index in done.evicted_at))


def named_again(session: Session, done: Replay) -> frozenset[Named]:
    """The values of evicted messages that a message names which came after the eviction."""
    gone_at: dict[Named, int] = {}
    for index, at in done.evicted_at.items():
        for value in session.values[index]:
            gone_at[value] = min(at, gone_at.get(value, at))
    last = {value: index for index, values in enumerate(session.values) for value in values}
    return frozenset(value for value, at in gone_at.items() if last[value] > at)


def best_number(values: frozenset[Named], max_tokens: int) -> int:
    """How many of these fit into so many tokens, the cheapest first."""
    costs = sorted(counter()(f" {value}") for value in {value.text for value in values})
    number = total = 0
    for cost in costs:
        total += cost
        number += total <= max_tokens
    return number


def best_cover(values: frozenset[Named], max_tokens: int) -> int:
    """About how many of these could stand in so many tokens, some inside others: what adds most for its price comes first."""
    texts = {value.text for value in values}
    holds = {text: {text} | {part for part in parts_of(text) if part in texts} for text in texts}
    costs = {text: counter()(f" {text}") for text in texts}
    there: set[str] = set()
    total = 0
    while texts:
        best = min(texts, key=lambda text: (costs[text] / max(1, len(holds[text] - there)), text))
        total += costs[best]
        if total > max_tokens or not holds[best] - there:
            break
        there |= holds[best]
        texts = {text for text in texts if text not in there}
    return len(there)


def parts_of(path: str) -> Iterator[str]:
    """What begins or ends at a slash of a path."""
    for at in (match.start() for match in re.finditer("/", path)):
        yield from (path[:at], path[at + 1 :], path[at:])


def kept_alone(draft: Draft | None, values: frozenset[Named]) -> Kept:
    """How many of these are values of an entry by themselves, not inside others."""
    stored = draft.sections["provenance"] if draft else []
    own = {
        value.text
        for entry, one in zip(draft.ledger if draft else (), stored, strict=True)
        for value, _ in entry_values(entry, one)
    }
    texts = {value.text for value in values}
    return Kept(len(texts & own), len(texts))


def kept_in(entries: Sequence[str], values: frozenset[Named]) -> Kept:
    """How many of these stand in the entries."""
    texts = {value.text for value in values}
    whole = "\n".join(entries)
    return Kept(sum(stands_in(whole, text) for text in texts), len(texts))


def stands_in(whole: str, text: str) -> bool:
    """Whether a text stands there to the letter, and not as a part of a word."""
    at = whole.find(text)
    while at >= 0:
        before, after = whole[at - 1 : at], whole[at + len(text) : at + len(text) + 1]
        if not (before.isalnum() and text[0].isalnum()) and not (
            after.isalnum() and text[-1].isalnum()
        ):
            return True
        at = whole.find(text, at + 1)
    return False


def found_by_values_in(session: Session, done: Replay) -> Kept:
    """How many of the values that are no commands the product's own extraction finds, too."""
    values: set[str] = set()
    found: list[str] = []
    for index in done.evicted_at:
        values |= {value.text for value in session.values[index] if value.kind != "command"}
        for text in texts_of(session.messages[index]):
            found += [value.text for value in values_in(text)]
    whole = "\n".join(dict.fromkeys(found))
    return Kept(sum(stands_in(whole, value) for value in values), len(values))


def kept_by_their_agents(session: Session) -> Iterator[Kept]:
    """What the session's own agent kept, at each of its compactions, of the values of all messages before."""
    for one in session.compactions:
        at = one["at"]
        summary = one.get("summary") or text_of(session.messages[at])
        until = one.get("first_kept") or at
        yield kept_in([summary], frozenset().union(*session.values[:until]))


async def found_by(
    search: Search, session: Session, done: Replay, *, among: int = 5
) -> tuple[Kept, Kept]:
    """For how many values of evicted messages a search for the value alone has among the first hits a message that holds it,
    and for how many the very message that named it first.
    """
    homes: dict[str, list[str]] = {}
    messages = session.history.stored.messages
    for index in sorted(done.evicted_at):
        for value in session.values[index]:
            homes.setdefault(value.text, []).append(messages[index].message_id)
    loose = strict = 0
    for text, ids in homes.items():
        hits = (await search(text))[:among]
        loose += not set(ids).isdisjoint(hits)
        strict += ids[0] in hits
    return Kept(loose, len(homes)), Kept(strict, len(homes))


@asynccontextmanager
async def searching(session: Session, folder: Path) -> AsyncGenerator[Search]:
    """The product's own search over a session, by its index."""
    with tempfile.TemporaryDirectory(dir=folder) as here:
        async with sql_stores(new_sqlite(Path(here))) as stores:
            said = [turn(seq, message) for seq, message in enumerate(session.messages, start=1)]
            for begin in range(0, len(said), 200):
                await stores.ingest(*said[begin : begin + 200])
            while await stores.index.index_some():
                continue

            async def search(text: str) -> Sequence[str]:
                try:
                    hits = await found(
                        KEY, question_of(text), scope=Scope(), limit=5, store=stores.search
                    )
                except BadRequest:
                    # A path of dots holds nothing to look for.
                    return ()
                return [original.message_id for original, _ in hits]

            yield search
