"""Laws of cutting a long input into parts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnfold.core.summary.chunks import OVERSIZE, chunks
from turnfold.core.summary.sources import Source


def size(source: Source) -> int:
    return (
        len(source.text) + sum(len(name) + len(arguments) for name, arguments in source.calls) + 10
    )


texts = st.integers(0, 900).map(lambda length: "x" * length)
calls = st.lists(st.tuples(st.just("get"), st.just('{"a": 1}')), min_size=1, max_size=3).map(tuple)
users = st.builds(lambda text: [("user", text, ())], texts)
rounds = st.builds(
    lambda made, results: [("assistant", "", made), *(("tool", text, ()) for text in results)],
    calls,
    st.lists(texts, min_size=1, max_size=4),
)
histories = st.lists(users | rounds, max_size=20).map(
    lambda groups: [one for group in groups for one in group]
)


def sources_of(history: list[tuple[str, str, tuple[tuple[str, str], ...]]]) -> list[Source]:
    return [
        Source(f"e{number}#0", role, text, made)
        for number, (role, text, made) in enumerate(history)
    ]


@given(histories, st.integers(250, 1_500))
@pytest.mark.proves("S2", "C39", "C40")
def test_every_message_is_in_one_piece_in_order_and_every_piece_fits(
    history: list[tuple[str, str, tuple[tuple[str, str], ...]]], most: int
) -> None:
    sources = sources_of(history)

    pieces = chunks(sources, [size(source) for source in sources], max_tokens=most, size=size)

    assert [one.message_id for piece in pieces for one in piece] == [
        one.message_id for one in sources
    ]
    assert all(sum(size(one) for one in piece) <= most for piece in pieces)
    assert all(piece for piece in pieces)
    by_id = {one.message_id: one for one in sources}
    for one in (one for piece in pieces for one in piece):
        assert one == by_id[one.message_id] or (
            one.text.startswith(OVERSIZE) and size(by_id[one.message_id]) > most
        )


@given(histories, st.integers(250, 1_500))
@pytest.mark.proves("S2", "C39")
def test_a_call_parts_from_its_results_only_where_they_are_more_than_a_piece(
    history: list[tuple[str, str, tuple[tuple[str, str], ...]]], most: int
) -> None:
    sources = sources_of(history)

    pieces = chunks(sources, [size(source) for source in sources], max_tokens=most, size=size)

    begun = {piece[0].message_id for piece in pieces}
    block: list[Source] = []
    for source in [*sources, Source("end", "user", "")]:
        if source.role == "tool" and block:
            block.append(source)
            continue
        if any(one.message_id in begun for one in block[1:]):
            assert sum(size(one) for one in block) > most
        block = [source] if source.role == "assistant" else []
