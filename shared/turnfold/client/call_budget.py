"""The token budget of one model call."""

from dataclasses import dataclass

from turnfold.core.policy.presets import Policy
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
