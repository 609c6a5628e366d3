"""What calls of a model took."""

from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

Amount = TypeVar("Amount", int, float)


class ModelUsage(NamedTuple):
    """What a call took, as its provider reported it; the cost is in US dollars."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cost: float | None = None


@dataclass(slots=True)
class UsageMeter:
    """What all calls of a version took together, and the tokens of calls that nobody was told of yet."""

    used: ModelUsage = field(default_factory=ModelUsage)
    unreported_tokens: int = 0

    def add(self, used: ModelUsage) -> None:
        """One more call."""
        before = self.used
        self.used = ModelUsage(
            _sum(before.prompt_tokens, used.prompt_tokens),
            _sum(before.completion_tokens, used.completion_tokens),
            _sum(before.cost, used.cost),
        )

    def paid(self) -> int:
        """The tokens to be told of, once."""
        tokens, self.unreported_tokens = self.unreported_tokens, 0
        return tokens


def _sum(one: Amount | None, other: Amount | None) -> Amount | None:
    """Both together; None where nobody said."""
    return other if one is None else one if other is None else one + other
