"""When old messages leave the window, and which."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnfold.core.eviction.batch import plan_evictions
from turnfold.core.eviction.choose import decide_eviction
from turnfold.core.eviction.triggers import (
    FiredTrigger,
    SessionLoad,
    Trigger,
    TriggerLimits,
    token_trigger,
)
from turnfold.core.history.blocks import group, newest_request, pinned_message
from turnfold.core.policy.presets import PRESETS, Commit, Mode, Policy, Style
from turnfold.messages import CallRef, EventId, Message, Role, ToolCall, position_of

POLICY = Policy(
    max_live_messages=20, keep_messages=4, keep_tokens=0, keep_at_most_messages=0, trigger_ratio=0.0, reserve_tokens=0,
    min_gain_messages=1, min_gain_tokens=1,
)  # fmt: skip
HOUR_MS = 3_600_000


def due(load: SessionLoad, policy: Policy, *, model_window: int) -> FiredTrigger | None:
    """The first trigger that fires."""
    return next(iter(TriggerLimits.of(policy, model_window=model_window).fired(load)), None)


def said(*entries: Any, tokens: int = 100) -> list[Message]:
    """Messages, one an event: a role, or a role and the ids it calls, or `tool` and the id it answers; `meta` is a machine's user."""
    messages: list[Message] = []
    calling: dict[str, CallRef] = {}
    for seq, entry in enumerate(entries, start=1):
        role, *ids = entry.split()
        position = position_of(seq, 0)
        message = Message(
            position,
            EventId(f"e{seq}"),
            0,
            Role("user" if role == "meta" else role),
            tokens,
            is_meta=role == "meta",
            created_at_ms=seq,
        )
        if role == "assistant":
            message = replace(
                message,
                calls=tuple(
                    ToolCall(slot, call_id, "look_up", 5) for slot, call_id in enumerate(ids)
                ),
            )
            calling |= {call_id: CallRef(position, slot) for slot, call_id in enumerate(ids)}
        if role == "tool" and ids:
            message = replace(message, answers=calling.pop(ids[0], None))
        messages.append(message)
    return messages


def rounds(number: int) -> list[str]:
    return ["user", "assistant"] * number


def steps(number: int) -> list[str]:
    return [entry for step in range(number) for entry in (f"assistant c{step}", f"tool c{step}")]


def evicted(
    live: Sequence[Message],
    policy: Policy = POLICY,
    trigger: Trigger = Trigger.MESSAGES,
    *,
    now_ms: int = 0,
) -> list[int]:
    """The sequences that leave."""
    leaving = decide_eviction(live, policy, trigger, now_ms=now_ms)
    return [message.stream_seq for message in leaving]


# --- triggers


@pytest.mark.proves("E1")
def test_a_trigger_fires_above_its_limit_and_not_at_it() -> None:
    policy = replace(POLICY, trigger_tokens=1_000)

    assert due(SessionLoad(20, 1_000), policy, model_window=8_000) is None
    assert due(SessionLoad(21, 1_000), policy, model_window=8_000) == FiredTrigger(
        Trigger.MESSAGES, 1_000
    )
    assert due(SessionLoad(20, 1_001), policy, model_window=8_000) == FiredTrigger(
        Trigger.TOKENS, 1_000
    )


@pytest.mark.proves("E1")
def test_of_two_token_limits_the_smaller_counts_and_zero_is_none() -> None:
    assert (
        token_trigger(replace(POLICY, trigger_tokens=5_000, trigger_ratio=0.5), model_window=8_000)
        == 4_000
    )
    assert (
        token_trigger(replace(POLICY, trigger_tokens=3_000, trigger_ratio=0.5), model_window=8_000)
        == 3_000
    )
    assert (
        token_trigger(replace(POLICY, trigger_tokens=0, trigger_ratio=0.0), model_window=8_000) == 0
    )


@pytest.mark.proves("E1", "T1")
def test_a_context_window_of_zero_switches_the_token_triggers_off() -> None:
    policy = replace(POLICY, trigger_tokens=10, trigger_ratio=0.5)

    assert due(SessionLoad(1, 10**9), policy, model_window=0) is None


@pytest.mark.proves("E6")
@pytest.mark.parametrize("mode", [Mode.OFF, Mode.MANUAL])
def test_nothing_fires_unless_the_mode_is_auto(mode: Mode) -> None:
    assert due(SessionLoad(10**6, 10**9), replace(POLICY, mode=mode), model_window=8_000) is None


# --- what stays


@pytest.mark.proves("E3", "C27")
def test_the_newest_stay_from_a_user_message_on() -> None:
    fifty_five = said(*rounds(27), "user")

    gone = evicted(fifty_five, PRESETS["static-buffer"])

    assert gone == list(range(1, 45))
    assert fifty_five[44].role is Role.USER


@pytest.mark.proves("E3", "C3")
def test_one_request_and_two_hundred_steps_still_shrink_between_two_blocks() -> None:
    live = said("user", *steps(200))

    gone = evicted(live, PRESETS["static-buffer"])

    assert 1 not in gone
    assert len(gone) >= 380
    assert {400, 401}.isdisjoint(gone)
    assert len(gone) % 2 == 0


@pytest.mark.proves("E3", "C2")
def test_parallel_calls_leave_or_stay_with_all_their_results() -> None:
    live = said("user", "assistant a b c", "tool a", "tool b", "tool c", "user", "assistant")

    for keep in range(1, 8):
        gone = set(evicted(live, replace(POLICY, keep_messages=keep)))
        assert {2, 3, 4, 5} <= gone or {2, 3, 4, 5}.isdisjoint(gone)


@pytest.mark.proves("C5")
def test_of_twelve_requests_at_least_those_to_keep_stay() -> None:
    assert evicted(said(*["user"] * 12), replace(POLICY, keep_messages=3)) == list(range(1, 10))


@pytest.mark.proves("C4")
@pytest.mark.parametrize("entry", ["assistant", "meta", "system"])
def test_of_messages_of_one_role_the_newest_stay(entry: str) -> None:
    live = said(*[entry] * 30)

    gone = evicted(live)

    assert 30 not in gone
    assert len(gone) in (0, 26)


@pytest.mark.proves("C4")
def test_results_that_nobody_called_for_never_all_leave() -> None:
    assert len(evicted(said(*["tool"] * 30))) < 30


@pytest.mark.proves("I6", "E3")
def test_the_pinned_message_message_stays_and_older_ones_leave() -> None:
    gone = evicted(said("system", "system", *rounds(10)))

    assert 1 in gone
    assert 2 not in gone


@pytest.mark.proves("W4", "E3")
def test_the_newest_request_stays_however_old_it_is() -> None:
    live = said("user", "user", *["meta", "assistant"] * 10)

    gone = evicted(live)

    assert 1 in gone
    assert 2 not in gone


@pytest.mark.proves("E3", "E4", "C6")
def test_an_open_call_stays_until_its_time_is_up() -> None:
    live = said("user", "assistant a b", "tool a", *rounds(10))

    assert {2, 3}.isdisjoint(evicted(live, now_ms=HOUR_MS))
    assert {2, 3} <= set(evicted(live, now_ms=HOUR_MS + 2))


@pytest.mark.proves("E3", "W11", "C67")
def test_the_request_of_an_open_call_stays_as_long_as_the_call() -> None:
    live = said("user", "assistant a b", "tool a", "assistant", *rounds(10))

    assert [seq for seq in range(1, 5) if seq not in evicted(live, now_ms=HOUR_MS)] == [1, 2, 3]
    assert {1, 2, 3, 4} <= set(evicted(live, now_ms=HOUR_MS + 2))


@pytest.mark.proves("E3", "W11", "C67")
def test_the_request_of_a_long_turn_stays_until_its_last_block_leaves() -> None:
    live = said("user", *steps(30), "user", "assistant")

    first = evicted(live)
    left = [message for message in live if message.stream_seq not in first]

    assert 1 not in first
    assert {2, 3, 4, 5} <= set(first)
    asked_again = [*left, *said(*["user"] * 62, "user", "assistant", "user", "assistant")[62:]]
    assert 1 in evicted(asked_again)


@pytest.mark.proves("E3", "I6", "W11")
def test_a_machine_made_message_keeps_no_request_of_its_own() -> None:
    live = said("user", "assistant", "meta", "assistant a", *rounds(10))

    gone = evicted(live)

    assert 1 not in gone
    assert {2, 3} <= set(gone)


@pytest.mark.proves("I1")
def test_copies_and_late_results_leave_with_their_neighbours() -> None:
    live = said("user", "tool", "assistant", *rounds(6), "tool")

    gone = evicted(live)

    assert 2 in gone
    assert 16 not in gone


@pytest.mark.proves("E3")
def test_more_stays_where_tokens_or_rounds_to_keep_ask_for_it() -> None:
    live = said(*rounds(20))

    assert evicted(live, replace(POLICY, keep_tokens=1_000))[-1] == 30
    assert evicted(live, replace(POLICY, keep_rounds=8))[-1] == 24
    assert evicted(live, replace(POLICY, keep_tokens=10**6, keep_at_most_messages=6))[-1] == 34


# --- what is worth it


@pytest.mark.proves("E5")
def test_too_small_a_gain_changes_nothing() -> None:
    live = said(*rounds(4))
    policy = replace(POLICY, min_gain_messages=5, min_gain_tokens=401)

    assert evicted(live, policy) == []
    assert evicted(live, policy, Trigger.TOKENS) == []
    assert evicted(live, replace(policy, min_gain_messages=4)) == [1, 2, 3, 4]
    assert evicted(live, replace(policy, min_gain_tokens=400), Trigger.TOKENS) == [1, 2, 3, 4]


@pytest.mark.proves("E1", "E5")
def test_a_request_is_worth_any_gain_but_none() -> None:
    policy = replace(POLICY, min_gain_messages=50, min_gain_tokens=10**6)

    assert evicted(said(*rounds(3)), policy, Trigger.REQUEST) == [1, 2]
    assert evicted(said(*rounds(2)), policy, Trigger.REQUEST) == []


@pytest.mark.proves("E5", "C32")
def test_of_nothing_nothing_leaves() -> None:
    assert decide_eviction([], POLICY, Trigger.REQUEST, now_ms=0) == ()


# --- laws

entries = st.lists(
    st.sampled_from(
        [
            "user",
            "user",
            "meta",
            "assistant",
            "assistant",
            "system",
            "tool",
            "assistant a",
            "assistant a b",
            "tool a",
            "tool b",
            "tool c",
        ]
    ),
    max_size=40,
)
policies = st.builds(
    lambda keep, rounds, tokens, gain: replace(POLICY, keep_messages=keep, keep_rounds=rounds, keep_tokens=tokens, min_gain_messages=gain),
    st.integers(0, 12), st.integers(0, 3), st.sampled_from([0, 500, 2_000]), st.integers(0, 6),
)  # fmt: skip
triggers = st.sampled_from(Trigger)


@pytest.mark.proves("L1", "L3")
@given(entries, policies, triggers)
def test_evicted_and_kept_are_the_input(
    history: list[str], policy: Policy, trigger: Trigger
) -> None:
    live = said(*history)

    gone = evicted(live, policy, trigger)

    assert gone == sorted(set(gone))
    assert set(gone) <= {message.stream_seq for message in live}


@pytest.mark.proves("L5", "C1", "C2")
@given(entries, policies, triggers)
def test_no_call_parts_from_its_result(
    history: list[str], policy: Policy, trigger: Trigger
) -> None:
    live = said(*history)

    gone = set(evicted(live, policy, trigger))

    for block in group(live).blocks:
        assert len({message.stream_seq in gone for message in block.stored}) == 1


@pytest.mark.proves("E3", "I6", "W4", "C5")
@given(entries, policies, triggers)
def test_what_must_stay_stays(history: list[str], policy: Policy, trigger: Trigger) -> None:
    live = said(*history)

    gone = set(evicted(live, policy, trigger))

    grouped = group(live)
    newest = [message for block in reversed(grouped.blocks) for message in block.stored][
        : max(policy.keep_messages, 1)
    ]
    must = [*newest, pinned_message(live), newest_request(live)]
    assert not gone & {message.stream_seq for message in must if message is not None}


@pytest.mark.proves("E3", "W11", "C67")
@given(entries, policies, triggers)
def test_no_block_stays_without_its_request(
    history: list[str], policy: Policy, trigger: Trigger
) -> None:
    live = said(*history)

    gone = set(evicted(live, policy, trigger))

    request: Message | None = None
    for block in group(live).blocks:
        head = block.head
        if head.role is Role.USER and (request is None or request.is_meta or not head.is_meta):
            request = head
        if request is not None and head.stream_seq not in gone:
            assert request.stream_seq not in gone


@pytest.mark.proves("E5")
@given(entries, policies, triggers)
def test_deciding_twice_is_deciding_once(
    history: list[str], policy: Policy, trigger: Trigger
) -> None:
    live = said(*history)
    gone = set(evicted(live, policy, trigger))

    again = [message for message in live if message.stream_seq not in gone]

    assert not gone or evicted(again, policy, trigger) == []


@pytest.mark.proves("E5", "C31")
@given(entries, policies, st.integers(1, 30))
def test_evictions_never_come_faster_than_messages(
    history: list[str], policy: Policy, limit: int
) -> None:
    policy = replace(policy, max_live_messages=limit, min_gain_messages=5)
    live = said(*history)

    done = plan_evictions(live, [message.stream_seq for message in live], 0, policy, model_window=0)

    assert len(done) * 5 <= len(live)


@pytest.mark.proves("E1", "X6")
def test_of_thousands_of_live_messages_not_every_event_is_examined() -> None:
    live = said(*["user", "assistant"] * 1_030)
    policy = replace(POLICY, max_live_messages=2_049, max_unread_messages=0)

    (done,) = plan_evictions(live, range(2_048, 2_061), 0, policy, model_window=0)

    assert (done.seq, len(done.evicted) + len(done.stays)) == (2_052, 2_052)


@pytest.mark.proves("L3", "E3")
def test_a_message_that_comes_late_leaves_in_its_place() -> None:
    live = said(*["user", "assistant"] * 28)
    policy = PRESETS["static-buffer"]

    (done,) = plan_evictions(live, [3], 0, policy, model_window=0)

    assert [message.stream_seq for message in done.evicted] == list(range(1, 47))
    assert [message.stream_seq for message in done.stays] == list(range(47, 57))


@pytest.mark.proves("L3", "E1")
@given(entries, policies, st.integers(1, 12), st.integers(0, 3_000), st.integers(0, 4), st.data())
def test_a_batch_evicts_what_its_events_would_have_evicted_one_by_one(
    history: list[str],
    policy: Policy,
    limit: int,
    tokens: int,
    every_rounds: int,
    data: st.DataObject,
) -> None:
    policy = replace(
        policy, max_live_messages=limit, trigger_tokens=tokens, every_rounds=every_rounds
    )
    live = said(*history)
    bounds = sorted(data.draw(st.sets(st.integers(0, len(live)), max_size=4)) | {0, len(live)})

    def walked(batches: Sequence[tuple[int, int]]) -> list[tuple[FiredTrigger, list[int], int]]:
        kept: list[Message] = []
        begun = 0
        done: list[tuple[FiredTrigger, list[int], int]] = []
        for first, last in batches:
            kept += live[first:last]
            begun += sum(message.is_request for message in live[first:last])
            found = plan_evictions(
                kept,
                [message.stream_seq for message in live[first:last]],
                begun,
                policy,
                model_window=100_000,
            )
            begun -= sum(one.load.rounds for one in found)
            done += [
                (one.due, [message.stream_seq for message in one.evicted], one.at_ms)
                for one in found
            ]
            gone = {seq for _, seqs, _ in done for seq in seqs}
            kept = [message for message in kept if message.stream_seq not in gone]
        return done

    assert walked(list(pairwise(bounds))) == walked([(at, at + 1) for at in range(len(live))])


# --- presets by their numbers


@pytest.mark.proves("P1")
def test_a_static_buffer_holds_fifty_messages_and_keeps_ten() -> None:
    policy = PRESETS["static-buffer"]

    assert due(SessionLoad(50, 10**6), policy, model_window=128_000) is None
    assert due(SessionLoad(51, 0), policy, model_window=128_000) == FiredTrigger(
        Trigger.MESSAGES, 0
    )
    assert evicted(said(*rounds(26)), policy) == list(range(1, 43))
    assert (policy.style, policy.summary_max_words) == (Style.NARRATIVE, 200)


@pytest.mark.proves("P3", "E3")
def test_selective_keeps_twelve_rounds_and_five_tool_blocks_and_lets_go_only_with_a_summary() -> (
    None
):
    policy = PRESETS["selective"]
    talk = rounds(20)
    work = ["user", *steps(9), "assistant"]

    assert due(SessionLoad(10**6, 85_000), policy, model_window=100_000) is None
    assert due(SessionLoad(1, 85_001), policy, model_window=100_000) == FiredTrigger(
        Trigger.TOKENS, 85_000
    )
    assert evicted(said(*talk, tokens=1_000), policy, Trigger.TOKENS) == list(range(1, 17))
    # Of nine steps in the newest round the oldest four leave; the request and the talk stay.
    assert evicted(said(*work, tokens=1_000), policy, Trigger.TOKENS) == list(range(2, 10))
    assert (policy.commit, policy.arguments_max_tokens, policy.result_max_tokens, policy.preview_tokens) == (
        Commit.ON_SUMMARY, 500, 600, 200,
    )  # fmt: skip


@pytest.mark.proves("P4")
def test_adaptive_evicts_nothing_by_itself_and_keeps_the_last_round() -> None:
    policy = PRESETS["adaptive"]

    assert due(SessionLoad(10**6, 10**9, 10**6), policy, model_window=128_000) is None
    assert evicted(said(*rounds(20)), policy, Trigger.REQUEST) == list(range(1, 39))
    assert not policy.uses_model


@pytest.mark.proves("P5")
def test_rolling_lets_the_oldest_go_every_ten_rounds_and_keeps_ten_messages() -> None:
    policy = PRESETS["rolling"]
    live = said(*rounds(30))

    assert due(SessionLoad(10**6, 10**9, 9), policy, model_window=128_000) is None
    done = plan_evictions(
        live, [message.stream_seq for message in live], 30, policy, model_window=128_000
    )

    assert [one.due.trigger for one in done] == [Trigger.ROUNDS] * 3
    assert [one.at_ms for one in done] == [19, 39, 59]
    assert all(len(one.stays) in (10, 11) for one in done)
    assert policy.style is Style.STRUCTURED


# --- where one trigger wins too little, and where a keep has no room


@pytest.mark.proves("E1", "E5")
def test_a_trigger_that_wins_too_little_does_not_stand_in_the_way_of_the_next() -> None:
    policy = replace(POLICY, trigger_tokens=500, min_gain_tokens=10_000, max_live_messages=20)
    live = said(*rounds(11))

    (done,) = plan_evictions(
        live, [message.stream_seq for message in live], 0, policy, model_window=100_000
    )

    assert [
        found.trigger
        for found in TriggerLimits.of(policy, model_window=100_000).fired(SessionLoad(21, 2_100))
    ] == [
        Trigger.TOKENS,
        Trigger.MESSAGES,
    ]
    assert done.due.trigger is Trigger.MESSAGES


@pytest.mark.proves("E1", "E3", "P2")
def test_where_the_limit_has_no_room_for_what_is_to_be_kept_half_of_the_limit_is_kept() -> None:
    policy = replace(PRESETS["token-budget"], trigger_tokens=8_000)
    live = said(*rounds(9), tokens=500)

    (done,) = plan_evictions(
        live, [message.stream_seq for message in live], 0, policy, model_window=128_000
    )

    assert (done.due, sum(message.tokens for message in done.evicted)) == (
        FiredTrigger(Trigger.TOKENS, 8_000),
        4_000,
    )
    assert not done.is_escalated


@pytest.mark.proves("E8")
@pytest.mark.parametrize(
    ("ratio", "ceiling", "limit"),
    [(0.6, 6_000, 3_600), (0.0, 6_000, 6_000), (0.6, None, 76_800), (0.6, 1_000_000, 76_800)],
)
def test_a_ceiling_of_windows_is_a_trigger(ratio: float, ceiling: int | None, limit: int) -> None:
    policy = replace(POLICY, trigger_tokens=0, trigger_ratio=ratio, max_context_tokens=ceiling)

    assert token_trigger(policy, model_window=128_000) == limit
