"""The ids of the events of a mirrored list."""

from typing import Any

import pytest

from turnfold.client.mirrored_list import (
    Element,
    ElementList,
    MirroredList,
    place_of,
    run_of,
)
from turnfold.contracts.subjects import ID_MAX_BYTES

pytestmark = pytest.mark.proves("G10", "C78", "L11")

FIRST = 999_999_000
MARK = "f" * 16


def identity(element: Element) -> Any:
    """Return what reasoning has not."""
    return None if element["type"] == "reasoning" else element


def call(number: int) -> Element:
    return {"type": "function_call", "call_id": f"c{number}", "name": "track", "arguments": "{}"}


def thought(number: int) -> Element:
    return {"type": "reasoning", "id": f"rs_{number}", "summary": []}


def alternating(count: int) -> list[Element]:
    """Reasoning before each call; a last one without if the count is odd."""
    return [thought(at) if at % 2 == 0 and at + 1 < count else call(at) for at in range(count)]


def one_call(count: int) -> list[Element]:
    """Reasoning, and a call at the end."""
    return [*map(thought, range(count - 1)), call(count)]


@pytest.mark.parametrize("count", [1, 2, 8, 499, 500, 501, 502, 600, 999, 1_000])
@pytest.mark.parametrize("elements_of", [alternating, one_call])
def test_the_id_of_an_event_tells_which_of_up_to_1000_messages_are_uncounted(
    count: int, elements_of: Any
) -> None:
    elements = elements_of(count)
    beginning = MirroredList(FIRST, "0" * 32, 0, MARK)
    (run,) = ElementList(elements, "responses", identity, beginning).runs(FIRST, MARK)
    ids = [f"{run.event_id}#{index}" for index in range(count)]

    assert len(run.event_id) <= ID_MAX_BYTES
    assert run_of(ids[0]) == run
    uncounted = [identity(element) is None for element in elements]
    numbers = [FIRST + at - sum(uncounted[:at]) for at in range(count)]
    assert [place_of(one) for one in ids] == list(zip(numbers, uncounted, strict=True))


@pytest.mark.parametrize("end", ["-", "-A", "-AAAAA", "-" + "A" * 169, "-AA=", "-A+", "-\u0660A"])
def test_an_id_that_no_mirror_gives_is_no_event_of_a_list(end: str) -> None:
    assert run_of(f"mirror-2-1-{'0' * 32}-0#0") is not None
    assert run_of(f"mirror-2-1-{'0' * 32}-0{end}#0") is None
