"""Measure windows beside `trim_messages` of langchain-core: cost, validity, steady beginnings.

Both cut the same 1,000 plain messages without caches; `trim_messages` counts approximately. With
ready message objects it takes half the time or less. `BENCH_LANGCHAIN_PYTHON` names a Python that
has it.
"""

import gc
import json
import time
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from random import Random
from statistics import mean, median
from typing import Any

from tests import window_rules as laws
from tests.benchmarks.figures import Figure, middle
from tests.benchmarks.texts import turn
from tests.benchmarks.trimming import (
    OPTIONS,
    PYTHON_VARIABLE,
    Trimmer,
    python_with_langchain,
    trimming,
)
from tests.histories import History, Said, Weighed, history, plan
from tests.reference_tokenizer import vocabularies
from tests.window_check.sessions import conversations, data_directory
from turnfold.core.eviction.choose import decide_eviction
from turnfold.core.eviction.triggers import FiredTrigger, SessionLoad, TriggerLimits
from turnfold.core.history.priority import classify
from turnfold.core.policy.presets import Policy
from turnfold.core.recovery.compressor import LadderCompressor
from turnfold.core.summary.gist_writer import write_gist
from turnfold.core.text.caches import forget_texts
from turnfold.core.text.tokens import count_message as measure_message
from turnfold.core.window.builder import WindowBuilder
from turnfold.core.window.window import WindowRequest, budget_of, build_window, to_plan
from turnfold.errors import CannotFit
from turnfold.model_info.tokenizer import load_counter

MESSAGES = 1_000
ROUNDS = 9
MODEL_WINDOW = 128_000
STABILITY_MESSAGES = 80
VALIDITY_STEPS = 40
RECORDED = ("coding-pi", "support-tau-bench", "support-sgd", "zh-crosswoz")
MEGABYTE = 1_000_000
LONG_TEXTS = (
    "a quiet word " * (MEGABYTE // 13),
    "i remember must-have decisionx rulex todo( " * 20_000,
    "记得吗不一以定" * 150_000,
)
"""Most words of the last two nearly bind."""
COMMANDS = ("a;" * 1_900, "find -x " * 480, "env " + "a=b " * 900, "sort " + "-w " * 1_200)

Json = dict[str, Any]


async def measure(directory: Path) -> AsyncIterator[Figure]:
    """Each figure beside that of `trim_messages` on the same messages, in turns."""
    python = python_with_langchain()
    if python is None:
        print(
            f"langchain-core is not installed here, and {PYTHON_VARIABLE} names no Python that has it: only our own figures"
        )
    for name, bodies in sessions().items():
        for figure in _timed(name, bodies, python, directory):
            yield figure
    for figure in _steady(python, directory):
        yield figure
    yield _classified()


def sessions() -> dict[str, list[Json]]:
    """Thousand messages of each kind: recorded ones where there are any."""
    found: dict[str, list[Json]] = {}
    for conversation in conversations(data_directory()):
        kind = conversation.name.rsplit("-", 1)[0]
        if kind in RECORDED:
            found.setdefault(kind, []).extend(said.body for said in conversation.said)
    if not found:
        random = Random(1)
        found = {
            "made up": [
                message for number in range(MESSAGES // 4) for message in turn(random, number)
            ]
        }
    return {
        name: (bodies * (1 + MESSAGES // len(bodies)))[:MESSAGES] for name, bodies in found.items()
    }


@contextmanager
def theirs(python: str | None, bodies: list[Json], directory: Path) -> Generator[Trimmer | None]:
    """What trims the same messages, where there is a Python that can."""
    if python is None:
        yield None
        return
    with trimming(python, bodies, directory, vocabularies()) as trimmer:
        yield trimmer


def _timed(name: str, bodies: list[Json], python: str | None, directory: Path) -> Iterator[Figure]:
    policy, count = Policy(), load_counter()
    budget_tokens = budget_of(max_tokens=None, model_window=MODEL_WINDOW, policy=policy)
    assert budget_tokens is not None
    asked, compressor = WindowRequest(budget_tokens=budget_tokens), LadderCompressor(count, policy)
    live = history([weighed(body, count) for body in bodies])
    evicted = after_evictions(live, policy)
    builds: dict[str, Callable[[], object]] = {
        "window, balanced": lambda: built(evicted, asked, policy),
        "window, all live": lambda: built(live, asked, policy),
        "cold compress": lambda: compressor.compress(bodies, budget_tokens),
    }
    own: dict[str, list[float]] = {what: [] for what in builds}
    trim: dict[str, list[float]] = {"from dicts": [], "from messages": [], "tokenizer": []}
    # What lives already is not collected in the midst of a round, here as there.
    gc.collect()
    gc.freeze()
    with theirs(python, bodies, directory) as trimmer:
        for _ in range(ROUNDS):
            for what, build in builds.items():
                own[what].append(seconds(build))
            if trimmer:
                trim["from dicts"].append(trimmer.seconds(budget_tokens))
                trim["from messages"].append(trimmer.seconds(budget_tokens, ready=True))
        if trimmer:
            trim["tokenizer"] = [
                trimmer.seconds(budget_tokens, counter="tokenizer") for _ in range(3)
            ]
        invalid = (
            {options: _invalid(bodies, live, trimmer, options) for options in OPTIONS}
            if trimmer
            else {}
        )
    yield from (Figure(f"{name}: {what}", middle(times) * 1e3, "ms") for what, times in own.items())
    yield from (
        Figure(f"{name}: trim_messages {what}", middle(times) * 1e3, "ms")
        for what, times in trim.items()
        if times
    )
    floor = middle(trim["from dicts"])
    if floor:
        goals = {"window, balanced": 0.1, "window, all live": 1.0, "cold compress": 2.0}
        for what, goal in goals.items():
            yield _ratio(f"{name}: {what} to trim_messages", middle(own[what]) / floor, goal)
            yield _ratio(
                f"{name}: {what} to trim_messages from ready messages",
                middle(own[what]) / middle(trim["from messages"]),
                None,
            )
        yield _ratio(
            f"{name}: cold compress to trim_messages with a tokenizer",
            middle(own["cold compress"]) / middle(trim["tokenizer"]),
            1.0,
        )
    yield Figure(f"{name}: cuts that cannot be sent", _own_invalid(live), "%", at_most=0.0)
    for options, share in invalid.items():
        yield Figure(f"{name}: cuts that cannot be sent, trim_messages, {options}", share, "%")


def weighed(body: Json, count: Callable[[str], int]) -> Said:
    """A message as intake takes it in."""
    measured = measure_message(body, count)
    return Said(
        body,
        priority=classify(body),
        weighed=Weighed(json.dumps(body), measured, write_gist(body, measured.calls, count)),
    )


def built(session: History, asked: WindowRequest, policy: Policy) -> object:
    """A window as texts, from what is stored."""
    return session.rendered(plan(session.stored, asked, policy))


def after_evictions(session: History, policy: Policy) -> History:
    """The session as it is after each message was stored, all that was evicted being summarised."""
    live = []
    tokens = 0
    for message in session.stored.messages:
        live.append(message)
        tokens += message.tokens
        found = next(
            iter(
                TriggerLimits.of(policy, model_window=MODEL_WINDOW).fired(
                    SessionLoad(len(live), tokens)
                )
            ),
            None,
        )
        if isinstance(found, FiredTrigger):
            evicted = decide_eviction(live, policy, found.trigger, now_ms=0)
            gone = {one.position for one in evicted}
            live = [one for one in live if one.position not in gone]
            tokens = sum(one.tokens for one in live)
    kept = {message.position for message in live}
    said = [Said(json.loads(session.bodies[position])) for position in sorted(kept)]
    return history(
        said,
        summary="They built it and it works. " * 60,
        covered=len(session.stored.messages) - len(kept),
    )


def seconds(build: Callable[[], object]) -> float:
    """How long it takes with nothing remembered."""
    forget_texts()
    began = time.perf_counter()
    build()
    return time.perf_counter() - began


def _own_invalid(session: History) -> float:
    """The share of windows, at lengths and budgets of every size, that no provider would take."""
    tokens = sum(message.tokens for message in session.stored.messages)
    made = invalid = 0
    for step in range(1, VALIDITY_STEPS + 1):
        shorter = session.until(MESSAGES * step // VALIDITY_STEPS)
        for share in (0.02, 0.1, 0.3):
            try:
                window = shorter.rendered(
                    plan(shorter.stored, WindowRequest(budget_tokens=int(tokens * share)), Policy())
                )
            except CannotFit:
                continue
            made += 1
            invalid += not sendable([json.loads(message) for message in window.messages])
    return 100 * invalid / made


def _invalid(bodies: list[Json], session: History, trimmer: Trimmer, options: str) -> float:
    """The same share for `trim_messages`."""
    tokens = sum(message.tokens for message in session.stored.messages)
    cuts = [
        [
            bodies[place]
            for place in trimmer.kept(
                MESSAGES * step // VALIDITY_STEPS, int(tokens * share), options
            )
        ]
        for step in range(1, VALIDITY_STEPS + 1)
        for share in (0.02, 0.1, 0.3)
    ]
    return 100 * sum(not sendable(cut) for cut in cuts) / len(cuts)


def sendable(messages: Sequence[Json]) -> bool:
    """Whether there is something besides the system text, and each call is followed at once by its results and no result is alone."""
    owed: list[str] = []
    for message in messages:
        if message["role"] == "tool":
            if message.get("tool_call_id") not in owed:
                return False
            owed.remove(message["tool_call_id"])
            continue
        if owed:
            return False
        owed = [call["id"] for call in laws.sendable_calls(message)]
    return not owed and any(message["role"] not in laws.SYSTEMS for message in messages)


def _steady(python: str | None, directory: Path) -> Iterator[Figure]:
    """How much of a window the next one begins with, over the long coding sessions."""
    long = [
        one
        for one in conversations(data_directory())
        if one.name.startswith("coding") and len(one.said) > STABILITY_MESSAGES
    ]
    if not long:
        random = Random(2)
        bodies = [message for number in range(MESSAGES // 8) for message in turn(random, number)]
        found = [history([Said(body) for body in bodies])]
    else:
        found = [history(one.said) for one in long]
    fitting, halved = list[float](), list[float]()
    trimmed: dict[str, list[float]] = {options: [] for options in OPTIONS}
    for session in found:
        tokens = sum(message.tokens for message in session.stored.messages)
        fitting += kept_shares(windows(session, None))
        halved += kept_shares(windows(session, tokens // 2))
        bodies = [json.loads(body) for body in session.bodies.values()]
        with theirs(python, bodies, directory) as trimmer:
            for options in OPTIONS:
                if trimmer is None:
                    continue
                cuts = [
                    trimmer.kept(length, trimmer.tokens() // 2, options)
                    for length in lengths(session)
                ]
                trimmed[options] += kept_shares(
                    [
                        [session.bodies[session.stored.messages[place].position] for place in cut]
                        for cut in cuts
                    ]
                )
    yield _steadiness("window kept as prefix while all fits, least", 100 * min(fitting), 100.0)
    yield _steadiness(
        "window kept as prefix at half the tokens, median", 100 * median(halved), 100.0
    )
    yield _steadiness("window kept as prefix at half the tokens, mean", 100 * mean(halved), 85.0)
    for options, shares in trimmed.items():
        if shares:
            yield _steadiness(
                f"window kept as prefix at half the tokens, trim_messages, {options}, mean",
                100 * mean(shares),
                None,
            )


def lengths(session: History) -> list[int]:
    """After how many messages a window is asked for: whenever a model would be, once the session outgrew half its tokens."""
    messages = session.stored.messages
    tokens, half, found = 0, sum(message.tokens for message in messages) // 2, []
    for length, message in enumerate(messages, start=1):
        tokens += message.tokens
        if tokens > half and (length == len(messages) or messages[length].role.value != "tool"):
            found.append(length)
    return found


def windows(session: History, budget_tokens: int | None) -> list[Sequence[str]]:
    """The windows of a growing session, each continued from the one before as the query service does it."""
    asked, policy = WindowRequest(budget_tokens=budget_tokens), Policy()
    earlier: WindowBuilder | None = None
    found: list[Sequence[str]] = []
    for length in lengths(session):
        now = session.until(length)
        earlier = build_window(now.stored, asked, policy, earlier)
        found.append(now.rendered(to_plan(earlier, now.stored, asked)).messages)
    return found


def kept_shares(found: Sequence[Sequence[str]]) -> list[float]:
    """For each window the share of its bytes with which the next begins; messages count whole."""
    shares: list[float] = []
    for old, new in pairwise(found):
        kept = 0
        for one, other in zip(old, new, strict=False):
            if one != other:
                break
            kept += len(one)
        shares.append(kept / sum(map(len, old)) if old else 0.0)
    return shares


def _classified() -> Figure:
    """The slowest message to classify, long ones of a megabyte included."""
    bodies = [said.body for one in conversations(data_directory()) for said in one.said]
    random = Random(3)
    long = "".join(
        random.choice(("remember the port ", "漢字の長い文。", "a=1;\n", "must be so "))
        for _ in range(MEGABYTE // 9)
    )
    bodies += [{"role": role, "content": long} for role in ("user", "assistant", "tool")]
    bodies += [{"role": "user", "content": text} for text in LONG_TEXTS]
    bodies += [_calling("bash", json.dumps({"command": command})) for command in COMMANDS]
    bodies += [
        _calling("bash", json.dumps({"command": "x" * MEGABYTE})),
        _calling("x_" * 500_000, "{}"),
    ]
    slowest = max(min(_seconds_to_classify(body) for _ in range(3)) for body in bodies)
    return Figure(
        f"classification, slowest of {len(bodies):,} messages", slowest * 1e3, "ms", at_most=1.0
    )


def _calling(name: str, arguments: str) -> Json:
    call = {"type": "function", "function": {"name": name, "arguments": arguments}}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def _seconds_to_classify(body: Json) -> float:
    began = time.perf_counter()
    classify(body)
    return time.perf_counter() - began


def _ratio(what: str, value: float, goal: float | None) -> Figure:
    return Figure(what, value, "x", at_most=goal)


def _steadiness(what: str, value: float, goal: float | None) -> Figure:
    return Figure(what, value, "%", at_least=goal)
