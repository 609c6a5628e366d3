"""Each trim of the ladder beside a plain reference of it: what is trimmed, in which order, how far, and where it stops."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from json import loads

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.histories import History, history, user
from tests.property.ladder_reference import (
    LONG,
    POLICY,
    SHORT,
    Reference,
    acted_on,
    grown,
    in_order,
    sessions,
    shares,
    sum_of,
    until_enough,
    views_of,
)
from turnfold.core.text.token_offsets import TokenOffsets
from turnfold.core.text.tokens import lines_of
from turnfold.core.window.builder import WindowBuilder
from turnfold.core.window.digest.digest import OWN_SHARES
from turnfold.core.window.digest.earlier_messages import COUNT_TOKENS
from turnfold.core.window.forms import (
    LEAST_ARGUMENTS_TOKENS,
    MARK_CHARACTERS,
    MARK_TOKENS,
    PREVIEW_MARK_TOKENS,
    TextCut,
    arguments_tokens,
    call_tokens_within,
    cut_characters,
    cut_within,
    line_start_tokens,
    line_tokens,
    offsets_of,
)
from turnfold.core.window.framing import DIGEST_FRAME_TOKENS, digest_tokens
from turnfold.core.window.ladder import (
    digest_pending,
    drop_old_reasoning,
    fold_blocks,
    fold_old_tool_blocks,
    preview_costly,
    replace_results,
    shorten_long_texts,
    trim_for_emergency,
    trim_large_results,
)
from turnfold.core.window.protected import drop_excessive_reasoning
from turnfold.core.window.views import BlockView
from turnfold.messages import Message, Role

# --- cuts of one text


def scanned(
    offsets: TokenOffsets,
    text: str,
    *,
    max_tokens: int,
    max_characters: int,
    lines: tuple[int, int] | None,
) -> TextCut | None:
    """A cut found by looking at every offset: two thirds head, one third tail, within every cap."""
    points = list(zip(offsets.offsets, offsets.tokens, strict=True))
    room = max(0, max_tokens - MARK_TOKENS)
    characters = max(0, max_characters - MARK_CHARACTERS) if max_characters else len(text)
    head = max(
        (at, cost)
        for at, cost in points
        if cost <= room * 2 // 3
        and at <= characters * 2 // 3
        and (lines is None or lines_of(text[:at]) <= lines[0])
    )
    tail = min(
        (at, cost)
        for at, cost in points
        if (offsets.total - cost <= room - head[1] or at == len(text))
        and at >= min(len(text), len(text) - (characters - head[0]))
        and (lines is None or lines_of(text[at:]) <= lines[1])
    )
    kept = head[1] + offsets.total - tail[1]
    if tail[0] <= head[0] or kept + MARK_TOKENS >= offsets.total:
        return None
    return TextCut(head[0], tail[0], kept + MARK_TOKENS, offsets.total - kept, offsets.total)


texts = st.lists(
    st.sampled_from(["a line of it\n", "\n", "漢字", "word ", "x" * 90, "a,b;", "🙂"]),
    min_size=150,
    max_size=700,
).map("".join)


def priced(text: str) -> tuple[Message, TokenOffsets]:
    stored = history([user(text)]).stored.messages[0]
    offsets = offsets_of(stored)
    assert offsets is not None
    return stored, offsets


@pytest.mark.proves("W3", "C15", "C17")
@given(texts, st.integers(0, 900), st.sampled_from([0, 0, 90, 300, 1_000, 5_000]), st.booleans())
def test_a_cut_within_caps_is_the_one_found_by_looking_at_every_place(
    text: str, tokens: int, characters: int, is_brief: bool
) -> None:
    assume(len(text) > 512)
    message, offsets = priced(text)

    cut = cut_within(
        message, offsets, max_tokens=tokens, max_characters=characters, is_brief=is_brief
    )

    assert cut == scanned(
        offsets,
        text,
        max_tokens=tokens,
        max_characters=characters,
        lines=(20, 10) if is_brief else None,
    )


@pytest.mark.proves("W3", "C15")
@given(st.integers(0, 1_500))
def test_a_text_whose_tokens_are_known_only_as_a_whole_is_cut_to_its_cap_or_to_the_mark_alone(
    max_tokens: int,
) -> None:
    message, _ = priced("a line of it\n" * 400)

    cut = cut_within(message, None, max_tokens=max_tokens, max_characters=0, is_brief=False)

    assert cut is not None
    assert cut.tokens <= max(max_tokens, PREVIEW_MARK_TOKENS)


@pytest.mark.proves("W3", "C15", "C17")
@given(texts, st.integers(0, 3_000))
def test_a_cut_of_characters_keeps_three_quarters_of_them_at_the_start(text: str, cap: int) -> None:
    assume(len(text) > 512)
    message, offsets = priced(text)

    cut = cut_characters(message, offsets, cap)

    characters = max(0, cap - MARK_CHARACTERS)
    head = max(at for at in offsets.offsets if at <= characters * 3 // 4)
    tail = min(at for at in offsets.offsets if at >= len(text) - (characters - head))
    if cut is None:
        assert tail <= head or offsets.tokens_between(head, tail) <= MARK_TOKENS
    else:
        assert (cut.head, cut.tail) == (head, tail)
        assert cut.head + len(text) - cut.tail + MARK_CHARACTERS <= max(cap, MARK_CHARACTERS)


# --- the steps


@pytest.mark.proves("W3")
@given(sessions(SHORT), shares())
def test_old_reasoning_goes_as_the_reference_says(session: History, share: float) -> None:
    window, target = grown(session, share)
    requests = [block.position for block in window.blocks if block.head.message.is_request]
    users = [block.position for block in window.blocks if block.head.message.role is Role.USER]
    latest = max(requests or users, default=0)
    long = [
        (block, block.head)
        for block in window.blocks
        if block.head.message.reasoning_tokens * 4 > POLICY.reasoning_max_chars
    ]
    old = [
        Reference(block, head, head.message.reasoning_tokens)
        for block, head in long
        if block.position < latest
    ]
    expected = until_enough(
        in_order([one for one in old if not window.is_protected(one.block)]), window.total, target
    )

    drop_old_reasoning(window, target)

    assert acted_on(window, lambda view: view.without_reasoning) == expected
    assert window.total == sum_of(window)


@pytest.mark.proves("W3", "C21")
@given(sessions(LONG))
def test_large_results_are_cut_as_the_reference_says(session: History) -> None:
    window, _ = grown(session, 0.9)
    found: dict[int, TextCut | None] = {}
    for _, view in views_of(window):
        message = view.message
        is_large = view.call is not None and (
            message.content_tokens > window.soft_tokens or message.characters > 400
        )
        if is_large and not message.is_truncated and view.offsets is not None:
            text = session_text(session, message)
            found[message.position] = scanned(
                view.offsets,
                text,
                max_tokens=window.soft_tokens,
                max_characters=400,
                lines=(20, 10),
            )

    trim_large_results(window, 0)

    for _, view in views_of(window):
        if view.offsets is not None:
            assert view.cut == found.get(view.message.position)
    assert window.total == sum_of(window)


def session_text(session: History, message: Message) -> str:
    text: str = loads(session.bodies[message.position])["content"]
    return text


@pytest.mark.proves("W3", "C18")
@given(sessions(SHORT), shares())
def test_results_become_lines_as_the_reference_says(session: History, share: float) -> None:
    window, target = grown(session, share)
    above = int(POLICY.hard_ratio * window.limits.tokens)
    total, results = (
        window.total,
        sum(view.text for block in window.blocks for view in block.views if view.call is not None),
    )
    expected: dict[int, str] = {}
    for _, view, _ in in_order(
        [Reference(block, view, 0) for block, view in views_of(window) if view.call is not None]
    ):
        message, call = view.message, view.call
        assert call is not None
        if total <= target or results <= above:
            break
        cost = line_tokens(line_start_tokens(call), message)
        if cost < message.content_tokens:
            path = f" {call.path}" if call.path else ""
            name = f"[{call.name}{path}: {message.content_tokens} tokens left out, original: {message.message_id}]"
            expected[message.position] = name
            total, results = (
                total - message.content_tokens + cost,
                results - message.content_tokens + cost,
            )

    replace_results(window, target)

    assert {
        view.message.position: view.line
        for block in window.blocks
        for view in block.views
        if view.line is not None
    } == expected
    assert window.total == sum_of(window) == total


@pytest.mark.proves("W3", "C17")
@given(sessions(LONG), shares())
def test_long_texts_are_shortened_as_the_reference_says(session: History, share: float) -> None:
    window, target = grown(session, share)
    found: list[Reference] = []
    for block, view in views_of(window):
        cap = (
            POLICY.user_max_chars if view.message.role is Role.USER else POLICY.assistant_max_chars
        )
        cut = cut_characters(view.message, view.offsets, cap)
        if view.call is None and view.message.characters > cap:
            found.append(Reference(block, view, view.text - cut.tokens if cut else 0))
    expected = {
        at
        for at in until_enough(in_order(found), window.total, target)
        if {f.view.message.position: f.freed for f in found}[at]
    }

    shorten_long_texts(window, target)

    assert acted_on(window, lambda view: view.cut is not None) == expected
    assert window.total == sum_of(window)


@pytest.mark.proves("W3", "C19")
@given(sessions(SHORT))
def test_costly_arguments_and_results_become_previews_as_the_reference_says(
    session: History,
) -> None:
    window, _ = grown(session, 0.5)
    arguments: dict[int, dict[int, int]] = {}
    previews: set[int] = set()
    for _, view in views_of(window):
        message = view.message
        if view.call is None:
            long = [
                call
                for call in message.calls
                if arguments_tokens(call) > 50 and call_tokens_within(call, 50) < call.tokens
            ]
            if long:
                arguments[message.position] = {call.slot: 50 for call in long}
        elif (
            message.content_tokens > 60
            and not message.is_truncated
            and message.content_tokens > PREVIEW_MARK_TOKENS
        ):
            previews.add(message.position)

    preview_costly(window, 0)

    found = {
        view.message.position: view.arguments
        for block in window.blocks
        for view in block.views
        if view.arguments
    }
    assert found == arguments
    assert acted_on(window, lambda view: view.cut is not None) == previews
    assert window.total == sum_of(window)


def folded_by(
    step: Callable[[WindowBuilder, int], None],
    window: WindowBuilder,
    target: int,
    among: Sequence[BlockView],
) -> None:
    """The step leaves out these blocks, LOW first, the oldest first, until the target is met; a block is as important as its best message.

    Blocks of the open round go last. The request and the answers of a closed one go together with all of it, and so does
    a request with its last tool block.
    """
    assume(
        not any(
            max(block.head.arguments_sizes, default=0) > LEAST_ARGUMENTS_TOKENS for block in among
        )
    )
    total, expected = window.total, set[int]()
    for block in sorted(among, key=importance):
        if total <= target:
            break
        # A request that must stay takes nothing along.
        if window.is_protected(block):
            continue
        in_round = block.in_round
        leaving = in_round.blocks if block.needs_its_round else [block]
        if in_round.is_closed and in_round.request is not None:
            others = {one.position for one in in_round.blocks[1:]}
            if others and others <= expected | {one.position for one in leaving}:
                leaving = [*leaving, in_round.request]
        for other in leaving:
            if other.position not in expected and not window.is_protected(other):
                expected.add(other.position)
                total -= other.tokens

    step(window, target)

    assert {block.position for block in window.blocks if not block.is_shown} == expected
    assert window.total == sum_of(window) == total


def importance(block: BlockView) -> tuple[bool, int, int]:
    together = block.in_round.blocks if block.needs_its_round else []
    priority = max([one.queued_priority for one in together], default=block.priority)
    return not block.in_round.is_closed, priority, block.position


@pytest.mark.proves("W3", "C20")
@given(sessions(SHORT), shares())
def test_old_tool_blocks_are_folded_as_the_reference_says(session: History, share: float) -> None:
    window, target = grown(session, share)

    folded_by(
        fold_old_tool_blocks,
        window,
        target,
        [
            block
            for block in [block for block in window.blocks if block.results][
                : -POLICY.keep_tool_blocks
            ]
            if block.in_round.is_closed
        ],
    )


@pytest.mark.proves("W3", "W11", "C20", "C2", "C67")
@given(sessions(SHORT), shares())
def test_blocks_are_folded_as_the_reference_says(session: History, share: float) -> None:
    window, target = grown(session, share)

    folded_by(fold_blocks, window, target, window.blocks)


@pytest.mark.proves("W3")
@given(sessions(SHORT, pending=True), shares())
def test_what_is_pending_becomes_its_digest_as_the_reference_says(
    session: History, share: float
) -> None:
    window, target = grown(session, share, tells_omitted=True)
    pending = [
        block
        for block in window.blocks
        if block.compaction_id is not None and not window.is_protected(block)
    ]
    asked = {block.in_round.request for block in pending}
    leaving = [
        block
        for block in window.blocks
        if block in pending
        or (block.in_round.request in asked & set(pending) and not window.is_protected(block))
    ]
    own = sum(digest_tokens(row.digest_tokens) for row in window.prefix.pending.values())
    has_room = own <= OWN_SHARES * int(window.policy.digest_ratio * window.limits.tokens)
    cost = DIGEST_FRAME_TOKENS + (own if has_room else COUNT_TOKENS)
    freed = sum(block.tokens for block in leaving)
    is_due = window.total > target and sum(block.tokens for block in pending) > cost
    total = window.total

    digest_pending(window, target)

    assert {block.position for block in window.blocks if not block.is_shown} == (
        {block.position for block in leaving} if is_due else set()
    )
    assert window.total == sum_of(window)
    assert window.total == (total - freed + window.digest.tokens if is_due else total)
    assert window.digest.tokens >= (cost if is_due else 0)


@pytest.mark.proves("W3", "W7", "C61")
@given(sessions(SHORT, least=30), shares())
def test_an_emergency_gives_up_as_the_reference_says(session: History, share: float) -> None:
    window, _ = grown(
        session, share, replace(POLICY, arguments_max_tokens=500, result_max_tokens=600)
    )
    drop_excessive_reasoning(window)
    # In a budget of a few tokens, it leaves out the newest messages themselves.
    shown = [block for block in window.blocks if block.is_shown]
    limit, free = window.limits.tokens, [one for one in shown if not window.is_protected(one)]
    total = window.total
    for block in free:
        if not block.head.without_reasoning:
            total -= block.head.message.reasoning_tokens
        for view in block.results:
            if view is not None and view.call is not None:
                total -= max(0, view.text - line_tokens(line_start_tokens(view.call), view.message))
    starts = [index for index, block in enumerate(window.blocks) if block.head.message.is_request]
    bound, cost = total, dict[int, int]()
    gone = {block.position for block in window.blocks if not block.is_shown}

    trim_for_emergency(window)

    cost = {block.position: block.tokens for block in free}
    unseen_is_whole = window.unseen is None or all(
        view.cut is None and view.line is None for view in window.unseen.views
    )
    assume(unseen_is_whole)
    for rounds in (5, 2):
        if bound > limit and len(starts) > rounds:
            older = {block.position for block in window.blocks[: starts[-rounds]]} & cost.keys()
            bound -= sum(cost[position] for position in older - gone)
            gone |= older
    for block in free:
        if bound <= limit:
            break
        if block.position in gone:
            continue
        for other in block.in_round.blocks if block.needs_its_round else [block]:
            if other.position not in gone and other.position in cost:
                bound -= cost[other.position]
                gone.add(other.position)
    assert {block.position for block in window.blocks if not block.is_shown} == gone
    assert all(
        block.head.without_reasoning or not block.head.message.reasoning_tokens for block in free
    )
    assert window.total == sum_of(window)
