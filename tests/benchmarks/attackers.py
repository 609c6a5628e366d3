"""Attackers: each is a program of its own that harms a running system for some seconds, as one agent, key, token or stranger.

`attacks` starts it. It prepares its data, prints a line, waits for a line, attacks, and prints the number of its outcomes and
its processor time. Each attack has a rate, and no attacker uses more than `CPU_SHARE` of a core: others then wait for the
service and not for the attacker's own work.
"""

import asyncio
import json
import resource
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from itertools import product
from random import Random
from string import ascii_lowercase
from typing import NamedTuple

import nats
from nats.aio.msg import Msg

from tests.benchmarks.attacker import (
    AGENT,
    EVENT_BYTES,
    FAR_AHEAD,
    MIB,
    PREPARE_SECONDS,
    RETRY_SECONDS,
    Attacker,
    Json,
    repeated,
    subject,
)
from tests.benchmarks.texts import prose, turn

# --- places that are taken and held


async def waiting_queries(attacker: Attacker) -> None:
    """512 queries that wait five seconds for an event that never comes, on the bus."""
    request = {"after": FAR_AHEAD, "wait_ms": 5_000}
    await repeated(
        attacker,
        lambda n: attacker.ask("context.get", f"w{n}", request),
        at_once=512,
        per_second=512,
    )


async def waiting_queries_http(attacker: Attacker) -> None:
    """The same over HTTP."""

    async def wait(number: int) -> None:
        async with attacker.connection() as (reader, writer):
            writer.write(attacker.head("GET", f"w{number}/context?after={FAR_AHEAD}&wait_ms=5000"))
            await attacker.until_closed(reader)
        await asyncio.sleep(RETRY_SECONDS)

    await repeated(attacker, wait, at_once=512, per_second=512)


async def unfinished_bodies(attacker: Attacker) -> None:
    """512 requests whose small bodies never end."""
    await _unfinished(attacker, at_once=512, body=b"{", promised=1_000)


async def unfinished_large_bodies(attacker: Attacker) -> None:
    """150 requests of 4 MiB whose last byte never comes."""
    await _unfinished(attacker, at_once=150, body=b" " * (EVENT_BYTES - 1), promised=EVENT_BYTES)


async def _unfinished(attacker: Attacker, *, at_once: int, body: bytes, promised: int) -> None:
    piece = 256 * 1024

    async def hold(number: int) -> None:
        async with attacker.connection() as (reader, writer):
            writer.write(
                attacker.head(
                    "POST",
                    f"b{number}/events",
                    "Content-Type: application/json",
                    f"Content-Length: {promised}",
                )
            )
            answered = asyncio.create_task(attacker.until_closed(reader))
            with suppress(OSError):
                for start in range(0, len(body), piece):
                    if answered.done():
                        break
                    writer.write(body[start : start + piece])
                    await writer.drain()
                    await attacker.pace(512)
            await answered
        await asyncio.sleep(RETRY_SECONDS)

    await repeated(attacker, hold, at_once=at_once, per_second=512)


async def half_request_lines(attacker: Attacker) -> None:
    """1,100 connections that send half a request line, without a token."""

    async def hold(_: int) -> None:
        async with attacker.connection() as (reader, writer):
            writer.write(b"GET /heal")
            await attacker.until_closed(reader)

    await repeated(attacker, hold, at_once=1_100, per_second=512)


async def slow_headers(attacker: Attacker) -> None:
    """512 connections that send one byte of a header per second, without a token."""

    async def trickle(_: int) -> None:
        async with attacker.connection() as (reader, writer):
            writer.write(b"GET /v1/sessions HTTP/1.1\r\nX: ")
            answered = asyncio.create_task(attacker.until_closed(reader))
            with suppress(OSError):
                while not answered.done():
                    writer.write(b"x")
                    await asyncio.wait([answered], timeout=1)
            await answered

    await repeated(attacker, trickle, at_once=512, per_second=512)


async def unread_answers(attacker: Attacker) -> None:
    """200 requests for 4 MB of history whose answers nobody reads."""

    async def hold(_: int) -> None:
        async with attacker.connection() as (reader, writer):
            writer.write(attacker.head("GET", "searched/history?limit=1000"))
            await attacker.until_closed(reader)
            await asyncio.sleep(max(0.0, attacker.deadline - time.monotonic()))

    await repeated(attacker, hold, at_once=200, per_second=50)


# --- requests that take long

TWO_LETTERS = ["".join(pair) for pair in product(ascii_lowercase, repeat=2)]


async def prepare_text(attacker: Attacker) -> None:
    """Publish 4 MB of two-letter words in 40 messages."""
    random = Random("searched")
    for number in range(8):
        texts = [" ".join(random.choices(TWO_LETTERS, k=33_000)) for _ in range(5)]
        await attacker.publish(
            "searched", [{"role": "user", "content": text} for text in texts], f"text-{number}"
        )
    await attacker.until_stored("searched", 40)


async def searches(attacker: Attacker) -> None:
    """Eight searches at once of 100 two-letter words over 4 MB of text."""
    random = Random("searches")

    async def search(_: int) -> None:
        await attacker.ask(
            "history.search",
            "searched",
            {"q": " ".join(random.sample(TWO_LETTERS, 100)), "limit": 10},
        )

    await repeated(attacker, search, at_once=8, per_second=100)


async def windows(attacker: Attacker, session_id: str) -> None:
    """Four windows at once of a session, each with another budget, whose asker waits one second."""
    random = Random(session_id)

    async def ask(_: int) -> None:
        await attacker.ask(
            "context.get", session_id, {"max_tokens": random.randrange(2_000, 200_000)}, seconds=1.0
        )

    await repeated(attacker, ask, at_once=4, per_second=20)


def _call(number: int, arguments: str = "{}") -> Json:
    return {
        "id": f"call_{number}",
        "type": "function",
        "function": {"name": "shell", "arguments": arguments},
    }


async def prepare_block(attacker: Attacker) -> None:
    """Publish one message with 6,000 calls, and their results in six more events."""
    calls = {
        "role": "assistant",
        "content": None,
        "tool_calls": [_call(number) for number in range(6_000)],
    }
    await attacker.publish("block", [{"role": "user", "content": "Go."}, calls], "calls")
    for start in range(0, 6_000, 1_000):
        results = [
            {
                "role": "tool",
                "tool_call_id": f"call_{start + at}",
                "content": f"Result {start + at}.",
            }
            for at in range(1_000)
        ]
        await attacker.publish("block", results, f"results-{start}")
    await attacker.until_stored("block", 6_002)


async def large_block(attacker: Attacker) -> None:
    """Windows of one block of 6,000 calls over several events."""
    await windows(attacker, "block")


async def prepare_calls(attacker: Attacker) -> None:
    """Publish three messages with 3,000 calls and 997 results in one event."""
    calls = [
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [_call(at * 1_000 + n) for n in range(1_000)],
        }
        for at in range(3)
    ]
    results = [
        {"role": "tool", "tool_call_id": f"call_{number * 3}", "content": f"Result {number}."}
        for number in range(997)
    ]
    await attacker.publish("calls", [*calls, *results], "calls")
    await attacker.until_stored("calls", 1_000)


async def open_calls(attacker: Attacker) -> None:
    """Windows of 3,000 calls with 997 results in one event."""
    await windows(attacker, "calls")


async def prepare_live(attacker: Attacker) -> None:
    """Publish 50,000 messages in a session that is never compacted."""
    await attacker.ask("session.policy", "live", {"mode": "off"})
    random = Random("live")
    texts = [
        {"role": role, "content": prose(random, 60)}
        for _ in range(500)
        for role in ("user", "assistant")
    ]
    for number in range(50):
        await attacker.publish("live", texts, f"live-{number}")
    await attacker.until_stored("live", 50_000)


async def live_history(attacker: Attacker) -> None:
    """Windows of a session with 50,000 live messages."""
    await windows(attacker, "live")


# --- what is written


async def small_events(attacker: Attacker) -> None:
    """Small events, 1,000 per second."""
    number = 0

    async def publish(_: int) -> None:
        nonlocal number
        number += 1
        event = {"event_id": f"s{number}", "agent_id": AGENT, "session_id": f"small-{number % 50}"}
        body = json.dumps(event | {"messages": [{"role": "user", "content": "x"}]}).encode()
        await attacker.bus.publish(subject("turn.completed", f"small-{number % 50}"), body)
        attacker.outcomes["published"] += 1

    await repeated(attacker, publish, at_once=4, per_second=1_000)


async def large_events(attacker: Attacker) -> None:
    """Events of 4 MiB, four a second."""
    number = 0
    filler = prose(Random("large"), EVENT_BYTES - 1_024)

    async def publish(_: int) -> None:
        nonlocal number
        number += 1
        await attacker.publish(
            f"large-{number % 8}", [{"role": "user", "content": filler}], f"large-{number}"
        )
        attacker.outcomes["published"] += 1

    await repeated(attacker, publish, at_once=4, per_second=4)


ODD_EVENTS = (
    b"\x00\x1b[2J no json",
    b'{"event_id": NaN}',
    b"[" * 50_000,
    b'{"event_id": "x", "agent_id": "bench", "session_id": "s0", "messages": [{"role": "user", "content": "not mine"}]}',
    b'{"event_id": "x", "agent_id": "attacker", "session_id": "odd", "messages": []}',
    b'{"event_id": "x", "agent_id": "attacker", "session_id": "odd", "messages": [{"role": "nobody"}]}',
    b'{"event_id": "x", "agent_id": "attacker", "session_id": "odd", "messages": ['
    + b'{"role":"user","content":"x"},' * 1_200
    + b"null]}",
)


async def odd_events(attacker: Attacker) -> None:
    """Events that become dead letters, 300 per second."""
    number = 0

    async def publish(_: int) -> None:
        nonlocal number
        number += 1
        await attacker.bus.publish(
            subject("turn.completed", "odd"), ODD_EVENTS[number % len(ODD_EVENTS)]
        )
        attacker.outcomes["published"] += 1

    await repeated(attacker, publish, at_once=4, per_second=300)


async def prepare_turns(attacker: Attacker) -> None:
    """Publish some turns in 20 sessions."""
    random = Random("turns")
    for number in range(20):
        await attacker.publish(
            f"t{number}",
            [message for at in range(10) for message in turn(random, at)],
            f"turns-{number}",
        )
    await attacker.until_stored("t19", 40)


async def writes(attacker: Attacker) -> None:
    """Requests that write, 200 per second: policies of new sessions, compactions, regenerations."""
    number = 0

    async def write(_: int) -> None:
        nonlocal number
        number += 1
        name, session_id, request = (
            (
                "session.policy",
                f"new-{number}",
                {"overrides": {"max_live_messages": 100 + number % 100}},
            ),
            ("compaction.request", f"t{number % 20}", {}),
            ("summary.regenerate", f"t{number % 20}", {}),
        )[number % 3]
        await attacker.ask(name, session_id, request)

    await repeated(attacker, write, at_once=32, per_second=200)


async def erasures(attacker: Attacker) -> None:
    """Sessions that are made and erased, 20 per second."""
    number = 0

    async def erase(_: int) -> None:
        nonlocal number
        number += 1
        await attacker.publish(
            f"erased-{number}", [{"role": "user", "content": "x"}], f"erased-{number}"
        )
        await attacker.ask("session.erase", f"erased-{number}", {})

    await repeated(attacker, erase, at_once=8, per_second=20)


def unclosed(random: Random) -> str:
    """A shell command whose quotes, brackets and tags never close."""
    opened = ("'", '"', "`", "$(", "<<EOF ", "<a ", "</turnfold-summary", "\\", "${", "'\"'")
    return "cd /srv/app && " + "".join(
        random.choice(opened) + random.choice(("x", "/tmp/y", " -z", "")) for _ in range(2_000)
    )


async def shell_commands(attacker: Attacker) -> None:
    """Five turns per second of 20 shell commands full of unclosed quotes and tags, each with a compaction."""
    number, random = 0, Random("shell")

    async def play(_: int) -> None:
        nonlocal number
        number += 1
        calls = [_call(at, json.dumps({"command": unclosed(random)})) for at in range(20)]
        results = [
            {
                "role": "tool",
                "tool_call_id": f"call_{at}",
                "content": "<result " * 200 + unclosed(random),
            }
            for at in range(20)
        ]
        asked: list[Json] = [
            {"role": "user", "content": unclosed(random)},
            {"role": "assistant", "content": None, "tool_calls": calls},
        ]
        await attacker.publish(f"shell-{number % 5}", [*asked, *results], f"shell-{number}")
        attacker.outcomes["published"] += 1
        await attacker.ask("compaction.request", f"shell-{number % 5}", {})

    await repeated(attacker, play, at_once=4, per_second=5)


# --- a stranger

FORGED = b'{"stream": "TURNFOLD_EVENTS", "seq": 1}'
HEARD = (
    "turn.completed.>",
    "tool.result.>",
    "context.compressed.>",
    "summary.updated.>",
    "compaction.failed.>",
    "turnfold.>",
)


async def forged_acknowledgements(attacker: Attacker) -> None:
    """A subscriber that answers every event and every notice with a forged acknowledgement."""

    async def on_message(message: Msg) -> None:
        if message.reply:
            await message.respond(FORGED)
            attacker.outcomes["forged"] += 1

    heard = [await attacker.bus.subscribe(one, cb=on_message) for one in HEARD]
    await asyncio.sleep(attacker.deadline - time.monotonic())
    for subscription in heard:
        await subscription.unsubscribe()


class Attack(NamedTuple):
    """An attack and its preparation; the docstring of `run` says what it does."""

    run: Callable[[Attacker], Awaitable[None]]
    prepare: Callable[[Attacker], Awaitable[None]] | None = None

    @property
    def title(self) -> str:
        """What it does, in a line."""
        return (self.run.__doc__ or "").partition(".")[0]


ATTACKS: Mapping[str, Attack] = {
    "waiting-bus": Attack(waiting_queries),
    "waiting-http": Attack(waiting_queries_http),
    "bodies": Attack(unfinished_bodies),
    "large-bodies": Attack(unfinished_large_bodies),
    "half-lines": Attack(half_request_lines),
    "slow-headers": Attack(slow_headers),
    "unread": Attack(unread_answers, prepare_text),
    "searches": Attack(searches, prepare_text),
    "block": Attack(large_block, prepare_block),
    "open-calls": Attack(open_calls, prepare_calls),
    "live-history": Attack(live_history, prepare_live),
    "small-events": Attack(small_events),
    "large-events": Attack(large_events),
    "odd-events": Attack(odd_events),
    "writes": Attack(writes, prepare_turns),
    "erasures": Attack(erasures),
    "shell": Attack(shell_commands),
    "forged": Attack(forged_acknowledgements),
}


async def main(name: str, nats_url: str, http_url: str, token: str, seconds: float) -> None:
    """Prepare, wait for a line on standard input, attack, and print what came of it."""
    attack = ATTACKS[name]
    # The services have the limit of a usual shell; the attacker has a machine of its own.
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    async with await nats.connect(nats_url, pending_size=64 * MIB) as bus:
        attacker = Attacker(bus, http_url, token)
        attacker.begin(PREPARE_SECONDS)
        if attack.prepare is not None:
            await attack.prepare(attacker)
        print(json.dumps({"ready": True}), flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        attacker.begin(seconds)
        await attack.run(attacker)
        print(
            json.dumps({"cpu_share": attacker.cpu_share, "outcomes": attacker.outcomes}), flush=True
        )


if __name__ == "__main__":
    name, nats_url, http_url, token, seconds = sys.argv[1:]
    asyncio.run(main(name, nats_url, http_url, token, float(seconds)))
