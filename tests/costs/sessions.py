"""Generated sessions: messages whose calls, results, sizes and places in the history grow together, and every part that decides on them."""

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from math import isqrt
from random import Random
from typing import Any, Final

from tests.costs.measuring import Case
from tests.histories import History, Json, answered, assistant, system, tool, user, words
from turnfold.core.eviction.batch import EVERY_EVENT_BELOW, plan_evictions
from turnfold.core.eviction.choose import decide_eviction
from turnfold.core.eviction.triggers import Trigger
from turnfold.core.history.blocks import group, newest_request
from turnfold.core.history.validation import validation_errors
from turnfold.core.policy.presets import PRESETS, Policy
from turnfold.core.recovery.compressor import LadderCompressor, estimated
from turnfold.core.summary.eviction_digest import digest_eviction
from turnfold.core.summary.extractive.extract import extract
from turnfold.core.summary.source_messages import sources_of
from turnfold.core.summary.sources import SummaryJob
from turnfold.core.text.estimates import estimate
from turnfold.core.text.tokens import TokenOffsets, count_message
from turnfold.core.window.framing import Placement, measure_summary
from turnfold.core.window.prefix import PendingDigest
from turnfold.core.window.rendering.anthropic import to_anthropic
from turnfold.core.window.rendering.character_limit import characters_of
from turnfold.core.window.rendering.shaped import render_shaped
from turnfold.core.window.window import WindowInput, WindowRequest, build_window, to_plan
from turnfold.errors import CannotFit
from turnfold.messages import CompactionId, EventId, Message, Priority, Role, position_of
from turnfold.model_info.tokenizer import load_counter
from turnfold.operations.ingest.decode import Delivery, decode_event

MOST_MESSAGES: Final = 8_192
TEXTS: Final = (
    "",
    "ok",
    "remember: port 8443",
    "x" * 40,
    words(60),
    words(900),
    "漢字の長い文。" * 100,
    "x" * 5_000,
    "\n" * 3_000,
)
ARGUMENTS: Final = (
    '{"at":1}',
    "not json",
    '{"path":"src/app.py"}',
    json.dumps({"path": "a.py", "text": words(100)}),
    json.dumps({"command": "echo '" * 20}),
    "[" * 900,
    "",
)
NAMES: Final = ("look_up", "bash", "read_file", "x" * 200, "a.b-c_d " * 8)


def _count(text: str) -> int:
    return len(text) // 4 + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How a generated session is made; what is a number of one size may grow with the session."""

    growth: str
    answered: str
    order: str
    ids: str
    content: str
    result: str
    arguments: str
    name: str
    reasoning: str
    between: str
    pending: str
    is_irregular: bool

    def __str__(self) -> str:
        """What it is made of, long texts cut."""
        return ", ".join(
            f"{one.name}={str(getattr(self, one.name))[:24]!r}" for one in fields(self)
        )

    @classmethod
    def of(cls, random: Random) -> "Shape":
        """A shape."""
        choose = random.choice
        return cls(
            growth=choose(("heads", "calls", "both", "few calls", "results")),
            answered=choose(("all", "none", "first", "last", "half", "twice")),
            order=choose(("in order", "reversed", "before", "at the end", "at the end, reversed")),
            ids=choose(("unique", "of each head", "one", "long")),
            content=choose(TEXTS[:5] * 2 + TEXTS),
            result=choose(TEXTS),
            arguments=choose(ARGUMENTS),
            name=choose(NAMES),
            reasoning=choose(("", "", words(900))),
            between=choose(("", "", "user", "user", "meta", "system", "assistant", "all")),
            pending=choose(("", "", "", "one", "each", "half", "alternating", "results")),
            is_irregular=random.random() < 0.1,
        )

    def said(self, size: int) -> list[Json]:
        """The messages of a session of about this size."""
        heads, calls = {
            "heads": (max(1, size // 3), 1),
            "calls": (1, size),
            "both": (isqrt(size), isqrt(size)),
            "few calls": (max(1, size // 12), 10),
            "results": (1, 1),
        }[self.growth]
        found: list[Json] = [system("Be brief."), user("go on, please")]
        late: list[Json] = []
        for head in range(heads):
            ids = [self._id(head, call) for call in range(calls)]
            message = assistant(
                self.content or None, *ids, name=self.name, arguments=self.arguments
            )
            if self.reasoning:
                message["reasoning_content"] = self.reasoning
            if self.is_irregular:
                message["tool_calls"].insert(0, {"id": ""})
            results = [
                tool(call_id, f"{self.result}{number}")
                for number, call_id in enumerate(self._answered(ids, size))
            ]
            if "reversed" in self.order:
                results.reverse()
            if self.order == "before":
                found += results
            found.append(message)
            if "end" in self.order:
                late += results
            elif self.order != "before":
                found += results
            found += self._between()
        return [*found, *late, *([user("and now?")] if self.between else [])]

    def _id(self, head: int, call: int) -> str:
        match self.ids:
            case "unique":
                return f"c{head}-{call}"
            case "of each head":
                return f"c{call}"
            case "long":
                return f"{'x' * 70}{head}-{call}"
            case _:
                return "c"

    def _answered(self, ids: Sequence[str], size: int) -> list[str]:
        if self.growth == "results":
            return [ids[0]] * size
        match self.answered:
            case "all":
                return list(ids)
            case "first":
                return list(ids[:1])
            case "last":
                return list(ids[-1:])
            case "half":
                return list(ids[::2])
            case "twice":
                return [*ids, *ids]
            case _:
                return []

    def _between(self) -> list[Json]:
        kinds = {
            "user": user("next"),
            "meta": user("note"),
            "system": system("Be kind."),
            "assistant": assistant("done"),
        }
        return (
            list(kinds.values())
            if self.between == "all"
            else [kinds[self.between]]
            if self.between
            else []
        )

    def session(self, size: int) -> History:
        """The session as it is stored, counted without a tokenizer, which would take longer than all that is measured here."""
        said = self.said(size)
        bodies = {position_of(seq, 0): json.dumps(body) for seq, body in enumerate(said, start=1)}
        made = [self._message(seq, body) for seq, body in enumerate(said, start=1)]
        messages = tuple(self._placed(answered(made, said)))
        rows = dict.fromkeys(one.compaction_id for one in messages if one.compaction_id is not None)
        summary = "They spoke. " * 50
        facts = measure_summary(
            1,
            summary,
            ("path a.py",),
            tokens=160,
            text_tokens=150,
            cuts=TokenOffsets.of(summary, _count).encode(),
        )
        stored = WindowInput(
            messages=messages,
            pending=tuple(PendingDigest(row, 9, 1) for row in rows),
            summary=facts,
            total=len(messages),
        )
        return History(stored, bodies, summary, ("path a.py",), dict.fromkeys(rows, "They spoke."))

    def _message(self, seq: int, body: Json) -> Message:
        one = count_message(body, _count)
        return Message(
            position_of(seq, 0), EventId(f"e{seq}"), 0, Role(body["role"]), one.tokens, one.content_tokens, one.reasoning_tokens, one.characters,
            one.lines, Priority(seq % 3), one.calls if body["role"] == "assistant" else (), is_irregular=one.is_irregular, cuts=one.cuts,
            is_meta=self.between == "meta" and body["role"] == "user",
        )  # fmt: skip

    def _placed(self, messages: Sequence[Message]) -> list[Message]:
        """The messages, some of them evicted."""
        found = []
        half = len(messages) // 2
        for number, message in enumerate(messages):
            row: str | None = None
            match self.pending:
                case "one" if number < half:
                    row = "row"
                case "each" if number < half:
                    row = f"row{number // 4}"
                case "half" if number < half:
                    row = f"row{number // 50}"
                case "alternating" if number % 2:
                    row = "row"
                case "results" if message.answers is not None:
                    row = f"row{number // 10}"
                case _:
                    pass
            found.append(
                message if row is None else replace(message, compaction_id=CompactionId(row))
            )
        return found


def _prefixed(stored: Any, length: int) -> Any:
    return replace(stored, messages=stored.messages[:length])


def _known(name: str, share: float, **more: Any) -> Case:
    usual = Shape(
        growth="calls", answered="all", order="in order", ids="unique", content="", result="ok", arguments='{"at":1}', name="look_up", reasoning="",
        between="", pending="", is_irregular=False,
    )  # fmt: skip
    shape = replace(usual, **more)

    def build(size: int) -> Callable[[], object]:
        made = shape.session(size)
        asked = WindowRequest(
            budget_tokens=int(sum([message.tokens for message in made.stored.messages]) * share)
        )

        def work() -> object:
            with suppress(CannotFit):
                return to_plan(build_window(made.stored, asked, Policy()), made.stored, asked)
            return None

        return work

    return Case(name, build, 2 * MOST_MESSAGES)


KNOWN: Final = (
    _known("a block of small calls that cannot fit", 0.5),
    _known("a block of large results", 0.5, result=words(60)),
    _known("a block of large arguments", 0.5, arguments=json.dumps({"text": words(60)})),
    _known("a block of open calls, and messages after it", 0.5, answered="none", between="user"),
    _known("results before their calls", 0.5, order="before"),
    _known("many blocks whose results come at the end", 0.3, growth="both", order="at the end"),
    _known("thousands of heads whose calls are open", 0.3, growth="heads", answered="none"),
    _known("many results for one call", 0.5, growth="results"),
)
"""Sessions of which a window once cost the square of their calls."""


def window_case(random: Random) -> Case:
    """A window of a generated session: decided, rendered, and in either shape."""
    shape = Shape.of(random)
    preset = random.choice((*PRESETS, "adjusted"))
    policy = PRESETS.get(preset) or replace(
        PRESETS[random.choice(list(PRESETS))],
        low_water_ratio=random.choice((0.1, 0.5, 0.99, 1.0)),
        soft_ratio=random.choice((0.01, 0.3)), hard_ratio=random.choice((0.0, 0.1)),
        keep_tool_blocks=random.choice((0, 1, 10_000)), preview_tokens=random.choice((0, 50, 5_000)),
        tool_result_max_chars=random.choice((0, 100, 10_000)), arguments_max_tokens=random.choice((1, 20, 500)),
    )  # fmt: skip
    share = random.choice((1.2, 0.98, 0.9, 0.7, 0.4, 0.15, 0.05, 0.01, 0.0))
    few = random.choice((None, None, None, 0.5, 0.05, 0.0))
    is_emergency = random.random() < 0.2
    is_anthropic = random.random() < 0.4
    placement = random.choice(list(Placement))
    is_continued = random.random() < 0.3

    sessions = lru_cache(1)(shape.session)

    def build(size: int) -> Callable[[], object]:
        made = sessions(size)
        tokens = sum([message.tokens for message in made.stored.messages])
        number = len(made.stored.messages)
        asked = WindowRequest(
            budget_tokens=max(int(tokens * share), 700),
            max_messages=None if few is None else max(1, int(number * few)),
            is_emergency=is_emergency,
            placement=placement,
        )
        earlier = None
        if is_continued and not is_emergency:
            with suppress(CannotFit):
                earlier = build_window(_prefixed(made.stored, number * 9 // 10), asked, policy)
        elif size % 2 == 0 and share == 0.0:
            try:
                build_window(made.stored, asked, policy)
            except CannotFit as error:
                if error.needed_tokens:
                    asked = replace(asked, budget_tokens=error.needed_tokens)

        def work() -> object:
            try:
                window = build_window(made.stored, asked, policy, earlier)
            except CannotFit:
                return None
            plan = to_plan(window, made.stored, asked)
            rendered = render_shaped(
                plan,
                made.bodies,
                digests=made.digests,
                summary_text=made.summary_text,
                ledger=made.ledger,
            )
            characters_of(rendered, with_summary=True)
            if is_anthropic:
                return to_anthropic(plan, rendered)
            return rendered

        return work

    name = f"window of {preset} at {share} {few} {is_emergency=} {is_anthropic=} {is_continued=}: {shape}"
    return Case(name, build, MOST_MESSAGES, has_thresholds=True)


def list_case(random: Random) -> Case:
    """A list of messages that nobody stored: compressed, and checked."""
    shape = Shape.of(random)
    share = random.choice((1.2, 0.98, 0.9, 0.7, 0.4, 0.15, 0.05))
    is_emergency = random.random() < 0.3
    policy = random.choice((Policy(), *PRESETS.values()))

    def build(size: int) -> Callable[[], object]:
        said = shape.said(size)
        compressor = LadderCompressor(estimated, policy)
        tokens = compressor.tokens(said)

        def work() -> object:
            validation_errors(said)
            with suppress(CannotFit):
                return compressor.compress(said, int(tokens * share), is_emergency=is_emergency)
            return None

        return work

    return Case(
        f"list at {share} {is_emergency=}: {shape}", build, MOST_MESSAGES, has_thresholds=True
    )


def eviction_case(random: Random) -> Case:
    """A session of which something leaves: what, its digest and its summary."""
    shape = replace(Shape.of(random), pending="")
    preset = random.choice(list(PRESETS))
    window = random.choice((8_000, 128_000, 10_000_000))
    batch = random.choice((1, 10, 1_000_000))
    is_summarised = random.random() < 0.5

    sessions = lru_cache(1)(shape.session)

    def build(size: int) -> Callable[[], object]:
        made = sessions(size)
        live = list(made.stored.messages)
        policy = PRESETS[preset]
        new = [message.stream_seq for message in live[-batch:]]

        def work() -> object:
            group(live)
            newest_request(live)
            decide_eviction(live, policy, Trigger.REQUEST, now_ms=10**9)
            done = plan_evictions(live, new, len(live), policy, model_window=window)
            evicted = (
                [message for one in done for message in one.evicted] if not is_summarised else live
            )
            sources = sources_of(
                [(message, made.bodies[message.position], False) for message in evicted]
            )
            digest_eviction(evicted, made.bodies, count=estimate)
            return extract(SummaryJob(sources=sources), count=estimate) if is_summarised else None

        return work

    return Case(
        f"eviction of {preset} {window} {batch} {is_summarised=}: {shape}",
        build,
        MOST_MESSAGES,
        first=EVERY_EVENT_BELOW,
        has_thresholds=True,
    )


def event_case(random: Random) -> Case:
    """An event of generated messages, as far as its limits go: read, counted and classified."""
    shape = Shape.of(random)
    # One that remembers would count in the first run alone.
    count = load_counter()

    def build(size: int) -> Callable[[], object]:
        said = shape.said(size)[:1_000]
        payload = json.dumps(
            {"event_id": "e", "agent_id": "a", "session_id": "s", "messages": said}
        ).encode()[: 4 << 20]
        return lambda: decode_event(Delivery("turn.completed.a.s", payload, 1, 0), count=count)

    return Case(f"event: {shape}", build, 4_096)
