"""The token usage and the cost of model calls."""

from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

Amount = TypeVar("Amount", int, float)


class ModelUsage(NamedTuple):
    """The usage of a call as its provider reported it, with the cost in US dollars."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cost: float | None = None


@dataclass(slots=True)
class UsageMeter:
    """The usage of all calls of a version, and the tokens that are not reported yet."""

    used: ModelUsage = field(default_factory=ModelUsage)
    unreported_tokens: int = 0

    def add(self, used: ModelUsage) -> None:
        """Add a call."""
        before = self.used
        self.used = ModelUsage(
            _sum(before.prompt_tokens, used.prompt_tokens),
            _sum(before.completion_tokens, used.completion_tokens),
            _sum(before.cost, used.cost),
        )

    def paid(self) -> int:
        """Return the unreported tokens, once."""
        tokens, self.unreported_tokens = self.unreported_tokens, 0
        return tokens


def _sum(left: Amount | None, right: Amount | None) -> Amount | None:
    """Add two values; None stands for unknown."""
    if left is None or right is None:
        return right if left is None else left
    return left + right
