"""The shipped permissions on a real server: the system works, and all else is denied."""

import json
import re
from pathlib import Path

import pytest

import turnfold
from tests.nats_server import NatsServer, nats_server
from tests.running_system import UNFORGOTTEN, Parts, command, eventually, rows, wait_until
from tests.services.access.guarded import (
    CONSUMER_API,
    IMPOSSIBLE,
    SMALL,
    STRANGE,
    STREAM_API,
    USER,
    Guarded,
    person,
)
from turnfold.access.keys import revoke_key
from turnfold.access.roles import (
    EXPORTS,
    ROLES,
    SERVICES,
    SERVICES_ACCOUNT,
    SYSTEM_ACCOUNT,
    Key,
    Role,
    account_of,
    configuration,
)
from turnfold.cli.doctor import examine
from turnfold.client import session_key, turn_event
from turnfold.contracts.erasures import ErasedSessions
from turnfold.errors import BadRequest, Conflict, NotAllowed
from turnfold.settings import read_settings


async def iterates_over_its_own_notices(client: turnfold.Client) -> None:
    """The newest of each kind, and none of another agent."""
    notices = client.notices("support", "user-42", after=0)
    names = {(await anext(notices)).name for _ in range(2)}
    assert names == {"context.compressed", "summary.updated"}
    with pytest.raises(NotAllowed, match="notices of this agent"):
        await anext(client.notices("other"))


async def reads_the_policy_of_a_session(environ: dict[str, str]) -> None:
    """With a key that may not change it."""
    shown = await command("policy", "show", "support", "user-42", "--json", environ=environ)
    assert shown.status == 0, shown.err
    assert (shown.rows[0]["mode"], shown.rows[0]["mode_from"]) == ("manual", "session")


@pytest.mark.proves("X1", "O2")
async def test_everything_works_for_those_who_may(guarded: Guarded, server: NatsServer) -> None:
    worker, query = guarded.parts(server, "worker"), guarded.parts(server, "query")
    async with (
        worker.running("worker"),
        query.running("query"),
        turnfold.connect(server.url, environ=guarded.environ("support")) as client,
        person(guarded, server, "auditor") as auditor,
        person(guarded, server, "support") as support,
        query.http("/v1/agents/support") as http,
    ):
        heard = [
            await auditor.listen(f"{name}.>") for name in ("context.compressed", "summary.updated")
        ]
        own = await support.listen("summary.updated.support.*")
        erasures = await support.listen("turnfold.erased.support")
        session = client.session("support", "user-42")
        for number in range(30):
            await session.turn_completed(
                [
                    USER | {"content": f"Note port {9_000 + number}."},
                    {"role": "assistant", "content": "Noted."},
                ]
            )
        await session.usage_reported("acme/small-1", limit_tokens=16_000)
        window = await session.context(wait_ms=5_000)
        assert window.raw["window"]["model_window"] == 16_000
        await wait_until(lambda: heard[0] and heard[1] and own, told=worker.words)

        # What reads, what writes, and what HTTP passes on.
        assert (window.fresh, window.account.total) == (True, 60)
        assert (await session.history(limit=1)).messages[0].message["content"] == "Note port 9000."
        assert await session.search("9003")
        assert (await session.policy(mode="manual"))["mode"] == "manual"
        (popped,) = await session.pop()
        assert (popped.state, popped.message["content"]) == ("retracted", "Noted.")
        await session.retract("unknown#0")
        assert await session.compact() is not None
        summary = await eventually(session.summaries)
        assert (await session.promote(summary[0].version)).version == summary[0].version
        assert await session.audit(limit=1)
        event = {
            "type": "turn.completed",
            "event_id": "h",
            "agent_id": "support",
            "session_id": "user-43",
            "messages": [USER],
        }
        posted = await http.post("/sessions/user-43/events", json=event)
        again = await http.post("/sessions/user-43/events", json=event)
        patched = await http.patch("/sessions/user-43/policy", json={"mode": "off"})
        assert [answer.status_code for answer in (posted, patched)] == [200, 200]
        assert posted.json() == again.json()

        # Who looks, who runs the system, and what is erased for good.
        told = json.loads(
            (await auditor.bus.request("context.get.support.user-42", b"", timeout=10)).data
        )
        kept = await auditor.bus.request(
            "$JS.API.DIRECT.GET.TURNFOLD_NOTICES", b'{"seq": 1}', timeout=10
        )
        assert told["account"]["total"] == 59
        await reads_the_policy_of_a_session(query.environ | guarded.environ("auditor"))
        assert (kept.headers or {})["Nats-Subject"].startswith("context.compressed.support.")
        newest = await support.bus.request(
            "$JS.API.DIRECT.GET.TURNFOLD_NOTICES.summary.updated.support.user-42", b"", timeout=10
        )
        stream, subject = ((newest.headers or {})[name] for name in ("Nats-Stream", "Nats-Subject"))
        assert (notice := turnfold.notice_of(stream, subject, newest.data))
        assert notice[:3] == ("summary.updated", "support", "user-42")
        assert turnfold.notice_of(None, own[0].subject, own[0].data) is None
        await iterates_over_its_own_notices(client)
        doctor = await command(
            "doctor", "--json", environ=query.environ | guarded.environ("provisioner")
        )
        assert doctor.status == 0, doctor
        assert {row["outcome"] for row in doctor.rows} <= {"ok", "unknown"}, doctor
        erased = await command(
            "erase",
            "support",
            "user-42",
            "--yes",
            environ=query.environ | guarded.environ("operator"),
        )
        assert erased.status == 0, erased.err
        assert (await client.erase_agent("support"))["sessions"] == 1
        await wait_until(lambda: len(erasures) == 2, told=worker.words)
        assert [json.loads(one.data) for one in erasures] == [
            {"session_id": "user-42"},
            {"prefix": ""},
        ]
        await wait_until(lambda: not rows(worker.database, UNFORGOTTEN), told=worker.words)
        await wait_until(
            lambda: not rows(worker.database, "SELECT 1 FROM outbox"), told=worker.words
        )

    assert (auditor.denied, support.denied, "bus.error" in worker.words()) == ([], [], False)


@pytest.mark.proves("X1", "L10")
async def test_a_worker_may_fill_an_empty_database_from_the_stream(
    guarded: Guarded, server: NatsServer, tmp_path: Path
) -> None:
    first = guarded.parts(server, "worker")
    stored = "SELECT message_id FROM messages_view WHERE session_id = 'restored'"
    async with (
        first.running("worker"),
        turnfold.connect(server.url, environ=guarded.environ("support")) as client,
    ):
        for _ in range(3):
            await client.session("support", "restored").turn_completed([USER])
        await wait_until(lambda: len(rows(first.database, stored)) == 3, told=first.words)

    empty = Parts(tmp_path, server, SMALL | guarded.environ("provisioner"))
    migrated = await command("migrate", environ=empty.environ)
    second = Parts(tmp_path, server, SMALL | guarded.environ("worker"))
    async with second.running("worker"):
        await wait_until(lambda: len(rows(second.database, stored)) == 3, told=second.words)

    assert migrated.status == 0, migrated
    assert rows(second.database, stored) == rows(first.database, stored)
    assert "bus.error" not in second.words()


@pytest.mark.proves("X2", "L12")
async def test_agents_of_any_name_reach_what_is_theirs_and_nothing_else(
    guarded: Guarded, server: NatsServer
) -> None:
    worker, query = guarded.parts(server, "worker"), guarded.parts(server, "query")
    async with worker.running("worker"), query.running("query"):
        for name in STRANGE:
            async with turnfold.connect(server.url, environ=guarded.environ(name)) as client:
                await client.session(name, name).turn_completed(
                    [USER | {"content": name}], event_id=name
                )
                window = await client.session(name, name).context(wait_ms=5_000)
                assert [message["content"] for message in window.messages] == [name]
                with pytest.raises(NotAllowed):
                    await client.session("support", "user-42").context()
                for wrong in IMPOSSIBLE:
                    with pytest.raises(BadRequest):
                        client.session(wrong, "s")
                    with pytest.raises(BadRequest):
                        client.session(name, wrong)


@pytest.mark.proves("A6", "X1", "L12")
async def test_a_program_can_tell_whether_the_erasures_of_an_agent_reach_it(
    guarded: Guarded, server: NatsServer
) -> None:
    erased: list[ErasedSessions] = []
    worker = guarded.parts(server, "worker")
    async with (
        worker.running("worker"),
        turnfold.connect(server.url, environ=guarded.environ("support")) as client,
    ):
        own, other = (client.erasures(name, erased.append) for name in ("support", "other"))
        await own.begin()
        await other.begin()
        await client.erase_agent("support", prefix="no-such-")

        await wait_until(lambda: bool(erased), told=worker.words)
        assert own.connection == 0
        assert other.connection is None
        assert erased == [ErasedSessions("support", prefix="no-such-")]


@pytest.mark.proves("X1", "L1")
async def test_a_batch_with_an_event_that_its_agent_may_not_publish_leaves_nothing(
    guarded: Guarded, server: NatsServer
) -> None:
    own = [turn_event(session_key("support", f"batch-{number}"), [USER]) for number in range(3)]
    async with turnfold.connect(server.url, environ=guarded.environ("support")) as client:
        first, second, third = await client.publish_batch(own)
        with pytest.raises(NotAllowed, match="may not use turn"):
            await client.publish_batch(
                [*own, turn_event(session_key("other", "s"), [USER]), own[0]]
            )
        after = await client.session("support", "batch-0").turn_completed([USER])

    assert [second.seq, third.seq, after.seq] == [first.seq + 1, first.seq + 2, first.seq + 3]


ACKNOWLEDGED = "TURNFOLD_EVENTS.ingest.1.1.1.1.1"
FORBIDDEN_TO_PUBLISH = {
    "support": (
        "turn.completed.other.s",
        "tool.result.other.s",
        "usage.reported.other.s",
        "usage.reported",
        "turn.retracted.other.s",
        "turnfold.erased.support",
        "turn.retracted",
        "session.pop.other.s",
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
        "$JS.API.DIRECT.GET.TURNFOLD_NOTICES.summary.updated.other.s",
        "$JS.API.DIRECT.GET.TURNFOLD_NOTICES.>",
        "$JS.API.DIRECT.GET.TURNFOLD_EVENTS.turn.completed.support.s",
        f"{CONSUMER_API}.CREATE.TURNFOLD_EVENTS.mine",
        f"{CONSUMER_API}.DELETE.TURNFOLD_EVENTS.ingest",
        f"{CONSUMER_API}.MSG.NEXT.TURNFOLD_EVENTS.ingest",
        f"$JS.ACK.{ACKNOWLEDGED}",
        f"$JS.ACK.hub.hash.{ACKNOWLEDGED}.x",
        "context.compressed.support.s",
        "summary.updated.other.s",
        "turnfold.ingested",
        "turnfold.asked.support.s",
        "turnfold.asked.other.s",
        "_INBOX.anybody.x",
        "_R_.anything",
        "$SYS.REQ.SERVER.PING",
        "$SYS.REQ.USER.INFO",
    ),
    "auditor": (
        "turnfold.asked.support.s",
        "turn.completed.support.s",
        "session.erase.support.s",
        "session.policy.support.s",
        "session.pop.support.s",
        "turn.retracted.support.s",
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
        "turnfold.asked.support.s",
        "context.compressed.support.s",
        f"{STREAM_API}.DELETE.TURNFOLD_EVENTS",
        f"{STREAM_API}.PURGE.TURNFOLD_EVENTS",
        f"{STREAM_API}.MSG.GET.TURNFOLD_EVENTS",
        f"{CONSUMER_API}.DELETE.TURNFOLD_EVENTS.ingest",
        f"$JS.ACK.{ACKNOWLEDGED}",
    ),
    "worker": (
        "context.get.support.s",
        "turnfold.asked.support.s",
        "session.erase.support.s",
        f"{STREAM_API}.DELETE.TURNFOLD_EVENTS",
        f"{STREAM_API}.UPDATE.TURNFOLD_EVENTS",
        f"{CONSUMER_API}.DELETE.TURNFOLD_EVENTS.ingest",
        f"{STREAM_API}.CREATE.MINE",
        "_INBOX.anybody.x",
    ),
    "query": (
        "_INBOX.anybody.x",
        "context.compressed.support.s",
        "turnfold.ingested",
        f"{STREAM_API}.DELETE.TURNFOLD_EVENTS",
        f"{STREAM_API}.PURGE.TURNFOLD_EVENTS",
        f"{STREAM_API}.MSG.DELETE.TURNFOLD_EVENTS",
        f"{CONSUMER_API}.MSG.NEXT.TURNFOLD_EVENTS.ingest",
        f"$JS.ACK.{ACKNOWLEDGED}",
    ),
    "provisioner": (
        "turn.completed.support.s",
        "context.get.support.s",
        "session.erase.support.s",
        f"$JS.ACK.{ACKNOWLEDGED}",
    ),
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
        "summary.updated.support.* watchers",
        "summary.updated.support.* other.watchers",
        "turnfold.erased.other",
        "turnfold.erased.*",
        "_INBOX.>",
        "_INBOX.*.>",
        "$JS.ACK.>",
        "$JS.API.>",
        "$SYS.>",
    ),
    "auditor": (
        ">",
        "summary.updated.> watchers",
        "summary.updated.support.* support",
        "turn.completed.>",
        "tool.result.*.*",
        "context.get.*.* turnfold-query",
        "_INBOX.>",
    ),
    "operator": (
        ">",
        "summary.updated.> watchers",
        "turn.completed.>",
        "session.erase.*.* turnfold-worker",
        "_INBOX.>",
    ),
    "worker": (
        ">",
        "turn.completed.>",
        "context.get.*.* turnfold-query",
        "session.erase.*.*",
        "_INBOX.>",
        "$JS.API.>",
    ),
    "query": (
        ">",
        "turn.completed.>",
        "session.erase.*.* turnfold-worker",
        "context.get.*.*",
        "context.compressed.>",
        "_INBOX.>",
    ),
    "provisioner": (">", "turn.completed.>", "context.compressed.>", "_INBOX.>"),
}


@pytest.mark.proves("X1", "L12")
@pytest.mark.parametrize("name", FORBIDDEN_TO_PUBLISH)
async def test_what_a_role_may_not_publish_is_refused(
    guarded: Guarded, server: NatsServer, name: str
) -> None:
    async with person(guarded, server, name) as somebody:
        for subject in FORBIDDEN_TO_PUBLISH[name]:
            await somebody.publish(subject)
            await somebody.is_denied(f'publish to "{subject}"')


@pytest.mark.proves("X1", "L12")
@pytest.mark.parametrize("name", FORBIDDEN_TO_HEAR)
async def test_what_a_role_may_not_hear_is_refused(
    guarded: Guarded, server: NatsServer, name: str
) -> None:
    async with person(guarded, server, name) as somebody:
        for subject in FORBIDDEN_TO_HEAR[name]:
            await somebody.listen(subject)
            await somebody.is_denied(f'subscription to "{subject.partition(" ")[0]}"')


def test_every_client_identity_has_an_account_of_its_own() -> None:
    """X5: the keys of one agent share an account; no other key of a client shares one."""
    made = "2026-11-22T00:00:00Z"
    agents = [
        Key(f"UA{number}", "agent", name, made)
        for number, name in enumerate([*STRANGE, "a", "A", "agent-a", "*", "support", "support"])
    ]
    people = [
        Key(f"U{role}{number}", role, None, made)
        for role in ("auditor", "operator")
        for number in (1, 2)
    ]
    services = [Key(f"U{role}", role, None, made) for role in SERVICES]

    accounts = [account_of(key) for key in [*agents, *people]]

    assert len(set(accounts)) == len({key.agent_id for key in agents}) + len(people)
    assert accounts.count(account_of(agents[-1])) == 2
    assert {account_of(key) for key in services} == {SERVICES_ACCOUNT}
    assert not {SERVICES_ACCOUNT, SYSTEM_ACCOUNT} & set(accounts)
    assert all(re.fullmatch(r"[A-Za-z0-9_-]{1,80}", name) for name in accounts)


@pytest.mark.parametrize("role", ROLES)
def test_without_clients_nothing_is_exported(role: Role) -> None:
    """X5: an export that names no account would be open to every account."""
    keys = [Key("UX", role, "support" if role == "agent" else None, "2026-11-22T00:00:00Z")]

    exported = re.findall(
        r'\{ (?:service|stream): "([^"]+)", accounts: \[([^]]*)\] \}', configuration(keys)
    )

    assert {subject for subject, _ in exported} == {
        export.subject for export in EXPORTS if role in export.roles
    }
    assert all(names == f'"{account_of(keys[0])}"' for _, names in exported)


@pytest.mark.proves("G1", "X1", "L2")
async def test_an_agent_that_may_not_read_the_stream_learns_of_other_content_under_its_id(
    guarded: Guarded, server: NatsServer
) -> None:
    """G1: the client compares with the history, where its key may not read the stream."""
    worker, query = (guarded.parts(server, name) for name in ("worker", "query"))
    async with (
        worker.running("worker"),
        query.running("query"),
        turnfold.connect(server.url, environ=guarded.environ("support")) as client,
    ):
        session = client.session("support", "reused")
        await session.turn_completed([USER], event_id="reused")
        await session.context(wait_ms=5_000)
        copy = await session.turn_completed([USER], event_id="reused")
        with pytest.raises(Conflict):
            await session.turn_completed([USER | {"content": "Another."}], event_id="reused")
        # Nothing of this session is stored, so its history cannot tell.
        with pytest.raises(Conflict):
            await client.session("support", "elsewhere").turn_completed([USER], event_id="reused")

    assert copy.is_duplicate


@pytest.mark.proves("G1", "L2")
async def test_an_event_whose_message_was_taken_back_stays_the_same_event(
    guarded: Guarded, server: NatsServer
) -> None:
    """G1: the history lacked the message, and the copy was taken for other content."""
    worker, query = (guarded.parts(server, name) for name in ("worker", "query"))
    async with (
        worker.running("worker"),
        query.running("query"),
        turnfold.connect(server.url, environ=guarded.environ("support")) as client,
    ):
        session = client.session("support", "taken-back")
        for event_id in ("retracted", "popped", "erased"):
            await session.turn_completed([USER], event_id=event_id)
        await session.retract("retracted#0")
        await session.context(wait_ms=5_000)
        await session.pop(2)
        copies = [
            await session.turn_completed([USER], event_id=event_id)
            for event_id in ("retracted", "popped")
        ]
        with pytest.raises(Conflict):
            await session.turn_completed([USER | {"content": "Another."}], event_id="popped")
        await session.erase()
        await session.turn_completed([USER], event_id="newer")
        await session.context(wait_ms=5_000)
        copies.append(await session.turn_completed([USER], event_id="erased"))

    assert [copy.is_duplicate for copy in copies] == [True, True, True]


@pytest.mark.proves("X1")
async def test_without_a_key_nobody_signs_in_and_a_revoked_key_holds_no_longer(
    tmp_path: Path,
) -> None:
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
            async with turnfold.connect(
                server.url, environ=mine.environ("support"), timeout_seconds=1
            ):
                pass
        async with person(mine, server, "other") as other:
            assert other.bus.is_connected


@pytest.mark.proves("O3")
async def test_doctor_says_which_key_may_read_the_streams(
    server: NatsServer, guarded: Guarded
) -> None:
    findings = {}
    for name in ("operator", "provisioner"):
        environ = {"TURNFOLD_NATS_URL": server.url} | guarded.environ(name)
        found = await examine(read_settings(environ), monitoring_url="http://127.0.0.1:9")
        findings[name] = next(one for one in found if one.check == "streams")

    assert findings["operator"].outcome == "failed"
    assert "provisioner's key" in findings["operator"].advice
    assert findings["provisioner"].outcome == "ok"
