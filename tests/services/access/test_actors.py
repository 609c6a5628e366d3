"""The actor in the audit log: a key or a token, which no client can forge (A7, C81)."""

import asyncio
import json
import sqlite3
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import nats
import nats.errors
import pytest
from nats.aio.client import Client as Bus
from nats.aio.msg import Msg

from tests.nats_server import NatsServer, nats_server, subscriptions_known
from tests.running_system import Parts, command, eventually, running_parts
from tests.services.access.guarded import Guarded, person
from turnfold.access.actors import ACTOR_HEADER, VALID_MS, key_actor, signed_actor, verified_actor
from turnfold.access.bearers import TokenRegistry, new_token, read_tokens
from turnfold.access.roles import USER_INFO
from turnfold.client import session_key
from turnfold.errors import StartError
from turnfold.nats_client.corrected import REQUEST_INFO
from turnfold_worker.actors import SETTLE_SECONDS, RoleProbe

KEY = session_key("support", "s")
POLICY = "session.policy.support.s"
PATH = "/v1/agents/support/sessions/s"
FORGED: tuple[dict[str, str], ...] = (
    {REQUEST_INFO: json.dumps({"acc": "agent-x", "user": "UFORGED"})},
    {ACTOR_HEADER: "token:forged"},
    {ACTOR_HEADER: signed_actor("guessed", "token:forged", subject=POLICY, body=b"{}", now_ms=1)},
    {"Actor": "key:UFORGED", "Authorization": "Bearer tf_forged"},
)
"""Headers with which somebody claims to be another."""

_number = iter(range(20, 1_000))


def a_change() -> bytes:
    """A policy request that changes something."""
    return json.dumps({"overrides": {"max_live_messages": next(_number)}}).encode()


async def asked(
    bus: Bus, subject: str, body: bytes, headers: Mapping[str, str] | None = None
) -> Any:
    answer = json.loads(
        (await bus.request(subject, body, timeout=10, headers=dict(headers or {}))).data
    )
    assert "error" not in answer, answer
    return answer


async def actors(parts: Parts, phase: str = "policy") -> list[str | None]:
    """Who asked for each row of a phase, in order."""
    return [
        row["actor"]
        for row in await parts.rows(
            f"SELECT actor FROM audit_view WHERE phase = '{phase}' ORDER BY audit_id"
        )
    ]


def over_http(parts: Parts, token: str | None = None) -> httpx.AsyncClient:
    headers = {"Authorization": f"Bearer {token}"} if token is not None else {}
    return parts.http(headers=headers)


@pytest.mark.proves("A7")
async def test_without_roles_everybody_is_local_whatever_they_claim(tmp_path: Path) -> None:
    async def impostor(message: Msg) -> None:
        await message.respond(json.dumps({"data": {"user": "U", "account": "TURNFOLD"}}).encode())

    async with running_parts(tmp_path) as parts:
        bus = await nats.connect(parts.server.url)
        # Everybody is in one account: somebody may answer the worker in the server's place.
        await bus.subscribe(USER_INFO, cb=impostor)
        await subscriptions_known(bus)
        async with parts.running("worker"), parts.running("query"), over_http(parts) as http:
            for headers in FORGED:
                await asked(bus, POLICY, a_change(), headers)
                await asked(bus, "agent.policy.support", a_change(), headers)
                assert (
                    await http.patch(f"{PATH}/policy", content=a_change(), headers=headers)
                ).status_code == 200
        await bus.close()

        assert await actors(parts) == ["local"] * 3 * len(FORGED)


@asynccontextmanager
async def with_tokens(directory: Path) -> AsyncGenerator[tuple[Parts, Path]]:
    tokens = directory / "tokens.json"
    tokens.write_text("{}")
    async with (
        running_parts(
            directory,
            environ={
                "TURNFOLD_HTTP_TOKENS": str(tokens),
                "TURNFOLD_POLICY__MAX_LIVE_MESSAGES": "12",
            },
        ) as parts,
        parts.running("worker"),
        parts.running("query"),
    ):
        yield parts, tokens


@pytest.mark.proves("A7", "A1", "C81")
async def test_what_is_asked_over_http_names_the_token_and_the_chain_verifies(
    tmp_path: Path,
) -> None:
    async with with_tokens(tmp_path) as (parts, tokens):
        named = (
            await command(
                "keys", "token", "support", "--name", "ada@desk-1", "--json", environ=parts.environ
            )
        ).rows[0]["token"]
        unnamed = new_token(tokens, ["support"])
        mark = next(
            digest[:12] for digest, token in read_tokens(tokens).items() if token.name is None
        )
        async with parts.client() as client:
            session = client.session("support", "s")
            for number in range(30):
                await session.turn_completed(
                    [
                        {"role": "user", "content": f"Question {number}?"},
                        {"role": "assistant", "content": "Yes."},
                    ]
                )
            await parts.settled()
            compactions = await parts.rows(
                "SELECT compaction_id FROM compactions WHERE status = 'committed' ORDER BY ordinal DESC"
            )

            async with over_http(parts, named) as ada, over_http(parts, unnamed) as somebody:
                restored = await ada.post(
                    f"{PATH}/compactions/{compactions[0]['compaction_id']}/restore"
                )
                assert restored.status_code == 200, restored.text
                recorded: list[Msg] = []
                bus = await nats.connect(parts.server.url)

                async def on_request(message: Msg) -> None:
                    recorded.append(message)

                await bus.subscribe(POLICY, cb=on_request)
                await subscriptions_known(bus)
                # The secret of a database that was restored from a backup is another one.
                await _write(parts, "UPDATE installation_secrets SET value = 'another'")
                assert (
                    await somebody.patch(f"{PATH}/policy", content=a_change())
                ).status_code == 200
                await eventually(_returning(recorded))
                # Whoever hears a request may send its header with another one.
                headers = {ACTOR_HEADER: (recorded[0].headers or {})[ACTOR_HEADER]}
                await asked(bus, POLICY, a_change(), headers)
                await asked(bus, "session.policy.support.other", recorded[0].data, headers)
                await bus.close()

            trail = [row async for row in session.audit_trail()]
            assert {row["actor"] for row in trail if row["phase"] == "restored"} == {
                "token:ada@desk-1"
            }
            assert await actors(parts) == [f"token:{mark}", "local", "local"]
        shown = await command("audit", "support", "s", "--json", environ=parts.environ)
        assert [row["actor"] for row in shown.rows if row["phase"] == "restored"] == [
            "token:ada@desk-1"
        ]
        verified = await command("audit", "verify", "support", "s", environ=parts.environ)
        assert verified.status == 0, verified


async def _write(parts: Parts, statement: str) -> None:

    with sqlite3.connect(parts.database, timeout=30) as connection:
        connection.execute(statement)
    connection.close()


def _returning(values: list[Msg]) -> Any:
    async def look() -> list[Msg]:
        return values

    return look


@asynccontextmanager
async def system_with_roles(
    tmp_path: Path,
) -> AsyncGenerator[tuple[Guarded, NatsServer, Parts, httpx.AsyncClient]]:
    """A bus with roles, a worker and a query server, and HTTP with the token of "ops"."""
    guarded, tokens = Guarded(tmp_path), tmp_path / "tokens.json"
    token = new_token(tokens, ["support"], name="ops")
    with nats_server(tmp_path, more=guarded.configuration) as server:
        provisioner, worker, query = (
            guarded.parts(server, role) for role in ("provisioner", "worker", "query")
        )
        await provisioner.migrate()
        query.environ["TURNFOLD_HTTP_TOKENS"] = str(tokens)
        async with (
            worker.running("worker"),
            query.running("query"),
            over_http(query, token) as http,
        ):
            yield guarded, server, worker, http


@pytest.mark.proves("A7", "X5")
async def test_with_roles_the_audit_names_the_key_that_the_server_vouches_for(
    tmp_path: Path,
) -> None:
    async with system_with_roles(tmp_path) as (guarded, server, worker, http):
        expected = []
        for time in ("at once", "after a restart of the bus"):
            if time != "at once":
                server.stop()
                server.start()
            for name in ("support", "operator"):
                async with person(guarded, server, name) as somebody:
                    for headers in FORGED:

                        async def has_answered(
                            bus: Bus = somebody.bus, headers: Mapping[str, str] = headers
                        ) -> Any:
                            try:
                                return await asked(bus, POLICY, a_change(), headers)
                            except (nats.errors.NoRespondersError, nats.errors.TimeoutError):
                                return None

                        await eventually(has_answered)
                        expected.append(f"key:{guarded.keys[name].key}")

            async def is_patched() -> bool:
                return (await http.patch(f"{PATH}/policy", content=a_change())).status_code == 200

            await eventually(is_patched)
            expected.append("token:ops")

        assert await actors(worker) == expected


@pytest.mark.proves("A7", "X5")
async def test_a_connection_lost_right_after_its_answer_does_not_hide_the_roles_of_the_next(
    tmp_path: Path,
) -> None:
    guarded = Guarded(tmp_path)
    with nats_server(tmp_path, more=guarded.configuration) as server:
        async with person(guarded, server, "worker") as worker:
            probe = RoleProbe()
            await probe.attach(worker.bus)
            for _ in range(2):
                probe.forget()
                await probe.ask()
                await subscriptions_known(worker.bus)
            probe.forget()

            waiting = asyncio.create_task(probe.has_roles())
            await asyncio.sleep(2 * SETTLE_SECONDS)
            await probe.ask()

            assert await waiting


@pytest.mark.proves("A7", "G1", "X5")
async def test_who_takes_messages_back_is_named_and_no_event_on_the_bus_names_anybody(
    tmp_path: Path,
) -> None:
    async with (
        system_with_roles(tmp_path) as (guarded, server, worker, http),
        person(guarded, server, "support") as support,
    ):
        said = [{"role": "user", "content": f"Item {number}."} for number in range(5)]
        event = {"type": "turn.completed", "event_id": "e", "messages": said}
        event |= {"agent_id": "support", "session_id": "s"}
        assert (await http.post(f"{PATH}/events", json=event)).status_code == 200

        await asked(support.bus, "session.pop.support.s", b"{}", FORGED[1])
        assert (await http.post(f"{PATH}/pop", json={})).status_code == 200
        (pop, *_) = [row["named"] for row in await worker.rows("SELECT named FROM retractions")]
        assert "e#4" in pop
        over_http = {"type": "turn.retracted", "event_id": "h", "message_ids": ["e#1"]}
        over_http |= {"agent_id": "support", "session_id": "s"}
        answer = await http.post(f"{PATH}/events", json=over_http, headers=FORGED[1])
        assert answer.status_code == 200
        retraction = {"event_id": "r", "agent_id": "support", "session_id": "s"}
        body = json.dumps(retraction | {"message_ids": ["e#0"]}).encode()
        subject = "turn.retracted.support.s"
        now_ms = time.time_ns() // 1_000_000
        signed = signed_actor("guessed", "token:x", subject=subject, body=body, now_ms=now_ms)
        await support.publish(subject, body=body, headers={ACTOR_HEADER: signed})

        async def found() -> bool:
            return len(await actors(worker, "retracted")) == 4

        await eventually(found)
        assert await actors(worker, "retracted") == [
            f"key:{guarded.keys['support'].key}",
            "token:ops",
            "token:ops",
            "local",
        ]


@pytest.mark.proves("A7")
async def test_without_a_readable_secret_messages_are_retracted_by_nobody_in_particular(
    tmp_path: Path,
) -> None:
    async with system_with_roles(tmp_path) as (_, _, worker, http):
        event: dict[str, Any] = {"agent_id": "support", "session_id": "s", "event_id": "e"}
        said = event | {"type": "turn.completed", "messages": [{"role": "user", "content": "Hi."}]}
        assert (await http.post(f"{PATH}/events", json=said)).status_code == 200
        with sqlite3.connect(worker.database) as connection:
            connection.execute("DELETE FROM installation_secrets")

        back = event | {"type": "turn.retracted", "event_id": "h", "message_ids": ["e#0"]}
        assert (await http.post(f"{PATH}/events", json=back)).status_code == 200

        async def found() -> bool:
            return bool(await actors(worker, "retracted"))

        await eventually(found)
        assert await actors(worker, "retracted") == ["local"]


@pytest.mark.proves("A7")
def test_a_signature_holds_for_one_request_for_a_minute() -> None:
    header = signed_actor("s", "token:語", subject="a", body=b"{}", now_ms=1_000_000)

    def actor(
        header: str = header,
        secret: str = "s",
        subject: str = "a",
        body: bytes = b"{}",
        now_ms: int = 1_000_000,
    ) -> str | None:
        return verified_actor(secret, header, subject=subject, body=body, now_ms=now_ms)

    assert (
        actor()
        == actor(now_ms=1_000_000 + VALID_MS)
        == actor(now_ms=1_000_000 - VALID_MS)
        == "token:語"
    )
    assert actor(now_ms=1_000_001 + VALID_MS) is None
    assert actor(now_ms=999_999 - VALID_MS) is None
    assert actor(secret="t") is None
    assert actor(subject="b") is None
    assert actor(body=b"{ }") is None
    at, signature, _ = header.split(".")
    for forged in (
        f"{at}.{signature}.{b'token:x'.hex()}",
        f"1000001.{signature}.{b'token:x'.hex()}",
        "",
        "..",
        "a.b.c",
        f"{at}.é.00",
        f"{at}.{signature}.ff",
    ):
        assert actor(forged) is None


@pytest.mark.proves("A7")
@pytest.mark.parametrize(
    ("info", "actor"),
    [
        ('{"user": "UABC", "acc": "x"}', "key:UABC"),
        ('{"acc": "x"}', None),
        ('{"user": 7}', None),
        ('{"user": ""}', None),
        ('{"user": "a\\nb"}', None),
        ("[]", None),
        ("not JSON", None),
        (json.dumps({"user": "U" * 201}), None),
    ],
)
def test_the_request_info_names_a_key_or_nobody(info: str, actor: str | None) -> None:
    assert key_actor(info) == actor


@pytest.mark.proves("A7", "X1")
def test_a_file_of_tokens_may_name_them_and_may_be_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    path.write_text(
        json.dumps({"ab" * 32: ["support"], "cd" * 32: {"agents": ["other"], "name": "ops"}})
    )
    token = new_token(path, ["more"])

    assert [token.actor_name(digest) for digest, token in read_tokens(path).items()][:2] == [
        "ab" * 6,
        "ops",
    ]
    assert json.loads(path.read_text())["ab" * 32] == ["support"]
    grant = TokenRegistry(path).grant(f"Bearer {token}")
    assert grant is not None
    assert (
        grant.name
        == next(digest for digest, entry in read_tokens(path).items() if entry.agents == ["more"])[
            :12
        ]
    )
    for wrong in (
        {"agents": ["a"]},
        {"agents": ["a"], "name": ""},
        {"agents": ["a"], "name": "a b"},
        {"agents": "a", "name": "n"},
        "a",
    ):
        path.write_text(json.dumps({"ab" * 32: wrong}))
        with pytest.raises(StartError, match="docs/security"):
            read_tokens(path)
