"""Find the longest text that has at most a number of tokens."""

from collections.abc import Callable

from turnfold.core.text.token_offsets import Count

NEARLY = 16
"""The search ends when a text uses all but a sixteenth of its tokens."""


def longest(write: Callable[[int], str], most: int, max_tokens: int, count: Count) -> str | None:
    """Return the text of `write(n)` for nearly the largest n that stays within `max_tokens`.

    n is at most `most`. None if even `write(0)` has too many tokens.
    """
    best = write(0)
    fixed = count(best)
    if fixed > max_tokens:
        return None
    # Aim a little lower, so that the next attempt is likely to fit.
    aim = max_tokens - fixed - max_tokens // (2 * NEARLY)
    # A short first attempt measures the characters per token.
    low, high, characters = 1, most, min(most, max(1, aim // 4))
    while low <= high:
        text = write(characters)
        tokens = count(text)
        if tokens <= max_tokens:
            best, low = text, characters + 1
            if max_tokens - tokens <= max_tokens // NEARLY:
                break
        else:
            high = characters - 1
        # Apart from the fixed part, tokens are about proportional to characters.
        likely = characters * aim // max(tokens - fixed, 1)
        characters = likely if low <= likely <= high else (low + high) // 2
    return best
