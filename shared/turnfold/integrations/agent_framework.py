"""A history provider of the Microsoft Agent Framework that is kept by Turnfold.

```python
history = TurnfoldHistoryProvider("support", max_tokens=8_000)
agent = Agent(client=client, context_providers=[history])
await agent.run("Where is order 7341?", session=agent.create_session(session_id="user-42"))
```

A run reads the window: the summary, and the messages after it as they were saved.
"""

# pyright takes `agent_framework` for this file.
# pyright: reportCallIssue=false, reportGeneralTypeIssues=false, reportInvalidTypeForm=false
# pyright: reportPrivateImportUsage=false

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from turnfold.client import OutgoingEvent, PortalClient, Session, StoredMessage, new_event_id
from turnfold.client.events import check_storable
from turnfold.errors import BadRequest, Unavailable
from turnfold.integrations import requires
from turnfold.integrations.clients import (
    WAIT_MS,
    client_of,
    event_parts,
    events_in_place,
    newest_messages,
    publish_together,
    saved_window,
    saved_window_options,
)
from turnfold.integrations.mirrored import (
    Chat,
    chat_call,
    content_of,
    content_text,
    file_part,
    host_id,
    number_shared_ids,
)

with requires("agent-framework"):
    from agent_framework import (
        AgentSession,
        Content,
        HistoryProvider,
        Message,
        SessionContext,
        SupportsAgentRun,
    )

NO_RESULT = "[No result of this call is known.]"

_APPROVALS = ("function_approval_request", "function_approval_response")
_IMAGE = "image/"
_FILES = ("data", "uri", "hosted_file")
_CALL_ID, _NAME = (re.compile(rf'"{name}": ("(?:[^"\\]|\\.)*")') for name in ("call_id", "name"))
_DATA_URL = re.compile(r"data:[^,\s]*;base64,")
# The inputs that the framework's loop writes as the user, unless the program gives its own.
_OF_LOOP = re.compile(
    r"Continue working on the task\. If it is complete|An evaluator reviewed your previous response"
    r"|You still have \d+ (?:open todo item|background task)\(s\)"
)
_PROGRESS = "Progress so far:\n- "
# The event is escaped as a whole, where it must be. Properties may have values such as dates.
_text = partial(json.dumps, ensure_ascii=False, separators=(",", ":"), default=str)


class TurnfoldHistoryProvider(HistoryProvider):  # type: ignore[misc]  # without types here
    """History of the Microsoft Agent Framework, for any event loop and thread.

    Sessions are those of the agent `agent_id`, under the `session_id` of the `AgentSession`.
    `client` is a `PortalClient`, or a URL of NATS (default: `TURNFOLD_NATS_URL`), for which the
    whole program shares one client. `max_tokens` is the budget of the window. Without it, the
    `model` decides: by default the one that was last reported. `window` has further options of
    `turnfold.Session.context`. `options` are those of `HistoryProvider`, such as
    `store_context_messages`.

    Methods raise the subclasses of `turnfold.RequestError`, among them `Unavailable` if no service
    answers and `CannotFit` if no valid window is that small.
    """

    DEFAULT_SOURCE_ID = "turnfold"

    def __init__(
        self,
        agent_id: str,
        *,
        source_id: str = DEFAULT_SOURCE_ID,
        client: PortalClient | str | None = None,
        max_tokens: int | None = None,
        model: str | None = None,
        window: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(source_id, **options)
        self._agent_id = agent_id
        self._client = client_of(client)
        self._window = saved_window_options(max_tokens, model, window)

    async def get_messages(
        self,
        session_id: str | None,
        *,
        state: dict[str, Any] | None = None,  # noqa: ARG002  # of the framework
        **kwargs: Any,  # noqa: ARG002
    ) -> list[Message]:
        """Return the window of a session; nothing without a session or before its first save."""
        if session_id is None:
            return []
        session = self._session(session_id)
        window = await saved_window(session, self._window, entries=True, bodies="changed")
        if window is None:
            return []
        shown = list(zip(window.raw["messages"], window.entries or (), strict=True))
        return _joined((body, entry.get("carry")) for body, entry in _with_open_calls(shown))

    async def before_run(
        self,
        *,
        agent: SupportsAgentRun,
        session: AgentSession,
        context: SessionContext,
        state: dict[str, Any],
    ) -> None:
        """Load the window; if the input is a new request, with results for calls left open."""
        await super().before_run(agent=agent, session=session, context=context, state=state)
        inputs = [part.type for message in context.input_messages for part in message.contents]
        if inputs and not {*_APPROVALS, "function_result"} & set(inputs):
            context.extend_messages(self, _unknown(context.get_messages(sources={self.source_id})))

    async def save_messages(
        self,
        session_id: str | None,
        messages: Sequence[Message],
        *,
        state: dict[str, Any] | None = None,  # noqa: ARG002  # of the framework
        **kwargs: Any,  # noqa: ARG002
    ) -> None:
        """Publish messages; return when the stream has stored them.

        Messages at the end of the session are not repeated, for hosts that save a whole transcript
        again.

        Raises:
            BadRequest: there is no session, or a message cannot be stored. None was published.
        """
        if session_id is None:
            raise BadRequest("the run has no session; pass one to agent.run")
        session = self._session(session_id)
        listed = [_pieces(message) for message in messages]
        bodies = [body for parts in listed for body, _ in parts]
        number_shared_ids(bodies)
        _mark_loop(bodies)
        stored = await newest_messages(session, sum(map(len, listed)), wait_ms=WAIT_MS)
        pieces = [piece for parts in listed[_known(stored, listed) :] for piece in parts]
        events: list[OutgoingEvent] = []
        for part in event_parts([piece] for piece in pieces):
            is_first = not (stored or events)
            events += events_in_place(session.key, *zip(*part, strict=True), is_first=is_first)
        check_storable(events)
        await publish_together(self._client, events)

    def _session(self, session_id: str) -> Session:
        return self._client.session(self._agent_id, session_id)


_Piece = tuple[Chat, dict[str, Any]]
"""A chat message, and what it carries: the message of the framework that it is a part of.

The message is JSON text, because it may nest deeper than an event may.
"""


def _pieces(message: Message) -> list[_Piece]:
    """Return a message as chat messages: each result of a tool is one by itself."""
    groups: list[list[Content]] = []
    for content in message.contents:
        if content.type == "function_result" or not groups or _is_result(groups[-1]):
            groups.append([])
        groups[-1].append(content)
    whole = message.to_dict()
    of = new_event_id()
    pieces: list[_Piece] = []
    for group in groups or [[]]:
        contents = [content.to_dict() for content in group]
        carried = {"of": of, "message": _text({**whole, "contents": contents})}
        pieces.append((_chat(str(message.role), group), carried))
    return pieces


def _mark_loop(bodies: Sequence[Chat]) -> None:
    """Mark, in place, messages that the framework's loop writes in the user's role."""
    for body, after in zip(bodies, [*bodies[1:], {}], strict=False):
        text = content_text(body["content"]) if body["role"] == "user" else ""
        # The loop's input follows its progress. A person may begin in this way as well.
        is_progress = text.startswith(_PROGRESS) and after.get("role") == "user"
        if is_progress or _OF_LOOP.match(text):
            body["is_meta"] = True


def _carried_message(carried: Any) -> dict[str, Any]:
    """Return the message of the framework that a piece carries; empty if it carries none."""
    message: Any = carried["message"] if isinstance(carried, dict) else {}
    return dict(json.loads(message) if isinstance(message, str) else message)


def _is_result(group: Sequence[Content]) -> bool:
    return bool(group) and group[0].type == "function_result"


def _chat(role: str, contents: Sequence[Content]) -> Chat:
    if _is_result(contents):
        return _chat_result(*contents)
    parts: list[Chat] = []
    calls: list[Chat] = []
    others: list[str] = []
    for content in contents:
        if _is_call(content):
            calls.append(_call(content))
        elif (part := _chat_part(content)) is not None:
            parts.append(part)
        elif content.type != "usage":
            others.append(_text(_without_data(json.loads(_text(content.to_dict())))))
    is_known = role in ("system", "user", "assistant")
    body = {"role": role if is_known else "user", "content": content_of(parts)}
    if calls:
        body |= {"role": "assistant", "tool_calls": calls}
    # Reasoning and approvals count as text; the window gives them back as they were.
    return body | ({"contents": others} if others else {})


def _chat_result(result: Content) -> Chat:
    # The event carries the data.
    files = [file_part(item.media_type) for item in result.items or () if item.type in _FILES]
    content = content_of([{"type": "text", "text": result.result or ""}, *files])
    body = {"role": "tool", "tool_call_id": result.call_id, "content": content}
    return body | ({"is_error": True} if result.exception else {})


def _is_call(content: Content) -> bool:
    return content.type == "function_call" and not (content.informational_only or content.hosted)


def _call(content: Content) -> Chat:
    arguments = content.arguments
    text = arguments if isinstance(arguments, str) else json.dumps(arguments or {}, default=str)
    return chat_call(content.call_id, content.name, text)


def _chat_part(content: Content) -> Chat | None:
    if content.type == "text":
        return {"type": "text", "text": content.text or ""}
    if content.type not in _FILES:
        return None
    # The event carries data once, beside the message.
    if content.type == "uri" and str(content.media_type).startswith(_IMAGE):
        return {"type": "image_url", "image_url": {"url": content.uri}}
    return file_part(content.media_type)


def _without_data(value: Any) -> Any:
    """Return a value without the data of files in it, which would count as text."""
    if isinstance(value, dict):
        return {name: _without_data(field) for name, field in value.items()}
    if isinstance(value, list):
        return [_without_data(item) for item in value]
    is_data = isinstance(value, str) and _DATA_URL.match(value) is not None
    return "[data]" if is_data else value


def _joined(shown: Iterator[tuple[Chat | None, Any]]) -> list[Message]:
    """Return the messages of a window; neighbors that were one message are one again."""
    messages: list[Message] = []
    joined: str | None = None
    for body, carried in shown:
        if body is not None:
            messages.append(_shortened(body, carried))
            joined = None
            continue
        if not isinstance(carried, dict):
            raise Unavailable("another program publishes to this session; give it one of its own")
        message = Message.from_dict(_carried_message(carried))
        if joined == carried["of"]:
            messages[-1].contents += message.contents
        else:
            messages.append(message)
        joined = carried["of"]
    return messages


def _with_open_calls(
    shown: Sequence[tuple[Chat | None, Mapping[str, Any]]],
) -> list[tuple[Chat | None, Mapping[str, Any]]]:
    """Leave out the placeholders for results of the newest calls: the framework may answer them."""
    newest = len(shown)
    while newest and _is_about_calls(*shown[newest - 1]):
        newest -= 1
    return [*shown[:newest], *(pair for pair in shown[newest:] if pair[1]["form"] != "stand_in")]


def _is_about_calls(body: Chat | None, entry: Mapping[str, Any]) -> bool:
    """Return whether a message of a window only has results or approvals of earlier calls."""
    if body is not None:
        return bool(body["role"] == "tool")
    message = _carried_message(entry.get("carry"))
    contents = message.get("contents") or ()
    return message.get("role") == "tool" or (
        bool(contents) and all(content["type"] in _APPROVALS for content in contents)
    )


def _unknown(messages: Sequence[Message]) -> list[Message]:
    """Return the placeholders for results of the newest calls, unless an approval is pending."""
    answered: set[str] = set()
    for message in reversed(messages):
        if any(content.type in _APPROVALS for content in message.contents):
            return []
        if message.role != "tool":
            return [
                Message("tool", [Content.from_function_result(content.call_id, result=NO_RESULT)])
                for content in message.contents
                if _is_call(content) and content.call_id not in answered
            ]
        answered |= {content.call_id for content in message.contents}
    return []


def _shortened(body: Chat, carried: Any) -> Message:
    """Return a message that Turnfold wrote or shortened."""
    contents: list[Content] = []
    content = body.get("content")
    if body["role"] == "tool":
        call_id = host_id(body["tool_call_id"])
        contents.append(Content.from_function_result(call_id, result=content_text(content)))
    elif isinstance(content, str) and content:
        contents.append(Content.from_text(content))
    elif isinstance(content, list):
        contents += map(_part, content)
    for call in body.get("tool_calls") or ():
        function = call["function"]
        arguments = {"arguments": function["arguments"]}
        call_id = host_id(call["id"])
        contents.append(Content.from_function_call(call_id, function["name"], **arguments))
    author = _carried_message(carried).get("author_name")
    return Message(body["role"], contents, author_name=author)


def _part(part: Chat) -> Content:
    if part["type"] == "image_url":
        return Content.from_uri(part["image_url"]["url"], media_type="image/*")
    return Content.from_text(content_text([part]))


_Identity = tuple[str | None, str]


def _known(stored: Sequence[StoredMessage], listed: Sequence[list[_Piece]]) -> int:
    """Return how many messages at the beginning are the end of the session."""
    new = [_identity([carried for _, carried in parts]) for parts in listed]
    old = _identities(stored)
    for size in range(min(len(old), len(new)), 0, -1):
        # An exchange again is more likely said again than sent again, unless it has ids, or the
        # list goes on after it.
        is_continued = 1 < size < len(new)
        if old[-size:] == new[:size] and (is_continued or _have_ids(new[:size])):
            return size
    return 0


def _identities(stored: Sequence[StoredMessage]) -> list[_Identity]:
    """Return the identities of stored messages of the framework, of which the first may be cut."""
    groups: dict[Any, list[Any]] = {}
    for message in stored:
        of = message.carry["of"] if isinstance(message.carry, dict) else message.message_id
        groups.setdefault(of, []).append(message.carry)
    return list(map(_identity, groups.values()))


def _identity(carried: Sequence[Any]) -> _Identity:
    messages = list(map(_carried_message, carried))
    if message_id := messages[0].get("message_id"):
        return str(message_id), ""
    contents = [content for message in messages for content in message.get("contents", ())]
    return None, json.dumps([messages[0].get("role"), contents], sort_keys=True)


def _have_ids(identities: Sequence[_Identity]) -> bool:
    """Return whether a message, or a call or result in one, has an id that is not a tool's name."""
    if any(message_id is not None for message_id, _ in identities):
        return True
    contents = "".join(contents for _, contents in identities)
    return bool(set(_CALL_ID.findall(contents)) - set(_NAME.findall(contents)))
