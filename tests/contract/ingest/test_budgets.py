"""The budgets of windows make compactions due, in every store."""

import json
from dataclasses import replace
from typing import Any

import pytest
import pytest_asyncio
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

from tests.contract.compact.versions import override
from tests.contract.query.test_context import Asker
from tests.store_fixtures import (
    KEY,
    NOON,
    Stores,
    assistant,
    installation_of,
    summary,
    turn,
    user,
)
from turnfold.contracts.hints import BudgetHint
from turnfold.core.eviction.triggers import FiredTrigger, Trigger
from turnfold.core.policy.presets import Policy
from turnfold.messages import AgentId, SessionKey
from turnfold.operations.query import planning
from turnfold.ports.compact import JobStatus

LONG = "x" * 4_000
TURN_TOKENS = 2_008
OTHER = SessionKey(AgentId("eve"), KEY.session_id)
NUMBERS: dict[str, Any] = {
    "max_live_messages": 0,
    "trigger_ratio": 0.5,
    "keep_messages": 2,
    "keep_tokens": 2_000,
    "min_gain_tokens": 2_000,
}


@pytest_asyncio.fixture(loop_scope="session")
async def followed(stores: Stores) -> Stores:
    """A store in whose session only tokens make messages leave: half of the window or budget."""
    await override(stores, **NUMBERS)
    return stores


async def follow(
    stores: Stores, *hints: BudgetHint, key: SessionKey = KEY, minute: float = 0
) -> int:
    now_ms = NOON + int(minute * 60_000)
    return await stores.budgets.follow(
        {key: hints}, installation=stores.installation, now_ms=now_ms
    )


def long_turns(first_seq: int, number: int, **more: Any) -> list[Any]:
    return [
        turn(seq, user(LONG), assistant(LONG), **more)
        for seq in range(first_seq, first_seq + number)
    ]


async def live_tokens(stores: Stores, key: SessionKey = KEY) -> int:
    session = (await stores.facts(key)).session
    assert session is not None
    return session.live_tokens


async def remembered(stores: Stores, key: SessionKey = KEY) -> list[int]:
    session = (await stores.facts(key)).session
    assert session is not None
    return [budget.tokens for budget in session.budgets if budget.tokens]


@pytest.mark.proves("E8", "E2", "A3", "V1")
async def test_a_budget_that_is_too_small_makes_messages_leave_at_once(followed: Stores) -> None:
    await followed.ingest(*long_turns(1, 8))

    opened = await follow(followed, BudgetHint(8_000, folded=10))

    assert opened == 1
    assert await live_tokens(followed) == TURN_TOKENS
    (_, evicted) = await followed.history.audit(KEY, after=0, limit=9)
    assert (evicted.phase, json.loads(evicted.details)["trigger"]) == ("evicted", "budget")
    (notice,) = await followed.outbox.unsent(9)
    told = json.loads(notice.payload)
    assert (told["trigger"], told["budget_tokens"]) == ("budget", 4_000)
    (shown,) = await followed.inspections.compactions_of(KEY, before=None, limit=9)
    assert shown.trigger == "budget"
    (job,) = await followed.claim()
    await followed.jobs.commit(job, summary(), reason=None, now_ms=NOON)
    assert await follow(followed, BudgetHint(8_000, folded=1)) == 0


@pytest.mark.proves("E8", "E1")
async def test_a_remembered_budget_counts_with_every_stored_event(followed: Stores) -> None:
    await followed.ingest(*long_turns(1, 1))
    await follow(followed, BudgetHint(8_000))

    await followed.ingest(*long_turns(2, 1))

    assert await live_tokens(followed) == TURN_TOKENS
    assert await remembered(followed) == [8_000]


@pytest.mark.proves("E8")
async def test_one_small_question_shrinks_nobodys_window(followed: Stores) -> None:
    await followed.ingest(*long_turns(1, 6))

    first = await follow(followed, BudgetHint(200_000), BudgetHint(3_000, folded=11))
    second = await follow(followed, BudgetHint(3_000, folded=11), minute=9)
    await followed.ingest(*long_turns(7, 1))

    assert (first, second) == (0, 0)
    assert await live_tokens(followed) == 7 * TURN_TOKENS
    assert await follow(followed, BudgetHint(3_000, folded=13), minute=11) == 1


@pytest.mark.proves("E8", "L2", "L3")
@pytest.mark.parametrize("size", [1, 2, 6])
async def test_what_a_batch_evicts_does_not_depend_on_its_size(followed: Stores, size: int) -> None:
    """The large budget is forgotten after ten minutes of the stream, amid these events."""
    await followed.ingest(*long_turns(1, 1))
    await follow(followed, BudgetHint(200_000))
    await follow(followed, BudgetHint(8_000), minute=8)
    events = [
        turn(seq, user(LONG), assistant(LONG), at_ms=NOON + seq * 150_000) for seq in range(2, 8)
    ]

    for first in range(0, len(events), size):
        await followed.ingest(*events[first : first + size])

    rows = await followed.history.audit(KEY, after=1, limit=99)
    assert [(row.at_ms - NOON) // 150_000 for row in rows if row.phase == "evicted"] == [5, 6, 7]


@pytest.mark.proves("E8")
async def test_budgets_are_forgotten_with_time(followed: Stores) -> None:
    await followed.ingest(*long_turns(1, 1))
    await follow(followed, BudgetHint(4_000))

    await followed.ingest(*long_turns(2, 4, at_ms=NOON + 601_000))

    assert await remembered(followed) == []
    assert await live_tokens(followed) == 5 * TURN_TOKENS


@pytest.mark.proves("E8")
async def test_a_budget_that_was_asked_for_while_a_clock_was_ahead_is_forgotten(
    followed: Stores,
) -> None:
    """E8: it would be the largest one until that time has come."""
    await followed.ingest(*long_turns(1, 8))
    await follow(followed, BudgetHint(200_000), minute=365 * 24 * 60)

    opened = await follow(followed, BudgetHint(8_000, folded=10))

    assert opened == 1
    assert await remembered(followed) == [8_000]


@pytest.mark.proves("E8", "E1")
@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("follows", [True, False])
async def test_a_session_whose_windows_were_asked_for_counts_as_read_for_good(
    stores: Stores, follows: bool, size: int
) -> None:
    stores = replace(stores, installation=installation_of(Policy())[0])
    await override(stores, follow_budget=follows)
    few = [turn(seq, user(f"question {seq}"), assistant(f"answer {seq}")) for seq in range(1, 25)]
    await stores.ingest(*few)
    first = await Asker(stores, Policy()).answer()
    assert first.hint is not None
    await follow(stores, first.hint)

    late = [
        turn(seq, user(f"question {seq}"), assistant(f"answer {seq}"), at_ms=NOON + 601_000 + seq)
        for seq in range(25, 37)
    ]
    for start in range(0, len(late), size):
        await stores.ingest(*late[start : start + size])

    session = (await stores.facts(KEY)).session
    assert session is not None
    assert session.live_messages == 72
    assert await remembered(stores) == []
    again = await Asker(stores, Policy()).answer()
    assert (again.hint is None) == (not follows)


@pytest.mark.proves("E8", "E5")
async def test_nothing_leaves_where_too_little_would_be_won(followed: Stores) -> None:
    await override(followed, keep_messages=7)
    await followed.ingest(*long_turns(1, 4))

    assert await follow(followed, BudgetHint(4_000, folded=5)) == 0
    assert await follow(followed, BudgetHint(4_000, folded=5)) == 0
    assert await live_tokens(followed) == 4 * TURN_TOKENS


@pytest.mark.proves("E8", "E6")
@pytest.mark.parametrize("change", [{"mode": "manual"}, {"mode": "off"}, {"follow_budget": False}])
async def test_a_policy_may_leave_budgets_alone(followed: Stores, change: dict[str, Any]) -> None:
    await followed.ingest(*long_turns(1, 6))
    await override(followed, **change)

    assert await follow(followed, BudgetHint(4_000, folded=9)) == 0
    assert await live_tokens(followed) == 6 * TURN_TOKENS
    assert await remembered(followed) == []


@pytest.mark.proves("E8", "E7")
async def test_messages_may_leave_with_their_summary(followed: Stores) -> None:
    await override(followed, commit="on_summary")
    await followed.ingest(*long_turns(1, 6))

    await follow(followed, BudgetHint(8_000, folded=9))
    assert await live_tokens(followed) == 6 * TURN_TOKENS
    (job,) = await followed.claim()
    assert job.planned == FiredTrigger(Trigger.BUDGET, 4_000)
    load = await followed.jobs.load(job, now_ms=NOON)
    assert load is not None


@pytest.mark.proves("E8", "E7")
@pytest.mark.parametrize(
    ("larger", "retried_ms", "limits"),
    [(8_000, 120_000, [4_000]), (50_000, 120_000, []), (None, 3_600_000, [4_000])],
)
async def test_a_plan_that_failed_takes_place_unless_a_larger_budget_was_asked_for(
    followed: Stores, larger: int | None, retried_ms: int, limits: list[int]
) -> None:
    await override(followed, commit="on_summary")
    await followed.ingest(*long_turns(1, 6))
    await follow(followed, BudgetHint(8_000, folded=9))
    (job,) = await followed.claim()
    await followed.jobs.fail(
        job, ending=JobStatus.FAILED, reason="timeout", detail="", now_ms=NOON + 1_000
    )

    if larger is not None:
        await follow(followed, BudgetHint(larger), minute=1)

    again = await followed.claim(NOON + retried_ms)
    assert [job.planned for job in again] == [
        FiredTrigger(Trigger.BUDGET, limit) for limit in limits
    ]


@pytest.mark.proves("E8", "L12")
async def test_a_hint_reaches_its_session_alone_and_creates_none(followed: Stores) -> None:
    await followed.ingest(*long_turns(1, 6))

    assert await follow(followed, BudgetHint(4_000, folded=9), key=OTHER) == 0

    assert await live_tokens(followed) == 6 * TURN_TOKENS
    assert (await followed.facts(OTHER)).session is None


@pytest.mark.proves("A6", "E8")
async def test_erasing_forgets_the_budgets(followed: Stores) -> None:
    await followed.ingest(*long_turns(1, 2))
    await follow(followed, BudgetHint(4_000))

    await followed.changes.erase(KEY, last_seq=2, now_ms=NOON)
    await follow(followed, BudgetHint(4_000))
    await followed.ingest(*long_turns(3, 1))

    assert await remembered(followed) == []


@pytest.mark.proves("E8", "O6")
async def test_a_worker_of_the_previous_revision_can_read_the_compaction(
    followed: Stores, store_url: str
) -> None:
    """It knows no trigger `budget`; the documented view tells the truth."""
    await followed.ingest(*long_turns(1, 6))
    await follow(followed, BudgetHint(8_000, folded=9))

    engine = create_async_engine(store_url)
    async with engine.connect() as connection:
        (row,) = (await connection.execute(text("SELECT trigger FROM compactions"))).all()
        (seen,) = (await connection.execute(text("SELECT trigger FROM compactions_view"))).all()
    await engine.dispose()

    assert (row.trigger, seen.trigger) == ("tokens", "budget")


# --- what a query server tells


@pytest.mark.proves("E8")
@pytest.mark.parametrize("shape", ["openai", "anthropic", "responses"])
async def test_a_window_says_what_a_worker_has_to_know_until_it_does(
    followed: Stores, shape: str
) -> None:
    await followed.ingest(*long_turns(1, 6))
    asker = Asker(followed)

    large = await asker.answer(max_tokens=200_000, format=shape)
    small = await asker.answer(max_tokens=5_000, format=shape)
    again = await asker.answer(max_tokens=5_000, format=shape)
    unchanged = await asker.answer(max_tokens=5_000, format=shape, etag=again.etag)

    assert large.hint == BudgetHint(200_000)
    assert small.hint is not None
    assert small.account is not None
    assert small.account.folded > 0
    assert small.hint == BudgetHint(5_000, small.account.folded)
    assert again.hint == unchanged.hint == small.hint
    assert not unchanged.is_modified


@pytest.mark.proves("E8")
async def test_a_window_says_nothing_that_is_known(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The clock of the tests is not that of the query server.
    monkeypatch.setattr(planning, "now_ms", lambda: NOON)
    policy = Policy(max_live_messages=0)
    await stores.ingest(*long_turns(1, 2))
    asker = Asker(stores, policy)
    hint = BudgetHint(115_712)
    assert (await asker.answer()).hint == hint

    await follow(stores, hint)

    assert (await asker.answer()).hint is None
    assert (await asker.answer(max_tokens=9_000)).hint is None
    assert (await asker.answer(max_tokens=3_000)).hint is None
    assert (await asker.answer(max_tokens=300_000)).hint == BudgetHint(300_000)


@pytest.mark.proves("E8", "W6", "W7")
@pytest.mark.parametrize(
    "request_fields",
    [
        {"mode": "emergency"},
        {"as_of": "e2#0"},
        {"as_of": "2099-01-01T00:00:00Z"},
    ],
)
async def test_emergency_windows_and_those_of_the_past_do_not_count(
    followed: Stores, request_fields: dict[str, Any]
) -> None:
    await followed.ingest(*long_turns(1, 6))

    answer = await Asker(followed).answer(max_tokens=5_000, **request_fields)

    assert answer.hint is None


@pytest.mark.proves("E8")
async def test_a_limit_on_messages_is_no_budget(followed: Stores) -> None:
    await followed.ingest(*long_turns(1, 6))

    answer = await Asker(followed).answer(max_tokens=100_000, max_messages=4)

    assert answer.account is not None
    assert answer.account.folded > 0
    assert answer.hint == BudgetHint(100_000)
