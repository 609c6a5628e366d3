"""What strangers send to a real system: it answers in the words of the contract, goes on serving, and tells nobody of anybody else."""

import asyncio
import json
import os
import re
import unicodedata
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any

import httpx
import nats
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.errors import Unsatisfiable
from nats.aio.client import Client as Bus
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.failures import FailureGroup
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.fuzz.decoders import REASONS
from tests.fuzz.mutations import TOKENS, mutated
from tests.fuzz.running import named
from tests.postgres import Postgres
from tests.running_system import Parts, eventually, running_parts
from tests.store_fixtures import words
from turnfold.client import session_key, turn_event
from turnfold.contracts.subjects import token_of
from turnfold.operations.ingest.decode import Delivery, decode_batch

Json = dict[str, Any]
SESSION_REQUESTS = (
    "context.get", "history.get", "history.search", "summary.list", "summary.get", "summary.expand", "session.get", "audit.list",
    "session.policy", "compaction.request", "summary.promote", "summary.regenerate", "compaction.restore", "session.erase",
)  # fmt: skip
OTHER_REQUESTS = (
    "agent.policy", "agent.erase", "agent.regenerate", "events.known", "session.list",
)  # fmt: skip
BARE_REQUESTS = ("installation.regenerate", "campaign.get", "deadletters.replay")
SOON = {
    f"TURNFOLD_POLICY__{name}": number
    for name, number in {
        "MAX_LIVE_MESSAGES": "4", "KEEP_MESSAGES": "1", "KEEP_TOKENS": "0", "KEEP_AT_MOST_MESSAGES": "0", "TRIGGER_RATIO": "0",
        "MIN_GAIN_MESSAGES": "1", "MIN_GAIN_TOKENS": "1",
    }.items()
}  # fmt: skip
"""A few messages make a summary."""
SEED = int(os.environ.get("FUZZ_SEED", "1"))
EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "2"))
"""Requests of either kind, good and bad, to each operation of HTTP; `make fuzz` asks for more."""
REQUESTS = EVENTS = 75 * EXAMPLES
CODES = {"bad_request", "not_allowed", "unknown_session", "cannot_fit", "too_large", "conflict"}
"""All but `unavailable`, which nobody should be told here."""

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]


@pytest.fixture(params=["sqlite", "postgresql"])
async def parts(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Parts]:
    """A bus and a database of either kind."""
    server: Postgres | None = (
        request.getfixturevalue("postgres") if request.param == "postgresql" else None
    )
    async with running_parts(tmp_path, postgres=server, environ=SOON) as made:
        yield made


@pytest.mark.proves("X2", "X4", "O4", "V3")
async def test_whatever_is_asked_over_http_is_answered_as_its_own_description_says(
    tmp_path: Path, postgres: Postgres
) -> None:
    async with (
        asked_about(tmp_path / "sqlite", None) as on_sqlite,
        asked_about(tmp_path / "postgresql", postgres) as on_postgres,
    ):
        urls = [on_sqlite.http_url, on_postgres.http_url]
        asked = await asyncio.to_thread(every_operation_asked, urls)

        assert asked > EXAMPLES * 40


@asynccontextmanager
async def asked_about(directory: Path, server: Postgres | None) -> AsyncGenerator[Parts]:
    """A system with a session, which serves to the end and logs no failure."""
    async with running_parts(directory, postgres=server, environ=SOON) as parts:
        async with parts.running("worker") as worker, parts.running("query") as query:
            async with parts.client() as client:
                for number in range(3):
                    said = [
                        {"role": "user", "content": f"Question {number}?"},
                        {"role": "assistant", "content": "Yes."},
                    ]
                    await client.publish(turn_event(session_key("support", "user-42"), said))
            yield parts
            log = parts.words()
            assert worker.is_alive
            assert query.is_alive
        assert "request.failed" not in log, log
        assert "Traceback" not in log, log


UNSTORABLE = (
    f"/v1/sessions?after={'9' * 40}.1", "/v1/sessions?agent_id=%00", f"/v1/deadletters?after={2**63}", f"/v1/deadletters/{2**63}",
    f"/v1/agents/a/sessions/s/summaries/{'9' * 30}", f"/v1/agents/a/sessions/s/history?after_position={2**63}", "/v1/agents/%00/sessions/%0A",
    "/v1/agents?after=%00",
)  # fmt: skip


@pytest.mark.proves("X2")
async def test_what_no_database_keeps_is_a_bad_request(parts: Parts) -> None:
    async with (
        parts.running("query"),
        parts.http(timeout=20) as http,
    ):
        answers = {path: await http.get(path) for path in UNSTORABLE}
        # The largest that may be asked for is behind everything there is.
        audit = await http.get(f"/v1/agents/a/sessions/s/audit?after={2**53}")

    assert {
        path: (answer.status_code, answer.json()["error"]["code"])
        for path, answer in answers.items()
    } == dict.fromkeys(UNSTORABLE, (400, "bad_request"))
    assert audit.status_code == 200
    assert audit.json()["audit"] == []


def every_operation_asked(urls: Sequence[str]) -> int:
    """The number of requests made, the same of each operation that the services describe; each answer is as described, and none a 5xx."""
    asked = 0
    failures: list[str] = []
    described = schemathesis.openapi.from_url(f"{urls[0]}/openapi.json")
    for found in described.get_all_operations():
        assert isinstance(found, Ok), found
        operation = found.ok()
        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):

            @seed(SEED)
            @settings(
                max_examples=EXAMPLES, database=None, deadline=None, phases=[Phase.generate],
                suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
            )  # fmt: skip
            @given(case=operation.as_strategy(generation_mode=mode))
            def ask(case: schemathesis.Case[Any]) -> None:
                nonlocal asked
                asked += 1
                for url in urls:
                    case.call_and_validate(base_url=url, checks=CHECKS, timeout=20)

            # Nothing can be wrong with a request that has no parameters.
            with suppress(Unsatisfiable):
                try:
                    ask()
                except FailureGroup as failed:
                    failures.append(str(failed))
    assert not failures, "\n".join(failures)
    return asked


# --- the bus

EVENT_ID = re.compile(rb'"event_id": *"[^"]*"')


def hostile_token(random: Random) -> str:
    """One token of a subject: an id's, something like it, or anything that a subject may hold."""
    noise = random.choice(TOKENS)[:200]
    raw = "".join(
        one for one in noise.decode("utf-8", "ignore") if one.isprintable() and one not in " .*>"
    )
    return random.choice(
        (
            "support",
            "user-42",
            "%00",
            "%2E%2E",
            "%E6%BC",
            "a%2a",
            token_of(noise.decode("utf-8", "ignore")) or "a",
            raw or "b",
        )
    )


def hostile_request(random: Random) -> tuple[str, bytes]:
    """A subject that somebody listens on, and what no client would ask."""
    kind = random.choice((SESSION_REQUESTS, SESSION_REQUESTS, OTHER_REQUESTS, BARE_REQUESTS))
    levels = {SESSION_REQUESTS: 2, OTHER_REQUESTS: 1, BARE_REQUESTS: 0}[kind]
    subject = ".".join([random.choice(kind), *(hostile_token(random) for _ in range(levels))])
    return subject, mutated(random, named("request").corpus).replace(b'"wait_ms":', b'"waits":')


async def answers_of(
    bus: Bus, requests: Iterable[tuple[str, bytes]]
) -> list[tuple[str, bytes, bytes]]:
    """The answers, some asked at a time."""
    places = asyncio.Semaphore(20)

    async def ask(subject: str, body: bytes) -> tuple[str, bytes, bytes]:
        async with places:
            return subject, body, (await bus.request(subject, body, timeout=30)).data

    return await asyncio.gather(*(ask(*request) for request in requests))


@pytest.mark.proves("I5", "X2", "X4")
async def test_noise_on_every_subject_of_the_bus_is_answered_or_buried_and_the_system_goes_on(
    parts: Parts,
) -> None:
    random = Random(SEED)
    requests = [hostile_request(random) for _ in range(REQUESTS)]
    events = [
        (
            random.choice(("turn.completed", "tool.result", "usage.reported", "turn.retracted"))
            + "".join(f".{hostile_token(random)}" for _ in range(random.choice((0, 0, 1, 2, 3)))),
            data,
        )
        for data in (
            EVENT_ID.sub(b'"event_id":"n%d"' % number, mutated(random, named("event").corpus))
            for number in range(EVENTS)
        )
    ]
    read = decode_batch([Delivery(subject, data, 1, 1) for subject, data in events], count=words)

    async with (
        parts.running("worker") as worker,
        parts.running("query") as query,
        await nats.connect(parts.server.url) as bus,
    ):
        answered = await answers_of(bus, requests)
        for subject, data in events:
            await bus.jetstream().publish(subject, data)

        async def is_ingested() -> bool:
            window = json.loads(
                (
                    await bus.request(
                        "context.get.a.s",
                        json.dumps({"after": EVENTS, "wait_ms": 5_000}).encode(),
                        timeout=20,
                    )
                ).data
            )
            return bool(window["fresh"])

        await eventually(is_ingested, told=parts.words)
        async with parts.client() as client:
            session = client.session("support", "afterwards")
            receipt = await session.turn_completed([{"role": "user", "content": "Still there?"}])
            window = await session.context(after=receipt.seq, wait_ms=5_000)
        reasons = [
            str(row["reason"]) for row in await parts.rows("SELECT reason FROM dead_letters")
        ]
        log = parts.words()
        assert worker.is_alive
        assert query.is_alive

    wrong = [
        one
        for one in answered
        if json.loads(one[2]).get("error", {"code": "not_allowed"})["code"] not in CODES
    ]
    assert wrong == []
    assert set(reasons) <= REASONS
    assert len(reasons) == len(read.dead)
    assert [message["content"] for message in window.messages] == ["Still there?"]
    assert "request.failed" not in log, log


# --- agents that look alike

VICTIM = "Café.Agent"
LOOK_ALIKES = (
    "café.agent", "CAFÉ.AGENT", unicodedata.normalize("NFD", VICTIM), "Cafe.Agent", "Caf%C3%A9%2EAgent", token_of(VICTIM), "Café", "Café.Agent.x",
    "Café.Agent ", " Café.Agent", "Café%", "Café_Agent", "Cafe\u0301.Agent", "Ｃafé.Agent", "*", ">", "%", "_", "' OR '1'='1", "Café.Agent\\",
)  # fmt: skip
SECRET = "kumquat7731"
ASKED: tuple[tuple[str, Json], ...] = (
    ("context.get", {}), ("context.get", {"format": "anthropic", "mode": "emergency"}), ("context.get", {"as_of": 1}),
    ("context.get", {"as_of": "e1#0"}), ("history.get", {}), ("history.get", {"message_ids": ["e1#0", "e1#1"]}),
    ("history.search", {"q": "beside"}), ("history.search", {"q": SECRET[:6]}), ("summary.list", {}), ("summary.get", {"version": 1}),
    ("summary.expand", {"version": 1, "line": 0}), ("summary.expand", {"version": 1, "entry": 0}), ("session.get", {}), ("audit.list", {}),
    ("session.policy", {"mode": "manual"}), ("compaction.request", {}), ("summary.promote", {"version": 1}), ("summary.regenerate", {}),
)  # fmt: skip


@pytest.mark.proves("L12", "X2", "C52")
async def test_nothing_of_an_agent_is_in_any_answer_to_one_that_looks_like_it(parts: Parts) -> None:
    async with (
        parts.running("worker"),
        parts.running("query"),
        await nats.connect(parts.server.url) as bus,
        parts.client() as client,
        parts.http(timeout=20) as http,
    ):
        said = [
            {"role": "user", "content": f"Beside it: {SECRET}-{number}."} for number in range(6)
        ]
        mine = client.session(VICTIM, "s-1")
        for number, message in enumerate(said):
            await client.publish(
                turn_event(session_key(VICTIM, "s-1"), [message], event_id=f"e{number}")
            )
        compaction_id = await compacted(bus)
        receipts = [
            await client.publish(
                turn_event(
                    session_key(other, "s-1"), [{"role": "user", "content": "Mine."}], event_id="e1"
                )
            )
            for other in LOOK_ALIKES
        ]
        await mine.context(after=receipts[-1].seq, wait_ms=5_000)

        own = await answers_to(VICTIM, bus, http, compaction_id)
        told = {other: await answers_to(other, bus, http, compaction_id) for other in LOOK_ALIKES}
        left = await mine.context()

    assert sum(SECRET.encode() in answer for answer in own) >= 6
    assert [
        (other, answer)
        for other, answers in told.items()
        for answer in answers
        if SECRET.encode() in answer
    ] == []
    assert all(any(b"Mine." in answer for answer in answers) for answers in told.values())
    assert left.account.total == len(said)


async def compacted(bus: Bus) -> str:
    """The compaction of the victim's session, once its summary is there."""

    async def told() -> str | None:
        listed = json.loads(
            (await bus.request(f"summary.list.{token_of(VICTIM)}.s-1", b"", timeout=20)).data
        )
        return next((str(one["compaction_id"]) for one in listed.get("summaries", ())), None)

    return await eventually(told)


async def answers_to(
    agent_id: str, bus: Bus, http: httpx.AsyncClient, compaction_id: str
) -> list[bytes]:
    """What an agent is told by every operation, over the bus and over HTTP; what changes things is asked last."""
    path = f"{token_of(agent_id)}.s-1"
    changes = (
        [] if agent_id == VICTIM else [("compaction.restore", {"compaction_id": compaction_id})]
    )
    over_bus = [
        (await bus.request(f"{name}.{path}", json.dumps(body).encode(), timeout=20)).data
        for name, body in (*ASKED, *changes)
    ]
    base = f"/v1/agents/{token_of(agent_id)}/sessions/s-1"
    pages = (
        "",
        "/context",
        "/history",
        "/search?q=beside",
        "/summaries",
        "/summaries/1",
        "/summaries/1/sources?line=0",
        "/audit",
    )
    over_http = [(await http.get(base + page)).content for page in pages]
    listed = (await http.get("/v1/sessions", params={"agent_id": agent_id})).content
    assert {one["agent_id"] for one in json.loads(listed)["sessions"]} == {agent_id}
    return [*over_bus, *over_http, listed]
