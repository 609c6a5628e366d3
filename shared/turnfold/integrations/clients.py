"""The client that all integrations of a program share, and answers and events that it can carry."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, TypeVar

from turnfold.client import (
    Client,
    OutgoingEvent,
    PortalClient,
    Session,
    StoredMessage,
    Window,
    turn_event,
)
from turnfold.client.events import (
    BATCH_EVENTS,
    batches,
    check_storable,
    encoded,
    retraction_event,
)
from turnfold.errors import TooLarge, Unavailable, UnknownSession
from turnfold.messages import SYSTEM_ROLES, Json, SessionKey, ShapeName

EVENT_MESSAGES: Final = 999
EVENT_BYTES: Final = 4_000_000
"""The most messages of an event beside a carrier, and the most bytes of them, below its limits."""
MOST_MESSAGES: Final = 64
"""The messages of a window that is requested again because an answer could not carry it."""
PAGE_MESSAGES: Final = 1_000
WAIT_MS: Final = 5_000
"""How long a read waits at most for what was saved before, by this program or another."""
CARRIER: Final = {"role": "user", "content": ""}
"""A message that is retracted in the batch in which it is published."""

Piece = TypeVar("Piece")

_clients: dict[str | None, PortalClient] = {}


def client_of(named: PortalClient | str | None) -> PortalClient:
    """Return a client, or that of a URL of NATS: the same for every caller of the program."""
    if isinstance(named, PortalClient):
        return named
    # Threads that race all get the client that was stored first. Others never connect.
    return _clients.get(named) or _clients.setdefault(named, PortalClient(named))


async def publish_all(session: Session, events: Sequence[OutgoingEvent]) -> None:
    """Publish events in batches, if all of them can be stored.

    Raises:
        BadRequest: one of them would become a dead letter; none was published.
    """
    check_storable(events)
    for batch in batches(events, most=BATCH_EVENTS):
        await session.publish_batch(batch)


async def publish_together(client: PortalClient | Client, events: Sequence[OutgoingEvent]) -> None:
    """Publish what is saved at once: a carrier must not stay because its retraction failed."""
    if len(events) > 1:
        try:
            for batch in batches(events, most=BATCH_EVENTS):
                await client.publish_batch(batch)
        except Unavailable:
            # No buffer takes a batch, but single events.
            pass
        else:
            return
    for event in events:
        await client.publish(event)


def events_in_place(
    key: SessionKey,
    messages: Sequence[Json],
    carry: Sequence[Any] | None = None,
    *,
    is_first: bool,
    shape: ShapeName | None = None,
    event_id: str | None = None,
) -> list[OutgoingEvent]:
    """Return the events of messages of which each keeps its place, unless they are the first.

    A system message that begins its event stands before the conversation, and the one that stood
    there before is shown no longer.
    """
    if is_first or messages[0].get("role") not in SYSTEM_ROLES:
        return [turn_event(key, messages, event_id=event_id, carry=carry, shape=shape)]
    carry = None if carry is None else [None, *carry]
    event = turn_event(key, [CARRIER, *messages], event_id=event_id, carry=carry, shape=shape)
    return [
        event,
        retraction_event(key, [f"{event.event_id}#0"], event_id=f"{event.event_id}-0"),
    ]


async def newest_messages(
    session: Session, count: int | None, *, wait_ms: int, bodies: Literal["published"] | None = None
) -> list[StoredMessage]:
    """Return the newest `count` messages of a session, in order; all if it has fewer, or None.

    `bodies` is that of `turnfold.Session.history`.

    Raises:
        Unavailable: not everything is stored yet.
    """
    messages: list[StoredMessage] = []
    size = PAGE_MESSAGES
    position: int | None = None
    while count is None or len(messages) < count:
        size = size if count is None else min(size, count - len(messages))
        is_first = position is None
        try:
            page = await session.history(
                newest=size if is_first else None,
                limit=None if is_first else size,
                before_position=position,
                bodies=bodies,
                after="latest",
                wait_ms=wait_ms,
            )
        except UnknownSession:
            return []
        except TooLarge:
            if size == 1:
                raise
            # Long messages: fewer of them fit an answer of the bus.
            size = max(size // 4, 1)
            continue
        require_fresh(is_fresh=page.fresh, wait_ms=wait_ms)
        messages[:0] = page.messages
        position = page.previous_position
        if position is None:
            break
    return messages


def require_fresh(*, is_fresh: bool, wait_ms: int) -> None:
    """Raise `Unavailable` if an answer lacks what was published before."""
    if not is_fresh:
        raise Unavailable(
            f"the newest messages of the session are not stored after {wait_ms} ms; try again"
        )


async def fitting_window(session: Session, **options: Any) -> Window:
    """Return a window; one of fewer messages if the answer would be too large.

    An image counts few tokens and has many bytes, so a window of some images may exceed what the
    bus carries.

    Raises:
        TurnfoldError: as `turnfold.Session.context`; `TooLarge` if no window is small enough.
    """
    most = options.pop("max_messages", None)
    while True:
        try:
            return await session.context(**options, max_messages=most)
        except TooLarge:
            if most == 1:
                raise
            most = MOST_MESSAGES if most is None else max(1, most // 2)


def saved_window_options(
    max_tokens: int | None, model: str | None, window: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return the options of windows for a host that reads before it saves the newest request."""
    return {
        "placement": "user",
        # It would look for the request before.
        "recall": False,
        "max_tokens": max_tokens,
        "model": model,
        "wait_ms": WAIT_MS,
        **(window or {}),
    }


async def saved_window(session: Session, options: dict[str, Any], **asked: Any) -> Window | None:
    """Return a window with all that was saved before; None before the first save.

    `options` are those of `saved_window_options`, `asked` are options of this window alone.

    Raises:
        TurnfoldError: as `fitting_window`; `Unavailable` if not everything is stored yet.
    """
    try:
        window = await fitting_window(session, after="latest", **asked, **options)
    except UnknownSession:
        return None
    require_fresh(is_fresh=window.fresh, wait_ms=options["wait_ms"])
    return window


def carried_messages(window: Window) -> list[tuple[dict[str, Any] | None, Any]]:
    """Return the messages of a window with its entries, each with what its event carried for it.

    A message without a body is shown as it was published.
    """
    pairs = zip(window.raw["messages"], window.entries or (), strict=True)
    return [(body, entry.get("carry")) for body, entry in pairs]


def event_parts(units: Iterable[Sequence[Piece]]) -> Iterator[list[Piece]]:
    """Divide what is published at once into parts for one event each, in order.

    A unit stays in one event, if that can hold it.
    """
    part: list[Piece] = []
    size = 0
    for pieces in units:
        lengths = [len(encoded(piece)) for piece in pieces]
        if _fits(len(pieces), sum(lengths)):
            parts = [(pieces, sum(lengths))]
        else:
            parts = [([piece], length) for piece, length in zip(pieces, lengths, strict=True)]
        for more, length in parts:
            if part and not _fits(len(part) + len(more), size + length):
                yield part
                part, size = [], 0
            part = [*part, *more]
            size += length
    if part:
        yield part


def _fits(messages: int, size: int) -> bool:
    return messages <= EVENT_MESSAGES and size <= EVENT_BYTES
