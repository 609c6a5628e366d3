"""The cooldown after a model failed to summarize; until then, digests replace evicted messages."""

from typing import Final

COOLDOWN_MS: Final = 8_000
COOLDOWN_MAX_MS: Final = 300_000


def cooldown_ms(failures: int) -> int:
    """Return the cooldown after this many failed compactions in a row."""
    return min(COOLDOWN_MS * 2 ** (failures - 1), COOLDOWN_MAX_MS) if failures else 0
