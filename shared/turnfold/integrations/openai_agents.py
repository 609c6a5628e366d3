"""A session of the OpenAI Agents SDK that is kept by Turnfold.

```python
session = TurnfoldSession("support", "user-42", max_tokens=8_000)
result = await Runner.run(agent, "Where is order 7341?", session=session)
```

A run reads the window: the summary, and the items after it, verbatim. It never has reasoning
without the item that the reasoning belongs to.
"""

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from turnfold.client import Client, OutgoingEvent, PortalClient, StoredMessage
from turnfold.client.events import check_storable
from turnfold.errors import TooLarge, Unavailable
from turnfold.integrations import requires
from turnfold.integrations.clients import (
    WAIT_MS,
    client_of,
    event_parts,
    events_in_place,
    newest_messages,
    publish_all,
    publish_together,
    saved_window,
    saved_window_options,
)
from turnfold.messages import SYSTEM_ROLES
from turnfold.shapes import check_responses, divide_responses, responses_from_chat

with requires("openai-agents"):
    from agents import SessionSettings, TResponseInputItem

PAGE_ITEMS = 1_000


class TurnfoldSession:
    """A conversation of the OpenAI Agents SDK, for any event loop and thread.

    `client` is a `PortalClient`, or a URL of NATS (default: `TURNFOLD_NATS_URL`), for which all
    sessions of the program share one client. With a `Client` of `turnfold.connect`, the session is
    for the event loop of that client alone, and saves each call the way to another thread.
    `max_tokens` is the budget of the window. Without it,
    the `model` decides: by default the one that was last reported. `window` has further options of
    `turnfold.Session.context`, such as `system_tokens` and `recall`.

    Methods raise the subclasses of `turnfold.RequestError`, among them `Unavailable` if no service
    answers and `CannotFit` if no valid window is that small.
    """

    def __init__(
        self,
        agent_id: str,
        session_id: str,
        *,
        client: PortalClient | Client | str | None = None,
        max_tokens: int | None = None,
        model: str | None = None,
        session_settings: SessionSettings | dict[str, Any] | None = None,
        window: Mapping[str, Any] | None = None,
    ) -> None:
        self.session_id = session_id
        self._client = client if isinstance(client, Client) else client_of(client)
        self.session_settings = SessionSettings().resolve(session_settings)
        self._session = self._client.session(agent_id, session_id)
        self._window = saved_window_options(max_tokens, model, window)
        self._unfinished: list[_Pop] = []

    async def get_items(self, limit: int | None = None) -> list[TResponseInputItem]:
        """Return the window; with a limit the newest items as they were added, without a summary.

        The limit of `session_settings` counts as well.
        """
        await self._finish_pops()
        if limit is None:
            limit = SessionSettings().resolve(self.session_settings).limit
        if limit is not None:
            return await self._tail(limit)
        window = await saved_window(self._session, self._window, format="responses")
        return [] if window is None else window.messages

    async def add_items(self, items: list[TResponseInputItem]) -> None:
        """Publish items; return when the stream has stored them.

        Raises:
            BadRequest: an item is not one of the Responses API, or nests too deep to be stored.
                Nothing was published.
        """
        # Before anything is published: an invalid item must not leave half of the list behind.
        check_responses(items)
        if not items:
            return
        await self._finish_pops()
        is_first = items[0].get("role") in SYSTEM_ROLES and await self._is_empty()
        try:
            events = self._events(items, is_first=is_first)
            check_storable(events)
            await publish_together(self._client, events)
        except TooLarge:
            if len(items) == 1:
                raise
            first, *others = event_parts(divide_responses(items))
            events = self._events(first, is_first=is_first)
            events += [event for part in others for event in self._events(part, is_first=False)]
            await publish_all(self._session, events)

    def _events(self, items: Sequence[Any], *, is_first: bool) -> list[OutgoingEvent]:
        return events_in_place(self._session.key, items, is_first=is_first, shape="responses")

    async def _is_empty(self) -> bool:
        """Return whether the session is known to have no items."""
        try:
            return not await self._tail(1)
        except Unavailable:
            # A buffer takes the items, and they may not be the first.
            return False

    async def pop_item(self) -> TResponseInputItem | None:
        """Retract the newest item and return it; None if there is none.

        After an error it may be retracted already: the next call on this object then finishes.
        """
        pop = self._unfinished.pop() if self._unfinished else await self._begin_pop()
        if pop is None:
            return None
        await self._finish(pop)
        *_, item = _items(pop.retracted)
        return item

    async def _begin_pop(self) -> "_Pop | None":
        """Retract the newest message; None if there is none."""
        popping = asyncio.create_task(self._session.pop())
        try:
            await asyncio.shield(popping)
        except asyncio.CancelledError:
            # It may be retracted already, and only the answer says what left with it. A callback,
            # because the waiting may be cancelled as well.
            popping.add_done_callback(self._keep)
            await asyncio.wait([popping])
            raise
        return _Pop(popping.result()) if popping.result() else None

    def _keep(self, popping: "asyncio.Task[list[StoredMessage]]") -> None:
        if not popping.cancelled() and popping.exception() is None and popping.result():
            self._unfinished.append(_Pop(popping.result()))

    async def _finish_pops(self) -> None:
        """Add what left with popped items, where that failed before."""
        while self._unfinished:
            await self._finish(self._unfinished.pop())

    async def _finish(self, pop: "_Pop") -> None:
        """Add the other items of a response again, because it is retracted as a whole."""
        try:
            if pop.events is None:
                *others, _ = _items(pop.retracted)
                others = [*await self._retracted_with(pop.retracted[0]), *others]
                # With the same ids when it is done again: they may have been stored.
                pop.events = self._events(others, is_first=False) if others else []
            await publish_together(self._client, pop.events)
        except (Unavailable, asyncio.CancelledError):
            self._unfinished.append(pop)
            raise

    async def clear_session(self) -> None:
        """Retract all items. Their originals stay in the history until the session is erased."""
        self._unfinished.clear()
        await self._session.clear()

    async def _tail(self, limit: int) -> list[TResponseInputItem]:
        """Return the newest items, all for a negative limit, as SQLite does."""
        count = limit if limit >= 0 else None
        newest = await newest_messages(self._session, count, wait_ms=WAIT_MS, bodies="published")
        items = list(_items(newest))
        # One chat message may be several items, so there may be more of them than the limit.
        return items[-limit:] if limit > 0 else items

    async def _retracted_with(self, popped: StoredMessage) -> list[TResponseInputItem]:
        """Return the items before this one that left with it, because they are one response."""
        event_id, _, index = popped.message_id.rpartition("#")
        if popped.shape != "responses" or index == "0":
            return []
        ids = [f"{event_id}#{before}" for before in range(int(index))]
        page = await self._session.history(message_ids=ids[-PAGE_ITEMS:], include_retracted=True)
        left: list[StoredMessage] = []
        for message in reversed(page.messages):
            if message.state != "retracted" or message.message["role"] != "assistant":
                break
            left.insert(0, message)
        return list(_items(left))


@dataclass(slots=True)
class _Pop:
    """A retracted message in one or more items, and the events that add the others again."""

    retracted: list[StoredMessage]
    events: list[OutgoingEvent] | None = None


def _items(messages: Iterable[StoredMessage]) -> Iterator[TResponseInputItem]:
    for stored in messages:
        if stored.shape == "responses" and stored.element is not None:
            yield stored.element
        else:
            yield from responses_from_chat([stored.message])
