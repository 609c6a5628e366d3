"""The policy in force can be read: nothing is made for it, and no worker is needed (X6, O5)."""

import json
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.aio.client import Client as Bus

from tests.running_system import Parts, eventually, running_parts
from turnfold.core.policy.presets import FIELD_TYPES

ENVIRON = {
    "TURNFOLD_POLICY__KEEP_MESSAGES": "7",
    "TURNFOLD_MODE": "manual",
    "TURNFOLD_LIMIT__SUMMARY_MAX_TOKENS": "900",
}
SUBJECTS = {
    "/v1/agents/support/sessions/s/policy": "session.policy.support.s",
    "/v1/agents/support/policy": "agent.policy.support",
}


async def asked(bus: Bus, subject: str, body: Any) -> Any:
    return json.loads((await bus.request(subject, json.dumps(body).encode(), timeout=10)).data)


async def read(parts: Parts, bus: Bus, path: str) -> Any:
    """What both ways answer, which is the same."""
    async with parts.http() as http:
        over_http = await http.get(path)
    over_bus = await asked(bus, SUBJECTS[path], {})
    assert (over_http.status_code, over_http.json()) == (200, over_bus)
    return over_bus


@pytest.mark.proves("X6", "O5")
async def test_the_policy_in_force_is_read_without_a_worker_and_makes_nothing(
    tmp_path: Path,
) -> None:
    config = tmp_path / "turnfold.toml"
    config.write_text('preset = "balanced"\n[policy]\nmin_gain_messages = 3\nkeep_messages = 8\n')
    environ = ENVIRON | {"TURNFOLD_CONFIG": str(config)}
    async with running_parts(tmp_path, environ=environ) as parts, parts.running("query"):
        bus = await nats.connect(parts.server.url)
        for path, subject in SUBJECTS.items():
            policy = await read(parts, bus, path)
            numbers = policy["numbers"]
            assert (policy["mode"], policy["mode_from"]) == ("manual", "environment")
            assert (policy["preset"], policy["preset_from"]) == ("balanced", "file")
            assert numbers.keys() == FIELD_TYPES.keys() - {"mode"}
            assert numbers["keep_messages"] == {"value": 7, "from": "environment"}
            assert numbers["min_gain_messages"] == {"value": 3, "from": "file"}
            assert numbers["summary_max_tokens"] == {"value": 900, "from": "environment"}
            assert numbers["max_live_messages"] == {"value": 250, "from": "preset"}
            assert (await asked(bus, subject, {"agent_id": "other"}))["error"][
                "code"
            ] == "bad_request"
            assert await asked(bus, subject, {"agent_id": "support"}) == policy
        assert (
            await parts.rows(
                "SELECT agent_id FROM agents UNION SELECT agent_id FROM sessions UNION SELECT agent_id FROM audit"
            )
            == []
        )

        async with parts.running("worker"):
            session, agent = SUBJECTS.values()
            changes = [
                (
                    agent,
                    {
                        "preset": "static-buffer",
                        "mode": "auto",
                        "overrides": {"max_live_messages": 33, "keep_tokens": 5},
                    },
                ),
                (session, {"overrides": {"max_live_messages": 77}}),
            ]
            for subject, change in changes:
                assert "overrides" in await asked(bus, subject, change)
        path, of_agent = SUBJECTS
        policy = await read(parts, bus, path)
        counts = await asked(bus, "session.get.support.s", {"policy": True})
        async with parts.http() as http:
            over_http = (await http.get(path.removesuffix("/policy"), params={"policy": 1})).json()
        assert over_http == counts
        assert (counts["policy"], counts["messages_total"]) == (policy, 0)
        assert "policy" not in await asked(bus, "session.get.support.s", {})
        assert (policy["mode"], policy["preset"]) == ("auto", "static-buffer")
        assert policy["numbers"]["max_live_messages"] == {"value": 77, "from": "session"}
        assert policy["numbers"]["keep_tokens"] == {"value": 5, "from": "agent"}
        # Ratios of a preset do not count beside such numbers, and say whose they are.
        assert policy["numbers"]["messages_ratio"] == {"value": 0.0, "from": "session"}
        assert policy["numbers"]["keep_ratio"] == {"value": 0.0, "from": "agent"}
        assert (await read(parts, bus, of_agent))["numbers"]["max_live_messages"] == {
            "value": 33,
            "from": "agent",
        }
        await bus.close()


@pytest.mark.proves("X6")
async def test_one_answer_comes_to_a_request_that_reads_and_to_one_that_writes(
    tmp_path: Path,
) -> None:
    async with running_parts(tmp_path) as parts, parts.running("worker"), parts.running("query"):
        bus = await nats.connect(parts.server.url)
        heard: list[bytes] = []

        async def on_answer(message: Any) -> None:
            heard.append(message.data)

        # A long one is no read, and of one that is too long for a request nothing is parsed.
        long, too_long = b"{}" + b" " * 8_192, b'{"moed": "' + b" " * 1024 * 1024 + b'"}'
        for body in (b"{}", b"", b'{"mode": "off"}', b"{", b"[]", b'{"moed": 1}', long, too_long):
            inbox = bus.new_inbox()
            await bus.subscribe(inbox, cb=on_answer)
            await bus.publish("session.policy.support.s", body, reply=inbox)
        await asked(bus, "session.policy.support.s", {"mode": "auto"})

        async def are_there() -> bool:
            return len(heard) >= 8

        await eventually(are_there)
        await bus.close()

    assert ["numbers" in json.loads(answer) for answer in heard].count(True) == 2
    assert ["error" in json.loads(answer) for answer in heard].count(True) == 4
    assert [b"too_large" in answer for answer in heard].count(True) == 1
    assert len(heard) == 8


@pytest.mark.proves("T1", "W2")
async def test_an_empty_window_follows_the_policy_of_its_agent(tmp_path: Path) -> None:
    async with running_parts(tmp_path) as parts, parts.running("worker"), parts.running("query"):
        bus = await nats.connect(parts.server.url)
        numbers = {"context_window": 32_000, "max_context_tokens": 6_000}
        await asked(bus, "agent.policy.support", {"overrides": numbers})
        empty = await asked(bus, "context.get.support.new", {})
        other = await asked(bus, "context.get.other.new", {})
        again = await asked(bus, "context.get.support.new", {"etag": empty["etag"]})
        await asked(bus, "agent.policy.support", {"overrides": {"max_context_tokens": 5_000}})
        changed = await asked(bus, "context.get.support.new", {"etag": empty["etag"]})
        # A row of its own changes nothing: the session has no event yet.
        await asked(bus, "session.policy.support.new", {"overrides": {}})
        stored = await asked(bus, "context.get.support.new", {})
        await bus.close()

    sizes = [
        (one["window"]["model_window"], one["window"]["budget_tokens"])
        for one in (empty, changed, stored)
    ]
    assert sizes == [(32_000, 6_000), (32_000, 5_000), (32_000, 5_000)]
    assert other["window"]["model_window"] == 128_000
    assert again == {"not_modified": True, "etag": empty["etag"]}
