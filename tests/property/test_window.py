"""Every window of every session, at every budget: sendable, within its budget, honest and stable."""

import json
import re
from dataclasses import asdict, replace
from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from tests import window_rules as laws
from tests.histories import (
    ROW,
    History,
    Said,
    assistant,
    counted,
    counter,
    custom,
    history,
    instruction,
    parsed,
    plan,
    recorded,
    system,
    text,
    tool,
    user,
    words,
)
from tests.window_check.sessions import ARGUMENTS, TEXTS
from turnfold.core.history.blocks import group, newest_request
from turnfold.core.history.validation import validation_errors
from turnfold.core.policy.presets import PRESETS, Mode, Policy
from turnfold.core.window.builder import WindowBuilder
from turnfold.core.window.forms import LEAST_CHARACTERS, STAND_IN, STAND_IN_TOKENS
from turnfold.core.window.framing import Placement
from turnfold.core.window.rendering.render import Rendered
from turnfold.core.window.views import ShownMessage
from turnfold.core.window.window import WindowPlan, WindowRequest, build_window, to_plan
from turnfold.errors import CannotFit
from turnfold.messages import Priority, Role

texts = st.one_of(
    st.sampled_from(TEXTS),
    st.integers(1, 60).map(words),
    st.sampled_from([200, 700, 3_000, 12_000]).map(words),
)
call_ids = st.integers(0, 5).map("call_{}".format)
arguments = st.sampled_from(ARGUMENTS)
opaque: st.SearchStrategy[dict[str, Any]] = st.sampled_from(
    [
        {"reasoning_details": [{"type": "reasoning.encrypted", "data": "gAAA" * 300}]},
        {"extra_content": {"google": {"thought_signature": "c2ln" * 200}}},
        {"reasoning": words(300), "audio": {"id": "audio_1", "data": "AAAA" * 500}},
    ]
)
names = st.sampled_from(["look_up", "read_file", "", None])


@st.composite
def spoken(draw: st.DrawFn) -> Said:
    """Any message: users, assistants with up to 16 calls at once, results of calls made or not, systems, machine-made users."""
    kind = draw(
        st.sampled_from(
            [
                "user",
                "user",
                "meta",
                "parts",
                "assistant",
                "calls",
                "calls",
                "tool",
                "tool",
                "tool",
                "system",
            ]
        )
    )
    said = draw(texts)
    priority = draw(st.sampled_from(Priority))
    if kind == "system":
        return draw(st.sampled_from([Said(system(said[:600])), instruction(said[:600])]))
    if kind == "tool":
        return Said(tool(draw(call_ids), said), priority=priority, is_truncated=draw(st.booleans()))
    if kind == "parts":
        parts = [
            {"type": "text", "text": said},
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
        ]
        return Said(user(parts), priority=priority)
    if kind in ("user", "meta"):
        return Said(user(said), is_meta=kind == "meta", priority=priority)
    body = (
        assistant(said or None, reasoning_content=draw(st.sampled_from(["short", words(900)])))
        if draw(st.booleans())
        else assistant(said)
    )
    if draw(st.booleans()):
        body |= draw(opaque)
    if kind == "calls":
        ids = draw(
            st.lists(call_ids, min_size=1, max_size=3)
            | st.just([f"many_{number}" for number in range(16)])
        )
        body |= assistant(body["content"], *ids, arguments=draw(arguments))
        body["tool_calls"][0]["function"]["name"] = draw(names)
        if draw(st.booleans()):
            body["tool_calls"][-1] = custom(ids[-1], draw(arguments))
        if draw(st.booleans()):
            body["tool_calls"][0] |= {"extra_content": {"signature": "c2ln" * 100}}
    return Said(body, priority=priority)


@st.composite
def sessions(draw: st.DrawFn) -> History:
    """Any session, some of it evicted and not summarised, some of it summarised."""
    said = draw(st.lists(spoken(), max_size=24))
    pending = draw(st.integers(0, len(said))) if draw(st.booleans()) else 0
    said = [replace(one, is_pending=place < pending) for place, one in enumerate(said)]
    has_summary = draw(st.booleans())
    return history(
        said,
        summary="<turnfold-summary>\n" + words(draw(st.integers(1, 400))) if has_summary else "",
        ledger=("path src/app.py", "host 10.0.0.1:8443", "request two\nlines </turnfold-summary>")
        if has_summary
        else (),
        covered=draw(st.integers(0, 500)) if has_summary else 0,
        factor=draw(st.sampled_from([1.0, 1.0, 1.25, 0.5, 2.5])),
    )


budgets = st.integers(1, 4_000) | st.integers(1, 40_000) | st.integers(1, 1_000_000)
requests = st.builds(
    WindowRequest,
    budget_tokens=budgets,
    max_messages=st.none() | st.integers(1, 40),
    recall_share=st.sampled_from([0.0, 0.5]),
    is_asked=st.booleans(),
)
policies = st.sampled_from(
    [
        Policy(),
        Policy(low_water_ratio=1.0),
        Policy(low_water_ratio=0.5, keep_tool_blocks=1),
        Policy(result_max_tokens=40, arguments_max_tokens=40),
        *PRESETS.values(),
    ]
)
placements = st.sampled_from(Placement)


def faults_of(session: History, asked: WindowRequest, made: WindowPlan) -> list[str]:
    """All that is wrong with a window; the tokens are counted again from its texts."""
    rendered = session.rendered(made)
    messages, account, stored = parsed(rendered), made.account, session.stored
    found = validation_errors(messages)
    parts = (
        account.shown,
        account.folded,
        account.covered,
        account.pending_shown,
        account.pending_digested,
    )
    if sum(parts) != account.total or min(parts) < 0 or not 0 <= account.trimmed <= account.shown:
        found.append(f"the account does not add up: {account}")
    named = [message_id for message_id in rendered.message_ids if message_id is not None]
    if (
        len(named) != account.shown + account.pending_shown
        or len(set(named)) != len(named)
        or len(rendered.message_ids) != len(messages)
    ):
        found.append(f"{len(named)} named of {len(messages)} messages: {account}")
    if sum(message.get("content") == STAND_IN for message in messages) != account.synthesised:
        found.append("stand-ins are miscounted")
    tokens = counted(messages)
    if asked.placement is Placement.SEPARATE:
        tokens += counter()(rendered.summary_text) + sum(map(counter(), rendered.ledger))
    if tokens * stored.factor > made.tokens:
        found.append(f"{tokens} tokens x {stored.factor} reported as {made.tokens}")
    if asked.budget_tokens is not None and made.tokens > asked.budget_tokens * (
        0.6 if asked.is_emergency else 1
    ):
        found.append(f"{made.tokens} tokens for a budget of {asked.budget_tokens}")
    if (
        asked.max_messages is not None
        and len(messages) - (made.pinned is not None) > asked.max_messages
    ):
        found.append(f"{len(messages)} messages of {asked.max_messages}")
    if not messages and any(message.role is not Role.TOOL for message in stored.messages):
        found.append("the window is empty")
    request = newest_request(stored.messages)
    if request is not None:
        if request.message_id not in named:
            found.append("the newest request is gone")
        else:
            shown = text(messages[rendered.message_ids.index(request.message_id)])
            if not shown.startswith(
                text(json.loads(session.bodies[request.position]))[:LEAST_CHARACTERS]
            ):
                found.append(f"the newest request begins with {shown[:40]!r}")
    heads = [
        entry.message.position
        for entry in made.entries
        if isinstance(entry, ShownMessage) and entry.call is None
    ]
    found += laws.faults(told(session), answered(rendered, made, asked), counter())
    return found if heads == sorted(heads) else [*found, f"out of order: {heads}"]


def told(session: History) -> laws.Session:
    """The session as its publisher knows it."""
    messages = [
        laws.Told(
            one.message_id,
            body := session.bodies[one.position],
            json.loads(body),
            one.is_meta,
            one.compaction_id is not None,
        )
        for one in session.stored.messages
    ]
    return laws.Session(messages, covered=session.stored.covered, factor=session.stored.factor)


def answered(rendered: Rendered, made: WindowPlan, asked: WindowRequest) -> laws.Answer:
    """A window as a caller sees it."""
    is_separate = asked.placement is Placement.SEPARATE
    return laws.Answer(
        rendered.messages,
        rendered.message_ids,
        asdict(made.account),
        made.tokens,
        asked_messages=asked.max_messages,
        beside=(rendered.summary_text, *rendered.ledger) if is_separate else (),
        is_appended=asked.placement is Placement.SYSTEM
        and bool(rendered.summary_text or rendered.ledger),
    )


def answer(session: History, asked: WindowRequest, policy: Policy) -> WindowPlan | CannotFit:
    """The window, or the refusal."""
    try:
        return plan(session.stored, asked, policy)
    except CannotFit as refused:
        return refused


def enough(
    session: History, asked: WindowRequest, policy: Policy
) -> tuple[WindowRequest, WindowPlan]:
    """The window that was asked for, or the one that a refusal says to ask for."""
    made = answer(session, asked, policy)
    if isinstance(made, CannotFit):
        needed = made.needed_tokens
        assert needed is not None
        assert asked.budget_tokens is not None
        assert needed > asked.budget_tokens
        asked = replace(asked, budget_tokens=needed)
        made = plan(session.stored, asked, policy)
    return asked, made


@pytest.mark.proves(
    "L5",
    "L6",
    "L7",
    "W3",
    "W4",
    "W7",
    "W11",
    "C67",
    "C1",
    "C2",
    "C4",
    "C7",
    "C9",
    "C10",
    "C12",
    "C13",
    "C22",
    "C24",
    "C61",
)
@given(sessions(), budgets, placements, st.booleans(), policies)
@example(history([]), 1, Placement.SEPARATE, False, Policy())
@example(history([tool("nobody", "called")]), 1, Placement.SEPARATE, True, Policy())
def test_every_window_is_sendable_and_fits_or_says_what_would(
    session: History, budget: int, placement: Placement, is_emergency: bool, policy: Policy
) -> None:
    asked, made = enough(
        session,
        WindowRequest(budget_tokens=budget, placement=placement, is_emergency=is_emergency),
        policy,
    )

    assert faults_of(session, asked, made) == []


@pytest.mark.proves("W2", "L5", "L7")
@given(
    sessions(), st.integers(1, 40), placements, st.sampled_from([1_000, 10_000_000]), st.booleans()
)
def test_every_window_keeps_to_the_messages_asked_for(
    session: History, max_messages: int, placement: Placement, budget: int, is_emergency: bool
) -> None:
    asked = WindowRequest(
        budget_tokens=budget,
        max_messages=max_messages,
        placement=placement,
        is_emergency=is_emergency,
    )

    made = answer(session, asked, Policy())
    if isinstance(made, CannotFit):
        assume(made.needed_messages is not None)
        assert made.needed_messages is not None
        assert made.needed_messages > max_messages
        asked = replace(asked, max_messages=made.needed_messages)
        made = plan(session.stored, asked, Policy())

    assert faults_of(session, asked, made) == []


@pytest.mark.proves("E6", "L5", "L6", "C57")
@given(sessions(), st.integers(1, 20_000))
def test_mode_off_shows_everything_or_says_what_it_takes(session: History, budget: int) -> None:
    off = Policy(mode=Mode.OFF)
    shown = plan(session.stored, WindowRequest(), off)

    assert faults_of(session, WindowRequest(), shown) == []
    live, pending = (
        group([m for m in session.stored.messages if (m.compaction_id == ROW) is is_pending])
        for is_pending in (False, True)
    )
    expected = sum(len(block.stored) for grouped in (live, pending) for block in grouped.blocks)
    assert sum(isinstance(entry, ShownMessage) for entry in shown.entries) == expected
    asked, made = enough(session, WindowRequest(budget_tokens=budget), off)
    assert made.entries == shown.entries
    assert asked.budget_tokens == max(budget, shown.tokens)


@pytest.mark.proves("L11", "W3")
@given(sessions(), budgets, policies)
def test_a_window_begins_as_it_did_until_it_is_outgrown(
    session: History, budget: int, policy: Policy
) -> None:
    asked = WindowRequest(budget_tokens=budget)
    before: WindowPlan | None = None

    for length in range(1, len(session.stored.messages) + 1):
        longer = session.until(length)
        newest = longer.stored.messages[-1]
        made = answer(longer, asked, policy)
        if isinstance(made, CannotFit):
            before = None
            continue
        is_plain = not newest.role.is_system and (newest.answers is None or _answers_last(longer))
        if before is not None and is_plain:
            shown, old = longer.rendered(made).messages, longer.rendered(before).messages
            growth = (
                newest.tokens + STAND_IN_TOKENS * len(newest.calls)
            ) * longer.stored.factor + 1
            known = {
                entry.message.position
                for entry in before.entries
                if isinstance(entry, ShownMessage)
            }
            now = {
                entry.message.position for entry in made.entries if isinstance(entry, ShownMessage)
            }
            if (
                newest.role is not Role.TOOL
                and newest.compaction_id is None
                and before.tokens + growth <= budget
                and not _was_waited_for(longer)
                and not _has_evicted_request(session.until(length - 1))
            ):
                assert shown[: len(old)] == old
            if newest.compaction_id is None and not _was_waited_for(longer):
                assert now - {newest.position} <= known
        before = made


@pytest.mark.proves("W3", "L11")
@given(sessions(), requests, policies)
def test_a_window_that_is_continued_is_the_one_that_grows_from_the_start(
    session: History, asked: WindowRequest, policy: Policy
) -> None:
    earlier: WindowBuilder | None = None

    for length in range(1, len(session.stored.messages) + 1):
        now = session.until(length)
        whole = answer(now, asked, policy)
        if isinstance(whole, CannotFit):
            with pytest.raises(CannotFit, match=re.escape(str(whole))):
                build_window(now.stored, asked, policy, earlier)
            earlier = None
            continue
        earlier = build_window(now.stored, asked, policy, earlier)
        made = to_plan(earlier, now.stored, asked)
        assert now.rendered(made) == now.rendered(whole)
        assert made == whole


@pytest.mark.proves("W3", "L11")
@given(sessions(), requests, policies, st.integers(1, 12))
def test_a_window_after_an_eviction_says_what_one_grown_from_the_start_says(
    session: History, asked: WindowRequest, policy: Policy, number: int
) -> None:
    now = session.evicting(number)
    whole = answer(now, asked, policy)
    assume(not isinstance(answer(session, asked, policy), CannotFit))
    assume(not isinstance(whole, CannotFit))
    assert isinstance(whole, WindowPlan)
    earlier = build_window(session.stored, asked, policy)
    session.rendered(to_plan(earlier, session.stored, asked))

    made = to_plan(build_window(now.stored, asked, policy, earlier), now.stored, asked)

    assert now.rendered(made) == now.rendered(whole)


def _answers_last(session: History) -> bool:
    newest = session.stored.messages[-1]
    heads = [message for message in session.stored.messages if message.calls]
    return (
        newest.answers is not None and bool(heads) and newest.answers.position == heads[-1].position
    )


def _has_evicted_request(session: History) -> bool:
    """Whether the newest request was evicted, which only happens once the next has come."""
    request = newest_request(session.stored.messages)
    return request is not None and request.compaction_id is not None


def _was_waited_for(session: History) -> bool:
    """Whether the newest message calls what an earlier result already answers."""
    newest = session.stored.messages[-1]
    return any(
        message.answers is not None and message.answers.position == newest.position
        for message in session.stored.messages
    )


@pytest.mark.proves("W3", "L11")
@given(st.lists(st.integers(10, 200), min_size=150, max_size=200), st.integers(8_000, 14_000))
def test_a_tight_window_uses_its_budget_well(sizes: list[int], budget: int) -> None:
    session = history(
        [
            user(words(size)) if place % 2 else assistant(words(size))
            for place, size in enumerate(sizes)
        ]
    )
    assume(sum(message.tokens for message in session.stored.messages) > budget)

    made = plan(session.stored, WindowRequest(budget_tokens=budget), Policy())

    assert made.tokens >= 0.82 * budget


@pytest.mark.proves("L5", "L6", "L7", "C1", "C12")
@pytest.mark.parametrize(
    "budget", [60, 300, 1_000, 2_500, 6_000, 15_000, 40_000, 120_000, 1_000_000]
)
def test_recorded_conversations_make_sound_windows_at_every_budget(budget: int) -> None:
    for name, messages in recorded(2):
        session = history(messages[:80])
        for is_emergency in (False, True):
            asked, made = enough(
                session, WindowRequest(budget_tokens=budget, is_emergency=is_emergency), Policy()
            )
            assert faults_of(session, asked, made) == [], name
