"""A plugin of the Agent Development Kit (ADK): models see windows of Turnfold.

```python
plugin = TurnfoldPlugin("support", max_tokens=8_000)
runner = InMemoryRunner(app=App(name="support", root_agent=agent, plugins=[plugin]))
```

The session of the ADK keeps all its events. Each call of a model publishes what is new in its
contents, and is given the window instead: the summary, and the newest contents.
"""

import base64
import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from itertools import filterfalse, takewhile
from typing import Any
from urllib.parse import quote

from turnfold.client import PortalClient, Session
from turnfold.integrations import requires
from turnfold.integrations.mirrored import (
    Chat,
    MirroredWindows,
    Shown,
    call_arguments,
    chat_call,
    content_of,
    content_text,
    file_part,
    short_id,
)

with requires("google-adk"):
    from google.adk.agents.callback_context import CallbackContext
    from google.adk.agents.invocation_context import InvocationContext
    from google.adk.models.llm_request import LlmRequest
    from google.adk.models.llm_response import LlmResponse
    from google.adk.plugins.base_plugin import BasePlugin
    from google.genai import types

_TEMPORARY_ID = "adk-"
"""The beginning of ids that the ADK makes, and takes away again before it calls the model."""
_OF_ONE_CALL = (
    "The text between <<<BEGIN_SYSTEM_INSTRUCTION>>>",
    "The following content is from your previous conversations with the user.",
)
"""How contents begin that the ADK writes anew for each call of the model, in the user's name:
instructions of an agent that has static ones, and memories."""
_FILES_OF_INSTRUCTION = ("Referenced inline data: ", "Referenced file data: ")
"""How contents begin with which the ADK begins each call, if the static instruction has files."""
_LOADED = {
    "load_artifacts": "Artifact ",
    "load_mcp_resource": "Resource ",
    "load_skill_resource": "The content of binary file ",
}
"""Tools behind whose responses the ADK puts what they load, for one call, and how that begins."""
_OF_ANOTHER_AGENT = "For context: below is a transcript of what another agent did"
_OF_ANOTHER_AGENT_UNFENCED = "For context:"
"""The first part of what another agent did, of versions that quote it without fences: the next
part begins with the agent's name in brackets."""
ASKED = 256
"""The calls whose answers are recorded at once. The next call records answers of older ones."""
_PART_BYTES = 96
"""Longer parts of an id are named by their hash, because ids have at most 256 bytes."""


class TurnfoldPlugin(BasePlugin):  # type: ignore[misc]  # without types here
    """A plugin that keeps the conversations of a runner's agents in Turnfold.

    Each agent of a session has a conversation of its own, because the ADK shows each of them
    another one: `<user>/<session>/<agent>`, followed by `/<branch>` for a copy of an agent that
    runs in a branch such as `worker@1`. A long name is replaced by its hash. `client` is a
    `PortalClient`, or a URL of NATS (default: `TURNFOLD_NATS_URL`). `max_tokens` is the budget of
    the window, without instructions, preloaded memories and tools. Without it, the `model` decides:
    by default that of the request. `window` has further options of `turnfold.Session.context`.

    If Turnfold does not answer, the model gets the contents of the ADK, and the logger
    `turnfold.integrations` a warning.

    Raises:
        BadRequest: `agent_id` is empty, longer than 256 bytes or contains control characters.
    """

    def __init__(
        self,
        agent_id: str,
        *,
        name: str = "turnfold",
        client: PortalClient | str | None = None,
        max_tokens: int | None = None,
        model: str | None = None,
        window: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(name)
        self._windows = MirroredWindows(
            agent_id, client=client, max_tokens=max_tokens, model=model, window=window
        )
        # An invalid id fails here, and not in the calls of the agent.
        self._windows.session(agent_id)
        self._asked: OrderedDict[tuple[str, str], tuple[Session, _RequestContents]] = OrderedDict()

    async def before_model_callback(
        self, *, callback_context: CallbackContext, llm_request: LlmRequest
    ) -> LlmResponse | None:
        """Record the contents of a request, and put the window in their place."""
        # The provider keeps the rest: mirrored alone, this turn would retract all before it.
        if llm_request.previous_interaction_id:
            return None
        session = self._session(callback_context)
        run_input = getattr(callback_context.run_config, "model_input_context", None)
        call = _RequestContents(llm_request.contents, run_input or ())
        contents = await self._windows.shown(
            session, call.asked, call.window, model=llm_request.model
        )
        if contents is not None:
            llm_request.contents = contents
            # A call that failed is replaced by the next one of the run.
            key = callback_context.invocation_id, session.key.session_id
            self._asked[key] = session, call
            self._asked.move_to_end(key)
            # The ADK tells no plugin of a run that fails or that nobody waits for any longer.
            if len(self._asked) > ASKED:
                self._asked.popitem(last=False)
        # None: the ADK goes on to call the model.
        return None

    async def after_model_callback(
        self, *, callback_context: CallbackContext, llm_response: LlmResponse
    ) -> LlmResponse | None:
        """Record the answer, so that it is stored and folded before the next call needs it."""
        content = llm_response.content
        if llm_response.partial or content is None:
            return None
        key = callback_context.invocation_id, self._session(callback_context).key.session_id
        session, call = self._asked.pop(key, (None, None))
        if session is not None and call is not None:
            await self._windows.record(session, lambda: call.answered(content))
        return None

    async def after_run_callback(self, *, invocation_context: InvocationContext) -> None:
        """Forget calls that were not answered."""
        for key in [key for key in self._asked if key[0] == invocation_context.invocation_id]:
            self._asked.pop(key, None)

    def _session(self, context: CallbackContext) -> Session:
        place, part = context.session, context.agent_name
        # Only copies run in branches with ids of runs: `worker@1`, or `worker@<call>` for a tool.
        if "@" in (branch := context.branch or ""):
            part = f"{part}/{_part(branch)}"
        return self._windows.session(f"{_part(place.user_id)}/{_part(place.id)}", part)


def _part(name: str) -> str:
    """Return a name as a part of an id."""
    return short_id(quote(name, safe="@", errors="surrogatepass"), _PART_BYTES)


class _RequestContents:
    """The contents of one request: each part of them is a part of a chat message.

    Contents of this request alone are not recorded: the ADK puts them behind the newest results,
    so each step would edit the conversation. Nor is the program's input of this run (`run_input`),
    which the next run would edit; it stays before the run's request.
    """

    def __init__(
        self, contents: Sequence[types.Content], run_input: Sequence[types.Content] = ()
    ) -> None:
        self._beginning = _beginning(contents)
        loaded = _loaded(contents)

        def is_recorded(content: types.Content) -> bool:
            return not (_is_of_one_call(content) or content in loaded)

        others = contents[len(self._beginning) :]
        start = _start_of(run_input, others)
        self._run_input = list(others[start : start + len(run_input)])
        self._after_run_input = sum(map(is_recorded, others[:start]))
        others = [*others[:start], *others[start + len(run_input) :]]
        self._contents = list(filter(is_recorded, others))
        self._of_one_call = list(filterfalse(is_recorded, others))
        self._parts: list[list[types.Part]] = []
        self._chat: list[Chat] = []
        self._calls: dict[str, types.FunctionCall] = {}
        self._open: list[tuple[str, types.FunctionCall]] = []
        self._request: int | None = None

    def asked(self) -> list[Chat]:
        """Return the contents as chat messages: each response of a function is one."""
        for place, content in enumerate(self._contents):
            if place == self._after_run_input:
                self._request = len(self._chat)
            self._add_content(content, place)
        return self._chat

    def answered(self, content: types.Content) -> list[Chat]:
        """Return the contents and the answer of the model as chat messages."""
        self._add_content(content, len(self._contents))
        return self._chat

    def window(self, shown: Sequence[Shown]) -> list[types.Content]:
        """Return the contents of a window; responses to one content's calls are one content.

        Contents of this request alone stand where the ADK has them: at the beginning, before the
        newest user's contents, or behind the results.
        """
        contents: list[types.Content] = []
        run_input = self._run_input
        were_responses = False
        for message in shown:
            place = message.place
            if place is not None and place == self._request:
                contents += run_input
                run_input, were_responses = [], False
            own = None if place is None else self._parts[place]
            body = message.body if place is None else message.body or self._chat[place]
            assert body is not None  # `Shown` has a place or a body
            is_whole = message.body is None and own is not None
            parts = list(own or ()) if is_whole else self._made(body, own)
            are_responses = body["role"] == "tool"
            if are_responses and were_responses:
                contents[-1].parts += parts
            else:
                role = "model" if body["role"] == "assistant" else "user"
                contents.append(types.Content(role=role, parts=parts))
            were_responses = are_responses
        place = len(contents) - min(map(_newest_of_user, (self._contents, contents)))
        of_one_call = [*run_input, *self._of_one_call]
        return [*self._beginning, *contents[:place], *of_one_call, *contents[place:]]

    def _add_content(self, content: types.Content, place: int) -> None:
        others: list[types.Part] = []
        for part in content.parts or ():
            if part.function_response is None:
                others.append(part)
            else:
                self._add(self._response(part.function_response), [part])
        if others:
            self._add(self._message(content, others, place), others)

    def _add(self, body: Chat, parts: list[types.Part]) -> None:
        self._chat.append(body)
        self._parts.append(parts)

    def _response(self, response: types.FunctionResponse) -> Chat:
        """Return a response as a result; where ids are missing, the oldest call of its name."""
        # Temporary ids count here: models that pair by them are sent them, and a call may be open.
        names = [
            call_id
            for call_id, call in self._open
            if response.id in (None, call.id) and call.name == response.name
        ]
        call_id = names[0] if names else f"unknown-{len(self._chat)}"
        self._open = [call for call in self._open if call[0] != call_id]
        said = response.model_dump(mode="json")["response"] or {}
        text = json.dumps(said, ensure_ascii=False)
        files = [chat for part in response.parts or () if (chat := _file(part)) is not None]
        content = content_of([{"type": "text", "text": text}, *files])
        body = {"role": "tool", "tool_call_id": call_id, "name": response.name, "content": content}
        # By convention of the API, this key has the details of an error.
        return body | ({"is_error": True} if said.get("error") else {})

    def _message(self, content: types.Content, parts: Sequence[types.Part], place: int) -> Chat:
        """Return what is not a response: texts, calls, and the rest as fields that are counted."""
        texts: list[Chat] = []
        calls: list[Chat] = []
        others: list[Any] = []
        for part in parts:
            if part.function_call is not None:
                calls.append(self._call(part.function_call, f"call-{place}-{len(calls)}"))
            elif (chat := _chat_part(part)) is not None:
                texts.append(chat)
            else:
                others.append(part.model_dump(mode="json", exclude_none=True))
        role = "assistant" if content.role == "model" else "user"
        body: Chat = {"role": role, "content": content_of(texts)}
        if calls:
            body |= {"role": "assistant", "tool_calls": calls}
        if body["role"] == "user" and _is_of_another_agent(parts):
            body["is_meta"] = True
        return body | ({"parts": others} if others else {})

    def _call(self, call: types.FunctionCall, name: str) -> Chat:
        """Return a call, which is open from now on; `name` is its id if it has none."""
        call_id = _id(call.id) or name
        self._calls[call_id] = call
        self._open.append((call_id, call))
        text = json.dumps(call.model_dump(mode="json")["args"] or {}, ensure_ascii=False)
        return chat_call(call_id, call.name, text)

    def _made(self, body: Chat, own: Sequence[types.Part] | None) -> list[types.Part]:
        """Return the parts of a message that Turnfold wrote or shortened."""
        if body["role"] == "tool":
            return [self._made_response(body, own)]
        text = content_text(body.get("content"))
        parts = [types.Part(text=text)] if text else []
        # The signatures of thoughts stay with the calls: models refuse calls without.
        # By identity, because calls that are equal may have different signatures.
        signed = {id(part.function_call): part for part in own or () if part.function_call}
        for call in body.get("tool_calls") or ():
            was = self._calls.get(call["id"])
            args = call_arguments(call["function"]["arguments"])
            made = types.FunctionCall(
                id=was.id if was else call["id"], name=call["function"]["name"], args=args
            )
            part = signed.get(id(was))
            signature = part.thought_signature if part else None
            parts.append(types.Part(function_call=made, thought_signature=signature))
        return parts or [types.Part(text="")]

    def _made_response(self, body: Chat, own: Sequence[types.Part] | None) -> types.Part:
        was = own[0].function_response if own else self._calls.get(body["tool_call_id"])
        response = types.FunctionResponse(
            id=was.id if was else None,
            name=was.name if was else "unknown",
            response={"result": content_text(body.get("content"))},
        )
        return types.Part(function_response=response)


def _beginning(contents: Sequence[types.Content]) -> list[types.Content]:
    """Return the files of a static instruction, and the instruction that follows them."""
    files = list(takewhile(_is_file_of_instruction, contents))
    others = takewhile(_is_of_one_call, contents[len(files) :]) if files else ()
    return [*files, *others]


def _start_of(run_input: Sequence[types.Content], contents: Sequence[types.Content]) -> int:
    """Return where contents have the `run_input` last; the end if they have not."""
    size = len(run_input)
    places = range(len(contents) - size, -1, -1)
    return next((at for at in places if contents[at : at + size] == [*run_input]), len(contents))


def _is_file_of_instruction(content: types.Content) -> bool:
    begin, *files = content.parts or [types.Part()]
    is_file = len(files) == 1 and bool(files[0].inline_data or files[0].file_data)
    return is_file and (begin.text or "").startswith(_FILES_OF_INSTRUCTION)


def _is_of_one_call(content: types.Content) -> bool:
    """Return whether the ADK wrote a content for one call of the model, in the user's name."""
    # A part that a program puts before a request belongs to the request.
    begin = content.parts[0].text if content.parts and len(content.parts) == 1 else None
    return content.role == "user" and (begin or "").startswith(_OF_ONE_CALL)


def _loaded(contents: Sequence[types.Content]) -> list[types.Content]:
    """Return what the ADK loads for one call, in the user's name, behind the responses of tools."""
    start = len(contents) - _newest_of_user(contents)
    names = [response.name for content in contents[:start][-1:] for response in _responses(content)]
    begins = tuple(_LOADED[name] for name in names if name in _LOADED)
    newest = contents[start:] if begins else ()
    return [new for new in newest if new.parts and (new.parts[0].text or "").startswith(begins)]


def _responses(content: types.Content) -> list[types.FunctionResponse]:
    return [part.function_response for part in content.parts or () if part.function_response]


def _newest_of_user(contents: Sequence[types.Content]) -> int:
    """Return how many contents the user wrote after the newest answer or response of a function."""
    newest = takewhile(
        lambda content: content.role == "user" and not _responses(content),
        reversed(contents),
    )
    return sum(1 for _ in newest)


def _is_of_another_agent(parts: Sequence[types.Part]) -> bool:
    """Return whether a message in the user's name tells what another agent did."""
    begin, *quoted = (part.text or "" for part in parts)
    if begin == _OF_ANOTHER_AGENT_UNFENCED:
        return bool(quoted) and quoted[0].startswith("[")
    return begin.startswith(_OF_ANOTHER_AGENT)


def _id(call_id: str | None) -> str | None:
    return None if call_id is None or call_id.startswith(_TEMPORARY_ID) else call_id


def _chat_part(part: types.Part) -> Chat | None:
    if part.text is not None and not part.thought:
        return {"type": "text", "text": part.text}
    blob = part.inline_data
    if blob is not None and blob.data and str(blob.mime_type).startswith("image/"):
        data = base64.b64encode(blob.data).decode()
        return {"type": "image_url", "image_url": {"url": f"data:{blob.mime_type};base64,{data}"}}
    return _file(part)


def _file(part: types.Part | types.FunctionResponsePart) -> Chat | None:
    """Return a file under its hash or URI, so that another one in its place is a change."""
    blob, file = part.inline_data, part.file_data
    if blob is not None:
        digest = blake2b(blob.data or b"", digest_size=16).hexdigest()
        return file_part(blob.mime_type, file_id=digest)
    return None if file is None else file_part(file.mime_type, file_id=file.file_uri)
