"""How near the estimate without a tokenizer is, class by class, beside the two rules of thumb that it replaces."""

from collections.abc import AsyncIterator
from pathlib import Path

from tests.benchmarks.figures import RATIO, Figure
from tests.benchmarks.samples import samples
from turnfold.core.text.estimates import estimate
from turnfold.model_info.tokenizer import load_counter

AT_LEAST, AT_MOST = 0.9, 1.15
"""Never under by more than a tenth, and within 15%."""


async def measure(_: Path) -> AsyncIterator[Figure]:
    """The estimate, characters by four and bytes by four, each as a multiple of what the tokenizer counts."""
    count = load_counter()
    for name, (origin, text) in samples().items():
        tokens = count(text)
        about = f"{name}, {origin}, {tokens:,} tokens"
        yield Figure(
            f"estimate: {about}", estimate(text) / tokens, RATIO, at_least=AT_LEAST, at_most=AT_MOST
        )
        yield Figure(f"characters / 4: {name}", len(text) / 4 / tokens, f"{RATIO} of the truth")
        yield Figure(f"bytes / 4: {name}", len(text.encode()) / 4 / tokens, f"{RATIO} of the truth")
