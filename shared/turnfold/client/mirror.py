"""Keep a session equal to a list of messages, for hosts that send the whole list each time.

The id of an event names a number of elements and the hash of the list up to there. So the newest
message of the session tells how much of a list is stored, also after a restart of the host. What
was retracted before is published again under other ids: they end with a mark of the newest message
that was there.
"""

import json
import re
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import accumulate
from typing import Any, Final, NamedTuple

from turnfold.client.events import (
    BATCH_EVENTS,
    OutgoingEvent,
    batches,
    check_storable,
    retraction_event,
    turn_event,
)
from turnfold.client.merge import message_json
from turnfold.client.replies import StoredMessage
from turnfold.client.session import Session
from turnfold.contracts.elements import FAULTS
from turnfold.core.shapes.anthropic import chat_views
from turnfold.core.shapes.responses import is_of_model
from turnfold.errors import BadRequest, Unavailable, UnknownSession
from turnfold.messages import SYSTEM_ROLES, ShapeName

WAIT_MS: Final = 5_000
UNMARKED: Final = "0"

# mirror-<end>-<elements>-<hash up to the end>-<mark>. Bounded, as any publisher may name events.
_ID = re.compile(r"mirror-(\d{1,9})-(\d{1,9})-([0-9a-f]{32})-([0-9a-f]{1,16})", re.ASCII)

Element = dict[str, Any]


@dataclass(frozen=True, slots=True)
class MirroredList:
    """A list that a session holds: so many elements, their hash, and the messages that they are.

    New events of the session get the `mark`.
    """

    length: int
    digest: str
    messages: int
    mark: str

    def is_newest(self, message_ids: Sequence[str | None]) -> bool:
        """Return whether one of these messages is of the event with which the list ends."""
        runs = (_run_of(message_id) for message_id in message_ids if message_id is not None)
        return any(
            run is not None and (run.end, run.digest) == (self.length, self.digest) for run in runs
        )


@dataclass(frozen=True, slots=True)
class MirrorReceipt:
    """The result of a mirrored list: the changes that made the session equal to it.

    `kept` elements were stored already, `published` ones were new. `is_edited` means that messages
    were retracted, because the list does not have them. `seq` is the freshness token of the newest
    event, and 0 if nothing was published. `mirrored` is what `mirror_longer` continues.
    """

    kept: int
    published: int
    is_edited: bool
    seq: int
    mirrored: MirroredList


class _Run(NamedTuple):
    """The elements of one event, between two places of the list, and the hash up to its end."""

    start: int
    end: int
    digest: str
    mark: str

    @property
    def event_id(self) -> str:
        return f"mirror-{self.end}-{self.end - self.start}-{self.digest}-{self.mark}"


class _Common(NamedTuple):
    """The common part of a list and a session: `kept` elements, up to the message `last_id`.

    `has_more`: the session has messages after them. `newest_id` is its newest message, retracted
    or not. New events get the `mark`.
    """

    kept: int = 0
    last_id: str | None = None
    has_more: bool = False
    newest_id: str = ""
    mark: str = UNMARKED


async def mirror(
    session: Session,
    messages: Sequence[Any],
    *,
    shape: ShapeName | None = None,
    model: str | None = None,
    usage: dict[str, Any] | None = None,
    carry: Sequence[Any] | None = None,
    identity: Callable[[Element], Any] | None = None,
    compare_all: bool = False,
) -> MirrorReceipt:
    """Make a session equal to a list of messages: publish what is new, retract what is not there.

    `messages` are chat messages, or elements of the `shape`. `model`, `usage` and `carry` are those
    of `Session.turn_completed`, of what is new. A session that is mirrored has no other publisher.
    `identity` returns the JSON by which elements are compared, by default all of the element.
    With `compare_all`, every stored event is compared, and not only the newest one.
    Several processes may send the same list, or longer ones, at once. If they send different lists
    at once, the session may hold parts of both, until the next call.

    Raises:
        BadRequest: `carry` has another length, or a message can never be stored.
        TooLarge: one event would be too large.
        Unavailable: the stream or the services do not answer, or have not stored all events of the
            session yet. It is always safe to send the list again.
    """
    elements = [message_json(message) for message in messages]
    if carry is not None and len(carry) != len(elements):
        raise BadRequest(f"carry has {len(carry)} values for {len(elements)} messages")
    listed = _List(elements, shape, identity, _beginning(session, shape))
    common = await _common(session, listed, compare_all=compare_all)
    event = _EventFields(shape, model, usage, carry)
    return await _published(session, listed, common, event)


async def mirror_longer(
    session: Session,
    beginning: MirroredList,
    messages: Sequence[Element],
    *,
    stored: MirroredList,
    shape: ShapeName | None = None,
    model: str | None = None,
    usage: dict[str, Any] | None = None,
    identity: Callable[[Element], Any] | None = None,
) -> MirrorReceipt | None:
    """Publish what a list adds to the `stored` one, without asking what the session holds.

    For the only publisher of a session. `messages` are the last one of the list `beginning`, and
    all after it. Returns None if the whole list must be mirrored: it does not begin with the
    `stored` one, or its new elements belong into an event that is stored.

    Raises:
        BadRequest, TooLarge, Unavailable: as `mirror` does.
    """
    before, *elements = messages
    listed = _List(elements, shape, identity, beginning, before)
    if not listed.holds(stored) or listed.joins(stored.length):
        return None
    common = _Common(stored.length, mark=stored.mark)
    return await _published(session, listed, common, _EventFields(shape, model, usage))


def place_of(message_id: str) -> int | None:
    """Return the place in a mirrored list of the element to which a message belongs.

    None if no mirror published the message. A message of Anthropic is in an event of its own.
    """
    event_id, _, index = message_id.rpartition("#")
    match = _ID.fullmatch(event_id)
    if match is None or not index.isdecimal():
        return None
    end, elements = int(match[1]), int(match[2])
    return end - elements + min(int(index), elements - 1)


class _EventFields(NamedTuple):
    """The fields of events besides elements. `carry` has a value for each element of the list."""

    shape: ShapeName | None
    model: str | None
    usage: dict[str, Any] | None
    carry: Sequence[Any] | None = None


async def _published(
    session: Session, listed: "_List", common: _Common, fields: _EventFields
) -> MirrorReceipt:
    """Publish what a session lacks of a list, and retract what it has besides."""
    shape, model, usage, carry = fields
    events: list[OutgoingEvent] = []
    # Before what is new: a retraction concerns only messages that stand before it in the stream.
    if common.has_more:
        event_id = f"mirror-{common.kept}-{_hash(common.newest_id, str(common.last_id))}"
        events.append(
            retraction_event(
                session.key, after=common.last_id, is_all=not common.kept, event_id=event_id
            )
        )
    for run in listed.runs(common.kept, common.mark):
        is_last = run.end == listed.length
        events.append(
            turn_event(
                session.key,
                listed.elements_of(run),
                event_id=run.event_id,
                shape=shape,
                model=model,
                usage=usage if is_last else None,
                carry=None if carry is None else carry[run.start : run.end],
            )
        )
    check_storable(events)
    seq = 0
    for batch in batches(events, most=BATCH_EVENTS):
        receipts = await session.publish_batch(batch)
        seq = max([seq, *(receipt.seq for receipt in receipts)])
    return MirrorReceipt(
        common.kept,
        listed.length - common.kept,
        common.has_more,
        seq,
        listed.mirrored(common.mark),
    )


def _beginning(session: Session, shape: ShapeName | None) -> MirroredList:
    """Return the empty list of a session."""
    return MirroredList(0, _hash(*session.key, shape or "chat"), 0, UNMARKED)


class _List:
    """The elements of a list after its `beginning`, with the hash of each longer beginning of it.

    `before` is the element with which the beginning ends.
    """

    def __init__(
        self,
        elements: Sequence[Element],
        shape: ShapeName | None,
        identity: Callable[[Element], Any] | None,
        beginning: MirroredList,
        before: Element | None = None,
    ) -> None:
        self._shape = shape or "chat"
        self._elements = elements
        self._first = beginning.length
        self._before = before
        self.length = beginning.length + len(elements)
        if fault := next(filter(None, map(FAULTS[self._shape], elements)), None):
            raise BadRequest(fault)
        compared = elements if identity is None else map(identity, elements)
        digests = accumulate(map(_canonical, compared), _hash, initial=beginning.digest)
        totals = accumulate(self._message_counts(), initial=beginning.messages)
        self._digests = dict(enumerate(digests, start=self._first))
        self._totals = dict(enumerate(totals, start=self._first))

    def holds(self, beginning: MirroredList) -> bool:
        """Return whether the list begins with this one."""
        return self._digests.get(beginning.length) == beginning.digest

    def mirrored(self, mark: str) -> MirroredList:
        """Return the list, as all of it is stored."""
        return MirroredList(
            self.length, self._digests[self.length], self._totals[self.length], mark
        )

    def elements_of(self, run: _Run) -> Sequence[Element]:
        """Return the elements of one event."""
        return self._elements[run.start - self._first : run.end - self._first]

    def is_beginning(self, run: _Run, messages: int) -> bool:
        """Return whether so many stored messages are this part of the list, all of it."""
        return (
            self._digests.get(run.end) == run.digest
            and messages == self._totals[run.end] - self._totals[run.start]
        )

    def runs(self, start: int, mark: str) -> Iterator[_Run]:
        """Yield the parts of the list from a place on, each for one event."""
        places = [place for place in range(start + 1, self.length) if not self.joins(place)]
        if start < self.length:
            for end in (*places, self.length):
                yield _Run(start, end, self._digests[end], mark)
                start = end

    def joins(self, place: int) -> bool:
        """Return whether an element belongs into the event of the element before it.

        Instructions in mid-conversation keep their place only there, and so do the items of one
        response.
        """
        if not 0 < place < self.length:
            return False
        at = place - self._first
        before = self._elements[at - 1] if at else self._before
        element = self._elements[at]
        if element.get("role") in SYSTEM_ROLES:
            return True
        if self._shape != "responses" or before is None:
            return False
        return is_of_model(before) and is_of_model(element)

    def _message_counts(self) -> list[int]:
        if self._shape != "anthropic":
            return [1] * len(self._elements)
        counts = [0] * len(self._elements)
        for view in chat_views(self._elements, [json.dumps(one) for one in self._elements]):
            counts[view.source] += 1
        return counts


async def _common(session: Session, listed: _List, *, compare_all: bool) -> _Common:
    """Compare a session with a list."""
    try:
        # With `latest`: an older state would have messages published again that are on their way.
        page = await session.history(
            newest=1, include_retracted=True, after="latest", wait_ms=WAIT_MS
        )
        if not page.fresh:
            raise Unavailable("the newest events of the session are not stored yet; try again")
        total = (await session.status())["messages_total"]
    except UnknownSession:
        return _Common()
    if not page.messages:
        return _Common()
    newest = page.messages[-1]
    run = _run_of(newest.message_id)
    if (
        not compare_all
        and run is not None
        and newest.state != "retracted"
        and listed.is_beginning(run._replace(start=0), total)
        # What joins the newest event has to be published with it, in an event that replaces it.
        and not listed.joins(run.end)
    ):
        return _Common(run.end, newest.message_id, False, newest.message_id, run.mark)
    return await _compared(session, listed, newest.message_id)


async def _compared(session: Session, listed: _List, newest_id: str) -> _Common:
    """Compare a session with a list event by event, because the two differ."""
    kept: list[tuple[int, str | None]] = [(0, None)]
    has_more = False
    async for event in _events(session):
        run = _run_of(event[0].message_id)
        if run is None or run.start != kept[-1][0] or not listed.is_beginning(run, len(event)):
            has_more = True
            break
        kept.append((run.end, event[-1].message_id))
    # A new element takes the event along into which it belongs: an event cannot grow.
    while listed.joins(kept[-1][0]):
        kept.pop()
        has_more = True
    place, last_id = kept[-1]
    return _Common(place, last_id, has_more, newest_id, _hash(newest_id)[:16])


async def _events(session: Session) -> AsyncIterator[list[StoredMessage]]:
    """Iterate over the messages of a session, event by event."""
    event: list[StoredMessage] = []
    async for stored in session.originals():
        if event and _event_id(event[0].message_id) != _event_id(stored.message_id):
            yield event
            event = []
        event.append(stored)
    if event:
        yield event


def _run_of(message_id: str) -> _Run | None:
    """Return what the event id of a message says; None if no mirror published it."""
    match = _ID.fullmatch(_event_id(message_id))
    if match is None or int(match[2]) > int(match[1]):
        return None
    return _Run(int(match[1]) - int(match[2]), int(match[1]), match[3], match[4])


def _event_id(message_id: str) -> str:
    return message_id.rpartition("#")[0]


def _canonical(element: Any) -> str:
    try:
        # Sorted, because a host may build an element anew with its fields in another order.
        return json.dumps(element, sort_keys=True, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise BadRequest(f"a message cannot be sent as JSON: {error}") from error


def _hash(*parts: str) -> str:
    # JSON has this character only escaped, so no two lists of parts give one text.
    text = "\x1f".join(parts)
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
