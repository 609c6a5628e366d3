"""Record the conversations of model calls, and take their windows."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b
from itertools import count
from operator import is_
from typing import Any, Final, TypeVar

import structlog
from cachetools import LRUCache, cached

from turnfold.client import Session, Window
from turnfold.client.erasures import ErasureSignals
from turnfold.client.token_counter import counter
from turnfold.contracts.erasures import ErasedSessions
from turnfold.errors import CannotFit, TurnfoldError, Unavailable, UnknownSession
from turnfold_proxy.apis.api import Api, ModelAnswer, RequestConversation
from turnfold_proxy.continuing import (
    KnownWindow,
    KnownWindows,
    ListBytes,
    grown,
    own_elements,
    parts_of,
)
from turnfold_proxy.erasures import AgentErasures, OnErased
from turnfold_proxy.pauses import MOST_SESSIONS, Pauses
from turnfold_proxy.recorded_list import (
    EventOf,
    RecordedList,
    SessionState,
    calibrated_by,
    mirror_all,
    mirror_rest,
    shows_all,
)

MOST_COUNTS: Final = 64
RECORD_SECONDS: Final = 15.0
SEND_SECONDS: Final = 0.01
"""The delay before a call is recorded, so that the call itself goes first."""
ERASED: Final = "the session was erased"

Result = TypeVar("Result")

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Call:
    """A model call whose conversation the proxy understands."""

    api: Api
    agent_id: str
    session_id: str
    body: Mapping[str, Any]
    conversation: RequestConversation
    budget_tokens: int | None
    tools: frozenset[str] = frozenset()
    """The names of tools in it that the proxy answers."""
    own_tools: Any = None
    """The tools in the body before these were added, or None."""

    @property
    def model(self) -> str | None:
        """The model that the caller names."""
        model = self.body.get("model")
        return model if isinstance(model, str) and 0 < len(model) <= 256 else None

    @property
    def key(self) -> tuple[str, str]:
        """The session, by the ids of agent and session."""
        return self.agent_id, self.session_id

    def without_added_tools(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a body of this call with no tools but the caller's."""
        if not self.tools:
            return body
        kept = {name: value for name, value in body.items() if name != "tools"}
        return kept if self.own_tools is None else {**kept, "tools": self.own_tools}

    @property
    def asked(self) -> Hashable:
        """The inputs of its window, without the list and the tokens of instructions and tools."""
        output = self.conversation.max_output_tokens
        return self.api.shape, self.model, self.budget_tokens, output


@dataclass(frozen=True, slots=True)
class PreparedCall:
    """A call by its number, and the `body` that is sent for it; None if it is sent as it came.

    `tokens` counts instructions, tools and window. `version` is the summary in it, or 0.
    """

    call: Call
    number: int
    body: Mapping[str, Any] | None
    tokens: int
    version: int


# By their digests: no erasure names texts that stand beside conversations.
@cached(
    LRUCache(MOST_COUNTS),
    key=lambda text: blake2b(text.encode(errors="surrogatepass")).digest(),
)
def _tokens(text: str) -> int:
    """Count the tokens of a text that stays the same from call to call."""
    return counter()(text)


def _beside(call: Call) -> list[int]:
    """Count the tokens of instructions and tools."""
    return [_tokens(text) for text in (call.conversation.instructions, call.conversation.tools)]


class Recorder:
    """Mirrors the lists of calls into sessions and returns their windows.

    One recorder at a time may serve a session: it knows which call is the newest. An erasure
    removes the state and the window of its sessions.
    """

    def __init__(
        self,
        session: Callable[[str, str], Session],
        erasures: Callable[[str, OnErased], ErasureSignals],
        pauses: Pauses,
        *,
        wait_seconds: float,
    ) -> None:
        self._session = session
        self._erasures = AgentErasures(erasures, self._forget)
        self._wait_seconds = wait_seconds
        self._numbers = count(1)
        self._states = LRUCache[tuple[str, str], SessionState](MOST_SESSIONS)
        self._windows = KnownWindows()
        self._pauses = pauses
        self._writing: set[asyncio.Task[Any]] = set()

    async def prepare(self, call: Call) -> PreparedCall:
        """Record what a call has that is new, and return what to send.

        If the window of the call before can be continued, nothing is waited for.

        Raises:
            RequestError, RecursionError: Turnfold cannot take part in this call.
        """
        self._pauses.check(call.key)
        number = next(self._numbers)
        state = self._states.setdefault(call.key, SessionState(begun=number))
        state.newest = number
        own_bytes = ListBytes(call.conversation.elements)
        if (continued := self._continued(call, own_bytes, number)) is not None:
            self._begin(self._refreshed(call, own_bytes, number, state))
            return continued
        since = None if state.lock.locked() else time.monotonic()
        try:
            async with asyncio.timeout(self._wait_seconds), state.lock:
                return await self._prepared(call, own_bytes, number, state)
        except (TimeoutError, Unavailable) as error:
            self._windows.forget(call.key)
            self._pauses.begin(call.key, error, since)
            raise Unavailable("Turnfold does not answer in time") from error

    def record(
        self, prepared: PreparedCall, answer: ModelAnswer, *, is_whole: bool
    ) -> asyncio.Task[bool] | None:
        """Begin to record the answer to a call; None if there is nothing, or it is late.

        The task returns whether it is recorded: a newer call may show that it is late.
        """
        call, number = prepared.call, prepared.number
        state, own = self._states.get(call.key), call.conversation.elements
        if state is None or not answer.elements:
            return None
        if not state.lock.locked() and state.is_late(number, own, is_whole=is_whole):
            return None
        return self._begin(self._recorded(prepared, answer, state, is_whole=is_whole))

    async def close(self) -> None:
        """Wait until all calls and answers are recorded."""
        if self._writing:
            await asyncio.wait(self._writing, timeout=RECORD_SECONDS)

    def _begin(self, writing: Coroutine[Any, Any, Result]) -> asyncio.Task[Result]:
        task = asyncio.create_task(writing)
        self._writing.add(task)
        task.add_done_callback(self._written)
        return task

    def _written(self, task: asyncio.Task[Any]) -> None:
        self._writing.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.warning("proxy.unrecorded", error=type(error).__name__)  # its text may quote a user

    def _forget(self, erased: ErasedSessions) -> None:
        for key in {*self._states, *self._windows.sessions()}:
            if erased.includes(*key):
                self._states.pop(key, None)
                self._windows.forget(key)

    def _is_current(self, call: Call, state: SessionState) -> bool:
        """Return whether the session was not erased since the call began."""
        return self._states.get(call.key) is state

    def _continued(self, call: Call, own_bytes: ListBytes, number: int) -> PreparedCall | None:
        """Return the window of the call before with what is new, if nobody need be asked."""
        known = self._windows.get(call.key)
        if known is None or not self._may_keep(call, known):
            return None
        api, own, beside = call.api, call.conversation.elements, sum(_beside(call))
        try:
            window = grown(
                known, api, own, own_bytes, asked=call.asked, beside_tokens=beside, count=counter()
            )
        except (ValueError, TypeError, AttributeError):
            return None
        if window is None:
            return None
        body = None
        if window.elements is not None:
            body = api.with_elements(call.body, call.conversation.leading, window.elements)
        return PreparedCall(call, number, body, window.tokens + beside, window.version)

    def _may_keep(self, call: Call, known: KnownWindow) -> bool:
        """Return whether a window has no text of Turnfold, or its erasure would be signaled."""
        return known.parts is None or (
            known.connection is not None
            and known.connection == self._erasures.connection(call.agent_id)
        )

    async def _refreshed(
        self, call: Call, own_bytes: ListBytes, number: int, state: SessionState
    ) -> None:
        """Record a call that was sent already, and take its window for the next one."""
        since = None if state.lock.locked() else time.monotonic()
        try:
            async with asyncio.timeout(RECORD_SECONDS), state.lock:
                await asyncio.sleep(SEND_SECONDS)
                # A newer call holds all of this one. Those of a fast caller would pile up.
                if state.newest == number:
                    await self._prepared(call, own_bytes, number, state)
        except Exception as error:
            self._windows.forget(call.key)
            if isinstance(error, TimeoutError | Unavailable):
                self._pauses.begin(call.key, error, since)
            raise

    async def _prepared(
        self, call: Call, own_bytes: ListBytes, number: int, state: SessionState
    ) -> PreparedCall:
        """Record a call and take its window.

        Raises:
            UnknownSession: the session was erased.
        """
        if not self._is_current(call, state):
            raise UnknownSession(ERASED)
        session, beside = self._session(*call.key), _beside(call)
        # Before the window is read, or the signal of an erasure in between would be missed.
        connection = await self._erasures.begin(call.agent_id)
        own, event = call.conversation.elements, EventOf(session, call.api, call.model)
        # None until all has succeeded: after a failure, the session is asked what it holds.
        recorded, state.recorded, state.begun = state.recorded, None, number
        mirrored = None
        if recorded is not None and own_bytes.begins_with(recorded.listed):
            mirrored = await mirror_rest(event, recorded, own)
        is_compared = mirrored is None
        if mirrored is None:
            mirrored = await mirror_all(event, own)
        window = await self._window(session, call, beside)
        self._pauses.answered()
        if window.fresh and not shows_all(window, mirrored, is_compared=is_compared):
            if not self._is_current(call, state):
                raise UnknownSession(ERASED)
            # Another program has changed the session, or the newest message is not shown.
            mirrored = await mirror_all(event, own, compare_all=True)
            window = await self._window(session, call, beside)
        if not window.fresh:
            message = "the session does not hold all of the conversation yet"
            raise Unavailable(message, is_answer=True)
        if window.account.total < mirrored.messages:
            # Events that were erased are not stored again; under other ids, with the next message.
            raise UnknownSession(ERASED)
        state.recorded = newest = RecordedList(number, own_bytes.digest, mirrored, mirrored)
        if state.factor_of != (described := calibrated_by(window)):
            state.factor, state.factor_of = None, described
            # After the call, which does not wait for it.
            self._begin(self._calibrated(session, call, state))
        return self._ready(call, window, newest, sum(beside), state, connection)

    async def _calibrated(self, session: Session, call: Call, state: SessionState) -> None:
        """Ask for the factor of a session, without which its windows are not continued."""
        described = state.factor_of
        try:
            async with asyncio.timeout(RECORD_SECONDS):
                factor = float((await session.status())["factor"])
        except (TimeoutError, TurnfoldError) as error:
            log.warning("proxy.uncalibrated", error=type(error).__name__)
            state.factor_of = None
            return
        if state.factor_of == described:
            state.factor = factor
            self._windows.calibrate(call.key, factor)

    def _ready(
        self,
        call: Call,
        window: Window,
        recorded: RecordedList,
        beside_tokens: int,
        state: SessionState,
        connection: int | None,
    ) -> PreparedCall:
        """Return what is sent for a window, and remember it for the next call."""
        api, conversation, own = call.api, call.conversation, call.conversation.elements
        elements = own_elements(api, window, own)
        is_same = len(elements) == len(own) and all(map(is_, elements, own))
        version = window.summary.version if window.summary is not None else 0
        known = KnownWindow(
            listed=recorded.listed,
            asked=call.asked,
            beside_tokens=beside_tokens,
            parts=None if is_same else parts_of(elements, own),
            tokens=window.tokens,
            budget_tokens=window.budget_tokens,
            version=version,
            factor=state.factor,
            connection=connection,
        )
        self._windows.forget(call.key)
        if self._is_current(call, state) and self._may_keep(call, known):
            self._windows.put(call.key, known)
        body = None if is_same else api.with_elements(call.body, conversation.leading, elements)
        return PreparedCall(call, recorded.number, body, window.tokens + beside_tokens, version)

    async def _window(self, session: Session, call: Call, beside: Sequence[int]) -> Window:
        ask = partial(
            session.context,
            model=call.model,
            format="openai" if call.api.shape == "chat" else call.api.shape,
            placement="user",
            entries=True,
            bodies="changed",
            wait_ms=min(int(self._wait_seconds * 1000), 5_000),
        )
        if call.budget_tokens is None:
            return await ask(
                system_tokens=beside[0],
                tools_tokens=beside[1],
                max_output_tokens=call.conversation.max_output_tokens,
            )
        try:
            return await ask(max_tokens=max(call.budget_tokens - sum(beside), 1))
        except CannotFit as error:
            if error.needed_tokens is None:
                raise
            # The smallest window is nearer to what was asked for than the whole list.
            return await ask(max_tokens=error.needed_tokens)

    async def _recorded(
        self, prepared: PreparedCall, answer: ModelAnswer, state: SessionState, *, is_whole: bool
    ) -> bool:
        call, number = prepared.call, prepared.number
        event = EventOf(self._session(*call.key), call.api, call.model, answer.usage)
        own = call.conversation.elements
        elements = [*own, *answer.elements]
        async with asyncio.timeout(RECORD_SECONDS), state.lock:
            known, is_newest = state.recorded, state.newest == number
            if not self._is_current(call, state) or state.is_late(number, own, is_whole=is_whole):
                return False
            state.recorded = None
            # If a newer call followed at once, the session may hold the beginning of this one.
            if known is not None and (
                known.number == number or ListBytes(elements).begins_with(known.listed)
            ):
                held = await mirror_rest(event, known, elements)
                if held is not None:
                    state.recorded = replace(
                        known, number=max(known.number, number), stored=held, is_answered=is_whole
                    )
                    return True
            # A newer call that was recorded has the same list: otherwise this answer is late.
            if known is not None and not is_newest and known.number <= number:
                return False
            await mirror_all(event, elements)
            return True
