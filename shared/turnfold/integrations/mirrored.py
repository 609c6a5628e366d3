"""Windows for hosts that hold the whole list of messages and pass it to the model each time.

An adapter converts its host's messages to chat messages. Each list is published as far as it is
new, and the answer says which of the host's messages the model should see. If Turnfold gives no
valid answer, there is none: the host sends its own list, and a warning says why.
"""

import asyncio
import json
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from inspect import signature
from itertools import pairwise
from typing import Any, Final, TypeVar

from turnfold.client import PortalClient, Session, Window
from turnfold.client.mirror import mirror
from turnfold.client.mirrored_list import are_distinguishable
from turnfold.errors import BadRequest, CannotFit, NotAllowed, Unavailable
from turnfold.integrations.clients import carried_messages, client_of, fitting_window
from turnfold.messages import META_MARK

PATIENCE_SECONDS: Final = 5.0
"""How long one call of a model waits at most for its window, by default."""
PAUSE_SECONDS: Final = 0.1
AWAY_SECONDS: Final = 15.0
"""How long Turnfold is not asked again after it did not answer."""
WAIT_MS: Final = 4_000
MODEL_CHARACTERS: Final = 300
"""The longest name of a model that the services take; callers of gateways may write any."""
PART_BYTES: Final = 192
"""The most bytes of the part of an id that names a sub-agent, so that a hash fits before it."""
_NUMBER: Final = "~turnfold-"
"""The text between an id that calls share and the number of a call."""

Chat = dict[str, Any]
Item = TypeVar("Item")
Result = TypeVar("Result")

log = logging.getLogger("turnfold.integrations")


@dataclass(frozen=True, slots=True)
class Shown:
    """A message of a window: that of the host at `place`, unless `body` replaces it.

    `place` is None for a message that Turnfold wrote, such as the summary.
    """

    place: int | None
    body: Chat | None


class WrongOptionError(Exception):
    """The query service does not take an option of windows; the text quotes no message."""


class MirroredWindows:
    """Windows of the lists that a host passes, for any event loop and thread.

    `client` is a `PortalClient`, or a URL of NATS (default: `TURNFOLD_NATS_URL`), for which all
    integrations of the program share one client. `max_tokens` is the budget. Without it, the
    `model` decides: by default that of the call. `window` has further options of
    `turnfold.Session.context`.
    `patience_seconds` is how long one call waits at most.

    Raises:
        BadRequest: `window` has an unknown option.
    """

    def __init__(
        self,
        agent_id: str,
        *,
        client: PortalClient | str | None = None,
        max_tokens: int | None = None,
        model: str | None = None,
        window: Mapping[str, Any] | None = None,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        # Here, because an error of a call is only a warning.
        for name in window or {}:
            if name not in signature(Session.context).parameters:
                raise BadRequest(f"window: {name!r} is not an option of turnfold.Session.context")
        self._patience_seconds = patience_seconds
        self._named_client = client
        self._agent_id = agent_id
        self._model = model
        self._options: dict[str, Any] = {
            "placement": "user",
            "max_tokens": max_tokens,
            **(window or {}),
        }
        self._away_until = 0.0

    @property
    def _client(self) -> PortalClient:
        # Looked up, because a client that a global variable holds at the end of the program cannot
        # end without a message on standard error.
        return client_of(self._named_client)

    def session(self, session_id: str, part: str = "") -> Session:
        """Return a session; with a `part`, that of a sub-agent of it. A long part is hashed.

        Raises:
            BadRequest: an id is empty, longer than 256 bytes or contains control characters.
        """
        session = self._client.session(self._agent_id, session_id)
        return session.subsession(short_id(part, PART_BYTES)) if part else session

    def run(self, coroutine: Coroutine[Any, Any, Result]) -> Result | None:
        """Run one of the methods below without an event loop, and block this thread."""
        try:
            return self._client.run(coroutine)
        except Unavailable as error:
            # `attempt` passes on no error. This one is of a client that was closed.
            self.warn(str(error))
            return None

    async def shown(
        self,
        session: Session,
        listed: Callable[[], Sequence[Chat]],
        built: Callable[[list[Shown]], Result],
        *,
        model: str | None = None,
    ) -> Result | None:
        """Publish what is new of a list, and return its window; None if the list must be sent.

        `listed` returns the host's messages as chat messages, one for each, without the system
        messages at the beginning. `built` returns a window as the host's messages.
        """
        named = self._model or model
        # An error of a window pauses all sessions of the program.
        if named is not None and len(named) > MODEL_CHARACTERS:
            named = None

        async def ask(messages: Sequence[Chat]) -> Result | None:
            if not are_distinguishable(messages):
                self.warn("calls have no ids or names of their own")
                return None
            await _record(session, messages)
            window = await self.fresh_window(session, model=named)
            # Places in the window are those of this list only if the session holds nothing else.
            if window.account.total != len(messages):
                self.warn(f"the session has {window.account.total} of {len(messages)} messages")
                return None
            return built(_shown(window))

        return await self.attempt(listed, ask)

    async def record(self, session: Session, listed: Callable[[], Sequence[Chat]]) -> None:
        """Publish what is new of a list, so that it is folded before the next call needs it."""
        await self.attempt(listed, lambda messages: _record(session, messages))

    async def missing(self, event_ids: Collection[str]) -> set[str]:
        """Return which of these events of the agent are not stored.

        For hosts that keep nothing but the window. A fresh window tells that the services have
        received what was published, not that they could store it. Missing after such a window, an
        event is never stored under its id: it was erased, or is a dead letter.
        """
        known = await self._client.use(
            lambda client: client.known_events(self._agent_id, event_ids)
        )
        return set(event_ids) - known

    async def fresh_window(self, session: Session, **asked: Any) -> Window:
        """Return the window of a session that holds everything published before by this client.

        `asked` are options of this window alone.

        If no valid window has the budget, it is the smallest that is valid. Messages that it shows
        as they were published have no body: their entries have the `carry` of their events.

        Raises:
            Unavailable: not all is stored yet. `attempt` tries again.
            WrongOptionError: an option has a wrong value.
        """
        options = {
            "entries": True,
            "bodies": "changed",
            "wait_ms": WAIT_MS,
            # In this order: options that the program has set replace those of one window.
            **asked,
            **{name: value for name, value in self._options.items() if value is not None},
        }
        try:
            window = await fitting_window(session, **options)
        except CannotFit as error:
            if error.needed_tokens is None:
                raise
            log.warning(
                "window.enlarged to %d tokens: no valid window has %s",
                error.needed_tokens,
                options.get("max_tokens"),
            )
            window = await fitting_window(session, **options | {"max_tokens": error.needed_tokens})
        except BadRequest as error:
            # The text names a field, and never its value.
            raise WrongOptionError(str(error)) from error
        if not window.fresh:
            raise Unavailable("the newest messages are not stored yet")
        return window

    async def attempt(
        self,
        listed: Callable[[], Sequence[Item]],
        work: Callable[[Sequence[Item]], Awaitable[Result]],
    ) -> Result | None:
        """Return the result of `work` on the host's messages; None if Turnfold cannot take part.

        Both functions run in the client's own thread, with the context variables of the caller.
        While `work` raises `Unavailable` it is done again, for `patience_seconds` in all. After
        that nothing is attempted for a while. Nothing is done with an empty list. No error reaches
        the caller: a warning says what failed.
        """
        if time.monotonic() < self._away_until:
            return None
        try:
            # In a loop of its own: a tool or an import may block that of the host for longer.
            return await self._client.perform(lambda: self._attempted(listed, work))
        except Unavailable as error:
            # The client was closed.
            self.warn(str(error))
            return None

    async def _attempted(
        self,
        listed: Callable[[], Sequence[Item]],
        work: Callable[[Sequence[Item]], Awaitable[Result]],
    ) -> Result | None:
        reason = (
            f"no answer within {self._patience_seconds:g} s; "
            "start a system with `turnfold up`, or set TURNFOLD_NATS_URL"
        )
        try:
            # Once, not for each attempt: adapters collect places of messages while they convert.
            messages = listed()
            if not messages:
                return None
            async with asyncio.timeout(self._patience_seconds):
                while True:
                    try:
                        return await work(messages)
                    except Unavailable as error:
                        reason = str(error)
                    await asyncio.sleep(PAUSE_SECONDS)
        except (TimeoutError, NotAllowed, WrongOptionError) as error:
            self._away_until = time.monotonic() + AWAY_SECONDS
            # A `TimeoutError` has no text. The reason is then that of the newest attempt.
            self.warn(str(error) or reason)
        except Exception as error:  # noqa: BLE001  # of a conversion, and none of the agent's
            # The text may quote a message.
            self.warn(type(error).__name__)
        return None

    @staticmethod
    def warn(reason: str) -> None:
        """Log that the host goes on without Turnfold; `reason` quotes no message."""
        log.warning("turnfold.unavailable: the model gets the whole list; %s", reason)


def short_id(text: str, most: int) -> str:
    """Return a part of an id: the text itself, or its hash if it has more than `most` bytes."""
    encoded = text.encode("utf-8", "surrogatepass")
    return text if len(encoded) <= most else blake2b(encoded, digest_size=16).hexdigest()


def call_arguments(text: str) -> dict[str, Any]:
    """Return the arguments of a call as an object, which hosts require."""
    try:
        arguments = json.loads(text)
    except ValueError:
        arguments = None
    return arguments if isinstance(arguments, dict) else {"arguments": text}


def chat_call(call_id: str, name: str, arguments: str) -> Chat:
    """Return a call as an entry of `tool_calls`."""
    function = {"name": name, "arguments": arguments}
    return {"id": call_id, "type": "function", "function": function}


def content_of(parts: Sequence[Chat]) -> Any:
    """Return parts as a content: a single text is the content itself."""
    if len(parts) == 1 and "text" in parts[0]:
        return parts[0]["text"]
    return list(parts) or ""


def file_part(mime_type: str | None, **fields: Any) -> Chat:
    """Return the content part of a file without its data: it counts as a file and not as text."""
    kind = str(mime_type).partition("/")[0]
    return {"type": kind if kind in _KINDS else "file", "mime_type": mime_type, **fields}


def without_bytes(block: Any) -> Any:
    """Return a content block; in place of bytes that would count as text, a file or its name."""
    if not isinstance(block, Mapping):
        return block
    kind, source = block.get("type"), block.get("source")
    if kind == "image_generation_call":
        return {"type": "text", "text": "[image]"}
    if kind == "document" and isinstance(source, Mapping) and source.get("type") == "base64":
        url = f"data:{source.get('media_type')};base64,{source.get('data')}"
        return {"type": "file", "file": {"file_data": url}}
    return block


def content_text(content: Any) -> str:
    """Return a content as one text, in which files are named."""
    if isinstance(content, str):
        return content
    return "\n".join(
        str(part["text"]) if "text" in part else f"[{part['type'].removesuffix('_url')}]"
        for part in content or ()
    )


_KINDS = ("image", "audio", "video")


async def _record(session: Session, messages: Sequence[Chat]) -> None:
    # A stored place stays true: from an edited message on, all are published anew with theirs.
    await mirror(session, messages, carry=range(len(messages)), identity=_without_mark)


def _without_mark(message: Chat) -> Chat:
    # A host may tell who wrote a message only while it is new.
    return {name: value for name, value in message.items() if name != META_MARK}


def _shown(window: Window) -> list[Shown]:
    shown: list[Shown] = []
    for body, carried in carried_messages(window):
        place = carried if isinstance(carried, int) else None
        if place is None and body is None:
            raise ValueError("an entry has neither a message nor its place")
        shown.append(Shown(place, body))
    return shown


def number_shared_ids(messages: Sequence[Chat]) -> None:
    """Number in place the ids that calls of one message share, and those of their results.

    Some hosts use the name of a tool for an id. A window would leave out all but one of the calls.
    """
    starts = [place for place, message in enumerate(messages) if message.get("tool_calls")]
    for start, end in pairwise([*starts, len(messages)]):
        calls = messages[start]["tool_calls"]
        results = [message for message in messages[start:end] if message["role"] == "tool"]
        answered = Counter(result["tool_call_id"] for result in results)
        called = Counter(call["id"] for call in calls)
        # A call that only came twice has one result.
        shared = {name for name, times in called.items() if name and 1 < times == answered[name]}
        for field, bodies in (("id", calls), ("tool_call_id", results)):
            seen = Counter[str]()
            for body in bodies:
                if (name := body[field]) in shared:
                    seen[name] += 1
                    body[field] = name if seen[name] == 1 else f"{name}{_NUMBER}{seen[name]}"


def host_id(call_id: str) -> str:
    """Return the id of a call without the number that it was given."""
    return call_id.partition(_NUMBER)[0]
