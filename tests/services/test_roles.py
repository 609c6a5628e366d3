"""The shipped permissions on a real server: with them everything works, and whatever else is tried is refused."""

import json
import subprocess
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import nats
import pytest
from nats.aio.client import Client as Bus
from nats.aio.msg import Msg

import turnfold
from tests.nats_server import NatsServer, nats_server
from tests.system import TURNFOLD, Parts, command, eventually, rows, wait_until
from turnfold.access.identity import Identity
from turnfold.access.keys import new_key, revoke_key
from turnfold.access.roles import Key, configuration
from turnfold.client import session_key, turn_event
from turnfold.errors import BadRequest, NotAllowed

Json = dict[str, Any]
USER = {"role": "user", "content": "Where is order 7341?"}
SMALL = {"TURNFOLD_POLICY__MAX_LIVE_MESSAGES": "20", "TURNFOLD_LOG_LEVEL": "info"}
STRANGE = ("*", ">", "a.b", "a b", "..", "a/b", "%2E", "語 ✓", "$JS.API.STREAM.DELETE.TURNFOLD_EVENTS", "é" * 128)
IMPOSSIBLE = ("", "a\nb", "a\rb", "a\x00b", "a\tb", "x" * 10_000, "語" * 86, "\ud800")


class Guarded:
    """A server with the shipped permissions, its streams, and a key for everybody."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.keys: dict[str, Key] = {}
        self.files: dict[str, Path] = {}
        for role in ("provisioner", "worker", "query", "auditor", "operator"):
            self.keys[role], self.files[role] = new_key(directory / "keys", role)
        for agent in ("support", "other", *STRANGE):
            self.keys[agent], self.files[agent] = new_key(directory / "keys", "agent", agent)

    @property
    def configuration(self) -> str:
        """What the server includes."""
        return configuration(list(self.keys.values()))

    def environ(self, name: str) -> dict[str, str]:
        """The credentials of a role, or of an agent."""
        return {"TURNFOLD_NATS_NKEY": str(self.files[name])}

    def parts(self, server: NatsServer, name: str) -> Parts:
        """Services that sign in with this key."""
        return Parts(self.directory, server, SMALL | self.environ(name))


@dataclass
class Person:
    """A plain connection with somebody's key, and what the server had against it."""

    bus: Bus
    denied: list[str] = field(default_factory=list)

    async def publish(self, subject: str, *, reply: str = "", body: bytes = b"", headers: Mapping[str, str] | None = None) -> None:
        """Publish, and hear what the server says to it."""
        await self.bus.publish(subject, body, reply=reply, headers=dict(headers or {}))
        await self.bus.flush()

    async def is_denied(self, what: str) -> None:
        """Wait until the server has refused this."""
        told = f"permissions violation for {what.lower()}"
        await wait_until(lambda: any(told in one for one in self.denied), every=0.005, told=lambda: self.denied)

    async def listen(self, subject: str) -> list[Msg]:
        """Listen, to a subject and in a queue group after a blank; the list fills with what is heard."""
        heard: list[Msg] = []

        async def on_message(message: Msg) -> None:
            heard.append(message)

        subject, _, queue = subject.partition(" ")
        await self.bus.subscribe(subject, queue=queue, cb=on_message)
        for _ in range(2):
            await self.bus.flush()
        return heard


@asynccontextmanager
async def person(guarded: Guarded, server: NatsServer, name: str) -> AsyncGenerator[Person, None]:
    """Somebody who signed in."""
    denied: list[str] = []

    async def on_error(error: Exception) -> None:
        denied.append(str(error).lower())

    bus = await nats.connect(server.url, error_cb=on_error, **Identity.of(guarded.environ(name)).options())
    try:
        yield Person(bus, denied)
    finally:
        await bus.close()


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Guarded:
    return Guarded(tmp_path_factory.mktemp("guarded"))


@pytest.fixture(scope="module")
def server(guarded: Guarded) -> Iterator[NatsServer]:
    with nats_server(guarded.directory, more=guarded.configuration) as running:
        parts = guarded.parts(running, "provisioner")
        done = subprocess.run([*TURNFOLD, "migrate"], env=parts.environ, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        yield running


# --- what is allowed


@pytest.mark.proves("X1", "O2")
async def test_everything_works_for_those_who_may(guarded: Guarded, server: NatsServer) -> None:
    worker, query = guarded.parts(server, "worker"), guarded.parts(server, "query")
    async with (
        worker.running("worker"),
        query.running("query"),
        turnfold.connect(server.url, environ=guarded.environ("support")) as client,
        person(guarded, server, "auditor") as auditor,
        person(guarded, server, "support") as support,
        httpx.AsyncClient(base_url=f"{query.http_url}/v1/agents/support", trust_env=False) as http,
    ):
        heard = [await auditor.listen(f"{name}.>") for name in ("context.compressed", "summary.updated")]
        own = await support.listen("summary.updated.support.*")
        session = client.session("support", "user-42")
        for number in range(30):
            await session.turn_completed([USER | {"content": f"Note port {9_000 + number}."}, {"role": "assistant", "content": "Noted."}])
        window = await session.context(wait_ms=5_000)
        await wait_until(lambda: heard[0] and heard[1] and own, told=worker.words)

        # What reads, what writes, and what HTTP passes on.
        assert (window.fresh, window.account.total) == (True, 60)
        assert (await session.history(limit=1)).messages[0].message["content"] == "Note port 9000."
        assert await session.search("9003")
        assert (await session.policy(mode="manual"))["mode"] == "manual"
        assert await session.compact() is not None
        summary = await eventually(session.summaries)
        assert (await session.promote(summary[0].version)).version == summary[0].version
        assert await session.audit(limit=1)
        event = {"type": "turn.completed", "event_id": "h", "agent_id": "support", "session_id": "user-43", "messages": [USER]}
        posted = await http.post("/sessions/user-43/events", json=event)
        again = await http.post("/sessions/user-43/events", json=event)
        patched = await http.patch("/sessions/user-43/policy", json={"mode": "off"})
        assert [answer.status_code for answer in (posted, patched)] == [200, 200]
        assert posted.json() == again.json()

        # Who looks, who runs the system, and what is erased for good.
        told = json.loads((await auditor.bus.request("context.get.support.user-42", b"", timeout=10)).data)
        kept = await auditor.bus.request("$JS.API.DIRECT.GET.TURNFOLD_NOTICES", b'{"seq": 1}', timeout=10)
        assert told["account"]["total"] == 60
        assert (kept.headers or {})["Nats-Subject"].startswith("context.compressed.support.")
        doctor = await command("doctor", "--json", environ=query.environ | guarded.environ("provisioner"))
        assert doctor.status == 0, doctor
        assert {row["outcome"] for row in doctor.rows} <= {"ok", "unknown"}, doctor
        erased = await command("erase", "support", "user-42", "--yes", environ=query.environ | guarded.environ("operator"))
        assert erased.status == 0, erased.err
        assert (await client.erase_agent("support"))["sessions"] == 1
        await wait_until(lambda: not rows(worker.database, "SELECT 1 FROM purges"), told=worker.words)
        await wait_until(lambda: not rows(worker.database, "SELECT 1 FROM outbox"), told=worker.words)

    assert not auditor.denied + support.denied
    assert "bus.troubled" not in worker.words()


@pytest.mark.proves("X2", "L12")
async def test_agents_of_any_name_reach_what_is_theirs_and_nothing_else(guarded: Guarded, server: NatsServer) -> None:
    worker, query = guarded.parts(server, "worker"), guarded.parts(server, "query")
    async with worker.running("worker"), query.running("query"):
        for name in STRANGE:
            async with turnfold.connect(server.url, environ=guarded.environ(name)) as client:
                await client.session(name, name).turn_completed([USER | {"content": name}], event_id=name)
                window = await client.session(name, name).context(wait_ms=5_000)
                assert [message["content"] for message in window.messages] == [name]
                with pytest.raises(NotAllowed):
                    await client.session("support", "user-42").context()
                for wrong in IMPOSSIBLE:
                    with pytest.raises(BadRequest):
                        client.session(wrong, "s")
                    with pytest.raises(BadRequest):
                        client.session(name, wrong)


@pytest.mark.proves("X1", "L1")
async def test_a_batch_with_an_event_that_its_agent_may_not_publish_leaves_nothing(guarded: Guarded, server: NatsServer) -> None:
    own = [turn_event(session_key("support", f"batch-{number}"), [USER]) for number in range(3)]
    async with turnfold.connect(server.url, environ=guarded.environ("support")) as client:
        first, second, third = await client.publish_batch(own)
        with pytest.raises(NotAllowed, match="may not use turn"):
            await client.publish_batch([*own, turn_event(session_key("other", "s"), [USER]), own[0]])
        after = await client.session("support", "batch-0").turn_completed([USER])

    assert [second.seq, third.seq, after.seq] == [first.seq + 1, first.seq + 2, first.seq + 3]


# --- what is refused

STREAM_API = "$JS.API.STREAM"
CONSUMER_API = "$JS.API.CONSUMER"
ACKNOWLEDGED = "TURNFOLD_EVENTS.ingest.1.1.1.1.1"
FORBIDDEN_TO_PUBLISH = {
    "support": (
        "turn.completed.other.s",
        "tool.result.other.s",
        "turn.completed",
        "turn.completed.support",
        "turn.completed.support.s.t",
        "turn.completed.*.s",
        "turn.completed.>",
        "context.get.other.s",
        "history.get.other.s",
        "history.search.other.s",
        "session.get.other.s",
        "audit.list.other.s",
        "session.erase.other.s",
        "session.policy.other.s",
        "summary.promote.other.s",
        "agent.erase.other",
        "agent.policy.other",
        "agent.regenerate.other",
        "installation.regenerate",
        "campaign.get",
        f"{STREAM_API}.DELETE.TURNFOLD_EVENTS",
        f"{STREAM_API}.PURGE.TURNFOLD_EVENTS",
        f"{STREAM_API}.UPDATE.TURNFOLD_EVENTS",
        f"{STREAM_API}.INFO.TURNFOLD_EVENTS",
        f"{STREAM_API}.MSG.GET.TURNFOLD_EVENTS",
        f"{STREAM_API}.MSG.DELETE.TURNFOLD_EVENTS",
        "$JS.API.DIRECT.GET.TURNFOLD_EVENTS",
        "$JS.API.DIRECT.GET.TURNFOLD_NOTICES",
        f"{CONSUMER_API}.CREATE.TURNFOLD_EVENTS.mine",
        f"{CONSUMER_API}.DELETE.TURNFOLD_EVENTS.ingest",
        f"{CONSUMER_API}.MSG.NEXT.TURNFOLD_EVENTS.ingest",
        f"$JS.ACK.{ACKNOWLEDGED}",
        f"$JS.ACK.hub.hash.{ACKNOWLEDGED}.x",
        "context.compressed.support.s",
        "summary.updated.other.s",
        "turnfold.ingested",
        "_INBOX.anybody.x",
        "_R_.anything",
        "$SYS.REQ.SERVER.PING",
    ),
    "auditor": (
        "turn.completed.support.s",
        "session.erase.support.s",
        "session.policy.support.s",
        "agent.erase.support",
        "summary.promote.support.1",
        "installation.regenerate",
        "context.compressed.support.s",
        f"{STREAM_API}.DELETE.TURNFOLD_NOTICES",
        f"{STREAM_API}.MSG.GET.TURNFOLD_EVENTS",
        "$JS.API.DIRECT.GET.TURNFOLD_EVENTS",
        f"{CONSUMER_API}.CREATE.TURNFOLD_NOTICES.mine",
    ),
    "operator": (
        "context.compressed.support.s",
        f"{STREAM_API}.DELETE.TURNFOLD_EVENTS",
        f"{STREAM_API}.PURGE.TURNFOLD_EVENTS",
        f"{STREAM_API}.MSG.GET.TURNFOLD_EVENTS",
        f"{CONSUMER_API}.DELETE.TURNFOLD_EVENTS.ingest",
        f"$JS.ACK.{ACKNOWLEDGED}",
    ),
    "worker": (
        "context.get.support.s",
        "session.erase.support.s",
        f"{STREAM_API}.DELETE.TURNFOLD_EVENTS",
        f"{STREAM_API}.UPDATE.TURNFOLD_EVENTS",
        f"{CONSUMER_API}.DELETE.TURNFOLD_EVENTS.ingest",
        f"{STREAM_API}.CREATE.MINE",
    ),
    "query": (
        "context.compressed.support.s",
        "turnfold.ingested",
        f"{STREAM_API}.DELETE.TURNFOLD_EVENTS",
        f"{STREAM_API}.PURGE.TURNFOLD_EVENTS",
        f"{STREAM_API}.MSG.DELETE.TURNFOLD_EVENTS",
        f"{CONSUMER_API}.MSG.NEXT.TURNFOLD_EVENTS.ingest",
        f"$JS.ACK.{ACKNOWLEDGED}",
    ),
    "provisioner": ("turn.completed.support.s", "context.get.support.s", "session.erase.support.s", f"$JS.ACK.{ACKNOWLEDGED}"),
}
FORBIDDEN_TO_HEAR = {
    "support": (
        ">",
        "*.*.*.*",
        "turn.completed.>",
        "turn.completed.support.*",
        "context.get.*.*",
        "context.get.support.* turnfold-query",
        "session.erase.*.* turnfold-worker",
        "context.compressed.>",
        "summary.updated.other.*",
        "summary.updated.*.*",
        "_INBOX.>",
        "_INBOX.*.>",
        "$JS.ACK.>",
        "$JS.API.>",
        "$SYS.>",
    ),
    "auditor": (">", "turn.completed.>", "tool.result.*.*", "context.get.*.* turnfold-query", "_INBOX.>"),
    "operator": (">", "turn.completed.>", "session.erase.*.* turnfold-worker", "_INBOX.>"),
    "worker": (">", "turn.completed.>", "context.get.*.* turnfold-query", "session.erase.*.*", "_INBOX.>", "$JS.API.>"),
    "query": (">", "turn.completed.>", "session.erase.*.* turnfold-worker", "context.get.*.*", "context.compressed.>", "_INBOX.>"),
    "provisioner": (">", "turn.completed.>", "context.compressed.>", "_INBOX.>"),
}


@pytest.mark.proves("X1", "L12")
@pytest.mark.parametrize("name", FORBIDDEN_TO_PUBLISH)
async def test_what_a_role_may_not_publish_is_refused(guarded: Guarded, server: NatsServer, name: str) -> None:
    async with person(guarded, server, name) as somebody:
        for subject in FORBIDDEN_TO_PUBLISH[name]:
            await somebody.publish(subject)
            await somebody.is_denied(f'publish to "{subject}"')


@pytest.mark.proves("X1", "L12")
@pytest.mark.parametrize("name", FORBIDDEN_TO_HEAR)
async def test_what_a_role_may_not_hear_is_refused(guarded: Guarded, server: NatsServer, name: str) -> None:
    async with person(guarded, server, name) as somebody:
        for subject in FORBIDDEN_TO_HEAR[name]:
            await somebody.listen(subject)
            await somebody.is_denied(f'subscription to "{subject.partition(" ")[0]}"')


@pytest.mark.proves("X1", "L12")
async def test_no_answer_can_be_led_to_where_it_would_be_an_event_or_a_command(guarded: Guarded, server: NatsServer) -> None:
    query = guarded.parts(server, "query")
    async with (
        query.running("query"),
        person(guarded, server, "support") as support,
        person(guarded, server, "auditor") as auditor,
        person(guarded, server, "provisioner") as provisioner,
    ):

        async def messages() -> Json:
            told = await provisioner.bus.request(f"{STREAM_API}.INFO.TURNFOLD_EVENTS", b'{"subjects_filter": ">"}', timeout=10)
            state: Json = json.loads(told.data)["state"]
            return {"of others": [one for one in state.get("subjects", {}) if ".led" in one], "messages": state["messages"]}

        before = (await messages())["messages"]
        targets = (
            "turn.completed.other.led",
            "turn.completed",
            f"{STREAM_API}.PURGE.TURNFOLD_EVENTS",
            f"{STREAM_API}.DELETE.TURNFOLD_EVENTS",
            "context.compressed.other.led",
            f"$JS.ACK.{ACKNOWLEDGED}",
        )
        for target in targets:
            await support.publish("turn.completed.support.s", reply=target, body=b"{}")
            await support.publish("context.get.support.s", reply=target)
            await auditor.publish("context.get.support.s", reply=target)
            # Whatever became of it has happened when the same service has answered once more.
            await support.bus.request("context.get.support.s", timeout=10)
        after = await messages()
        notices = await auditor.bus.request(
            "$JS.API.DIRECT.GET.TURNFOLD_NOTICES", b'{"last_by_subj": "context.compressed.other.led"}', timeout=10
        )

    # Its own event may get lost, where it leads the acknowledgement astray; nothing else happens.
    assert after["of others"] == []
    assert before <= after["messages"] <= before + len(targets)
    assert (notices.headers or {})["Status"] == "404"


@pytest.mark.proves("X1", "L12")
async def test_a_guessed_id_suppresses_nothing(guarded: Guarded, server: NatsServer) -> None:
    query = guarded.parts(server, "query")
    async with (
        query.running("query"),
        person(guarded, server, "other") as other,
        turnfold.connect(server.url, environ=guarded.environ("support")) as client,
        httpx.AsyncClient(base_url=query.http_url, trust_env=False) as http,
    ):
        for guess in ("support.guessed", "support.posted"):
            headers = {"Nats-Msg-Id": guess}
            await other.bus.request("turn.completed.other.s", b"{}", headers=headers, timeout=10)

        receipt = await client.session("support", "user-44").turn_completed([USER], event_id="guessed")
        again = await client.session("support", "user-44").turn_completed([USER], event_id="guessed")
        event = {"type": "turn.completed", "event_id": "posted", "agent_id": "support", "session_id": "user-44", "messages": [USER]}
        posted = await http.post("/v1/agents/support/sessions/user-44/events", json=event)

    assert not receipt.is_duplicate
    assert (again.seq, again.is_duplicate) == (receipt.seq, True)
    assert posted.json()["seq"] == receipt.seq + 1


@pytest.mark.proves("X1")
async def test_without_a_key_nobody_signs_in_and_a_revoked_key_holds_no_longer(tmp_path: Path) -> None:
    mine = Guarded(tmp_path)
    config = tmp_path / "accounts.conf"
    config.write_text(mine.configuration)
    with nats_server(tmp_path, more='include "accounts.conf"') as server:
        with pytest.raises(NotAllowed):
            async with turnfold.connect(server.url, environ={}, timeout_seconds=1):
                pass
        async with person(mine, server, "support") as support:
            revoke_key(tmp_path / "keys", mine.keys.pop("support"))
            told = await command("keys", "nats", "--dir", str(tmp_path / "keys"))
            config.write_text(told.out)
            server.reload()
            await wait_until(lambda: not support.bus.is_connected)
        with pytest.raises(NotAllowed):
            async with turnfold.connect(server.url, environ=mine.environ("support"), timeout_seconds=1):
                pass
        async with person(mine, server, "other") as other:
            assert other.bus.is_connected
