"""A callback for LiteLLM, its router and its proxy: models see windows of Turnfold.

```python
litellm.callbacks = [TurnfoldCallback("support", max_tokens=8_000)]
await litellm.acompletion(model=..., messages=messages, litellm_session_id="user-42")
```

The caller sends all messages each time. Each call publishes what is new in them, and the provider
is sent the window instead: system messages, the summary, and the newest messages.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile
from typing import Any

from turnfold.client import PortalClient
from turnfold.client.merge import message_json
from turnfold.errors import BadRequest
from turnfold.integrations import requires
from turnfold.integrations.mirrored import (
    PATIENCE_SECONDS,
    Chat,
    MirroredWindows,
    Shown,
    without_bytes,
)
from turnfold.messages import SYSTEM_ROLES

with requires("litellm"):
    from litellm.integrations.custom_logger import CustomLogger
    from litellm.types.utils import CallTypes

Call = dict[str, Any]

_METADATA = ("metadata", "litellm_metadata")
_MARK = "turnfold_window"
_KEY_CHARACTERS = 16


class TurnfoldCallback(CustomLogger):
    """A callback that keeps conversations in Turnfold, for `acompletion`, routers and the proxy.

    `session_id` is a function of a call's arguments (in the proxy of its body), or None for a call
    that is not recorded. By default it is `litellm_session_id`, or `session_id` of the metadata;
    in the proxy after the beginning of the hash of the caller's key, so that no key reads the
    sessions of another. `client` is a `PortalClient`, or a URL of NATS (default:
    `TURNFOLD_NATS_URL`). `max_tokens` is the budget of the window, without system messages and
    tools. Without it, the `model` decides: by default that of the call. `window` has further
    options of `turnfold.Session.context`.

    If Turnfold does not answer within `patience_seconds`, the provider gets all messages, and the
    logger `turnfold.integrations` a warning.
    """

    def __init__(
        self,
        agent_id: str,
        *,
        session_id: Callable[[Mapping[str, Any]], str | None] | None = None,
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

    async def async_pre_call_deployment_hook(
        self, kwargs: Call, call_type: CallTypes | None
    ) -> Call | None:
        """Give the provider the window; called by the SDK and the router."""
        if call_type not in (CallTypes.acompletion, CallTypes.completion) or _is_marked(kwargs):
            return None
        session_id = self._session_of(kwargs, "")
        messages = await self._window(kwargs, session_id)
        # Marked: with fallbacks, LiteLLM calls itself with these arguments.
        return None if messages is None else _marked({**kwargs, "messages": messages})

    async def async_pre_call_hook(
        self,
        user_api_key_dict: Any,
        cache: Any,  # noqa: ARG002  # passed by name
        data: Call,
        call_type: str,
    ) -> Call | None:
        """Give the model the window; called by the proxy, before it selects a deployment."""
        if call_type not in (CallTypes.acompletion.value, CallTypes.completion.value):
            return None
        session_id = self._session_of(data, str(user_api_key_dict.api_key or ""))
        messages = await self._window(data, session_id)
        # Marked even without a window: nobody looks for one again when the router sends it.
        return _marked(data if messages is None else {**data, "messages": messages})

    def _session_of(self, call: Mapping[str, Any], key: str) -> str | None:
        if self._session_id is not None:
            return self._session_id(call)
        names = [(call.get(name) or {}).get("session_id") for name in _METADATA]
        found = next(filter(None, (call.get("litellm_session_id"), *names)), None)
        if found is None:
            return None
        return f"{key[:_KEY_CHARACTERS]}/{found}" if key else str(found)

    async def _window(self, call: Mapping[str, Any], session_id: str | None) -> list[Any] | None:
        """Return the messages to send; None for those of the call."""
        messages = call.get("messages")
        if session_id is None or not isinstance(messages, list):
            return None
        try:
            session = self._windows.session(session_id)
        except BadRequest as error:
            self._windows.warn(str(error))
            return None
        start = len(list(takewhile(lambda message: _role(message) in SYSTEM_ROLES, messages)))
        rest = messages[start:]

        def built(shown: Sequence[Shown]) -> list[Any]:
            window = [
                rest[part.place] if part.body is None and part.place is not None else part.body
                for part in shown
            ]
            return [*messages[:start], *window]

        model = call.get("model")
        return await self._windows.shown(
            session,
            lambda: [_chat(message) for message in rest],
            built,
            model=model if isinstance(model, str) else None,
        )


def _marked(call: Call) -> Call:
    return {**call, "metadata": {**(call.get("metadata") or {}), _MARK: True}}


def _is_marked(call: Mapping[str, Any]) -> bool:
    return any((call.get(name) or {}).get(_MARK) is True for name in _METADATA)


def _role(message: Any) -> Any:
    return message.get("role") if isinstance(message, Mapping) else getattr(message, "role", None)


def _chat(message: Any) -> Chat:
    """Return a message as it is recorded: without the marks of caches, which move at each call."""
    body = {
        name: value
        for name, value in message_json(message).items()
        if name != "cache_control" and (value is not None or name == "content")
    }
    if isinstance(body.get("content"), Sequence) and not isinstance(body["content"], str):
        body["content"] = [
            {name: value for name, value in block.items() if name != "cache_control"}
            if isinstance(block, Mapping)
            else block
            for block in map(without_bytes, body["content"])
        ]
    return body
