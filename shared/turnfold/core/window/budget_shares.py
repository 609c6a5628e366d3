"""Shares of a budget: of the window, of summary and ledger, after a trim, and for recall.

The sizes of a session's turns decide how deep its window is trimmed.
"""

from bisect import insort
from collections.abc import Sequence
from math import floor
from typing import Final, NamedTuple

from turnfold.core.policy.presets import LOW_WATER_RATIO, Mode, Policy
from turnfold.messages import Message, Role

UNLIMITED: Final = 1 << 52
TURNS_BETWEEN_TRIMS: Final = 5
FEWEST_TURNS: Final = 10
"""Trims leave room for `TURNS_BETWEEN_TRIMS` turns if the budget holds at least this many."""
GROWTH_AT_ARRIVAL: Final = 0.8
MOST_AT_ARRIVAL: Final = 0.9
"""When a request arrives, a window may exceed what recall usually leaves to it by this share of
these turns' growth, up to this share of the budget."""
LEAST_KEPT: Final = 0.4
"""A trim leaves at least this share, whatever the size of turns."""
TALK_RATIO: Final = 0.7
ASKED_TALK_RATIO: Final = 0.2
"""If an agent does not act, recall leaves only the first ratio of what it usually leaves.

The second ratio applies if the request has its own query, because its caller asks for the past.
"""
LEAST_BESIDE: Final = 0.1
"""When a request arrives, everything but the system message and this request keeps at least this
share of the room that both leave; recall gets the rest."""
MOST_TURN_SHARE: Final = 0.25
"""When a request arrives, at most this share of the budget is left free for its turn."""
SMALL_BUDGET_TOKENS: Final = 6_000
"""Smaller windows show only a few steps of an agent, and chosen lines are worth more than messages
that happen to be the newest."""
MOST_KEPT_WITH_RECALL, MOST_KEPT_OF_SMALL = 0.75, 0.7
"""The most that a trim within a turn keeps of a budget, and of a small one. The rest is for recall
and later messages."""
TAKEN_WITHIN_TURN: Final = 0.75
"""The share of the room in a running turn that a block takes. In small windows it takes all."""
ROOM_WITHIN_TURN, ROOM_OF_SMALL = TAKEN_WITHIN_TURN / 2, 0.6
"""If the turn has outgrown its room, these shares of what a trim frees must be free for recall, or
the window is trimmed again: of a block that no longer fits, half is shown before that."""

SUMMARY_SHARE, SUMMARY_SHARE_WITH_RECALL = 0.4, 0.8
"""The largest shares of a budget, and of what recall leaves of it, for summary and ledger."""
SUMMARY_SHARE_BESIDE_LINES: Final = 0.25
SMALL_SUMMARY_TOKENS: Final = 1_450
"""With recall, summary and ledger take at most this share of a budget, or this many tokens if that
is more."""


class WindowLimits(NamedTuple):
    """The limits of a window, and the targets of trimming. Tokens are raw counts.

    When a request arrives or a turn ends, a window that has something to recall takes at most
    `arrival_tokens`, so that room is left for the recall block. The summary, its ledger included,
    takes at most `summary_tokens`. If `is_trimmed_by_turns`, trims depend on the size of turns.
    """

    tokens: int
    target_tokens: int
    arrival_tokens: int
    arrival_target_tokens: int
    summary_tokens: int
    messages: int
    target_messages: int
    is_trimmed_by_turns: bool = False

    @property
    def makes_room(self) -> bool:
        """Whether room is kept for a recall block."""
        return self.arrival_tokens < self.tokens

    def for_turns(self, turn_tokens: int) -> "WindowLimits":
        """Return the limits of a session whose turns have this median size (0 if unknown).

        If ten turns fit, a trim makes room for five, so that the beginning of the window stays the
        same for that long. Recall then has much room after a trim, and little before the next one.
        """
        if not self.is_trimmed_by_turns or not turn_tokens:
            return self
        if FEWEST_TURNS * turn_tokens > self.tokens:
            return self
        growth = TURNS_BETWEEN_TRIMS * turn_tokens
        target = max(self.tokens - growth, int(LEAST_KEPT * self.tokens))
        limits = self._replace(target_tokens=min(self.target_tokens, target))
        if not self.makes_room:
            return limits
        most = max(self.arrival_tokens, int(MOST_AT_ARRIVAL * self.tokens))
        arrival = min(self.arrival_tokens + int(GROWTH_AT_ARRIVAL * growth), most)
        target = max(arrival - growth, int(LEAST_KEPT * self.arrival_tokens))
        return limits._replace(
            arrival_tokens=arrival,
            arrival_target_tokens=min(self.arrival_target_tokens, target),
        )

    def beside(self, fixed_tokens: int) -> "WindowLimits":
        """Return the limits of a window whose system message and newest request have these tokens.

        Neither is ever cut for recall: if both are large, recall gets less.
        """
        least = fixed_tokens + int(LEAST_BESIDE * max(0, self.tokens - fixed_tokens))
        if not self.makes_room or least <= self.arrival_tokens:
            return self
        # Beside the fixed tokens, a trim goes as deep in proportion as it would without them.
        deeper = self.arrival_target_tokens / max(1, self.arrival_tokens)
        target = fixed_tokens + int(deeper * (least - fixed_tokens))
        return self._replace(arrival_tokens=least, arrival_target_tokens=target)

    @property
    def is_small(self) -> bool:
        """Whether the budget is so small that lines matter more than the newest messages."""
        return self.tokens < SMALL_BUDGET_TOKENS

    @property
    def within_turn(self) -> "WindowLimits":
        """The limits in a turn that has outgrown its room."""
        share = ROOM_OF_SMALL if self.is_small else ROOM_WITHIN_TURN
        room = int(share * (self.tokens - self.target_tokens))
        return self._replace(tokens=self.tokens - room)

    @property
    def at_arrival(self) -> "WindowLimits":
        """The limits when a request arrives or a turn ends."""
        return self._replace(tokens=self.arrival_tokens, target_tokens=self.arrival_target_tokens)


class WindowLimitsByActivity(NamedTuple):
    """The limits of a window while the agent acts, and in a conversation without actions."""

    at_work: WindowLimits
    in_talk: WindowLimits


def window_limits(
    tokens: int, messages: int, recall_share: float, policy: Policy, *, is_asked: bool
) -> WindowLimitsByActivity:
    """Return the limits of a window of these raw tokens and messages.

    When a request arrives, `recall_share` of the tokens stays free if the agent acts. In talk only
    earlier messages matter, and the recall block, which finds them best, has a larger share;
    the largest if the request `is_asked`, with a query of its own.
    """
    at_work = _limits_with_share(tokens, messages, recall_share, policy, acts=True)
    if not recall_share:
        return WindowLimitsByActivity(at_work, at_work)
    share = 1 - (ASKED_TALK_RATIO if is_asked else TALK_RATIO) * (1 - recall_share)
    in_talk = _limits_with_share(tokens, messages, share, policy, acts=False)
    return WindowLimitsByActivity(at_work, in_talk)


def _limits_with_share(
    tokens: int, messages: int, recall_share: float, policy: Policy, *, acts: bool
) -> WindowLimits:
    arrival_tokens = floor((1 - recall_share) * tokens)
    kept = _most_kept(tokens, acts=acts) if recall_share else 1.0
    return WindowLimits(
        tokens=tokens,
        target_tokens=floor(min(policy.low_water_ratio, kept) * tokens),
        arrival_tokens=arrival_tokens,
        arrival_target_tokens=floor(policy.low_water_ratio * arrival_tokens),
        summary_tokens=UNLIMITED
        if policy.mode is Mode.OFF
        else _most_for_summary(tokens, arrival_tokens),
        messages=messages,
        target_messages=floor(policy.low_water_ratio * messages),
        # In talk, recall is worth more than a long prefix.
        is_trimmed_by_turns=acts and policy.low_water_ratio == LOW_WATER_RATIO,
    )


def _most_for_summary(tokens: int, arrival_tokens: int) -> int:
    """Return the most tokens that summary and ledger take of a budget.

    With recall, it is a smaller share, except of small budgets: lines chosen for the window are
    worth more than further entries of the ledger.
    """
    most = SUMMARY_SHARE * tokens
    if arrival_tokens < tokens:
        most = min(most, max(SUMMARY_SHARE_BESIDE_LINES * tokens, SMALL_SUMMARY_TOKENS))
    return floor(min(most, SUMMARY_SHARE_WITH_RECALL * arrival_tokens))


def _most_kept(tokens: int, *, acts: bool) -> float:
    """Return the largest share of a budget that a trim with recall leaves in the window.

    Small windows of an agent that acts are trimmed deeper, to quote lines; other conversations
    quote none.
    """
    is_small = acts and tokens < SMALL_BUDGET_TOKENS
    return MOST_KEPT_OF_SMALL if is_small else MOST_KEPT_WITH_RECALL


class SessionTurns:
    """The tokens of the turns that have ended, and of the running one after its request.

    `are_talk` if the agent did not act in the turns before the running one: its own actions do not
    count, so that the beginning of its window stays the same within the turn. Without an earlier
    turn, the agent may work on a single task. Mutable, because windows grow.
    """

    def __init__(self) -> None:
        self._whole: list[int] = []
        self._answers: list[int] = []
        self._request: int | None = None
        self.after_request = 0
        self.are_talk = False
        self._have_calls = False
        self._of_users = self._of_programs = 0

    def add(self, message: Message) -> None:
        """Add the next message: a request ends the turn before it."""
        if message.is_request:
            self.are_talk = self._request is not None and not self.is_work
            if self._request is not None:
                insort(self._whole, self._request + self.after_request)
                insort(self._answers, self.after_request)
            self._request, self.after_request = message.tokens, 0
        else:
            self.after_request += message.tokens
        self._have_calls = self._have_calls or bool(message.calls)
        if message.role is Role.USER:
            self._of_users += 1
            self._of_programs += message.is_meta

    @property
    def is_work(self) -> bool:
        """Whether the agent acts: it calls tools, or programs write half of its user messages.

        Agents without tool calls write commands as text, and a program sends back the results.
        """
        return self._have_calls or 0 < self._of_users <= 2 * self._of_programs

    @property
    def median(self) -> int:
        """The median of whole turns, each from its request to the next; 0 without one."""
        return _median(self._whole)

    @property
    def median_after_request(self) -> int:
        """The median of the tokens that turns add after their request; 0 without one."""
        return _median(self._answers)


def _median(ordered: Sequence[int]) -> int:
    number = len(ordered)
    return (ordered[(number - 1) // 2] + ordered[number // 2]) // 2 if ordered else 0
