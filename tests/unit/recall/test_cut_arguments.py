"""Lines of arguments that a window cuts may be quoted: no more counts as shown than is."""

import json

import pytest

from turnfold.core.window.rendering.render import shortened_arguments
from turnfold.operations.query.recall_decisions import SHOWN_CHARACTERS_A_TOKEN

SCRIPT = "\n".join(
    f'for path in /usr/share/icons/{number} "$HOME/.local/{number}"; do test -d "$path"; done'
    for number in range(40)
)
PROSE = " ".join(f"In room {number} stands a chair that nobody has moved." for number in range(80))


@pytest.mark.proves("W13")
@pytest.mark.parametrize("text", [SCRIPT, PROSE], ids=["script", "prose"])
@pytest.mark.parametrize("max_tokens", [200, 500])
def test_of_cut_arguments_at_least_what_counts_as_shown_is_shown(
    text: str, max_tokens: int
) -> None:
    shortened = shortened_arguments(json.dumps({"content": text}), max_tokens, 2_000)

    shown, _, _ = json.loads(shortened)["content"].partition("[TRUNCATED")
    assert text.startswith(shown.rstrip())
    assert SHOWN_CHARACTERS_A_TOKEN * max_tokens <= len(shown) < len(text)
