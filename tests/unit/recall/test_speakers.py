"""Who spoke, as far as the names of messages tell, in bounded memory, and how much (F2)."""

import json

import pytest

from tests.histories import counter
from turnfold.core.text.tokens import IMAGE_TOKENS, MESSAGE_TOKENS
from turnfold.store.query.session_order import MOST_NAME_WORDS, MOST_SPEAKERS, SessionOrder


def order_of(*names: object) -> SessionOrder:
    """The order of a session with a message of each name."""
    order = SessionOrder()
    for position, name in enumerate(names):
        body = {"role": "user", "content": "Good morning.", "name": name}
        order.add(position, 8, 13, json.dumps(body), "user")
    return order


@pytest.mark.proves("F2")
def test_a_speaker_is_found_by_each_word_of_the_name() -> None:
    order = order_of("Ana Quiroga", "Otto", "Ana Quiroga")

    assert {word: one.messages for word, one in order.speakers.items()} == {
        "ana": {0, 2},
        "quiroga": {0, 2},
        "otto": {1},
    }


@pytest.mark.proves("F2")
@pytest.mark.parametrize("name", ["user", "Assistant", " ", 7, None, "x" * 65, "two\nlines"])
def test_what_is_no_name_of_a_speaker_names_nobody(name: object) -> None:
    assert order_of(name).speakers == {}


@pytest.mark.proves("F2", "X6")
def test_names_take_bounded_memory_that_counts() -> None:
    many = [" ".join(f"n{number}x{part}" for part in range(9)) for number in range(2_000)]
    order = order_of(*many, *many)

    assert len(order.speakers) == MOST_SPEAKERS
    assert sum(len(one.messages) for one in order.speakers.values()) <= MOST_NAME_WORDS * 4_000
    assert order.weight > order_of(*["Ana"] * 4_000).weight > order_of(*[None] * 4_000).weight


@pytest.mark.proves("F2")
def test_a_message_with_a_picture_counts_about_as_its_text_does() -> None:
    text = "We took this one at the lighthouse when the children were with us last Sunday."
    tokens, order = MESSAGE_TOKENS + counter()(text), SessionOrder()

    for images in (0, 1):
        order.add(images, tokens + images * IMAGE_TOKENS, len(text), None, "user")

    assert order.tokens[0] <= order.tokens[1] <= 1.2 * order.tokens[0]
