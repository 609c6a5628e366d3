"""Sessions for tests of the window: chat messages, measured, paired and placed as intake does it, and their bodies."""

import gzip
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from turnfold.core.history.gist import SHORT_CHARACTERS
from turnfold.core.history.pairing import CallPosition, ResultPosition, match_results
from turnfold.core.policy.presets import Policy
from turnfold.core.summary.gist_writer import write_gist
from turnfold.core.text.tokens import INSTRUCTION_TOKENS, MessageTokens, count_message, text_of
from turnfold.core.window.framing import measure_summary
from turnfold.core.window.prefix import PendingDigest
from turnfold.core.window.rendering.render import Rendered
from turnfold.core.window.rendering.shaped import render_shaped
from turnfold.core.window.window import (
    WindowInput,
    WindowPlan,
    WindowRequest,
    build_window,
    to_plan,
)
from turnfold.messages import CompactionId, EventId, Message, Priority, Role, position_of
from turnfold.model_info.tokenizer import load_counter

Json = dict[str, Any]

ROW = CompactionId("row-1")
DIGEST = "user asked for the first things; assistant read them and answered"


@cache
def counter() -> Callable[[str], int]:
    """The tokenizer, loaded once for all tests; it remembers, since generated histories say the same things again and again."""
    return lru_cache(maxsize=10_000)(load_counter())


@dataclass(frozen=True)
class Said:
    """One chat message and what intake knows of it besides."""

    body: Json
    is_meta: bool = False
    priority: Priority = Priority.NORMAL
    is_pending: bool = False
    is_truncated: bool = False
    is_error: bool = False
    follows: bool = False
    """Whether it follows another message of its event."""
    weighed: "Weighed | None" = None


class Weighed(NamedTuple):
    """What never changes of a message, made once where it stands in many sessions: its stored text and its measures."""

    text: str
    measured: MessageTokens
    gist: str

    @classmethod
    def of(cls, body: Json) -> "Weighed":
        """Write and measure a chat message."""
        measured = count_message(body, counter())
        return cls(json.dumps(body), measured, write_gist(body, measured.calls, counter()))


def short_body(role: str, characters: int, gist: str, body: str) -> str:
    """The body that is read with the facts of a message: that of a short text of a user."""
    is_short = role == "user" and characters <= SHORT_CHARACTERS and gist[:1] != "["
    return body if is_short else ""


@dataclass(frozen=True)
class History:
    """A session: what the rules see of it, and the text of each message."""

    stored: WindowInput
    bodies: Mapping[int, str]
    summary_text: str = ""
    ledger: tuple[str, ...] = ()
    digests: Mapping[CompactionId, str] = field(default_factory=dict)

    def rendered(self, plan: WindowPlan) -> Rendered:
        """The window of a plan as texts; only the bodies the plan names are at hand."""
        return render_shaped(
            plan,
            {position: self.bodies[position] for position in plan.positions},
            digests={row: self.digests[row] for row in plan.digest.compaction_ids},
            summary_text=self.summary_text,
            ledger=self.ledger,
        )

    def until(self, length: int) -> "History":
        """The session as it was after so many messages."""
        messages = repaired(self.stored.messages[:length])
        return replace(
            self, stored=replace(self.stored, messages=messages, total=length + self.stored.covered)
        )

    def evicting(self, number: int) -> "History":
        """The session after its first so many live messages were evicted."""
        row = CompactionId("evicted-now")
        leaving = {
            message.position
            for message in [one for one in self.stored.messages if one.compaction_id is None][
                :number
            ]
        }
        messages = tuple(
            replace(one, compaction_id=row) if one.position in leaving else one
            for one in self.stored.messages
        )
        pending = (*self.stored.pending, PendingDigest(row, 9, len(leaving)))
        return replace(
            self,
            stored=replace(self.stored, messages=messages, pending=pending),
            digests={**self.digests, row: "They spoke."},
        )


def history(
    said: Sequence[Said | Json],
    *,
    summary: str = "",
    ledger: Sequence[str] = (),
    covered: int = 0,
    factor: float = 1.0,
) -> History:
    """A session in which these were said, one event each."""
    count = counter()
    entries = [one if isinstance(one, Said) else Said(one) for one in said]
    messages: list[Message] = []
    bodies: dict[int, str] = {}
    for seq, one in enumerate(entries, start=1):
        role, index = Role(one.body["role"]), int(one.follows)
        position = position_of(seq, index)
        bodies[position], measured, gist = one.weighed or Weighed.of(one.body)
        messages.append(
            Message(
                position,
                EventId(f"e{seq}"),
                index,
                role,
                measured.tokens + INSTRUCTION_TOKENS * (role.is_system and index > 0),
                content_tokens=measured.content_tokens,
                reasoning_tokens=measured.reasoning_tokens,
                characters=measured.characters,
                lines=measured.lines,
                priority=one.priority,
                calls=measured.calls if one.body["role"] == "assistant" else (),
                is_meta=one.is_meta,
                is_irregular=measured.is_irregular,
                is_truncated=one.is_truncated,
                is_error=one.is_error,
                cuts=measured.cuts,
                compaction_id=ROW if one.is_pending else None,
                gist=gist,
                short_body=short_body(role, measured.characters, gist, bodies[position]),
            )
        )
    paired = answered(messages, [one.body for one in entries])
    pending = sum(one.is_pending for one in entries)
    size = None
    if summary:
        text_tokens = count(summary)
        size = measure_summary(
            1,
            summary,
            ledger,
            tokens=text_tokens + sum(map(count, ledger)),
            text_tokens=text_tokens,
            cuts=cuts_of(summary),
            entry_tokens=[*map(count, ledger)],
        )
    stored = WindowInput(
        messages=paired,
        pending=(PendingDigest(ROW, count(DIGEST), pending),) if pending else (),
        summary=size,
        covered=covered,
        total=covered + len(paired),
        factor=factor,
    )
    return History(stored, bodies, summary, tuple(ledger), {ROW: DIGEST})


def cuts_of(text: str) -> str:
    """The grid of a text, also of a short one."""
    from turnfold.core.text.tokens import TokenOffsets

    return TokenOffsets.of(text, counter()).encode()


def answered(messages: Sequence[Message], bodies: Sequence[Json]) -> tuple[Message, ...]:
    """The messages, each result beside its call."""
    calls: dict[str, list[CallPosition]] = {}
    results: dict[str, list[ResultPosition]] = {}
    for message, body in zip(messages, bodies, strict=True):
        for call in message.calls:
            calls.setdefault(call.call_id, []).append(CallPosition(message.position, call.slot))
        if message.role is Role.TOOL:
            digest = sha256(json.dumps(body.get("content")).encode()).digest()
            results.setdefault(str(body.get("tool_call_id")), []).append(
                ResultPosition(message.position, digest)
            )
    verdicts = {
        at: verdict
        for call_id, found in results.items()
        for at, verdict in match_results(calls.get(call_id, ()), found).items()
    }
    return tuple(
        replace(
            message,
            answers=verdicts[message.position].answers,
            is_copy=verdicts[message.position].is_copy,
        )
        if message.position in verdicts
        else message
        for message in messages
    )


def repaired(messages: Sequence[Message]) -> tuple[Message, ...]:
    """The messages as they were stored when the last of them came: no result answers a call that came later."""
    last = messages[-1].position if messages else 0
    return tuple(
        replace(m, answers=None) if m.answers is not None and m.answers.position > last else m
        for m in messages
    )


def parsed(rendered: Rendered) -> list[Json]:
    """The messages of a window as values."""
    return [json.loads(message) for message in rendered.messages]


def counted(messages: Sequence[Json]) -> int:
    """What the tokenizer says of these messages; each text is counted whole."""
    count, total = counter(), 0
    for message in messages:
        measured = count_message(message, count)
        is_text = isinstance(message.get("content"), str)
        total += (
            measured.tokens - measured.content_tokens + count(message["content"])
            if is_text
            else measured.tokens
        )
    return total


def text(message: Json) -> str:
    """The text of a message."""
    return text_of(message)


def user(content: Any, **more: Any) -> Json:
    """A user message."""
    return {"role": "user", "content": content, **more}


def assistant(
    content: Any = None,
    *calls: str,
    name: str = "look_up",
    arguments: str = '{"at":1}',
    **more: Any,
) -> Json:
    """An assistant message that calls tools with these ids."""
    made = [
        {"id": call, "type": "function", "function": {"name": name, "arguments": arguments}}
        for call in calls
    ]
    return {
        "role": "assistant",
        "content": content,
        **({"tool_calls": made} if made else {}),
        **more,
    }


def custom(call_id: str, text: str, name: str = "sql") -> Json:
    """A call of a custom tool, which takes free text."""
    return {"id": call_id, "type": "custom", "custom": {"name": name, "input": text}}


def tool(call_id: str, content: Any) -> Json:
    """A tool's result."""
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def system(content: str) -> Json:
    """A system message."""
    return {"role": "system", "content": content}


def instruction(content: str, role: str = "system") -> Said:
    """A system message that follows another message of its event."""
    return Said({"role": role, "content": content}, priority=Priority.HIGH, follows=True)


def words(tokens: int) -> str:
    """A text of about so many tokens, in lines."""
    return "".join(
        f"word number {at} of it\n" if at % 5 else f"line {at}:\n"
        for at in range(max(1, tokens // 6))
    )


def data_directory() -> Path | None:
    """Where recorded conversations lie on this machine, if they do."""
    found = (
        Path(os.environ.get("TURNFOLD_DATA", Path(__file__).parents[2] / "shared" / "data"))
        / "conversations"
    )
    return found if found.is_dir() else None


def recorded(per_file: int) -> list[tuple[str, list[Json]]]:
    """The first conversations of each file, by name; a made one where there is no data."""
    directory = data_directory()
    found: list[tuple[str, list[Json]]] = []
    for path in sorted(directory.glob("*.jsonl.gz")) if directory else ():
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            for number, line in zip(range(per_file), lines, strict=False):
                found.append(
                    (
                        f"{path.name.removesuffix('.jsonl.gz')}-{number}",
                        json.loads(line)["messages"],
                    )
                )
    made = [
        system("be brief"),
        user(words(900)),
        assistant(None, "a", "b"),
        tool("b", words(5_000)),
    ]
    return found or [("made", made)]


def plan(stored: WindowInput, asked: WindowRequest, policy: Policy) -> WindowPlan:
    """Plan the window of a session anew."""
    return to_plan(build_window(stored, asked, policy), stored, asked)
