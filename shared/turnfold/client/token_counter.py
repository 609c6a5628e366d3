"""Token counts on the agent's side: with the tokenizer if it is installed, else an estimate."""

import asyncio
from collections.abc import Callable
from functools import cache

from turnfold.core.recovery.compressor import estimated
from turnfold.errors import StartError
from turnfold.model_info.tokenizer import load_counter


@cache
def counter() -> Callable[[str], int]:
    """Return the function that counts the tokens of a text in this process.

    If toktok is installed, the first call takes about 0.2 s and 33 MB. Otherwise the count is an
    estimate, which tends to be up to a tenth too high.
    """
    try:
        count = load_counter()
    except StartError:
        return estimated
    # The first count takes 10 ms more than others, which no call shall wait for after `load`.
    count("")
    return count


async def load() -> Callable[[str], int]:
    """Return `counter()`, loaded in a thread so that the event loop is not blocked."""
    return await asyncio.to_thread(counter)
