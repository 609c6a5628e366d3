"""What `usage.reported` does, in every store: the windows it sets, and the compactions it makes due."""

import json
from dataclasses import replace
from typing import Any

import pytest
import pytest_asyncio

from tests.contract.compact.versions import override
from tests.contract.query.test_context import Asker
from tests.invariants import faults
from tests.store_fixtures import (
    KEY,
    NOON,
    Stores,
    assistant,
    reported,
    retracted,
    summary,
    turn,
    turns,
    user,
)
from turnfold.contracts.requests import (
    PolicyRequest,
)
from turnfold.core.policy.presets import Policy
from turnfold.messages import AgentId, SessionId, SessionKey
from turnfold.operations.ingest.decode import Delivery, decode_batch
from turnfold.ports.query import (
    SessionSnapshot,
)

Json = dict[str, Any]
MODEL = "acme/small-1"
LONG = "x" * 4_000
PAIR_TOKENS = 2_008
"""What a turn of two long messages counts here."""


def long_turns(first_seq: int, number: int, **more: Any) -> list[Any]:
    return [
        turn(seq, user(LONG), assistant(LONG), model=MODEL, **more)
        for seq in range(first_seq, first_seq + number)
    ]


@pytest_asyncio.fixture(loop_scope="session")
async def roomy(stores: Stores) -> Stores:
    """A store in whose session nothing but tokens and overflows make messages leave."""
    await override(
        stores, max_live_messages=0, reserve_tokens=2_000, keep_tokens=20_000, min_gain_tokens=2_000
    )
    return stores


async def model_window(stores: Stores, key: SessionKey = KEY, **fields: Any) -> int:
    window: int = (await Asker(stores, key=key).told(**fields))["window"]["model_window"]
    return window


async def window_reasons(stores: Stores) -> list[str | None]:
    rows = await stores.history.audit(KEY, after=0, limit=100)
    return [row.reason for row in rows if row.phase == "window"]


async def session_of(stores: Stores) -> SessionSnapshot:
    session = (await stores.facts()).session
    assert session is not None
    return session


async def fired(stores: Stores) -> list[tuple[str, int]]:
    told = [json.loads(notice.payload) for notice in await stores.outbox.unsent(99)]
    return [(one["trigger"], one["budget_tokens"]) for one in told if "trigger" in one]


# --- the window


@pytest.mark.proves("R5")
async def test_a_window_is_no_larger_than_what_its_provider_said(roomy: Stores) -> None:
    await roomy.ingest(turn(1, user("hello"), model=MODEL))
    assert await model_window(roomy) == 128_000

    await roomy.ingest(reported(2, MODEL, limit_tokens=16_000))

    assert await model_window(roomy) == 16_000
    assert await model_window(roomy, model=MODEL) == 16_000
    assert await model_window(roomy, model="acme/other") == 128_000
    other = SessionKey(KEY.agent_id, SessionId("other"))
    await roomy.ingest(turn(3, user("hello"), model=MODEL, key=other))
    assert await model_window(roomy, other) == 128_000


@pytest.mark.proves("R5")
@pytest.mark.parametrize(("limit", "window"), [(1, 1_024), (1_024, 1_024), (900_000, 128_000)])
async def test_a_report_sets_no_tiny_window_and_none_above_that_of_the_map(
    roomy: Stores, limit: int, window: int
) -> None:
    await roomy.ingest(turn(1, user("hello"), model=MODEL), reported(2, MODEL, limit_tokens=limit))

    assert await model_window(roomy) == window


@pytest.mark.proves("R5")
async def test_an_explicit_window_stands_above_what_was_reported(roomy: Stores) -> None:
    await roomy.ingest(turn(1, user("hello"), model=MODEL), reported(2, MODEL, limit_tokens=16_000))

    await override(roomy, context_window=32_000)

    assert await model_window(roomy) == 32_000


@pytest.mark.proves("R5")
async def test_a_larger_call_that_succeeds_later_lifts_the_window(roomy: Stores) -> None:
    usage = {"prompt_tokens": 20_000, "completion_tokens": 9}
    await roomy.ingest(turn(1, user("a"), assistant("b"), model=MODEL, usage=usage))
    await roomy.ingest(reported(2, MODEL, limit_tokens=16_000))
    assert await model_window(roomy) == 16_000

    await roomy.ingest(reported(3, MODEL, usage={"prompt_tokens": 15_000}))
    assert await model_window(roomy) == 16_000
    # A call of another model says nothing of this one.
    await roomy.ingest(reported(4, "acme/large-1", usage={"prompt_tokens": 19_000}))
    await roomy.ingest(reported(5, MODEL, usage={"prompt_tokens": 18_000}))
    assert await model_window(roomy) == 18_000
    await roomy.ingest(turn(6, user("c"), assistant("d"), model=MODEL, usage=usage))
    assert await model_window(roomy) == 20_000
    # A call that failed says nothing of the size; a newer limit counts, whatever was larger before.
    await roomy.ingest(reported(7, MODEL, usage={"prompt_tokens": 30_000}, is_overflow=True))
    assert await model_window(roomy) == 20_000
    await roomy.ingest(reported(8, MODEL, limit_tokens=12_000))
    assert await model_window(roomy) == 12_000


@pytest.mark.proves("R5", "A1", "L3")
async def test_the_audit_has_the_limit_and_the_success_of_one_batch(roomy: Stores) -> None:
    usage = {"prompt_tokens": 20_000, "completion_tokens": 9}
    await roomy.ingest(
        reported(1, MODEL, limit_tokens=16_000),
        turn(2, user("a"), assistant("b"), model=MODEL, usage=usage),
    )

    assert await window_reasons(roomy) == ["limit", "success"]
    # A raise to where the limit was before the batch is a change, too.
    await roomy.ingest(
        reported(3, MODEL, limit_tokens=16_000),
        turn(4, user("c"), assistant("d"), model=MODEL, usage=usage),
    )
    assert await window_reasons(roomy) == ["limit", "success", "limit", "success"]


@pytest.mark.proves("A1", "L3")
async def test_a_report_of_a_window_that_comes_late_is_no_success(roomy: Stores) -> None:
    await roomy.ingest(reported(10, MODEL, limit_tokens=16_000))
    await roomy.ingest(reported(5, MODEL, limit_tokens=8_000))

    assert await window_reasons(roomy) == ["limit", "limit"]


@pytest.mark.proves("R5", "G1")
async def test_a_retraction_leaves_the_window_that_a_call_has_proved(roomy: Stores) -> None:
    usage = {"prompt_tokens": 20_000, "completion_tokens": 9}
    await roomy.ingest(reported(1, MODEL, limit_tokens=16_000))
    await roomy.ingest(turn(2, user("a"), assistant("b"), model=MODEL, usage=usage))

    await roomy.ingest(retracted(3, "e2#0"))
    await roomy.ingest(reported(4, "acme/other", limit_tokens=9_000))
    await roomy.ingest(turn(5, user("c"), model=MODEL))

    assert await model_window(roomy) == 20_000
    assert await window_reasons(roomy) == ["limit", "success", "limit"]


@pytest.mark.proves("R5", "L3")
async def test_a_report_follows_the_answer_that_it_names_to_the_place_of_its_copy(
    roomy: Stores,
) -> None:
    said = [user("a"), assistant("b")]
    await roomy.ingest(reported(1, MODEL, limit_tokens=16_000), turn(9, *said, event_id="e"))
    await roomy.ingest(reported(10, MODEL, usage={"prompt_tokens": 20_000}, message_id="e#1"))

    await roomy.ingest(turn(5, *said, event_id="e"))
    await roomy.ingest(reported(11, "acme/other", limit_tokens=9_000))

    assert (await session_of(roomy)).limits == {MODEL: 20_000, "acme/other": 9_000}


@pytest.mark.proves("R5", "L3")
async def test_the_order_of_the_stream_decides_not_that_of_arrival(roomy: Stores) -> None:
    events = [
        turn(1, user("hello"), model=MODEL),
        reported(2, MODEL, limit_tokens=8_000),
        reported(3, MODEL, limit_tokens=16_000),
        reported(4, MODEL, usage={"prompt_tokens": 18_000}),
    ]

    for event in reversed(events):
        await roomy.ingest(event)

    assert await model_window(roomy) == 18_000


@pytest.mark.proves("R5", "L2", "L3")
async def test_a_call_whose_copy_came_first_proves_no_window_that_was_reported_after_it(
    roomy: Stores,
) -> None:
    usage = {"prompt_tokens": 20_000}
    await roomy.ingest(reported(5, MODEL, limit_tokens=16_000))
    await roomy.ingest(reported(6, MODEL, event_id="u", usage=usage))
    assert await model_window(roomy) == 20_000

    await roomy.ingest(reported(4, MODEL, event_id="u", usage=usage))

    assert await model_window(roomy) == 16_000
    assert await window_reasons(roomy) == ["limit", "success"]


@pytest.mark.proves("R5", "W6")
async def test_a_window_of_the_past_has_the_limit_of_then(roomy: Stores) -> None:
    await roomy.ingest(turn(1, user("a"), model=MODEL), turn(2, user("b"), model=MODEL))
    await roomy.ingest(reported(3, MODEL, limit_tokens=16_000), turn(4, user("c"), model=MODEL))
    await roomy.ingest(reported(5, MODEL, limit_tokens=8_000))

    assert await model_window(roomy) == 8_000
    # A larger call that succeeded later proved nothing then.
    await roomy.ingest(reported(6, MODEL, usage={"prompt_tokens": 18_000}))
    assert await model_window(roomy) == 18_000
    assert await model_window(roomy, as_of="e2#0") == 128_000
    assert await model_window(roomy, as_of="e4#0") == 16_000


@pytest.mark.proves("R5", "L2")
async def test_a_report_is_one_event_however_often_it_comes(roomy: Stores) -> None:
    await roomy.ingest(turn(1, user("a"), model=MODEL))
    await roomy.ingest(reported(9, MODEL, event_id="r", limit_tokens=16_000))
    await roomy.ingest(reported(5, MODEL, event_id="s", limit_tokens=8_000))
    assert await model_window(roomy) == 16_000

    await roomy.ingest(reported(12, MODEL, event_id="r", limit_tokens=16_000))
    await roomy.ingest(reported(3, MODEL, event_id="r", limit_tokens=16_000))
    await roomy.ingest(reported(13, MODEL, event_id="r", limit_tokens=4_000))

    # Its first place in the stream is before that of the other one.
    assert await model_window(roomy) == 8_000
    assert (await roomy.history.counts(KEY)).last_event_at_ms == NOON + 5
    (letter,) = await roomy.history.dead_letters(after=0, limit=9)
    assert (letter.stream_seq, letter.reason) == (13, "event_id_reused")
    seen = await roomy.seen()
    assert seen.sessions[KEY].counters.messages_total == 1
    assert faults(seen) == []


@pytest.mark.proves("R5", "L7")
async def test_a_report_is_no_message_and_may_be_the_first_event(roomy: Stores) -> None:
    await roomy.ingest(reported(1, MODEL, limit_tokens=16_000))

    told = await Asker(roomy).told()
    assert (told["window"]["model_window"], told["account"]["total"]) == (16_000, 0)
    assert await roomy.history.page(KEY, after_position=0, limit=9) == []
    assert (await roomy.facts()).ingested_to == 1


@pytest.mark.proves("R5", "X4")
async def test_erasing_forgets_what_was_reported(roomy: Stores) -> None:
    await roomy.ingest(turn(1, user("a"), model=MODEL), reported(2, MODEL, limit_tokens=16_000))

    await roomy.changes.erase(KEY, last_seq=2, now_ms=NOON + 9)
    await roomy.ingest(turn(3, user("b"), model=MODEL), reported(4, MODEL, event_id="e2"))

    assert await model_window(roomy) == 128_000
    await roomy.delete_rows()
    assert 2 in await roomy.erasures.to_purge(9)


@pytest.mark.proves("R5", "I5")
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"model": ""},
        {"model": "m" * 257},
        {"model": 7},
        {"model": "m", "limit_tokens": 0},
        {"model": "m", "limit_tokens": True},
        {"model": "m", "limit_tokens": 16_000.5},
        {"model": "m", "limit_tokens": 10**10},
        {"model": "m", "usage": 7},
        {"model": "m", "message_id": 7},
        {"model": "m", "message_id": "e#" + "9" * 9_999},
        {"model": "m", "is_overflow": "yes"},
    ],
)
def test_a_report_of_another_shape_is_a_dead_letter(fields: dict[str, Any]) -> None:
    identity = {"event_id": "e", "agent_id": KEY.agent_id, "session_id": KEY.session_id}
    subject = f"usage.reported.{KEY.agent_id}.{KEY.session_id}"
    payload = json.dumps(identity | fields).encode()

    batch = decode_batch([Delivery(subject, payload, 1, NOON)], count=len)

    assert [letter.reason for letter in batch.dead] == ["wrong_shape"]
    assert batch.dead[0].key == KEY


# --- compactions


@pytest.mark.proves("R5", "E1")
async def test_an_overflow_makes_a_compaction_due_and_the_audit_says_why(roomy: Stores) -> None:
    await roomy.ingest(*long_turns(1, 14))
    assert await fired(roomy) == []

    await roomy.ingest(reported(15, MODEL, limit_tokens=16_000, is_overflow=True))

    assert await fired(roomy) == [("usage", 14_000)]
    assert (await session_of(roomy)).live_tokens <= 16_000
    rows = await roomy.history.audit(KEY, after=0, limit=9)
    window, evicted = [row for row in rows if row.phase in ("window", "evicted")]
    assert (window.reason, json.loads(window.details)) == (
        "overflow",
        {"model": MODEL, "limit_tokens": 16_000, "event_id": "e15"},
    )
    details = json.loads(evicted.details)
    assert (details["trigger"], details["checkpoint"]) == ("usage", "report")
    assert evicted.at_ms == NOON + 15
    (job,) = await roomy.claim(NOON + 1_000)
    await roomy.jobs.commit(job, summary(), reason=None, now_ms=NOON + 2_000)
    assert (await session_of(roomy)).version == 1


@pytest.mark.proves("R5", "E1")
async def test_an_overflow_of_a_model_of_unknown_size_takes_part_of_what_is_live(
    roomy: Stores,
) -> None:
    await roomy.ingest(*long_turns(1, 10))

    await roomy.ingest(reported(11, MODEL, is_overflow=True))

    assert await fired(roomy) == [("usage", 10 * PAIR_TOKENS * 3 // 5)]
    assert (await session_of(roomy)).live_tokens <= 10 * PAIR_TOKENS * 3 // 5
    assert await model_window(roomy) == 128_000


@pytest.mark.proves("R5", "E1")
async def test_a_smaller_window_makes_the_token_trigger_fire_at_once(roomy: Stores) -> None:
    await override(
        roomy, max_live_messages=0, trigger_ratio=0.6, keep_tokens=20_000, min_gain_tokens=2_000
    )
    await roomy.ingest(*long_turns(1, 14))

    await roomy.ingest(reported(15, MODEL, limit_tokens=16_000))

    assert await fired(roomy) == [("tokens", 9_600)]


@pytest.mark.proves("R5", "E5")
async def test_no_overflow_is_answered_twice_and_none_evicts_in_vain(roomy: Stores) -> None:
    overflow: Json = {"limit_tokens": 16_000, "is_overflow": True}
    await roomy.ingest(*long_turns(1, 14), reported(15, MODEL, **overflow))

    # The summary is awaited: what fails now saw the window of before.
    await roomy.ingest(reported(16, MODEL, **overflow), reported(17, MODEL, **overflow))
    assert len(await fired(roomy)) == 1
    for number in range(5):
        for job in await roomy.claim(NOON + 10_000 * number + 1_000):
            await roomy.jobs.commit(job, summary(), reason=None, now_ms=NOON + 10_000 * number)
        at_ms = NOON + 10_000 * number + 5_000
        await roomy.ingest(reported(20 + number, MODEL, at_ms=at_ms, **overflow))

    # The second in a row keeps as little as the policy allows; then nothing is left to evict.
    rows = await roomy.history.audit(KEY, after=0, limit=99)
    escalated = [
        json.loads(row.details).get("is_escalated", False) for row in rows if row.phase == "evicted"
    ]
    assert escalated == [False, True]
    assert (await session_of(roomy)).live_messages >= 4


@pytest.mark.proves("R5", "L3")
async def test_a_batch_evicts_what_its_events_would_have_one_by_one(roomy: Stores) -> None:
    alone = SessionKey(AgentId("bob"), SessionId("one by one"))
    numbers = {"reserve_tokens": 2_000, "keep_tokens": 20_000, "min_gain_tokens": 2_000}
    await override(roomy, alone, max_live_messages=0, **numbers)

    def events(key: SessionKey) -> list[Any]:
        overflow: Json = {"limit_tokens": 16_000, "is_overflow": True, "key": key}
        return [
            *long_turns(1, 12, key=key),
            reported(13, MODEL, **overflow),
            *long_turns(14, 3, key=key),
            reported(17, MODEL, usage={"prompt_tokens": 9_000}, key=key),
            turn(18, user("so?"), model=MODEL, key=key),
        ]

    await roomy.ingest(*events(KEY))
    for event in events(alone):
        await roomy.ingest(event)

    seen = (await roomy.seen()).sessions
    left = [
        [one.message.message_id for one in seen[key].messages if one.message.compaction_id]
        for key in (KEY, alone)
    ]
    assert left[0] == left[1] != []


@pytest.mark.proves("L3")
async def test_a_copy_that_was_stored_first_leaves_the_model_of_a_later_event(
    roomy: Stores,
) -> None:
    await roomy.ingest(turn(9, user("hi"), event_id="e", model="gpt-4", metadata={"a": 1}))
    await roomy.ingest(turn(5, user("ho"), model="gpt-5"), turn(7, user("hu"), model=""))

    await roomy.ingest(turn(1, user("hi"), event_id="e", model="gpt-4"))
    assert (await session_of(roomy)).model == "gpt-5"

    await roomy.ingest(turn(3, user("late"), model="gpt-3"))
    assert (await session_of(roomy)).model == "gpt-5"


@pytest.mark.proves("E1", "L3", "T4")
@pytest.mark.parametrize("models", ["sssb", "bbbbbs", "sbsbssb", "bssssbbb"])
async def test_a_batch_evicts_by_the_models_that_its_events_name(
    stores: Stores, models: str
) -> None:
    installation = replace(
        stores.installation, model_window=lambda model, _: 400 if model == "s" else 4_000
    )
    numbers = {"trigger_ratio": 0.5, "keep_messages": 2, "min_gain_tokens": 20}

    def events(key: SessionKey) -> list[Any]:
        return [
            turn(
                seq,
                user("q" * 240),
                assistant("a" * 40),
                model=model,
                usage={"prompt_tokens": 100 * seq * (1 + (model == "b")), "completion_tokens": 5},
                key=key,
            )
            for seq, model in enumerate(models * 3, start=1)
        ]

    together, alone = (SessionKey(AgentId(name), KEY.session_id) for name in ("bob", "eve"))
    for key in (together, alone):
        await override(stores, key, max_live_messages=0, **numbers)
    await stores.intake.ingest(events(together), (), installation=installation)
    for event in events(alone):
        await stores.intake.ingest([event], (), installation=installation)

    seen = (await stores.seen()).sessions
    left = [
        [one.message.compaction_id is None for one in seen[key].messages]
        for key in (together, alone)
    ]
    pending = [(await stores.facts(key)).pending for key in (together, alone)]
    evicted = [[(one.messages, one.tokens) for one in rows] for rows in pending]
    assert left[0] == left[1]
    assert evicted[0] == evicted[1] != []
    assert seen[together].gauge.factor == seen[alone].gauge.factor


@pytest.mark.proves("R5", "E1")
@pytest.mark.parametrize(
    ("preset", "number"), [("static-buffer", 9), ("selective", 24), ("adaptive", 9), ("rolling", 9)]
)
async def test_an_overflow_counts_under_every_preset(
    stores: Stores, preset: str, number: int
) -> None:
    await override(stores, preset=preset)
    await stores.ingest(*long_turns(1, number))

    await stores.ingest(reported(25, MODEL, is_overflow=True))

    jobs = await stores.claim(NOON + 1_000)
    assert [job.key for job in jobs] == [KEY]
    (row,) = (await stores.seen()).sessions[KEY].rows
    assert row.trigger == "usage"


@pytest.mark.proves("R5")
@pytest.mark.parametrize("mode", ["manual", "off"])
async def test_where_nothing_evicts_by_itself_no_overflow_does(stores: Stores, mode: Any) -> None:
    request = PolicyRequest(mode=mode)
    await stores.changes.set_policy(KEY, request, installation=stores.installation, now_ms=NOON)
    await stores.ingest(*long_turns(1, 14))

    await stores.ingest(reported(15, MODEL, limit_tokens=16_000, is_overflow=True))

    assert await fired(stores) == []


@pytest.mark.proves("R5", "I7")
async def test_usage_that_is_reported_by_itself_sets_off_what_usage_of_a_turn_does(
    stores: Stores,
) -> None:
    await override(
        stores, max_live_messages=0, context_window=10_000, reserve_tokens=2_000, keep_tokens=50,
        min_gain_tokens=50,
    )  # fmt: skip
    await stores.ingest(*turns(1, 20))

    await stores.ingest(reported(21, MODEL, usage={"prompt_tokens": 8_000}))
    assert await fired(stores) == []
    await stores.ingest(reported(22, MODEL, usage={"prompt_tokens": 8_001}))

    assert await fired(stores) == [("usage", 8_000)]


@pytest.mark.proves("R5", "T4")
async def test_usage_that_is_reported_by_itself_teaches_the_factor(roomy: Stores) -> None:
    await override(roomy, keep_tokens=400)
    for number in range(6):
        prompt = 3_000 + 2_500 * number
        await roomy.ingest(
            turn(2 * number + 1, user("q" * 3_984), assistant("a" * 3_984)),
            reported(2 * number + 2, MODEL, usage={"prompt_tokens": prompt}),
        )
    await roomy.changes.compact_now(KEY, installation=roomy.installation, now_ms=NOON + 500)

    assert (await roomy.history.counts(KEY)).factor == 1.25


@pytest.mark.proves("R5", "T4")
async def test_usage_with_the_id_of_its_answer_teaches_what_usage_of_a_turn_does(
    roomy: Stores,
) -> None:
    other = SessionKey(AgentId("bob"), SessionId("by turns"))
    for key in (KEY, other):
        await override(roomy, key, keep_tokens=400)
    # Of very different sizes, so that only the right places give the right factor.
    sizes = [(900, 100), (80, 700), (1_200, 60), (50, 50), (400, 900)]
    seq, counted = 0, 0
    for question, answer in sizes:
        usage = {"prompt_tokens": 3_000 + (counted + question + 4) * 5 // 4}
        counted += question + answer + 8
        said = [user("q" * 4 * question), assistant("a" * 4 * answer)]
        by_turn = turn(seq + 1, *said, key=other, model=MODEL, usage=usage)
        by_itself = [
            turn(seq + 2, *said),
            turn(seq + 3, user("Go on.")),
            reported(seq + 4, MODEL, usage=usage, message_id=f"e{seq + 2}#1"),
            reported(seq + 5, MODEL, usage=usage, message_id=f"e{seq + 2}#1"),
        ]
        counted += 6
        await roomy.ingest(by_turn, turn(seq + 6, user("Go on."), key=other), *by_itself)
        seq += 6
    for key in (KEY, other):
        await roomy.changes.compact_now(key, installation=roomy.installation, now_ms=NOON + 500)

    factors = [(await roomy.history.counts(key)).factor for key in (KEY, other)]

    assert factors[0] == factors[1]
    assert 1.2 < factors[0] < 1.3


@pytest.mark.proves("R5")
@pytest.mark.parametrize(
    "message_id", ["e1#0", "e1#7", "e1#1024", "e9#0", "nothing", "#1", "\0#1", "\ud800#1"]
)
async def test_an_answer_that_nobody_published_leaves_a_report_in_its_place(
    roomy: Stores, message_id: str
) -> None:
    await roomy.ingest(turn(1, user("a"), assistant("b")), turn(9, assistant("later")))

    await roomy.ingest(
        reported(2, MODEL, limit_tokens=8_000),
        reported(3, MODEL, usage={"prompt_tokens": 9_000}, message_id=message_id),
    )

    assert (await session_of(roomy)).limits == {MODEL: 9_000}


@pytest.mark.proves("R5", "C65")
async def test_after_an_overflow_windows_hold_the_summary_and_recent_messages(
    stores: Stores,
) -> None:
    await override(stores, preset="balanced", **_balanced())
    await stores.ingest(
        *long_turns(1, 14), reported(15, MODEL, limit_tokens=16_000, is_overflow=True)
    )
    for job in await stores.claim(NOON + 1_000):
        await stores.jobs.commit(job, summary("They spoke."), reason=None, now_ms=NOON + 2_000)

    window = await Asker(stores).told(max_tokens=12_000)

    assert window["summary"]["version"] == 1
    assert window["account"]["shown"] >= 10
    assert window["account"]["folded"] == 0


def _balanced() -> dict[str, Any]:
    """The numbers of the preset, which the fixtures replace by smaller ones."""
    preset = Policy()
    names = ("max_live_messages", "keep_messages", "keep_tokens", "keep_at_most_messages")
    more = ("trigger_ratio", "reserve_tokens", "min_gain_messages", "min_gain_tokens")
    return {name: getattr(preset, name) for name in (*names, *more)}
