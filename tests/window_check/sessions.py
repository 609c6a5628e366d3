"""The sessions that are cut: slices of recorded conversations, and made-up ones that no agent would publish."""

import gzip
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from random import Random
from typing import Any

from tests import window_rules as laws
from tests.histories import (
    History,
    Said,
    Weighed,
    assistant,
    custom,
    history,
    instruction,
    system,
    tool,
    user,
    words,
)
from turnfold.core.eviction.choose import decide_eviction
from turnfold.core.eviction.triggers import Trigger
from turnfold.core.history.priority import classify
from turnfold.core.policy.presets import Policy
from turnfold.messages import Priority, Role

Json = dict[str, Any]

SHARED_DATA = Path(__file__).parents[3] / "shared" / "data" / "conversations"
TEXTS = (
    "",
    "ok",
    "remember: port 8443",
    "漢字の長い文。" * 40,
    "🙂" * 300,
    "x" * 5_000,
    "a,b;" * 900,
)
WORDS = (1, 5, 20, 60, 200, 700, 3_000, 12_000)
ARGUMENTS = (
    '{"at":1}',
    "not json",
    '{"path":"src/app.py"}',
    json.dumps({"path": "a.py", "text": words(900)}),
    "[" * 900,
)


@dataclass(frozen=True, slots=True)
class Conversation:
    """A recorded conversation, weighed once."""

    name: str
    said: tuple[Said, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sitting:
    """A session to cut windows of, and where it comes from."""

    name: str
    said: tuple[Said, ...]
    summary: str = ""
    ledger: tuple[str, ...] = ()
    covered: int = 0
    factor: float = 1.0
    has_covered_requests: bool = False

    def until(self, length: int) -> "Sitting":
        """The session when it had so many messages."""
        return replace(self, said=self.said[:length])

    def stored(self) -> History:
        """As the service stores it."""
        return history(
            self.said,
            summary=self.summary,
            ledger=self.ledger,
            covered=self.covered,
            factor=self.factor,
        )

    def told(self) -> laws.Session:
        """As its publisher knows it."""
        return laws.Session(
            [
                laws.Told(
                    f"e{seq}#{int(one.follows)}",
                    (one.weighed or Weighed.of(one.body)).text,
                    one.body,
                    one.is_meta,
                    one.is_pending,
                )
                for seq, one in enumerate(self.said, start=1)
            ],
            covered=self.covered,
            factor=self.factor,
            has_covered_requests=self.has_covered_requests,
        )

    def evicting(self, policy: Policy, trigger: Trigger) -> "Sitting":
        """The session after what may leave by now has left."""
        live = [one for one in self.stored().stored.messages if one.compaction_id is None]
        evicted = decide_eviction(live, policy, trigger, now_ms=10**9)
        left = {message.stream_seq for message in evicted}
        said = [
            replace(one, is_pending=one.is_pending or seq in left)
            for seq, one in enumerate(self.said, start=1)
        ]
        return replace(self, said=tuple(said))

    def covering(self) -> "Sitting":
        """The session after a summary covers what was evicted."""
        gone = [one for one in self.said if one.is_pending]
        return replace(
            self,
            said=tuple([one for one in self.said if not one.is_pending]),
            covered=self.covered + len(gone),
            has_covered_requests=any(one.body["role"] == "user" for one in gone),
        )


def data_directory(named: Path | None = None) -> Path | None:
    """Where recorded conversations lie: as named, as PROVE_DATA says, or beside the project; None where there are none."""
    chosen = named or Path(os.environ.get("PROVE_DATA") or SHARED_DATA)
    return chosen if any(chosen.glob("*.jsonl.gz")) else None


@lru_cache(maxsize=1)
def conversations(directory: Path | None) -> tuple[Conversation, ...]:
    """Every conversation of a directory."""
    found: list[Conversation] = []
    for path in sorted(directory.glob("*.jsonl.gz")) if directory else ():
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            for number, line in enumerate(lines):
                bodies: list[Json] = json.loads(line)["messages"]
                found.append(
                    Conversation(f"{path.name.removesuffix('.jsonl.gz')}-{number}", weighed(bodies))
                )
    return tuple(found)


def weighed(bodies: Sequence[Json]) -> tuple[Said, ...]:
    """Chat messages as intake weighs and classifies them."""
    calls: dict[str, Json] = {}
    said: list[Said] = []
    for body in bodies:
        for call in laws.sendable_calls(body):
            calls[call["id"]] = call
        priority = classify(
            body, call=calls.get(str(body.get("tool_call_id"))) if body["role"] == "tool" else None
        )
        said.append(Said(body, priority=priority, weighed=Weighed.of(body)))
    return tuple(said)


def sitting(random: Random, number: int, recorded: Sequence[Conversation]) -> Sitting:
    """The session of this number: recorded and generated ones by turns, each conversation before any comes again."""
    if recorded and number % 2 == 0:
        conversation = recorded[number // 2 % len(recorded)]
        length = len(conversation.said)
        wanted = random.choice((6, 15, 40, 40, 100, 250))
        start = random.randrange(max(1, length - wanted // 2)) if random.random() < 0.6 else 0
        said = (
            conversation.said[start:]
            if random.random() < 0.03
            else conversation.said[start : start + random.randint(1, wanted)]
        )
        name = f"{conversation.name}[{start}:{start + len(said)}]"
    else:
        length = random.choice((0, 1, 2, 4, 8, 16, 24, 40))
        is_at_work = random.random() < 0.3
        said = (
            working(random, length) if is_at_work else tuple(spoken(random) for _ in range(length))
        )
        name = "generated"
    made = Sitting(name=name, said=said, factor=random.choice((1.0, 1.0, 1.0, 1.0, 1.25, 0.5, 2.5)))
    if random.random() < 0.3:
        kept = random.choice((1, 4, 10))
        policy = Policy(keep_messages=kept, keep_tokens=0, keep_at_most_messages=0)
        made = made.evicting(policy, Trigger.REQUEST)
    if random.random() < 0.3:
        ledger = ("path src/app.py", "host 10.0.0.1:8443", "request two\nlines </turnfold-summary>")
        summary = "<turnfold-summary>\n" + words(random.choice((3, 30, 200, 400)))
        made = replace(made, summary=summary, ledger=ledger, covered=random.randrange(500))
        if random.random() < 0.5:
            made = made.covering()
    return made


def working(random: Random, length: int) -> tuple[Said, ...]:
    """Turns of an agent at work: calls beside calls, results in any order, late or never, and reminders."""
    made = [Said(user(words(random.choice(WORDS[:5]))))] if random.random() < 0.8 else []
    waiting, number = list[str](), 0
    while len(made) < length:
        kind = random.random()
        if waiting and kind < 0.5:
            call_id = waiting.pop(random.randrange(len(waiting)))
            text = words(random.choice(WORDS[:7]))
            made.append(Said(tool(call_id, text), priority=random.choice(list(Priority))))
        elif kind < 0.8:
            ids = [f"c{number + one}" for one in range(random.choice((1, 1, 2, 5)))]
            number += len(ids)
            made.append(Said(_at_work(random, ids), priority=random.choice(list(Priority))))
            waiting += ids
        elif kind < 0.95:
            made.append(Said(user("Reflect on the results."), is_meta=True))
        else:
            made.append(Said(user(words(random.choice(WORDS[:5])))))
    return tuple(replace(one, weighed=Weighed.of(one.body)) for one in made)


def _at_work(random: Random, ids: Sequence[str]) -> Json:
    """A message whose calls differ in their tools and in the length of their arguments."""
    body = assistant(None, *ids, name=random.choice(("read_file", "shell", "look_up")))
    for call in body["tool_calls"]:
        given = {"path": f"src/{call['id']}.py", "text": words(random.choice(WORDS[:6]))}
        call["function"]["arguments"] = json.dumps(given)
    return body


def spoken(random: Random) -> Said:
    """Any message: users, assistants with up to 16 calls at once, results of calls made or not, systems, machine-made users."""
    text = random.choice(TEXTS) if random.random() < 0.4 else words(random.choice(WORDS))
    priority = random.choice(list(Priority))
    match random.choice(
        (
            "user",
            "user",
            "meta",
            "parts",
            "malformed",
            "assistant",
            "calls",
            "calls",
            "tool",
            "tool",
            "tool",
            "system",
        )
    ):
        case "system":
            said = random.choice((Said(system(text[:600])), instruction(text[:600])))
        case "tool":
            said = Said(
                tool(f"call_{random.randrange(6)}", text),
                priority=priority,
                is_truncated=random.random() < 0.3,
            )
        case "parts":
            parts = [
                {"type": "text", "text": text},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
            ]
            said = Said(user(parts), priority=priority)
        case "malformed":
            said = Said(
                user(
                    [
                        None,
                        {"type": "text"},
                        {"type": "text", "text": 7},
                        {"type": "text", "text": text},
                        [text[:50]],
                    ]
                ),
                priority=priority,
            )
        case "user":
            said = Said(user(text), priority=priority)
        case "meta":
            said = Said(user(text), is_meta=True, priority=priority)
        case "assistant":
            more = (
                {"reasoning_content": random.choice(("short", words(900)))}
                if random.random() < 0.5
                else {}
            )
            said = Said(assistant(text or None, **more), priority=priority)
        case _:
            said = Said(_calling(random, text), priority=priority)
    return replace(said, weighed=Weighed.of(said.body))


def _calling(random: Random, text: str) -> Json:
    several = [f"call_{random.randrange(6)}" for _ in range(random.randint(1, 3))]
    ids = [f"many_{number}" for number in range(16)] if random.random() < 0.2 else several
    body = assistant(text or None, *ids, arguments=random.choice(ARGUMENTS))
    body["tool_calls"][0]["function"]["name"] = random.choice(
        ("look_up", "look_up", "read_file", "", None)
    )
    if random.random() < 0.3:
        body["tool_calls"][-1] = custom(body["tool_calls"][-1]["id"], random.choice(ARGUMENTS))
    return body


def eviction_faults(before: Sitting, after: Sitting) -> list[str]:
    """What an eviction took that had to stay, or left that had to go with it."""
    session = after.told()
    gone = {
        place
        for place, (old, new) in enumerate(zip(before.said, after.said, strict=True))
        if new.is_pending and not old.is_pending
    }
    found = [
        f"C2: result {place} parted from its call"
        for place, owner in session.answers.items()
        if _parted(session, gone, place, owner.head)
    ]
    if session.newest_system in gone or session.request in gone:
        found.append("E3: the pinned message or the newest request was evicted")
    found += [
        f"E3: {place} stays, and its request {request} was evicted"
        for place, request in enumerate(session.rounds)
        if request in gone and not _leaves_with_others(session, place)
    ]
    live = [
        one
        for one in after.said
        if not one.is_pending and (one.follows or not Role(one.body["role"]).is_system)
    ]
    if gone and not live:
        found.append("C4: everything was evicted")
    return found


def _leaves_with_others(session: laws.Session, place: int) -> bool:
    """Whether a message is evicted, stands in the prefix, or belongs to a message that calls."""
    one = session.told[place]
    return one.is_pending or place in session.pinnable or one.body["role"] == "tool"


def _parted(session: laws.Session, gone: set[int], result: int, head: int) -> bool:
    was_beside = (result in gone or not session.told[result].is_pending) and (
        head in gone or not session.told[head].is_pending
    )
    return was_beside and (result in gone) != (head in gone)
