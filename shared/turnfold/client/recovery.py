"""Model calls that recover from context overflow.

`ContextRecovery` wraps a model call of an agent's loop. It sends messages that fit, and repeats a
call that was too long with a shorter window.
"""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Mapping, MutableSequence, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from turnfold.client.call_budget import CallBudget
from turnfold.client.fitting import fit, most_tokens
from turnfold.client.merge import merge_history, message_json, with_marks
from turnfold.client.provider import (
    ContextBudget,
    History,
    Provider,
    SessionProvider,
    lasting_notes,
    split_notes,
)
from turnfold.client.reporting import WindowReports
from turnfold.client.session import Session
from turnfold.client.token_counter import load
from turnfold.core.history.validation import validation_errors
from turnfold.core.policy.meta import without_mark
from turnfold.core.recovery.assembler import Assembler, assemble, leading_systems
from turnfold.core.recovery.compressor import (
    Compressed,
    Compressor,
    LadderCompressor,
)
from turnfold.core.recovery.overflow import (
    Overflow,
    overflow_answered,
    overflow_in,
    overflow_reported,
)
from turnfold.core.window.window import EMERGENCY_FIFTHS
from turnfold.errors import BadRequest, CannotFit, ContextOverflow, RequestError
from turnfold.model_info.context_windows import installed_windows

MIN_CORRECTION: Final = 0.4
"""The lowest factor for a budget, however many more tokens the provider counts than we do."""

log = logging.getLogger("turnfold.client")


class ContextRecovery:
    """A drop-in replacement for a model call in an agent's loop, which sends messages that fit.

    `call` is any async function with litellm's signature, such as `litellm.acompletion`. It takes
    `messages` and other keyword arguments, which are passed through. Each call of this object

    1. requests the session's window (or the history of another `Provider`) and adds the agent's
       messages that are not in it: the leading system messages, and those after the newest message
       of the window. If there is no answer within `patience_seconds`, the agent's own list is
       trimmed by the same rules, and no window is requested for `away_seconds`. Without a session,
       the agent's own list is always used;
    2. calls the model. If the call fails because the conversation is too long, answers that as text
       (`finish_reason` "error"), or succeeds and reports more input than the model reads, it is
       repeated once with the emergency window: at most three fifths of the size that was too large.
       The service receives a report (`usage.reported`), so that it compacts the session and uses
       the size of the model's window if the provider named it;
    3. after a repeated call, replaces the content of `messages` with that shorter list and requests
       windows of that size from then on, so that the loop continues with messages that fit.

    All sizes are tokens. The budget of the messages is `budget_tokens`, or else the model's context
    window minus answer and tools. `context_window` sets the model's size if litellm's map of models
    is not installed or lacks the model. `compressor` and `assembler` can be replaced. Steps may be
    published before or after the call that needs them, because missing messages are taken from the
    agent's list. A user message that a program wrote ("Reflect on the results") is marked by
    `"is_meta": True`; it does not count as the newest request, and the model does not see the mark.

    Use one object per conversation, and do not call it concurrently.

    Raises (when called):
        ContextOverflow: the shortened list is too long as well, or no valid list is short
            enough. Its text is meant for people. The agent's list is unchanged.
        BadRequest: an entry of `messages` is not a chat message.
        Exception: any other error of `call`, unchanged.
    """

    def __init__(
        self,
        call: Callable[..., Awaitable[Any]],
        provider: Session | Provider | None = None,
        *,
        context_window: int | None = None,
        budget_tokens: int | None = None,
        compressor: Compressor | None = None,
        assembler: Assembler = assemble,
        patience_seconds: float = 2.0,
        away_seconds: float = 10.0,
    ) -> None:
        self._call = call
        self._provider: Provider | None = (
            SessionProvider(provider) if isinstance(provider, Session) else provider
        )
        self._context_window = context_window
        self._budget_tokens = budget_tokens
        self._compressor = compressor
        self._assemble = assembler
        self._patience_seconds = patience_seconds
        self._away_seconds = away_seconds
        self._away_until = 0.0
        self._learned: dict[str | None, int] = {}
        self._reports = WindowReports(self._provider)
        self._notes: list[dict[str, Any]] = []
        self._replaced_tokens = 0
        self._reported_window: int | None = None
        self.second_failure: BaseException | None = None
        """The error of the newest call's second attempt, which follows an overflow; or None."""

    async def __call__(self, *, messages: MutableSequence[Any], **rest: Any) -> Any:
        """Call the model with messages that fit; see the class for side effects and errors."""
        self.second_failure = None
        compressor = self._compressor or LadderCompressor(await load())
        own = [message_json(message) for message in messages]
        call_budget = await self._call_budget(rest, compressor)
        call_budget, window = await self._first_window(own, call_budget, compressor)
        answer = await self._attempt(window.messages, rest, call_budget.model)
        if not isinstance(answer, _TooLong):
            self._reports.succeeded(call_budget.model, answer)
            return answer
        lower = self._lower_budget(call_budget, answer.overflow, window.tokens)
        # Before the emergency window is requested, so that the service may have compacted by then.
        await self._reports.overflowed(call_budget.model, answer.overflow)
        emergency = await self._emergency_window(own, lower, compressor, answer)
        second = await self._second_attempt(emergency.messages, rest, call_budget.model)
        if isinstance(second, _TooLong):
            raise second.error(after=answer)
        # In place, and only after success: the agent's loop holds this very list.
        # Without what another task of the agent has appended meanwhile, which stays.
        messages[: len(own)] = with_marks(emergency.messages, own)
        self._reports.succeeded(call_budget.model, second)
        return second

    # Calling

    async def _attempt(
        self, messages: Sequence[dict[str, Any]], rest: Mapping[str, Any], model: str | None
    ) -> Any:
        """Return the answer, or `_TooLong` if the messages exceed the model's window."""
        try:
            answer = await self._call(messages=[without_mark(body) for body in messages], **rest)
        except Exception as error:
            overflow = overflow_in(error)
            if overflow is None:
                raise
            return _TooLong(overflow, error)
        # Some hosts answer an overflow as text, and some cut the input without a word.
        overflow = overflow_answered(answer) or overflow_reported(
            answer, await self._known_window(model)
        )
        return answer if overflow is None else _TooLong(overflow, None)

    async def _second_attempt(
        self, messages: Sequence[dict[str, Any]], rest: Mapping[str, Any], model: str | None
    ) -> Any:
        try:
            answer = await self._attempt(messages, rest, model)
        except Exception as error:
            self.second_failure = error
            raise
        if isinstance(answer, _TooLong):
            log.warning("overflow.repeated: the emergency window is too long as well")
        return answer

    async def _emergency_window(
        self,
        own: Sequence[dict[str, Any]],
        lower: CallBudget,
        compressor: Compressor,
        first: "_TooLong",
    ) -> Compressed:
        tokens = lower.budget_tokens
        log.warning(
            "overflow.recovering: the call was too long; calling again with at most %d tokens",
            tokens,
        )
        budget = ContextBudget(budget_tokens=tokens, model=lower.model, is_emergency=True)
        try:
            return await self._window(own, budget, compressor)
        except ContextOverflow as error:
            raise first.error(after=first) from error

    # Budgets

    async def _call_budget(self, rest: Mapping[str, Any], compressor: Compressor) -> CallBudget:
        model = rest.get("model") if isinstance(rest.get("model"), str) else None
        outputs = (rest.get("max_completion_tokens"), rest.get("max_tokens"))
        output = next((tokens for tokens in outputs if isinstance(tokens, int)), None)
        tools = rest.get("tools") or rest.get("functions")
        tools_tokens = (
            compressor.tokens([{"role": "system", "content": json.dumps(tools, default=repr)}])
            if tools
            else 0
        )
        call_budget = CallBudget(model, self._budget_tokens or 0, tools_tokens, output)
        if self._budget_tokens is None:
            window = self._context_window
            if window is None:
                window = await asyncio.to_thread(installed_windows(), model)
            call_budget = replace(call_budget, budget_tokens=call_budget.of_window(window))
        learned_tokens = self._learned.get(model, call_budget.budget_tokens)
        return replace(call_budget, budget_tokens=min(call_budget.budget_tokens, learned_tokens))

    async def _known_window(self, model: str | None) -> int | None:
        """Return the model's context window in tokens, or None if it is not known.

        With a budget of the agent's programmer, the map of models counts for nothing: it may lack a
        larger deployment.
        """
        if self._context_window is not None or self._budget_tokens is not None:
            return self._context_window
        return await asyncio.to_thread(installed_windows().known, model)

    def _lower_budget(
        self, call_budget: CallBudget, overflow: Overflow, sent_tokens: int
    ) -> CallBudget:
        """Return the budget for the emergency window, and remember the limit for later windows.

        The emergency window takes three fifths of the returned budget.
        """
        counted = sent_tokens + call_budget.tools_tokens
        if overflow.limit_tokens is None:
            budget = min(call_budget.budget_tokens, sent_tokens)
            # Only a size that failed is known, so later windows get that of the emergency window.
            self._learned[call_budget.model] = max(budget * EMERGENCY_FIFTHS // 5, 1)
            return replace(call_budget, budget_tokens=budget)
        # Providers count otherwise than we do. The failed call shows by how much.
        factor = counted / overflow.tokens if overflow.tokens else 1.0
        room_tokens = call_budget.of_limit(overflow, overflow.limit_tokens)
        budget = int(room_tokens * min(1.0, max(MIN_CORRECTION, factor)))
        budget = min(call_budget.budget_tokens, budget)
        # Later windows may use the whole limit. Only this attempt has to be below what failed.
        self._learned[call_budget.model] = max(budget, 1)
        # A provider may name a limit above what it has just refused.
        return replace(call_budget, budget_tokens=min(budget, sent_tokens))

    # Windows

    async def _first_window(
        self, own: Sequence[dict[str, Any]], call_budget: CallBudget, compressor: Compressor
    ) -> tuple[CallBudget, Compressed]:
        """Return the messages to send and the budget, smaller if the service knows a smaller model.

        Raises:
            ContextOverflow: no valid list is that small.
        """
        budget = ContextBudget(budget_tokens=call_budget.budget_tokens, model=call_budget.model)
        window = await self._window(own, budget, compressor)
        # A limit that the agent's programmer set is taken as it is.
        is_explicit = self._budget_tokens is not None or self._context_window is not None
        if self._reported_window is None or is_explicit:
            return call_budget, window
        reported_tokens = call_budget.of_window(self._reported_window)
        if reported_tokens >= call_budget.budget_tokens:
            return call_budget, window
        call_budget = replace(call_budget, budget_tokens=reported_tokens)
        if window.tokens > reported_tokens:
            budget = replace(budget, budget_tokens=reported_tokens)
            window = await self._window(own, budget, compressor)
        return call_budget, window

    async def _window(
        self, own: Sequence[dict[str, Any]], budget: ContextBudget, compressor: Compressor
    ) -> Compressed:
        """Return the messages to send, within the budget.

        Raises:
            ContextOverflow: no valid list is that small.
        """
        systems = leading_systems(own)
        self._reported_window = None
        history = await self._history_beside(systems, budget, compressor)
        try:
            # Counting the tokens of a long list takes long; in a thread it does not block the loop.
            if history is None:
                return await asyncio.to_thread(self._own_window, own, budget, compressor)
            self._reported_window = history.model_window
            self._notes = lasting_notes(history.messages)
            return await asyncio.to_thread(self._merged_window, own, history, budget, compressor)
        except CannotFit as error:
            raise ContextOverflow from error

    async def _history_beside(
        self, systems: Sequence[dict[str, Any]], budget: ContextBudget, compressor: Compressor
    ) -> History | None:
        """Return the history for the room that the agent's system messages leave.

        They take the place of those in the history, which therefore take no room. How many tokens
        these have is known from the history before; a first one may be requested twice.
        """
        own_tokens = compressor.tokens(systems) if systems else 0
        while True:
            room = max(1, budget.budget_tokens - own_tokens + self._replaced_tokens)
            history = await self._history(replace(budget, budget_tokens=room))
            if history is None and (self._replaced_tokens or not systems or self._is_away):
                return None
            # None that is this small: the session may hold these very messages.
            replaced = own_tokens if history is None else 0
            if history is not None and systems:
                replaced = compressor.tokens(leading_systems(history.messages))
            is_known = replaced <= self._replaced_tokens
            self._replaced_tokens = replaced
            if is_known:
                return history

    @property
    def _is_away(self) -> bool:
        return asyncio.get_running_loop().time() < self._away_until

    async def _history(self, budget: ContextBudget) -> History | None:
        """Return the session's history, or None if it is not available now."""
        if self._provider is None or self._is_away:
            return None
        try:
            async with asyncio.timeout(self._patience_seconds):
                return await self._provider.history(budget)
        except CannotFit:
            return None
        except BadRequest:
            raise
        except (RequestError, TimeoutError, OSError) as error:
            self._away_until = asyncio.get_running_loop().time() + self._away_seconds
            fault = type(error).__name__
            log.warning("context.unavailable: the agent's own list is trimmed (%s)", fault)
            return None

    def _merged_window(
        self,
        own: Sequence[dict[str, Any]],
        history: History,
        budget: ContextBudget,
        compressor: Compressor,
    ) -> Compressed:
        """Merge the history with the agent's newer messages, and trim them if they do not fit."""
        systems, provided, newer, inserted = merge_history(own, history)
        whole = self._assemble(systems, provided, newer)
        total = history.tokens + compressor.tokens([*systems, *newer, *inserted])
        if systems and (replaced := leading_systems(history.messages)):
            # The service may count otherwise, so that the difference alone might be too small.
            total = max(total - compressor.tokens(replaced), compressor.tokens(whole))
        if total <= most_tokens(budget) and whole and not validation_errors(whole):
            return Compressed(whole, total)
        return fit(*split_notes(whole), budget, compressor)

    def _own_window(
        self, own: Sequence[dict[str, Any]], budget: ContextBudget, compressor: Compressor
    ) -> Compressed:
        """Return the agent's own list, trimmed if it does not fit.

        The newest summary received from the service then stands for the omitted messages.
        """
        total = compressor.tokens(own)
        if total <= most_tokens(budget) and own and not validation_errors(own):
            return Compressed(list(own), total)
        notes, rest = split_notes(own)
        # Without any request, the list's own summary is its last user message.
        if not notes and not lasting_notes(rest):
            notes = self._notes
        return fit(notes, rest, budget, compressor)


@dataclass(frozen=True, slots=True)
class _TooLong:
    """An overflow of the model's window, reported by an error or in an answer."""

    overflow: Overflow
    cause: Exception | None

    def error(self, *, after: "_TooLong") -> ContextOverflow:
        """Return the error for the agent, with the provider's error as its cause."""
        error = ContextOverflow(
            limit_tokens=self.overflow.limit_tokens or after.overflow.limit_tokens,
            tokens=self.overflow.tokens or after.overflow.tokens,
        )
        error.__cause__ = self.cause or after.cause
        return error
