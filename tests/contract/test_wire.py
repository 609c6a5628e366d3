"""Stored examples of everything that travels; they are never edited, only added to."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.store_fixtures import NOON, Stores, summary, turns
from turnfold.contracts.events import read_event
from turnfold.contracts.subjects import EVENT_TYPES, NOTICES_SUBJECTS

GOLDEN = Path(__file__).parent / "golden"


def golden(name: str) -> bytes:
    return (GOLDEN / f"{name}.json").read_bytes()


def test_there_is_an_example_of_everything_that_travels() -> None:
    assert {path.stem for path in GOLDEN.iterdir()} == {
        *EVENT_TYPES,
        *(subject.removesuffix(".>") for subject in NOTICES_SUBJECTS),
    }


@pytest.mark.proves("I2")
def test_a_completed_turn_is_read_as_it_always_was() -> None:
    event = read_event("turn.completed", golden("turn.completed"))

    assert (event.key, event.event_id) == (("support", "user-42"), "01JCZ4T9W7Q2M8XH5R3N6KBVEA")
    assert (event.model, event.usage) == (
        "gpt-4.1",
        {"prompt_tokens": 1200, "completion_tokens": 80, "total_tokens": 1280},
    )
    assert (any(event.metas), event.is_truncated, event.is_error) == (False, True, False)
    assert [one["role"] for one in event.parsed] == [
        "system",
        "user",
        "assistant",
        "tool",
        "assistant",
    ]
    assert event.digest.hex() == "4a6b61e37714afa8c9f0ec617006cd48"


@pytest.mark.proves("L1", "I2")
def test_each_message_of_a_turn_is_kept_to_the_letter() -> None:
    payload = golden("turn.completed").decode()

    event = read_event("turn.completed.support.user-42", payload.encode())

    lines = [
        line.strip().rstrip(",").removesuffix("]")
        for line in payload.splitlines()
        if line.startswith("  {")
    ]
    assert list(event.bodies) == lines
    assert r"\u0000 \ud83d 漢字" in event.bodies[1]
    assert event.originals == (None,) * 5


@pytest.mark.proves("I2")
def test_what_else_a_turn_says_is_kept_beside_its_messages() -> None:
    envelope = json.loads(read_event("turn.completed", golden("turn.completed")).envelope or "")

    assert sorted(envelope) == ["is_meta", "metadata", "model", "occurred_at", "usage"]


@pytest.mark.proves("I1", "I2")
def test_a_tool_result_is_read_as_it_always_was() -> None:
    event = read_event("tool.result.support.user-42", golden("tool.result"))

    content = '{"flights": [{"no": "SK 1472", "at": "09:15"}], "more": false}'
    shown = {
        "role": "tool",
        "tool_call_id": "call_1",
        "content": '{"flights":[{"no":"SK 1472","at":"09:15"}],"more":false}',
        "name": "search_flights",
    }
    assert event.parsed == (shown,)
    assert [json.loads(body) for body in event.bodies] == [shown]
    assert event.originals == (content,)
    assert event.digest.hex() == "64b353fd8da820ed8b4e0e8e6dba2187"


@pytest.mark.proves("R5")
def test_a_report_of_usage_is_read_as_it_always_was() -> None:
    event = read_event("usage.reported.support.user-42", golden("usage.reported"))

    assert (event.bodies, event.model) == ((), "gpt-4.1")
    assert event.usage == {"prompt_tokens": 16900, "completion_tokens": 0, "total_tokens": 16900}
    assert event.reported == (16_000, True, "01JCZ4T9W7Q2M8XH5R3N6KBVEA#4")
    assert "message_id" in json.loads(event.envelope or "")
    assert event.digest.hex() == "db3b064898532e92beb312a4939637e6"


@pytest.mark.proves("G1")
def test_a_retraction_is_read_as_it_always_was() -> None:
    event = read_event("turn.retracted.support.user-42", golden("turn.retracted"))

    named = ("01JCZ4T9W7Q2M8XH5R3N6KBVEA#1", "01JCZ4TA3GZ5E0Y7D1C9W2PQKF#0")
    assert (event.bodies, event.retraction) == ((), (named, None, False))
    assert event.digest.hex() == "7fd29e47ad2d71091663858e1f9a13a6"


@pytest.mark.proves("A3")
async def test_notices_are_told_as_they_always_were(stores: Stores) -> None:
    await stores.ingest(*turns(1, 7))
    for now_ms, fails in ((NOON + 1_000, True), (NOON + 6_000, False)):
        (job,) = await stores.claim(now_ms)
        if fails:
            await stores.jobs.retry_later(
                job, reason="timeout", detail="", retry_at_ms=NOON + 6_000, now_ms=now_ms
            )
        else:
            await stores.jobs.commit(job, summary(), reason=None, now_ms=now_ms)

    told: dict[str, Any] = {}
    for notice in await stores.outbox.unsent(9):
        payload = json.loads(notice.payload)
        assert len(payload["audit"].pop("hash")) == 64
        told[notice.subject.removesuffix(".ada.s-1")] = payload

    assert told == {
        name: json.loads(golden(name))
        for name in ("context.compressed", "compaction.failed", "summary.updated")
    }
