"""What reported usage does, in every store: the factor it teaches, and the evictions it sets off."""

import json
from base64 import b64encode
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
import pytest_asyncio

from tests.contract.compact.versions import override
from tests.store_fixtures import (
    KEY,
    NOON,
    Stores,
    assistant,
    result,
    retracted,
    summary,
    system,
    tool,
    turn,
    user,
)
from turnfold.contracts.requests import (
    ContextRequest,
)
from turnfold.core.eviction.usage import REPORTS_LOOKED_AT
from turnfold.messages import AgentId, SessionId, SessionKey
from turnfold.operations.query.context import context
from turnfold.operations.query.environment import QueryEnvironment
from turnfold.operations.query.history import session as status
from turnfold.ports.compact import RegenerateOptions
from turnfold.ports.ingest import DecodedEvent

MODEL = "acme/verbose-1"
QUESTION, ANSWER = "q" * 184, "a" * 184
LONG = "x" * 384
PAIR_TOKENS = 200
"""What two long messages count here."""
UNSEEN_TOKENS = 3_000
"""What the agent sends besides: a system prompt and tools that were never published."""


def reporting(
    number: int,
    *,
    ratio: float = 1.25,
    key: SessionKey = KEY,
    first_seq: int = 1,
    model: str | None = MODEL,
    step: int = 1,
) -> list[DecodedEvent]:
    """Turns with reports of a provider that counts so many times what is counted here."""
    made = []
    for index in range(number):
        # Everything before the answer: the earlier pairs, and the question.
        prompt = UNSEEN_TOKENS + round(ratio * PAIR_TOKENS * (index + 0.5))
        usage = {"prompt_tokens": prompt, "completion_tokens": round(ratio * PAIR_TOKENS / 2)}
        made.append(
            turn(
                first_seq + index * step,
                user(LONG),
                assistant(LONG),
                key=key,
                model=model,
                usage=usage,
            )
        )
    return made


async def factor(stores: Stores, key: SessionKey = KEY) -> float:
    return (await stores.history.counts(key)).factor


async def compacted(stores: Stores, key: SessionKey = KEY, now_ms: int = NOON + 500) -> None:
    """Evict and summarise what may leave."""
    await stores.changes.compact_now(key, installation=stores.installation, now_ms=now_ms)
    for job in await stores.claim(now_ms + 1_000):
        await stores.jobs.commit(job, summary(), reason=None, now_ms=now_ms + 1_000)


# --- the factor


@pytest.mark.proves("T4", "L11")
async def test_the_factor_is_learnt_from_reports_and_takes_force_with_an_eviction(
    stores: Stores,
) -> None:
    await override(stores, max_live_messages=0)
    await stores.ingest(*reporting(8))
    assert await factor(stores) == 1.0

    await stores.changes.compact_now(KEY, installation=stores.installation, now_ms=NOON + 500)

    assert await factor(stores) == 1.25
    told = await status(KEY, None, store=stores.history)  # type: ignore[arg-type]  # it takes no fields
    assert told["factor"] == 1.25


@pytest.mark.proves("T4", "L11")
async def test_an_eviction_within_a_batch_learns_the_factor_too(stores: Stores) -> None:
    await override(stores, max_live_messages=15, keep_tokens=0, keep_messages=2)

    await stores.ingest(*reporting(8))

    assert (await stores.history.counts(KEY)).compactions == 1
    assert await factor(stores) == 1.25


@pytest.mark.proves("T4", "L11")
async def test_a_new_version_brings_what_was_learnt_since_the_eviction(stores: Stores) -> None:
    await override(stores, max_live_messages=0)
    await stores.ingest(*reporting(3))
    await stores.changes.compact_now(KEY, installation=stores.installation, now_ms=NOON + 4)
    other = SessionKey(KEY.agent_id, SessionId("s-2"))
    await override(stores, other, max_live_messages=0)
    await stores.ingest(*reporting(9, key=other, first_seq=10, ratio=1.5))
    assert await factor(stores) == 1.0

    (job,) = await stores.claim()
    await stores.jobs.commit(job, summary(), reason=None, now_ms=NOON + 1_000)

    assert await factor(stores) == 1.5


@pytest.mark.proves("T4")
@pytest.mark.parametrize(
    ("later", "learnt"), [(REPORTS_LOOKED_AT - 3, 1.25), (REPORTS_LOOKED_AT - 2, 1.0)]
)
async def test_the_factor_is_learnt_from_the_newest_reports_of_an_agent_and_not_from_older_ones(
    stores: Stores, later: int, learnt: float
) -> None:
    """Three differences are needed; later reports show no growth, and so teach nothing."""
    await override(stores, max_live_messages=0)
    await stores.ingest(*reporting(4))
    for seq in range(5, 5 + later):
        usage = {"prompt_tokens": UNSEEN_TOKENS, "completion_tokens": 1}
        await stores.ingest(turn(seq, user("a"), assistant("b"), model=MODEL, usage=usage))

    await compacted(stores)

    assert await factor(stores) == learnt


@pytest.mark.proves("T4")
async def test_a_new_session_begins_with_what_its_agent_has_learnt(stores: Stores) -> None:
    new, other = (
        SessionKey(KEY.agent_id, SessionId("new")),
        SessionKey(KEY.agent_id, SessionId("other")),
    )
    await override(stores, max_live_messages=0)
    await stores.ingest(*reporting(8, ratio=1.75))

    await stores.ingest(turn(50, user("hello"), key=new))
    assert await factor(stores, new) == 1.0
    await stores.ingest(
        turn(51, assistant("hello"), key=new, model=MODEL),
        turn(52, user("hi"), key=other, model="acme/unheard-of"),
    )

    assert (await factor(stores, new), await factor(stores, other), await factor(stores)) == (
        1.75,
        1.0,
        1.0,
    )


@pytest.mark.proves("T5", "T4")
async def test_windows_are_billed_by_the_factor_and_what_is_stored_stays_as_counted(
    stores: Stores,
) -> None:
    await override(stores, max_live_messages=0)
    await stores.ingest(*reporting(8))
    await compacted(stores)

    request = ContextRequest(max_tokens=50_000, wait_ms=0)
    environment = QueryEnvironment(stores.policy, stores.installation.model_window)
    nobody_waits: Any = None
    answer = await context(
        KEY, request, store=stores.windows, environment=environment, ingest_signal=nobody_waits
    )

    counts = await stores.history.counts(KEY)
    (version,) = (await stores.history.versions(KEY))[1]
    shown = json.loads(answer.body)["window"]["tokens"]
    assert counts.tokens_live == 2 * PAIR_TOKENS
    assert 1.25 * counts.tokens_live < shown < 1.25 * (counts.tokens_live + version.tokens + 150)


@pytest.mark.proves("T4", "L2", "L3")
@pytest.mark.parametrize("seed", range(3))
async def test_in_whatever_order_and_however_often_reports_come_they_teach_the_same(
    stores: Stores, seed: int
) -> None:
    random = Random(seed)
    other = SessionKey(KEY.agent_id, SessionId("s-2"))
    events = reporting(9, ratio=1.2, step=2) + reporting(
        6, ratio=1.7, key=other, first_seq=2, step=2
    )
    await override(stores, max_live_messages=0)
    await override(stores, other, max_live_messages=0)
    arriving = [*events, *random.choices(events, k=5)]
    random.shuffle(arriving)

    while arriving:
        size = random.randint(1, 6)
        await stores.ingest(*arriving[:size])
        arriving = arriving[size:]
    await stores.changes.compact_now(KEY, installation=stores.installation, now_ms=NOON + 500)

    # Eight differences of 1.2 and five of 1.7.
    assert await factor(stores) == 1.2


@pytest.mark.proves("T4", "I7", "L3")
async def test_a_report_whose_copy_stands_earlier_in_the_stream_counts_once_and_there(
    stores: Stores,
) -> None:
    await override(stores, max_live_messages=0)
    events = reporting(6, step=2)
    late = events[2]._replace(stream_seq=40, at_ms=NOON + 40)
    await stores.ingest(*events[:2], *events[3:], late)

    await stores.ingest(events[2])

    newest = await stores.history.counts(KEY)
    assert newest.reported_tokens == getattr(events[-1].report, "tokens", None)
    await stores.changes.compact_now(KEY, installation=stores.installation, now_ms=NOON + 500)
    assert await factor(stores) == 1.25


@pytest.mark.proves("T4", "L12")
async def test_what_one_agent_reports_teaches_no_other(stores: Stores) -> None:
    stranger = SessionKey(AgentId("bob"), KEY.session_id)
    await override(stores, max_live_messages=0)
    await override(stores, stranger, max_live_messages=0)
    await stores.ingest(*reporting(8, ratio=2.4, key=stranger, first_seq=100))
    await stores.ingest(*reporting(8, ratio=1.1))

    await stores.changes.compact_now(KEY, installation=stores.installation, now_ms=NOON + 500)
    await stores.changes.compact_now(stranger, installation=stores.installation, now_ms=NOON + 500)

    assert (await factor(stores), await factor(stores, stranger)) == (1.1, 2.4)


@pytest.mark.proves("L1", "I2")
async def test_a_turn_is_stored_however_long_the_name_of_its_model_is(stores: Stores) -> None:
    name = b64encode(Random(1).randbytes(6_000)).decode()

    await stores.ingest(*reporting(8, ratio=1.6, model=name))

    await override(stores, max_live_messages=0)
    await stores.changes.compact_now(KEY, installation=stores.installation, now_ms=NOON + 500)
    assert await factor(stores) == 1.6


@pytest.mark.proves("T4")
async def test_each_model_has_a_factor_of_its_own(stores: Stores) -> None:
    await override(stores, max_live_messages=0)
    await stores.ingest(
        *reporting(8, ratio=1.6), *reporting(8, ratio=0.9, first_seq=20, model="acme/terse-1")
    )

    await stores.changes.compact_now(KEY, installation=stores.installation, now_ms=NOON + 500)

    assert await factor(stores) == 0.9


@pytest.mark.proves("T4", "G1")
async def test_reports_that_counted_what_was_retracted_teach_nothing(stores: Stores) -> None:
    await override(stores, max_live_messages=0)
    await stores.ingest(*reporting(8, ratio=1.6), retracted(9, "e1#0"))
    await stores.ingest(*reporting(8, ratio=0.9, first_seq=20))

    await stores.changes.compact_now(KEY, installation=stores.installation, now_ms=NOON + 500)

    assert await factor(stores) == 0.9


@pytest.mark.proves("T4")
async def test_differences_with_a_compaction_between_them_teach_nothing(stores: Stores) -> None:
    await override(stores, max_live_messages=0)
    await stores.ingest(*reporting(2))
    await compacted(stores, now_ms=NOON - 998)
    # The agent now sends a summary in place of what left: the report after it grew by something else.
    await stores.ingest(*reporting(2, first_seq=10), *reporting(4, first_seq=20, ratio=1.5))

    await stores.changes.compact_now(KEY, installation=stores.installation, now_ms=NOON + 500)

    assert await factor(stores) == 1.5


@pytest.mark.proves("T4", "I1")
async def test_what_lies_between_two_reports_is_what_a_window_would_show(stores: Stores) -> None:
    await override(stores, max_live_messages=0)
    events: list[DecodedEvent] = []
    prompt = UNSEEN_TOKENS
    for number in range(5):
        seq, call = 10 * number + 1, f"c{number}"
        # A result by itself and once more inside its turn is shown once: 4 + 46 tokens.
        events.append(
            turn(
                seq,
                user(QUESTION),
                assistant(None, call),
                model=MODEL,
                usage={"prompt_tokens": prompt + 60},
            )
        )
        events.append(result(seq + 1, call, "r" * 184))
        events.append(
            turn(
                seq + 2,
                tool(call, "r" * 184),
                assistant(ANSWER),
                model=MODEL,
                usage={"prompt_tokens": prompt + 60 + 2 * 63},
            )
        )
        prompt += 60 + 2 * 63 + 70
    await stores.ingest(*events)
    calling = next(message for message in (await stores.facts()).messages if message.calls)

    await stores.changes.compact_now(KEY, installation=stores.installation, now_ms=NOON + 500)

    # Half of the nine differences hold a call and one result, half an answer and a question.
    expected = [126 / (calling.tokens + 50), 130 / 100]
    assert await factor(stores) in [pytest.approx(one, abs=1e-4) for one in expected]


@pytest.mark.proves("T4")
async def test_a_new_system_message_and_reasoning_between_reports_teach_nothing(
    stores: Stores,
) -> None:
    await override(stores, max_live_messages=0)
    odd: list[DecodedEvent] = []
    for number in range(6):
        usage = {"prompt_tokens": UNSEEN_TOKENS + 1_000 * number}
        more = [system("be brief")] if number % 2 else []
        odd.append(
            turn(
                number + 1,
                *more,
                user("go on"),
                assistant("ok", reasoning_content="hm"),
                model=MODEL,
                usage=usage,
            )
        )
    await stores.ingest(*odd)

    await stores.changes.compact_now(KEY, installation=stores.installation, now_ms=NOON + 500)

    assert await factor(stores) == 1.0


# --- the trigger


def full(seq: int, tokens: int = 9_000, **more: Any) -> DecodedEvent:
    """A turn after which the provider says that the window is full."""
    return turn(
        seq,
        user(QUESTION),
        assistant(ANSWER),
        usage={"prompt_tokens": tokens, "completion_tokens": 50},
        **more,
    )


async def triggers(stores: Stores) -> Sequence[tuple[str, int]]:
    told = [json.loads(notice.payload) for notice in await stores.outbox.unsent(99)]
    return [(one["trigger"], one["budget_tokens"]) for one in told if "trigger" in one]


@pytest_asyncio.fixture(loop_scope="session")
async def metered(stores: Stores) -> Stores:
    """A store whose session has a model of 10,000 tokens, of which 2,000 are kept in reserve, and six turns in it."""
    await override(
        stores,
        max_live_messages=0,
        context_window=10_000,
        reserve_tokens=2_000,
        keep_tokens=400,
        min_gain_tokens=150,
    )
    await stores.ingest(*[turn(seq, user(QUESTION), assistant(ANSWER)) for seq in range(1, 7)])
    return stores


@pytest.mark.proves("I7", "E1")
async def test_a_report_of_a_full_window_evicts_with_the_event_that_brings_it(
    metered: Stores,
) -> None:
    await metered.ingest(full(7, 7_950))
    assert await triggers(metered) == []

    await metered.ingest(full(8, 7_951))

    assert await triggers(metered) == [("usage", 8_000)]
    assert (await metered.history.counts(KEY)).messages_live == 8


@pytest.mark.proves("C29", "I7")
async def test_a_report_from_before_the_last_compaction_triggers_nothing(metered: Stores) -> None:
    await compacted(metered, now_ms=NOON + 20)
    before = await triggers(metered)

    # Published before the compaction, ingested after it; then turns without reports.
    await metered.ingest(full(12))
    await metered.ingest(
        *[turn(seq, user(QUESTION), assistant(ANSWER)) for seq in range(1_100, 1_110)]
    )

    assert await triggers(metered) == before
    await metered.ingest(full(1_200))
    assert await triggers(metered) == [*before, ("usage", 8_000)]


@pytest.mark.proves("C29", "C28")
async def test_while_evicted_messages_wait_for_their_summary_reports_trigger_nothing(
    metered: Stores,
) -> None:
    await metered.ingest(full(8))

    await metered.ingest(*[full(seq) for seq in range(9, 15)])

    assert await triggers(metered) == [("usage", 8_000)]


@pytest.mark.proves("G1", "L3", "T4")
@pytest.mark.parametrize("named", ["e1#0", "e8#0"])
@pytest.mark.parametrize("sequences", [[[8, 9]], [[9], [8]]])
async def test_a_report_counts_no_more_after_a_retraction_whenever_it_comes(
    metered: Stores, sequences: list[list[int]], named: str
) -> None:
    events = {8: full(8), 9: retracted(9, named)}

    for batch in sequences:
        await metered.ingest(*[events[seq] for seq in batch])
    await metered.ingest(*[turn(seq, user(QUESTION), assistant(ANSWER)) for seq in (10, 11)])

    assert await triggers(metered) == []
    assert (await metered.history.counts(KEY)).reported_tokens == 0


@pytest.mark.proves("G1", "L3", "T4")
async def test_a_retraction_that_comes_late_leaves_the_report_after_it(metered: Stores) -> None:
    await metered.ingest(full(10, 7_000))

    await metered.ingest(retracted(9, "e1#0"))

    assert (await metered.history.counts(KEY)).reported_tokens == 7_050


async def regenerated(stores: Stores, now_ms: int) -> None:
    """Ask for another version beside the one in force."""
    await stores.versions.regenerate(
        KEY, RegenerateOptions(), installation=stores.installation, now_ms=now_ms
    )


@pytest.mark.proves("C29", "I7")
async def test_a_regeneration_hides_no_eviction_that_waits_for_its_summary(metered: Stores) -> None:
    await compacted(metered, now_ms=NOON + 20)
    await metered.ingest(full(2_000), full(2_001))
    evicted = await triggers(metered)
    assert evicted[-1] == ("usage", 8_000)

    await regenerated(metered, NOON + 2_005)
    await metered.ingest(*[full(seq) for seq in range(2_010, 2_016)])

    assert await triggers(metered) == evicted


@pytest.mark.proves("C29", "I7")
async def test_a_restored_eviction_hides_no_older_one_that_waits(metered: Stores) -> None:
    await metered.ingest(full(8))
    await metered.ingest(*[turn(seq, user(LONG), assistant(LONG)) for seq in range(9, 12)])
    newest = await metered.changes.compact_now(
        KEY, installation=metered.installation, now_ms=NOON + 20
    )
    assert newest is not None
    await metered.versions.restore(KEY, newest, installation=metered.installation, now_ms=NOON + 30)
    evicted = await triggers(metered)

    await metered.ingest(*[full(seq) for seq in range(50, 56)])

    assert await triggers(metered) == evicted


@pytest.mark.proves("C29", "I7")
async def test_a_regeneration_makes_no_report_stale(metered: Stores) -> None:
    await compacted(metered, now_ms=NOON + 20)
    before = await triggers(metered)

    await regenerated(metered, NOON + 50_000)
    await metered.ingest(full(2_000), full(2_001))

    assert await triggers(metered) == [*before, ("usage", 8_000)]


@pytest.mark.proves("C31", "E5")
async def test_a_window_that_stays_full_is_compacted_escalated_and_then_left_alone(
    metered: Stores,
) -> None:
    seen = []
    for number in range(1, 7):
        at_ms = NOON + 10_000 * number
        await metered.ingest(*[full(100 * number + one, at_ms=at_ms + one) for one in range(3)])
        for job in await metered.claim(at_ms + 1_000):
            await metered.jobs.commit(job, summary(), reason=None, now_ms=at_ms + 1_000)
        told = await status(KEY, None, store=metered.history)  # type: ignore[arg-type]  # it takes no fields
        seen.append(told["usage"]["state"])

    assert await triggers(metered) == [("usage", 8_000)] * 2
    assert seen == ["compacted", *["escalated"] * 5]
    rows = [
        json.loads(row.details)
        for row in await metered.history.audit(KEY, after=0, limit=99)
        if row.phase == "evicted"
    ]
    assert [row.get("is_escalated", False) for row in rows] == [False, True]

    await metered.ingest(full(900, 500, at_ms=NOON + 100_000))

    told = await status(KEY, None, store=metered.history)  # type: ignore[arg-type]  # it takes no fields
    assert told["usage"] == {"state": "calm", "reported_tokens": 550}


@pytest.mark.proves("I7", "L3")
async def test_a_batch_of_reports_evicts_what_its_events_would_have_one_by_one(
    metered: Stores,
) -> None:
    alone = SessionKey(AgentId("bob"), SessionId("one by one"))
    await override(
        metered,
        alone,
        max_live_messages=0,
        context_window=10_000,
        reserve_tokens=2_000,
        keep_tokens=400,
        min_gain_tokens=150,
    )
    told = [500, 9_000, 9_000, 700, 9_000]
    await metered.ingest(
        *[full(20 + number, tokens, model=MODEL) for number, tokens in enumerate(told)]
    )

    for seq in range(31, 37):
        await metered.ingest(turn(seq, user(QUESTION), assistant(ANSWER), key=alone))
    for number, tokens in enumerate(told):
        await metered.ingest(full(40 + number, tokens, key=alone, model=MODEL))

    sessions = (await metered.seen()).sessions
    one, other = sessions[KEY], sessions[alone]
    assert (
        [row.messages_evicted for row in one.rows]
        == [row.messages_evicted for row in other.rows]
        == [8]
    )
    assert one.gauge._replace(seq=0, at_ms=0) == other.gauge._replace(seq=0, at_ms=0)


@pytest.mark.proves("T1", "E1")
async def test_a_window_of_zero_switches_the_usage_trigger_off(metered: Stores) -> None:
    await override(metered, context_window=0)

    await metered.ingest(full(8, 10**6))

    assert await triggers(metered) == []


@pytest.mark.proves("T1", "L3")
async def test_a_session_begins_with_the_factor_of_the_model_that_it_named_first(
    stores: Stores,
) -> None:
    teacher, alone, batch = (SessionKey(KEY.agent_id, SessionId(name)) for name in "tab")
    await stores.ingest(*reporting(12, key=teacher, ratio=1.5))

    def named(first_seq: int, key: SessionKey) -> list[DecodedEvent]:
        said = user("q"), assistant("a")
        return [
            turn(first_seq + number, *said, key=key, model=model)
            for number, model in enumerate((MODEL, "acme/other"))
        ]

    for event in named(100, alone):
        await stores.ingest(event)
    await stores.ingest(*named(200, batch))

    seen = (await stores.seen()).sessions
    assert seen[alone].gauge.factor == seen[batch].gauge.factor > 1
