"""Middleware for agents of LangChain and LangGraph: their models see windows of Turnfold.

```python
agent = create_agent(model, tools, middleware=[TurnfoldMiddleware("support", max_tokens=8_000)])
agent.invoke({"messages": [...]}, {"configurable": {"thread_id": "user-42"}})
```

The state of the graph keeps all messages. Each call of the model publishes what is new in them,
and is given the window instead: system messages, the summary, and the newest messages.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import takewhile
from typing import Any

from turnfold.client import PortalClient, Session
from turnfold.errors import BadRequest
from turnfold.integrations import requires
from turnfold.integrations.mirrored import (
    PATIENCE_SECONDS,
    Chat,
    MirroredWindows,
    Shown,
    chat_call,
    without_bytes,
)

with requires("langchain"):
    from langchain.agents.middleware import AgentMiddleware, ModelRequest, ModelResponse
    from langchain_core.messages import (
        AIMessage,
        AnyMessage,
        SystemMessage,
        ToolMessage,
        convert_to_messages,
        convert_to_openai_messages,
    )
    from langchain_core.messages.tool import default_tool_parser
    from langgraph.config import get_config

_CALL_BLOCKS = ("function_call", "tool_call", "tool_use")
_REFUSED = (AttributeError, LookupError, TypeError, ValueError)
"""Errors of the conversion of a message with content that it does not know."""


class TurnfoldMiddleware(AgentMiddleware):  # type: ignore[misc]  # without types here
    """Middleware that keeps an agent's conversation in Turnfold, for sync and async runs.

    `session_id` is a text or a function of the request. By default it is the `thread_id` of the
    run; an agent inside another one gets a session of its own below it. `client` is a
    `PortalClient`, or a URL of NATS (default: `TURNFOLD_NATS_URL`). `max_tokens` is the budget of
    the window, without system message and tools. Without it, the `model` decides: by default that
    of the request. `window` has further options of `turnfold.Session.context`.

    If Turnfold does not answer within `patience_seconds`, the model gets the messages of the state,
    and the logger `turnfold.integrations` a warning.

    Raises:
        BadRequest: an id is empty, longer than 256 bytes or contains control characters.
    """

    def __init__(
        self,
        agent_id: str,
        *,
        session_id: str | Callable[[ModelRequest], str] | None = None,
        client: PortalClient | str | None = None,
        max_tokens: int | None = None,
        model: str | None = None,
        window: Mapping[str, Any] | None = None,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        super().__init__()
        self._windows = MirroredWindows(
            agent_id,
            client=client,
            max_tokens=max_tokens,
            model=model,
            window=window,
            patience_seconds=patience_seconds,
        )
        self._session_id = session_id

    def wrap_model_call(
        self, request: ModelRequest, handler: Callable[[ModelRequest], ModelResponse]
    ) -> ModelResponse:
        """Call the model with the window, and record its answer."""
        call = _Call(request)
        session = self._session(request)
        shorter = self._windows.run(
            self._windows.shown(session, call.asked, call.with_window, model=call.model)
        )
        if shorter is None:
            return handler(request)
        response = handler(shorter)
        self._windows.run(self._windows.record(session, lambda: call.answered(response)))
        return response

    async def awrap_model_call(
        self, request: ModelRequest, handler: Callable[[ModelRequest], Awaitable[ModelResponse]]
    ) -> ModelResponse:
        """Call the model with the window, and record its answer."""
        call = _Call(request)
        session = self._session(request)
        shorter = await self._windows.shown(session, call.asked, call.with_window, model=call.model)
        if shorter is None:
            return await handler(request)
        response = await handler(shorter)
        await self._windows.record(session, lambda: call.answered(response))
        return response

    def _session(self, request: ModelRequest) -> Session:
        if callable(self._session_id):
            return self._windows.session(self._session_id(request))
        if self._session_id is not None:
            return self._windows.session(self._session_id)
        configurable = get_config().get("configurable", {})
        thread_id = configurable.get("thread_id")
        if thread_id is None:
            raise BadRequest(
                "the run has no thread_id; pass one in its config, or session_id to the middleware"
            )
        # The last part names the step of this agent, those before it the agents around it.
        outer = str(configurable.get("checkpoint_ns") or "").rpartition("|")[0]
        return self._windows.session(str(thread_id), outer)


class _Call:
    """One call of a model: the messages that it is about, and those before them."""

    def __init__(self, request: ModelRequest) -> None:
        messages = request.messages
        systems = takewhile(lambda message: isinstance(message, SystemMessage), messages)
        start = len(list(systems))
        self._request = request
        self._systems: Sequence[AnyMessage] = messages[:start]
        self._messages: Sequence[AnyMessage] = messages[start:]
        self._chat: list[Chat] = []

    @property
    def model(self) -> str | None:
        """The name of the model."""
        for attribute in ("model_name", "model"):
            name = getattr(self._request.model, attribute, None)
            if isinstance(name, str):
                return name
        return None

    def asked(self) -> list[Chat]:
        """Return the messages as chat messages."""
        self._chat = [_chat(message) for message in self._messages]
        return self._chat

    def answered(self, response: ModelResponse) -> list[Chat]:
        """Return these messages, converted before, and the answer as chat messages."""
        return [*self._chat, *map(_chat, response.result)]

    def with_window(self, shown: Sequence[Shown]) -> ModelRequest:
        """Return the request with a window in place of the messages."""
        window = list(map(self._message, shown))
        return self._request.override(messages=[*self._systems, *window])

    def _message(self, shown: Shown) -> AnyMessage:
        own = None if shown.place is None else self._messages[shown.place]
        if shown.body is None:
            return own
        if own is None or isinstance(own, AIMessage):
            return _made(shown.body)
        return own.model_copy(update={"content": shown.body["content"]})


def _made(body: Chat) -> AnyMessage:
    """Return a message anew: reasoning and ids of the provider belong to the text as it was."""
    calls, invalid = default_tool_parser(body.get("tool_calls") or [])
    rest = {name: value for name, value in body.items() if name != "tool_calls"}
    [message] = convert_to_messages([{**rest, "content": body.get("content") or ""}])
    if not isinstance(message, AIMessage):
        return message
    return message.model_copy(update={"tool_calls": calls, "invalid_tool_calls": invalid})


def _chat(message: AnyMessage) -> Chat:
    body = _converted(message)
    if isinstance(message, ToolMessage) and message.status == "error":
        body["is_error"] = True
    if isinstance(message, AIMessage) and (calls := _all_calls(message, body)):
        body["tool_calls"] = calls
    audio = message.additional_kwargs.get("audio")
    if not body.get("content") and isinstance(audio, Mapping) and audio.get("transcript"):
        # A spoken answer has no other text.
        body["content"] = audio["transcript"]
    if isinstance(body.get("content"), list):
        # The calls stand in `tool_calls` already.
        left_out = _CALL_BLOCKS if body.get("tool_calls") else ()
        body["content"] = [
            without_bytes(block)
            for block in body["content"]
            if not (isinstance(block, dict) and block.get("type") in left_out)
        ]
    return body


def _all_calls(message: AIMessage, body: Chat) -> list[Chat]:
    """Return the calls of a message, and those with broken arguments, which are answered too."""
    calls = list(body.get("tool_calls") or ())
    known = {call["id"] for call in calls}
    for call in message.invalid_tool_calls:
        call_id = call.get("id")
        if call_id and call_id not in known:
            name, arguments = call.get("name") or "unknown", call.get("args") or ""
            calls.append(chat_call(call_id, name, arguments))
    return calls


def _converted(message: AnyMessage) -> Chat:
    try:
        return _openai(message)
    except _REFUSED:
        if isinstance(message.content, str):
            raise
        blocks = [_readable(message, block) for block in message.content]
        return _openai(message.model_copy(update={"content": blocks}))


def _readable(message: AnyMessage, block: Any) -> Any:
    """Return a block of content, or the text that replaces one without a form as a chat message."""
    try:
        _openai(message.model_copy(update={"content": [block]}))
    except _REFUSED:
        if isinstance(block.get("text"), str):
            return {"type": "text", "text": block["text"]}
        source = block.get("source")
        if block.get("type") == "image" and isinstance(source, dict) and source.get("url"):
            return {"type": "image_url", "image_url": {"url": source["url"]}}
        kind = block.get("mime_type") or block.get("type") or "unknown"
        return {"type": "text", "text": f"[media: {kind}]"}
    return block


def _openai(message: AnyMessage) -> Chat:
    body = convert_to_openai_messages(message)
    if not isinstance(body, dict):
        raise TypeError("a message of LangChain is several chat messages")
    return dict(body)
