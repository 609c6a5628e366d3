"""`turnfold erase`, `compact` and `restore`, on a running system."""

from pathlib import Path
from signal import SIGCONT, SIGSTOP

import nats
import pytest

import turnfold
from tests.running_system import running_system


@pytest.mark.proves("G1", "O3")
async def test_a_prefix_names_the_sessions_to_erase_and_the_command_says_so(tmp_path: Path) -> None:
    async with (
        running_system(tmp_path / "system") as system,
        turnfold.connect(system.nats_url, environ={}) as client,
    ):
        for session_id in ("a/1", "a/2", "b/1"):
            session = client.session("ada", session_id)
            await session.turn_completed([{"role": "user", "content": "Hello."}])
            await session.context(wait_ms=5_000)

        both = await system.command("erase", "ada", "a/1", "--prefix", "a/", "--yes")
        unsure = await system.command("erase", "ada", "--prefix", "a/")
        erased = await system.command("erase", "ada", "--prefix", "a/", "--yes")
        trail = await system.command("audit", "--json")
        left = [session_id async for session_id in client.sessions("ada")]
        await system.command("policy", "set", "bob", "--mode", "off")
        of_policy = await system.command("erase", "bob", "--yes")
        of_nobody = await system.command("erase", "bob", "--yes")
        bus = await nats.connect(system.nats_url)
        await bus.jetstream().publish("turn.completed.cyd.s", b"not json")
        await bus.close()
        await client.session("bob", "later").turn_completed([{"role": "user", "content": "Hello."}])
        await client.session("bob", "later").context(after="latest", wait_ms=5_000)
        of_letter = await system.command("erase", "cyd", "s", "--yes")
        forgotten = [
            await system.command(*words)
            for words in (
                ("erase", "", "--yes"),
                ("policy", "show", ""),
                ("policy", "set", "", "--mode", "off"),
            )
        ]

    assert (both.status, unsure.status, erased.status) == (2, 2, 0)
    assert "the sessions of ada that begin with 'a/'" in " ".join(unsure.err.split())
    assert "Erased the sessions of ada that begin with 'a/': 2 sessions, 2 messages." in erased.out
    assert left == ["b/1"]
    assert [(row["session_id"], row["phase"]) for row in trail.rows] == [
        ("a/1", "erased"),
        ("a/2", "erased"),
    ]
    # As `turnfold erase "$AGENT"` does where the variable is not set.
    assert [(one.status, "agent_id has 0 bytes" in one.err) for one in forgotten] == [(1, True)] * 3
    assert (of_policy.status, of_nobody.status, of_letter.status) == (0, 1, 0)
    assert "the session s of cyd: 0 sessions, 0 messages, 1 dead letter." in of_letter.out
    assert "no message, policy or dead letter of the agent bob" in of_nobody.err


@pytest.mark.proves("A5", "O3")
async def test_a_compaction_is_begun_and_undone_but_not_by_an_empty_id(tmp_path: Path) -> None:
    """As `turnfold restore "$AGENT" "$SESSION" "$ID"` gives where the variable is not set."""
    async with (
        running_system(tmp_path / "system") as system,
        turnfold.connect(system.nats_url, environ={}) as client,
    ):
        session = client.session("ada", "s-1")
        await session.ask("session.policy", {"preset": "static-buffer"})
        for number in range(20):
            await session.turn_completed([{"role": "user", "content": f"Order {number}."}])
        await session.context(wait_ms=5_000)
        begun = await system.command("compact", "ada", "s-1", "--json")
        again = await system.command("compact", "ada", "s-1")

        forgotten = await system.command("restore", "ada", "s-1", "")
        live = (await session.ask("session.get", {}))["messages_live"]
        newest = await system.command("restore", "ada", "s-1")

    assert (again.status, again.out, "nothing to evict" in again.err) == (0, "", True)
    assert (forgotten.status, live) == (1, 10)
    assert "compaction_id" in forgotten.err
    assert f"Undid compaction {begun.rows[0]['compaction_id']}" in newest.out


@pytest.mark.proves("V6")
async def test_of_events_that_wait_or_were_erased_a_command_says_that_none_is_stored(
    tmp_path: Path,
) -> None:
    async with (
        running_system(tmp_path / "system") as system,
        turnfold.connect(system.nats_url, environ={}) as client,
    ):
        session = client.session("ada", "talk")
        assert system.signal("worker", SIGSTOP)
        await session.turn_completed([{"role": "user", "content": "Hello."}])
        waiting = await system.command("context", "ada", "talk")
        assert system.signal("worker", SIGCONT)
        await session.context(wait_ms=5_000)
        await system.command("erase", "ada", "--yes")
        erased = await system.command("context", "ada", "talk")

    for told in (waiting, erased):
        assert (told.status, told.err.partition(";")[0]) == (
            1,
            "turnfold: no event of agent 'ada' is stored",
        )
