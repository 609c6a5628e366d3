"""Segments of the word index find what reading the terms of each message finds, merged or not."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnfold.core.text import word_segments
from turnfold.core.text.word_segments import (
    MERGED_SEGMENTS,
    MOST_MESSAGES,
    due_merge,
    merge_segments,
    pack_segment,
    posting_lists,
    postings_of,
    read_header,
)

TERM = st.text("abcé琥", min_size=1, max_size=3) | st.text("ab", min_size=60, max_size=70)
MESSAGES = st.dictionaries(st.integers(0, 2**50), st.frozensets(TERM, max_size=8), min_size=1)
"""The terms of messages by position."""


def packed(messages: Mapping[int, frozenset[str]]) -> list[bytes]:
    """A segment of these messages."""
    positions = sorted(messages)
    return pack_segment(positions, postings_of(messages[at] for at in positions))


def found(pieces: Sequence[bytes], term: str, *, is_prefix: bool) -> set[int]:
    """The positions that a segment has for a term."""
    header, key = read_header(pieces[0]), term.encode()
    numbers = header.pieces_of(key, is_prefix=is_prefix)
    blocks = [pieces[number] if number else header.block for number in numbers]
    return {
        header.positions[ordinal]
        for block in blocks
        for postings in posting_lists(block, len(header.positions), key, is_prefix=is_prefix)
        for ordinal in postings.ordinals()
    }


def read(messages: Mapping[int, frozenset[str]], term: str, *, is_prefix: bool) -> set[int]:
    """The positions of the messages with a term, without an index."""
    return {
        at
        for at, terms in messages.items()
        if any(one.startswith(term) if is_prefix else one == term for one in terms)
    }


@pytest.mark.proves("F1", "O9")
@given(MESSAGES, TERM, st.booleans(), st.integers(1, 60))
def test_a_segment_finds_terms_and_beginnings_in_blocks_of_any_size(
    messages: dict[int, frozenset[str]], term: str, is_prefix: bool, block_bytes: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(word_segments, "BLOCK_BYTES", block_bytes)
        pieces = packed(messages)

    assert list(read_header(pieces[0]).positions) == sorted(messages)
    assert found(pieces, term, is_prefix=is_prefix) == read(messages, term, is_prefix=is_prefix)


@pytest.mark.proves("F1", "O9")
@pytest.mark.parametrize("messages", [255, 256, 257])
def test_a_segment_finds_its_terms_at_sizes_where_a_message_needs_another_byte(
    messages: int,
) -> None:
    told = {at: frozenset({"every", f"only{at}"}) for at in range(messages)}

    pieces = packed(told)

    assert found(pieces, "every", is_prefix=False) == set(told)
    assert found(pieces, f"only{messages - 1}", is_prefix=False) == {messages - 1}


@pytest.mark.proves("F1", "O9")
@given(st.lists(MESSAGES, min_size=1, max_size=5), TERM, st.booleans(), st.data())
def test_a_merge_holds_all_messages_but_the_removed_ones(
    divided: list[dict[int, frozenset[str]]], term: str, is_prefix: bool, data: st.DataObject
) -> None:
    # A message is in one segment only.
    known: set[int] = set()
    for messages in divided:
        for at in known & messages.keys():
            del messages[at]
        known |= messages.keys()
    divided = [messages for messages in divided if messages]
    gone = data.draw(st.sets(st.sampled_from(sorted(known))))
    ordinals = [
        frozenset(bisect_left(sorted(messages), at) for at in gone & messages.keys())
        for messages in divided
    ]

    merged = merge_segments([packed(messages) for messages in divided], ordinals)

    left = {at: terms for messages in divided for at, terms in messages.items() if at not in gone}
    assert bool(merged) == bool(left)
    if merged:
        assert merged == packed(left)
        assert found(merged, term, is_prefix=is_prefix) == read(left, term, is_prefix=is_prefix)


@pytest.mark.proves("F1", "O9")
@given(st.lists(st.integers(1, 200), max_size=600))
def test_a_session_has_few_segments_and_each_message_is_written_few_times(added: list[int]) -> None:
    sizes: dict[int, int] = {}
    written = 0
    for number, messages in enumerate(added):
        sizes[number] = messages
        while due := due_merge(sizes):
            merged = sum(sizes.pop(segment) for segment in due)
            # The number of the newest one, so that it is not taken again.
            sizes[max(due)] = merged
            written += merged
            assert merged <= MOST_MESSAGES

    ranks = 5
    assert len(sizes) <= ranks * (MERGED_SEGMENTS - 1) + sum(added) // (MOST_MESSAGES // 4)
    assert written <= ranks * sum(added)
