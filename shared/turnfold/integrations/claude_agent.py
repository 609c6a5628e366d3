"""A session store of the Claude Agent SDK: transcripts in Turnfold, not on a machine's disk.

```python
store = TurnfoldSessionStore("support")
options = ClaudeAgentOptions(session_store=store, resume=session_id)
```

Each entry of a transcript is one event. A message of a person or of the model is published in the
shape of the Anthropic API, so Turnfold can search, summarize and show it. Every other entry is
carried by an empty message that is retracted in the same batch: it is in no window, count or
search. Transcripts of subagents are sessions of their own.
"""

import json
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import suppress
from datetime import datetime
from hashlib import blake2b
from typing import Any
from urllib.parse import quote, unquote

from turnfold.client import (
    Client,
    OutgoingEvent,
    PortalClient,
    Session,
    StoredMessage,
    new_event_id,
    turn_event,
)
from turnfold.client.events import check_storable, retraction_event
from turnfold.errors import BadRequest, Unavailable, UnknownSession
from turnfold.integrations import requires
from turnfold.integrations.clients import (
    CARRIER,
    WAIT_MS,
    client_of,
    publish_all,
    require_fresh,
)
from turnfold.shapes import chat_from_anthropic

with requires("claude-agent"):
    from claude_agent_sdk import (
        SessionKey,
        SessionListSubkeysKey,
        SessionStoreEntry,
        SessionStoreListEntry,
    )

LISTED_MS = 1_000
"""How long an `append` waits at most until the services have stored what the stream has."""
BATCH_ENTRIES = 500
WHOLE_CHARACTERS = 900_000
"""An entry of which the JSON is longer is published in parts, within NATS's default limit."""
PART_CHARACTERS = 450_000
PROJECT_BYTES = 64

_SPEAKERS = ("user", "assistant")


class TurnfoldSessionStore:
    """A `SessionStore` of the Claude Agent SDK, for any event loop and thread.

    The transcripts are sessions of the agent `agent_id`. `client` is a `PortalClient`, or a URL of
    NATS (default: `TURNFOLD_NATS_URL`), for which the whole program shares one client.

    Methods raise the subclasses of `turnfold.RequestError`, among them `Unavailable` if no service
    answers. The SDK tries an `append` that failed again.
    """

    def __init__(self, agent_id: str, *, client: PortalClient | str | None = None) -> None:
        self._agent_id = agent_id
        self._client = client_of(client)

    async def append(self, key: SessionKey, entries: list[SessionStoreEntry]) -> None:
        """Publish entries; return when the stream has stored them.

        It waits a moment for the services as well, so that the session can be listed. An entry
        with a `uuid` that was appended before is the same one, and stored once.
        """
        session = self._session(key)
        for start in range(0, len(entries), BATCH_ENTRIES):
            await publish_all(session, _batch(session, entries[start : start + BATCH_ENTRIES]))
        # Lists do not wait: the next one shall have the session, also in another program.
        after = self._client.newest_seq(session.key)
        with suppress(UnknownSession, Unavailable):
            await session.history(newest=1, after=after, wait_ms=LISTED_MS)

    async def load(self, key: SessionKey) -> list[SessionStoreEntry] | None:
        """Return all entries of a transcript; None if none was appended.

        Raises:
            Unavailable: entries that were appended before are not stored yet.
        """
        entries: list[Any] = []
        seen: set[str] = set()
        parts: dict[str, str] = {}
        async for stored in _messages(self._session(key)):
            entry = _entry(stored, parts)
            if entry is None or entry.get("uuid") in seen:
                continue
            entries.append(entry)
            if entry.get("uuid"):
                seen.add(entry["uuid"])
        return entries or None

    async def list_sessions(self, project_key: str) -> list[SessionStoreListEntry]:
        """Return the ids of a project's sessions, and when each was changed, in milliseconds."""
        prefix = f"{_project(project_key)}/"
        return [
            {
                "session_id": unquote(row["session_id"].removeprefix(prefix)),
                "mtime": int(datetime.fromisoformat(row["last_event_at"]).timestamp() * 1000),
            }
            for row in await self._listed(prefix)
            if "/" not in row["session_id"].removeprefix(prefix)
        ]

    async def delete(self, key: SessionKey) -> None:
        """Erase a transcript, and with a main one those of its subagents.

        Entries with a `uuid` that were erased are not stored again.
        """
        session = self._session(key)
        await session.erase()
        if not key.get("subpath"):
            prefix = f"{session.key.session_id}/"
            await self._client.use(lambda client: client.erase_agent(self._agent_id, prefix=prefix))

    async def list_subkeys(self, key: SessionListSubkeysKey) -> list[str]:
        """Return the subpaths of a session, such as those of its subagents."""
        prefix = f"{self._session(key).key.session_id}/"
        return [row["session_id"].removeprefix(prefix) for row in await self._listed(prefix)]

    def _session(self, key: SessionKey | SessionListSubkeysKey) -> Session:
        # Escaped, so that whatever follows a second slash of the id is a subpath.
        names = [_project(key["project_key"]), quote(key["session_id"], safe="")]
        if subpath := key.get("subpath"):
            names.append(str(subpath))
        return self._client.session(self._agent_id, "/".join(names))

    async def _listed(self, prefix: str) -> list[dict[str, Any]]:
        async def rows(client: Client) -> list[dict[str, Any]]:
            return [row async for row in client.session_rows(self._agent_id, prefix=prefix)]

        return await self._client.use(rows)


def _project(project_key: str) -> str:
    """Return a project as the first part of a session id; long ones end with their hash."""
    name = quote(project_key, safe="")
    if len(name) <= PROJECT_BYTES:
        return name
    digest = blake2b(project_key.encode(), digest_size=12).hexdigest()
    return f"{name[: PROJECT_BYTES - 25]}~{digest}"


def _batch(session: Session, entries: Iterable[Mapping[str, Any]]) -> list[OutgoingEvent]:
    """Return the events of entries, and the retraction of those that are not messages."""
    events: list[OutgoingEvent] = []
    carriers: list[str] = []
    for entry in entries:
        of_entry, is_message = _events(session, entry)
        events += of_entry
        if not is_message:
            carriers += [f"{event.event_id}#0" for event in of_entry]
    # Last, because a retraction concerns only what stands before it in the stream.
    if carriers:
        events.append(retraction_event(session.key, carriers))
    return events


def _events(session: Session, entry: Mapping[str, Any]) -> tuple[list[OutgoingEvent], bool]:
    """Return the events of an entry, and whether it is a message of the conversation."""
    # Sorted, because the id of the event depends on it; escaped, so that a character is a byte.
    text = json.dumps(entry, sort_keys=True)
    event_id = new_event_id()
    if entry.get("uuid"):
        # With the session, because its transcript may be copied to another one, entry by entry.
        named = json.dumps([*session.key, text])
        event_id = blake2b(named.encode(), digest_size=16).hexdigest()
    if len(text) <= WHOLE_CHARACTERS:
        # An entry that nests too deep for an event is carried as text.
        with suppress(BadRequest):
            event, is_message = _event(session, entry, event_id)
            check_storable([event])
            return [event], is_message
    events: list[OutgoingEvent] = []
    for number, start in enumerate(range(0, len(text), PART_CHARACTERS)):
        end = start + PART_CHARACTERS
        part = {"of": event_id, "part": text[start:end], "is_last": end >= len(text)}
        part_id = f"{event_id}-{number}"
        events.append(turn_event(session.key, [CARRIER], event_id=part_id, carry=[part]))
    return events, False


def _event(session: Session, entry: Mapping[str, Any], event_id: str) -> tuple[OutgoingEvent, bool]:
    """Return an entry as one event, and whether it is a message of the conversation."""
    carry: dict[str, Any] = {"entry": dict(entry)}
    message: Mapping[str, Any] = entry.get("message") or {}
    views = _views(entry["type"], message)
    if not views:
        return turn_event(session.key, [CARRIER], event_id=event_id, carry=[carry]), False
    element = {"role": message["role"], "content": message["content"]}
    if views == 1:
        # Fields of the element are not stored twice. If it has several views, each has a part.
        others = {name: value for name, value in message.items() if name not in element}
        carry = {"entry": {**entry, "message": others}, "in_element": list(element)}
    is_meta = bool(entry.get("isMeta") or entry.get("isCompactSummary"))
    event = turn_event(
        session.key,
        [element],
        event_id=event_id,
        shape="anthropic",
        is_meta=is_meta,
        carry=[carry],
    )
    return event, True


def _views(kind: str, message: Any) -> int:
    """Return how many chat messages an entry is; 0 if it is not part of the conversation."""
    if kind not in _SPEAKERS or not isinstance(message, Mapping):
        return 0
    if message.get("role") not in _SPEAKERS or not message.get("content"):
        return 0
    try:
        return len(chat_from_anthropic([message]))
    except BadRequest:
        return 0


def _entry(stored: StoredMessage, parts: dict[str, str]) -> dict[str, Any] | None:
    """Return the entry of a message; None if it is none, or not the last part of one."""
    carried = stored.carry
    if not isinstance(carried, dict):
        return None
    if "part" in carried:
        # Messages arrive in the stream's order, which is the order of the parts.
        text = parts.pop(carried["of"], "") + carried["part"]
        if not carried["is_last"]:
            parts[carried["of"]] = text
            return None
        whole: dict[str, Any] = json.loads(text)
        return whole
    entry: dict[str, Any] | None = carried.get("entry")
    if entry is not None and "in_element" in carried and stored.element is not None:
        message = {name: stored.element[name] for name in carried["in_element"]}
        entry = {**entry, "message": {**entry["message"], **message}}
    return entry


async def _messages(session: Session) -> AsyncIterator[StoredMessage]:
    """Iterate over all messages of a session, also over the carriers, in the stream's order."""
    try:
        page = await session.history(newest=1, after="latest", wait_ms=WAIT_MS)
        require_fresh(is_fresh=page.fresh, wait_ms=WAIT_MS)
        async for stored in session.originals(include_retracted=True):
            yield stored
    except UnknownSession:
        return
