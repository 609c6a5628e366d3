"""Chat messages as items of the Responses API."""

from typing import Any

import pytest

from turnfold.core.shapes.responses import items_of

URL = "https://example.com/a.png"


@pytest.mark.parametrize(
    ("part", "item"),
    [
        ({"type": "text", "text": "Hi."}, {"type": "input_text", "text": "Hi."}),
        ({"text": "Hi."}, {"type": "input_text", "text": "Hi."}),
        (
            {"type": "image_url", "image_url": {"url": URL}},
            {"type": "input_image", "image_url": URL, "detail": "auto"},
        ),
        (
            {"type": "image_url", "image_url": {"url": URL, "detail": "low"}},
            {"type": "input_image", "image_url": URL, "detail": "low"},
        ),
        (
            {"type": "file", "file": {"file_id": "f1"}},
            {"type": "input_file", "file_id": "f1"},
        ),
    ],
)
@pytest.mark.proves("G1")
def test_a_part_of_a_user_message_is_a_part_of_an_item(
    part: dict[str, Any], item: dict[str, Any]
) -> None:
    (message,) = items_of({"role": "user", "content": [part]})

    assert (message["role"], message["content"]) == ("user", [item])
