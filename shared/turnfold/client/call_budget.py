"""The token budget of one model call."""

from dataclasses import dataclass, replace

from turnfold.core.policy.presets import Policy
from turnfold.core.recovery.overflow import Overflow
from turnfold.core.window.window import budget_of


@dataclass(frozen=True, slots=True)
class CallBudget:
    """The token budget of one call: `budget_tokens` for its messages, without tools and output."""

    model: str | None
    budget_tokens: int
    tools_tokens: int
    output_tokens: int | None

    def of_window(self, window_tokens: int) -> int:
        """Return the tokens for messages that a model's window leaves.

        At least half of the window if the answer's size is unknown: the default room for an answer
        would leave next to nothing of a small window.
        """
        budget_tokens = budget_of(
            max_tokens=None,
            model_window=window_tokens,
            policy=Policy(),
            tools_tokens=self.tools_tokens,
            max_output_tokens=self.output_tokens,
        )
        if self.output_tokens is not None:
            return budget_tokens
        return max(budget_tokens, window_tokens // 2 - self.tools_tokens)

    def of_limit(self, overflow: Overflow, limit_tokens: int) -> int:
        """Return the tokens for messages that the limit of a failed call leaves."""
        # The host may reserve an answer of another size than the call names.
        output_tokens = overflow.output_tokens or self.output_tokens
        budget_tokens = replace(self, output_tokens=output_tokens).of_window(limit_tokens)
        if not output_tokens:
            return budget_tokens
        is_answer_counted = overflow.output_tokens is not None or (
            overflow.tokens is not None and overflow.tokens <= limit_tokens
        )
        # The least budget of the policy may exceed that, and each call would fail.
        left_tokens = max(limit_tokens - output_tokens - self.tools_tokens, 1)
        return min(budget_tokens, left_tokens) if is_answer_counted else budget_tokens
