"""Calling a model from an agent's loop, in such a way that a conversation that grew too long does not end it."""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Mapping, MutableSequence, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final

from turnfold.client.merge import merge_history
from turnfold.client.provider import (
    ContextBudget,
    History,
    Provider,
    SessionProvider,
    is_context_note,
    without_notes,
)
from turnfold.client.session import Session
from turnfold.client.token_counter import load
from turnfold.core.history.validity import validation_errors
from turnfold.core.policy.presets import Policy
from turnfold.core.window.assembler import Assembler, assemble, leading_systems
from turnfold.core.window.compressor import Compressed, Compressor, LadderCompressor
from turnfold.core.window.overflow import Overflow, overflow_in, overflow_reported
from turnfold.core.window.window import EMERGENCY_FIFTHS, budget_of
from turnfold.errors import BadRequest, CannotFit, ContextOverflow, RequestError
from turnfold.messages import Json
from turnfold.model_info.context_windows import ModelWindows

LEAST_CORRECTION: Final = 0.4
"""However many tokens more a provider counts than we do, a budget is corrected by no more than this."""

log = logging.getLogger("turnfold.client")


@dataclass(frozen=True, slots=True)
class _Asked:
    """What one call leaves room for: `budget_tokens` for its messages; `tools_tokens` and `output_tokens` go besides."""

    model: str | None
    budget_tokens: int
    tools_tokens: int
    output_tokens: int | None


class ContextRecovery:
    """Calls a model as `call` does, with the messages that fit; a drop-in for it in an agent's loop.

    `call` is any async function of litellm's shape, such as `litellm.acompletion`: it takes `messages` and whatever else
    by name, and everything else is handed through. Each call of this object

    1. asks the session (or another `Provider`) for its window, and adds what the agent's list has beyond it: the system
       messages it begins with, and what was said after the newest message of the window. Where nobody answers within
       `patience_seconds`, the agent's own list is trimmed by the same rules instead, and nobody is asked again for
       `away_seconds`. Without a session that is what happens always;
    2. calls. When that fails because the conversation is too long for the model, or succeeds and reports more input
       than the model reads, it calls once more, with the emergency window: at most three fifths of what was too much;
    3. puts that shorter list in the place of the agent's own (`messages` itself is changed), and asks for windows of
       that size from then on, so that the loop goes on with what fits.

    The budget of the messages is `budget_tokens`, else what the model leaves besides its answer and the tools;
    `context_window` says how many tokens it reads where litellm's map of models is not installed or does not know. All
    sizes are tokens. `compressor` and `assembler` may be your own. A window holds what was published: publish each step before the call that needs it, or after; what
    is not in the window yet is taken from the list.

    Use one object for each conversation; calls of it are meant to follow each other.

    Raises (when called):
        ContextOverflow: also the shortened list is too long, or nothing sendable is short enough. Its text is meant for
            people; the agent's list is as it was.
        BadRequest: an entry of `messages` is no chat message.
        Exception: any other error of `call`, untouched.
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
        self._given = compressor
        self._assemble = assembler
        self._patience_seconds = patience_seconds
        self._away_seconds = away_seconds
        self._away_until = 0.0
        self._learned: dict[str | None, int] = {}
        self._notes: list[dict[str, Any]] = []
        self.second_failure: BaseException | None = None
        """The error that ended the newest call after its first attempt had overflowed; None where there was none."""

    async def __call__(self, *, messages: MutableSequence[Any], **rest: Any) -> Any:
        """What `call` answers to the messages that fit. See the class for what becomes of `messages`, and for the errors."""
        self.second_failure = None
        compressor = self._given or LadderCompressor(await load())
        own = [_as_json(message) for message in messages]
        asked = await self._asked(rest, compressor)
        window = await self._window(
            own, ContextBudget(budget_tokens=asked.budget_tokens, model=asked.model), compressor
        )
        answer = await self._attempt(window.messages, rest, asked.model)
        if not isinstance(answer, _TooLong):
            return answer
        budget_tokens = self._lowered(asked, answer.overflow, window.tokens)
        emergency = await self._shorter(own, asked, budget_tokens, compressor, answer)
        again = await self._again(emergency.messages, rest, asked.model)
        if isinstance(again, _TooLong):
            raise again.error(after=answer)
        messages[:] = emergency.messages
        return again

    # Calling

    async def _attempt(
        self, messages: Sequence[dict[str, Any]], rest: Mapping[str, Any], model: str | None
    ) -> Any:
        """The answer, or how the call told that the messages are too long; any other error rises."""
        try:
            answer = await self._call(messages=list(messages), **rest)
        except Exception as error:
            overflow = overflow_in(error)
            if overflow is None:
                raise
            return _TooLong(overflow, error)
        overflow = overflow_reported(answer, await self._reads(model))
        return answer if overflow is None else _TooLong(overflow, None)

    async def _again(
        self, messages: Sequence[dict[str, Any]], rest: Mapping[str, Any], model: str | None
    ) -> Any:
        try:
            again = await self._attempt(messages, rest, model)
        except Exception as error:
            self.second_failure = error
            raise
        if isinstance(again, _TooLong):
            log.warning("overflow.repeated")
        return again

    async def _shorter(
        self,
        own: Sequence[dict[str, Any]],
        asked: _Asked,
        budget_tokens: int,
        compressor: Compressor,
        first: "_TooLong",
    ) -> Compressed:
        log.warning(
            "overflow.recovering",
            extra={"provider": first.overflow.provider, "budget_tokens": budget_tokens},
        )
        try:
            return await self._window(
                own,
                ContextBudget(budget_tokens=budget_tokens, model=asked.model, is_emergency=True),
                compressor,
            )
        except ContextOverflow as error:
            raise first.error(after=first) from error

    # How much there is room for

    async def _asked(self, rest: Mapping[str, Any], compressor: Compressor) -> _Asked:
        model = rest.get("model") if isinstance(rest.get("model"), str) else None
        outputs = (rest.get("max_completion_tokens"), rest.get("max_tokens"))
        output = next((tokens for tokens in outputs if isinstance(tokens, int)), None)
        tools = rest.get("tools") or rest.get("functions")
        tools_tokens = (
            compressor.tokens([{"role": "system", "content": json.dumps(tools, default=repr)}])
            if tools
            else 0
        )
        asked = _Asked(model, self._budget_tokens or 0, tools_tokens, output)
        if self._budget_tokens is None:
            window = (
                self._context_window
                if self._context_window is not None
                else await asyncio.to_thread(_windows(), model)
            )
            asked = replace(asked, budget_tokens=_left_of(window, asked))
        return replace(
            asked,
            budget_tokens=min(asked.budget_tokens, self._learned.get(model, asked.budget_tokens)),
        )

    async def _reads(self, model: str | None) -> int | None:
        """How much the model reads, where that is known and not guessed."""
        if self._context_window is not None:
            return self._context_window
        return await asyncio.to_thread(_windows().known, model)

    def _lowered(self, asked: _Asked, overflow: Overflow, sent_tokens: int) -> int:
        """The budget of which an emergency window takes three fifths; what later windows may take is remembered."""
        counted = sent_tokens + asked.tools_tokens
        if overflow.limit_tokens is None:
            budget = min(asked.budget_tokens, sent_tokens)
            self._learned[asked.model] = max(budget * EMERGENCY_FIFTHS // 5, 1)
            return budget
        factor = counted / overflow.tokens if overflow.tokens else 1.0
        budget = int(
            _left_of(overflow.limit_tokens, asked) * min(1.0, max(LEAST_CORRECTION, factor))
        )
        budget = min(asked.budget_tokens, budget)
        self._learned[asked.model] = max(budget, 1)
        return min(budget, sent_tokens)

    # Windows

    async def _window(
        self, own: Sequence[dict[str, Any]], room: ContextBudget, compressor: Compressor
    ) -> Compressed:
        """The messages to send, within the room.

        Raises:
            ContextOverflow: nothing sendable is as small as that.
        """
        systems = leading_systems(own)
        history = await self._told(
            replace(room, budget_tokens=max(1, room.budget_tokens - compressor.tokens(systems)))
        )
        try:
            # Long lists take long to weigh, and the loop has others to serve.
            if history is None:
                return await asyncio.to_thread(self._alone, own, room, compressor)
            self._notes = [body for body in history.messages if is_context_note(body)]
            return await asyncio.to_thread(self._together, own, history, room, compressor)
        except CannotFit as error:
            raise ContextOverflow from error

    async def _told(self, room: ContextBudget) -> History | None:
        """The history of the session, or None where nobody tells it now."""
        loop = asyncio.get_running_loop()
        if self._provider is None or loop.time() < self._away_until:
            return None
        try:
            async with asyncio.timeout(self._patience_seconds):
                return await self._provider.history(room)
        except CannotFit:
            return None
        except BadRequest:
            raise
        except (RequestError, TimeoutError, OSError) as error:
            self._away_until = loop.time() + self._away_seconds
            log.warning("context.unavailable", extra={"error": type(error).__name__})
            return None

    def _together(
        self,
        own: Sequence[dict[str, Any]],
        history: History,
        room: ContextBudget,
        compressor: Compressor,
    ) -> Compressed:
        """What was told and what the agent has beyond it, trimmed where both do not fit."""
        systems, told, newer = merge_history(own, history)
        whole = self._assemble(systems, told, newer)
        total = history.tokens + compressor.tokens([*systems, *newer])
        if total <= _cap(room) and whole and not validation_errors(whole):
            return Compressed(whole, total)
        return _fitted(
            [body for body in told if is_context_note(body)], without_notes(whole), room, compressor
        )

    def _alone(
        self, own: Sequence[dict[str, Any]], room: ContextBudget, compressor: Compressor
    ) -> Compressed:
        """The agent's own list, trimmed where that is needed; the newest summary we were told speaks for what is left out."""
        total = compressor.tokens(own)
        if total <= _cap(room) and own and not validation_errors(own):
            return Compressed(list(own), total)
        notes = [body for body in own if is_context_note(body)] or self._notes
        return _fitted(notes, without_notes(own), room, compressor)


def _fitted(
    notes: Sequence[dict[str, Any]],
    rest: Sequence[dict[str, Any]],
    room: ContextBudget,
    compressor: Compressor,
) -> Compressed:
    """The rest in what the notes leave of the room, with the notes in their place; without them where both do not fit."""
    if notes:
        notes_tokens = compressor.tokens(notes)
        left = max(0, _cap(room) - notes_tokens)
        budget_tokens = -(-left * 5 // EMERGENCY_FIFTHS) if room.is_emergency else left
        try:
            fitted = compressor.compress(rest, budget_tokens, is_emergency=room.is_emergency)
        except CannotFit:
            return compressor.compress(rest, room.budget_tokens, is_emergency=room.is_emergency)
        systems = len(leading_systems(fitted.messages))
        messages = [*fitted.messages[:systems], *notes, *fitted.messages[systems:]]
        return replace(fitted, messages=messages, tokens=fitted.tokens + notes_tokens)
    return compressor.compress(rest, room.budget_tokens, is_emergency=room.is_emergency)


def _cap(room: ContextBudget) -> int:
    return room.budget_tokens * EMERGENCY_FIFTHS // 5 if room.is_emergency else room.budget_tokens


@dataclass(frozen=True, slots=True)
class _TooLong:
    """A call told that its messages are too long, by an error or in its answer."""

    overflow: Overflow
    cause: Exception | None

    def error(self, *, after: "_TooLong") -> ContextOverflow:
        """What the agent is told, with the provider's own error as its cause."""
        error = ContextOverflow(
            limit_tokens=self.overflow.limit_tokens or after.overflow.limit_tokens,
            tokens=self.overflow.tokens or after.overflow.tokens,
        )
        error.__cause__ = self.cause or after.cause
        return error


def _left_of(window_tokens: int, asked: _Asked) -> int:
    return budget_of(
        max_tokens=None,
        model_window=window_tokens,
        policy=Policy(),
        tools_tokens=asked.tools_tokens,
        max_output_tokens=asked.output_tokens,
    )


@cache
def _windows() -> ModelWindows:
    return ModelWindows()


def _as_json(message: Any) -> dict[str, Any]:
    """A message as a dictionary; those that libraries make of answers are turned into one."""
    if isinstance(message, Mapping):
        return dict[str, Any](message)
    dump = getattr(message, "model_dump", None)
    if dump is None:
        raise BadRequest(
            f"a message is a dictionary or a model with model_dump, not {type(message).__name__}"
        )
    body: Json = dump(exclude_none=True)
    return dict(body)
