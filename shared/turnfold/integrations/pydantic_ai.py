"""A capability for agents of Pydantic AI: their models see windows of Turnfold.

```python
agent = Agent("openai:gpt-5-mini", capabilities=[TurnfoldCapability("support", max_tokens=8_000)])
result = await agent.run("Where is order 7341?", conversation_id="user-42")
```

The history of a run keeps all messages. Each request publishes what is new in them, and the model
is given the window instead: system prompts, the summary, and the newest messages.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any, NamedTuple

from turnfold.client import PortalClient, Session
from turnfold.errors import BadRequest
from turnfold.integrations import requires
from turnfold.integrations.mirrored import PATIENCE_SECONDS, Chat, MirroredWindows, Shown

with requires("pydantic-ai"):
    from pydantic_ai import RunContext
    from pydantic_ai.agent import AgentRunResult
    from pydantic_ai.capabilities import AbstractCapability
    from pydantic_ai.messages import (
        ModelMessage,
        ModelRequest,
        ModelResponse,
        ToolReturnPart,
        UserPromptPart,
    )
    from pydantic_ai.models import ModelRequestContext

    from turnfold.integrations.pydantic_ai_messages import chat_of, rebuilt


class TurnfoldCapability(AbstractCapability[Any]):  # type: ignore[misc]  # without types here
    """A capability that keeps an agent's conversation in Turnfold, for runs of every kind.

    `session_id` is a text or a function of the run's context. By default it is the
    `conversation_id` of the run. `client` is a `PortalClient`, or a URL of NATS (default:
    `TURNFOLD_NATS_URL`). `max_tokens` is the budget of the window, without instructions, system
    prompts and tools. Without it, the `model` decides: by default that of the run. `window` has
    further options of `turnfold.Session.context`.

    If Turnfold does not answer within `patience_seconds`, the model gets the history of the run,
    and the logger `turnfold.integrations` a warning.
    """

    def __init__(
        self,
        agent_id: str,
        *,
        session_id: str | Callable[[RunContext[Any]], str] | None = None,
        client: PortalClient | str | None = None,
        max_tokens: int | None = None,
        model: str | None = None,
        window: Mapping[str, Any] | None = None,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        self._windows = MirroredWindows(
            agent_id,
            client=client,
            max_tokens=max_tokens,
            model=model,
            window=window,
            patience_seconds=patience_seconds,
        )
        self._session_id = session_id

    async def before_model_request(
        self, ctx: RunContext[Any], request_context: ModelRequestContext
    ) -> ModelRequestContext:
        """Give the model the window; the history of the run stays as it is."""
        history = _History(request_context.messages, ctx)
        if not history.ends_with_request:
            return request_context
        model = request_context.model.model_name
        messages = await self._windows.shown(
            self._session(ctx), history.chat, history.window, model=model
        )
        if messages is None:
            return request_context
        return replace(request_context, messages=messages)

    async def after_run(
        self, ctx: RunContext[Any], *, result: AgentRunResult[Any]
    ) -> AgentRunResult[Any]:
        """Publish the last answer of the run."""
        history = _History(result.all_messages(), ctx)
        await self._windows.record(self._session(ctx), history.chat)
        return result

    def _session(self, ctx: RunContext[Any]) -> Session:
        if callable(self._session_id):
            return self._windows.session(self._session_id(ctx))
        session_id = self._session_id or ctx.conversation_id
        if session_id is None:
            raise BadRequest("the run has no conversation_id; pass one to it, or a session_id here")
        return self._windows.session(session_id)


class _Piece(NamedTuple):
    """A response, or one part of a request: `source` is the place of its message.

    A request without parts is one piece, without a value.
    """

    source: int
    value: Any


class _History:
    """The messages of a run, as pieces. Each piece is one chat message, or none.

    Pieces without a chat message never leave: the system prompts at the beginning, and the records
    of the framework about instructions and tools.
    """

    def __init__(self, messages: Sequence[ModelMessage], ctx: RunContext[Any]) -> None:
        self._messages = messages
        self._run_id, self._prompt = ctx.run_id, ctx.prompt
        self._pieces: list[_Piece] = []
        self._spoken: list[int] = []

    @property
    def ends_with_request(self) -> bool:
        """Return whether the model is to answer; it may also be to go on with a response."""
        return bool(self._messages) and isinstance(self._messages[-1], ModelRequest)

    def chat(self) -> list[Chat]:
        """Return the chat messages."""
        chat: list[Chat] = []
        for source, message in enumerate(self._messages):
            values = [message] if isinstance(message, ModelResponse) else message.parts
            for value in values or [None]:
                body = None if value is None else chat_of(value)
                if body is not None and self._is_of_tools(source, value):
                    body["is_meta"] = True
                if body is not None and (chat or body["role"] != "system"):
                    chat.append(body)
                    self._spoken.append(len(self._pieces))
                self._pieces.append(_Piece(source, value))
        return chat

    def _is_of_tools(self, source: int, value: Any) -> bool:
        """Return whether tools gave a part of a request beside their results.

        Pydantic AI makes it a prompt. Those of persons begin a run, or are requests of their own.
        A run may begin with results as well, and then the prompt of the run follows them.
        """
        message, before = self._messages[source], self._messages[source - 1]
        if not (
            source > 0
            and isinstance(value, UserPromptPart)
            and any(isinstance(part, ToolReturnPart) for part in message.parts)
            # Pydantic AI merges neighboring requests later, and keeps no run of them.
            and message.run_id is not None
        ):
            return False
        if message.run_id == before.run_id:
            return True
        return message.run_id == self._run_id and bool(value.content != self._prompt)

    def window(self, shown: Sequence[Shown]) -> list[ModelMessage]:
        """Return the messages of a window, after `chat`."""
        spoken = set(self._spoken)
        silent = deque(place for place in range(len(self._pieces)) if place not in spoken)
        pieces: list[_Piece] = []

        def add_silent(end: int) -> None:
            while silent and silent[0] < end:
                pieces.append(self._pieces[silent.popleft()])

        # Not empty: `MirroredWindows.attempt` requests no window for an empty list.
        add_silent(self._spoken[0])
        for message in shown:
            source, own = (-1, None)
            if message.place is not None:
                place = self._spoken[message.place]
                add_silent(place)
                source, own = self._pieces[place]
            value = own if message.body is None else rebuilt(own, message.body)
            pieces.append(_Piece(source, value))
        add_silent(len(self._pieces))
        return list(self._joined(pieces))

    def _joined(self, pieces: Iterable[_Piece]) -> Iterator[ModelMessage]:
        """Yield the messages that these pieces are."""
        for source, group in groupby(pieces, key=lambda piece: piece.source):
            values = [piece.value for piece in group if piece.value is not None]
            if values and isinstance(values[0], ModelResponse):
                yield from values
            elif source < 0:
                yield ModelRequest(parts=values)
            else:
                own = self._messages[source]
                yield own if list(own.parts) == values else replace(own, parts=values)
