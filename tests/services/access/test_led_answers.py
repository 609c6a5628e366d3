"""Answers that a client tries to lead elsewhere, and who is believed to ask."""

import json
import re
from collections.abc import Iterable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

import nats
import pytest
from nats.aio.msg import Msg

from tests.nats_server import NatsServer, subscriptions_known
from tests.running_system import Parts, wait_until
from tests.services.access.guarded import STREAM_API, Guarded, Json, Person, person
from turnfold.access.roles import EXPORTS, SERVICES, Key, permissions_of
from turnfold.bus.answering import is_led
from turnfold.nats_client.corrected import REQUEST_INFO

CLIENTS = ("support", "other", "auditor", "operator")
LED = "led-by-"
"""The prefix of the session, or of the last token, of every subject to which a test leads something."""
ACTS = (
    "agents",
    "campaigns",
    "compactions",
    "summaries",
    "summary_activations",
    "restorations",
    "erasures",
    "stream_purges",
    "audit",
    "outbox",
)
"""Tables in which every request that writes leaves something."""
UNTAKEN = b"-"
"""The body of what a test sends: whatever writes refuses it, and everything answers it."""


def with_ids(subject: str, agent: str, session: str) -> str:
    """A subject of the role table with ids in the place of its wildcards."""
    return subject.replace("*", agent, 1).replace("*", session).replace(">", f"{agent}.{session}")


def sources(key: Key) -> list[str]:
    """Every subject on which this key may publish; each brings an answer of a service or of the stream."""
    return [with_ids(subject, "support", "s") for subject in permissions_of(key).publish]


def targets(guarded: Guarded, session: str) -> list[str]:
    """Every subject on which a message acts, or on which somebody listens: exported ones, those of services, and inboxes."""
    services = (guarded.keys[role] for role in SERVICES)
    subjects = [export.subject for export in EXPORTS]
    subjects += [
        subject.partition(" ")[0]
        for key in services
        for subject in (*permissions_of(key).publish, *permissions_of(key).subscribe)
    ]
    exact = [
        with_ids(subject, agent, session) for subject in subjects for agent in ("other", "support")
    ]
    inboxes = [f"_INBOX.{key.key}.{session}" for key in guarded.keys.values()]
    return list(dict.fromkeys([*exact, *subjects, *inboxes, "turn.completed"]))


def leads(key: Key, target: str) -> Iterator[tuple[str, str, dict[str, str]]]:
    """Every way to name a target for what somebody else sends: the reply subject of every source, and the headers of NATS."""
    inbox, own = f"_INBOX.{key.key}.answer", sources(key)
    yield from ((source, target, {}) for source in own)
    trace = {
        "Nats-Trace-Dest": target,
        "nats-trace-dest": target,
        "traceparent": f"00-{'1' * 32}-{'2' * 16}-01",
    }
    schedule = {"Nats-Schedule": "@at 2020-01-01T00:00:00Z", "Nats-Schedule-Target": target}
    forged = {
        "Nats-Request-Info": '{"acc": "TURNFOLD", "user": "U"}',
        "Nats-Subject": target,
        "Reply-To": target,
    }
    yield from (
        (source, inbox, headers)
        for source in (own[0], own[-1])
        for headers in (trace, schedule, forged)
    )


@dataclass
class Monitor:
    """A listener in the services' account: it counts answers, and notes everything on a target."""

    answers: int = 0
    led: set[str] = field(default_factory=set)

    async def on_message(self, message: Msg) -> None:
        """Note a message."""
        if message.subject.startswith("_R_."):
            self.answers += 1
        elif LED in message.subject or is_led(message.headers):
            self.led.add(message.subject)


async def acted(parts: Parts, provisioner: Person) -> Json:
    """Everything that a request, an event or a notice on a target changes."""
    counts: Json = {table: await parts.rows(f"SELECT count(*) AS n FROM {table}") for table in ACTS}
    streams = {}
    for stream in ("TURNFOLD_EVENTS", "TURNFOLD_NOTICES"):
        told = await provisioner.bus.request(
            f"{STREAM_API}.INFO.{stream}", b'{"subjects_filter": ">"}', timeout=10
        )
        streams[stream] = [
            subject
            for subject in json.loads(told.data)["state"].get("subjects", {})
            if LED in subject
        ]
    return counts | streams


def is_among(subject: str, patterns: Iterable[str]) -> bool:
    """Return whether one of these patterns matches the subject."""
    words = [re.escape(pattern).replace(r"\*", "[^.]+") for pattern in patterns]
    return any(re.fullmatch(word, subject) for word in words)


@pytest.mark.proves("X5", "C70", "X1", "L12")
@pytest.mark.parametrize("name", ["support", "auditor", "operator"])
async def test_no_answer_can_be_led_anywhere(
    guarded: Guarded, server: NatsServer, name: str
) -> None:
    """X5, C70: every source of answers, with every subject as its target; both are read from the role table."""
    worker, query = guarded.parts(server, "worker"), guarded.parts(server, "query")
    key, monitor = guarded.keys[name], Monitor()
    async with worker.running("worker"), query.running("query"), AsyncExitStack() as stack:
        people = {
            one: await stack.enter_async_context(person(guarded, server, one)) for one in CLIENTS
        }
        provisioner = await stack.enter_async_context(person(guarded, server, "provisioner"))
        listener = await stack.enter_async_context(
            await nats.connect(server.url, user="monitor", password="monitor")
        )
        await listener.subscribe(">", cb=monitor.on_message)
        heard = {
            one: [
                await somebody.listen(subject)
                for subject in permissions_of(guarded.keys[one]).subscribe
                if " " not in subject
            ]
            for one, somebody in people.items()
            if one != name
        }
        before = await acted(worker, provisioner)

        sent = 0
        asker = people[name]
        for target in targets(guarded, LED + name):
            for source, reply, headers in leads(key, target):
                await asker.bus.publish(source, UNTAKEN, reply=reply, headers=headers)
                sent += 1
            await subscriptions_known(asker.bus)

        def refused() -> int:
            """The number of answers that the server itself refused; it reports them later."""
            return sum("publish with reply of" in told for told in asker.denied)

        await wait_until(
            lambda: monitor.answers + refused() >= sent,
            told=lambda: (monitor.answers, sent, refused()),
        )
        for somebody in (listener, *(one.bus for one in people.values())):
            await subscriptions_known(somebody)

        after = await acted(worker, provisioner)

    # An answer that comes back into its asker's own account may be an event there, as the asker may publish it; it is no command.
    own = permissions_of(key).publish
    assert {name: rows for name, rows in after.items() if name in ACTS} == {
        name: rows for name, rows in before.items() if name in ACTS
    }
    streamed = {
        subject
        for name in ("TURNFOLD_EVENTS", "TURNFOLD_NOTICES")
        for subject in set(after[name]) - set(before[name])
    }
    assert {subject for subject in streamed if not is_among(subject, own)} == set()
    assert {subject for subject in monitor.led if not is_among(subject, own)} == set()
    assert {one for one, lists in heard.items() if any(lists)} == set()


FORGED = '{"acc": "TURNFOLD", "user": "UFORGED"}'
FORGERIES = (
    f"Nats-Request-Info: {FORGED}",
    f"Nats-Request-Info: {FORGED}\r\nNats-Request-Info: {FORGED}\r\nNats-Request-Info: {FORGED}",
    f"Nats-Request-Info:{FORGED}",
    f"Nats-Request-Info : {FORGED}",
    f"\tNats-Request-Info: {FORGED}",
    f"nats-request-info: {FORGED}\r\nNATS-REQUEST-INFO: {FORGED}",
    f"X: 1\r\n\r\nNats-Request-Info: {FORGED}",
    f"X: 1\nNats-Request-Info: {FORGED}",
    f"X: 1\rNats-Request-Info: {FORGED}",
    f"X: 1\u2028Nats-Request-Info: {FORGED}",
    f"X: 1\r\n Nats-Request-Info: {FORGED}",
    f"XNats-Request-Info: {FORGED}",
)


@pytest.mark.proves("X5", "A7")
async def test_the_server_alone_says_who_asks(guarded: Guarded, server: NatsServer) -> None:
    """X5: a worker reads in `Nats-Request-Info` the key that asks, whatever stands in the headers of the request."""
    seen: list[tuple[bytes, str]] = []

    async def on_message(message: Msg) -> None:
        info = json.loads((message.headers or {})[REQUEST_INFO])
        assert not is_led(message.headers)
        seen.append((message.data, info["user"]))

    async with (
        person(guarded, server, "support") as support,
        person(guarded, server, "operator") as operator,
    ):
        listener = await nats.connect(server.url, user="monitor", password="monitor")
        await listener.subscribe("session.policy.*.*", cb=on_message)
        for _ in range(2):
            await subscriptions_known(listener)
        for number, forgery in enumerate(FORGERIES):
            for somebody in (support, operator):
                header, body = f"NATS/1.0\r\n{forgery}\r\n\r\n".encode(), str(number).encode()
                sizes = f"{len(header)} {len(header) + len(body)}"
                # The client's own `publish` would send less than a client can.
                await somebody.bus._send_command(
                    f"HPUB session.policy.support.s {sizes}\r\n".encode() + header + body + b"\r\n"
                )
        for one in (support.bus, operator.bus, listener):
            await subscriptions_known(one)
        await listener.close()

    keys = {guarded.keys[name].key for name in ("support", "operator")}
    assert sorted(seen) == sorted(
        (str(number).encode(), key) for number in range(len(FORGERIES)) for key in keys
    )


@pytest.mark.proves("X5")
async def test_no_client_takes_notices_out_of_another_ones_queue_group(
    guarded: Guarded, server: NatsServer
) -> None:
    """X5: queue groups reach across accounts, so each client names its groups after itself."""
    listener = await nats.connect(server.url, user="monitor", password="monitor")
    async with (
        person(guarded, server, "support") as support,
        person(guarded, server, "auditor") as auditor,
    ):
        group = guarded.keys["auditor"].key
        own = await auditor.listen(f"summary.updated.> {group}")
        await support.listen(f"summary.updated.support.* {group}")
        await support.is_denied('subscription to "summary.updated.support.*"')
        theirs = await support.listen("summary.updated.support.* support.watchers")
        for _ in range(20):
            await listener.publish("summary.updated.support.s", b"{}")
        await subscriptions_known(listener)
        await wait_until(
            lambda: len(own) == len(theirs) == 20, told=lambda: (len(own), len(theirs))
        )
    await listener.close()
