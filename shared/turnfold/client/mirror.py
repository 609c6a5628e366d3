"""Keep a session equal to a list of messages, for hosts that send the whole list each time.

The id of an event names a number of elements and the hash of the list up to there. So the newest
message of the session tells how much of a list is stored, even after a restart of the host.
Retracted elements are published again under other ids, which end with a mark of the newest message
that was there.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
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
from turnfold.client.mirrored_list import (
    Element,
    ElementList,
    EventRun,
    MirroredList,
    event_id_of,
    hashed,
    run_of,
)
from turnfold.client.replies import StoredMessage
from turnfold.client.session import Session
from turnfold.errors import BadRequest, Unavailable, UnknownSession
from turnfold.messages import ShapeName

WAIT_MS: Final = 5_000
UNMARKED: Final = "0"
ERASED_MEANWHILE: Final = "the session was erased meanwhile; try again"


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


class _Common(NamedTuple):
    """The common part of a list and a session: `kept` elements, up to the message `last_id`.

    `has_more`: the session has messages after them. `newest_id` is its newest message, retracted
    or not. New events get the `mark`. `messages` counts those of the common part.
    """

    kept: int = 0
    messages: int = 0
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
    Elements for which it is None are uncounted: the list is the same without them. They are
    published with the element after them.
    With `compare_all`, every stored event is compared, and not only the newest one.
    A list that was erased stays erased, with nothing kept or published, until it has a new message.
    Several processes may send the same list at once. If they send different lists at once, the
    session may hold parts of each until the next call: a shorter list is an edit, too.

    Raises:
        BadRequest: `carry` has another length, or a message can never be stored.
        TooLarge: one event would be too large.
        Unavailable: the stream or the services do not answer, or have not stored all events of the
            session yet. It is always safe to send the list again.
    """
    elements = [message_json(message) for message in messages]
    if carry is not None and len(carry) != len(elements):
        raise BadRequest(f"carry has {len(carry)} values for {len(elements)} messages")
    beginning = MirroredList(0, hashed(*session.key, shape or "chat"), 0, UNMARKED)
    listed = ElementList(elements, shape, identity, beginning)
    fields = _EventFields(shape, model, usage, carry)
    common = await _common(session, listed, compare_all=compare_all)
    if common is None and listed.length:
        runs = list(listed.runs(0, UNMARKED))
        first, newest = runs[0], runs[-1]
        erased = await session.erased_events({first.event_id, newest.event_id})
        if newest.event_id in erased:
            # All of the list was there before, and is not stored again.
            return MirrorReceipt(0, 0, False, 0, listed.mirrored(0, 0, UNMARKED))
        if first.event_id in erased:
            # The comparison after it gives the others new ids. The stream takes those that they had
            # for duplicates, and each of them would be waited for.
            check_storable([_turn(session, listed, run, fields) for run in runs])
            await session.publish_batch([_turn(session, listed, newest, fields)])
            common = await _common(session, listed, compare_all=compare_all)
            if common is None:
                raise Unavailable(ERASED_MEANWHILE, is_answer=True)
    return await _published(session, listed, common or _Common(), fields)


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

    For the only publisher of a session. `messages` are the last counted one of the list
    `beginning`, and all after it. Returns None if the whole list must be mirrored: it does not
    begin with the `stored` one, or its new elements belong into an event that is stored.

    Raises:
        BadRequest, TooLarge, Unavailable: as `mirror` does.
    """
    before, *elements = messages
    listed = ElementList(elements, shape, identity, beginning, before)
    if not listed.holds(stored) or listed.joins(stored.length):
        return None
    common = _Common(stored.length, stored.messages, mark=stored.mark)
    return await _published(session, listed, common, _EventFields(shape, model, usage))


class _EventFields(NamedTuple):
    """The fields of events besides elements. `carry` has a value for each element of the list."""

    shape: ShapeName | None
    model: str | None
    usage: dict[str, Any] | None
    carry: Sequence[Any] | None = None


async def _published(
    session: Session, listed: ElementList, common: _Common, fields: _EventFields
) -> MirrorReceipt:
    """Publish what a session lacks of a list, and retract what it has besides."""
    events: list[OutgoingEvent] = []
    # Before what is new: a retraction concerns only messages that stand before it in the stream.
    if common.has_more:
        event_id = f"mirror-{common.kept}-{hashed(common.newest_id, str(common.last_id))}"
        events.append(
            retraction_event(
                session.key, after=common.last_id, is_all=not common.kept, event_id=event_id
            )
        )
    runs = listed.runs(common.kept, common.mark)
    events += [_turn(session, listed, run, fields) for run in runs]
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
        listed.mirrored(common.kept, common.messages, common.mark),
    )


def _turn(
    session: Session, listed: ElementList, run: EventRun, fields: _EventFields
) -> OutgoingEvent:
    shape, model, usage, carry = fields
    return turn_event(
        session.key,
        listed.elements_of(run),
        event_id=run.event_id,
        shape=shape,
        model=model,
        usage=usage if run.end == listed.length else None,
        carry=None if carry is None else listed.carried(run, carry),
    )


async def _common(session: Session, listed: ElementList, *, compare_all: bool) -> _Common | None:
    """Compare a session with a list; return None if it has no messages."""
    try:
        # With `latest`: an older state would have messages published again that are on their way.
        page = await session.history(
            newest=1, include_retracted=True, after="latest", wait_ms=WAIT_MS
        )
        if not page.fresh:
            raise Unavailable(
                "the newest events of the session are not stored yet; try again", is_answer=True
            )
        # After the page: what another process publishes in between makes the count differ, and then
        # the whole list is compared.
        total = (await session.status())["messages_total"]
    except UnknownSession:
        return None
    if not page.messages:
        return None
    newest = page.messages[-1]
    run = run_of(newest.message_id)
    if (
        not compare_all
        and run is not None
        and newest.state != "retracted"
        and listed.is_beginning(run._replace(start=0), total - listed.uncounted_before(run.end))
        # An element that joins the newest event is published with it, in an event that replaces it.
        and not listed.joins(run.end)
    ):
        return _Common(run.end, total, newest.message_id, False, newest.message_id, run.mark)
    try:
        return await _compared(session, listed, newest.message_id)
    except UnknownSession as error:
        raise Unavailable(ERASED_MEANWHILE, is_answer=True) from error


async def _compared(session: Session, listed: ElementList, newest_id: str) -> _Common:
    """Compare a session with a list event by event, because the two differ."""
    kept: list[tuple[int, int, str | None]] = [(0, 0, None)]
    has_more = False
    async for event in _events(session):
        run = run_of(event[0].message_id)
        if (
            run is None
            or run.start != kept[-1][0]
            or not listed.is_beginning(run, len(event) - run.uncounted.bit_count())
        ):
            has_more = True
            break
        kept.append((run.end, kept[-1][1] + len(event), event[-1].message_id))
    # A new element takes the event along into which it belongs: an event cannot grow.
    while listed.joins(kept[-1][0]):
        kept.pop()
        has_more = True
    place, messages, last_id = kept[-1]
    return _Common(place, messages, last_id, has_more, newest_id, hashed(newest_id)[:16])


async def _events(session: Session) -> AsyncIterator[list[StoredMessage]]:
    """Iterate over the messages of a session, event by event."""
    event: list[StoredMessage] = []
    async for stored in session.originals():
        if event and event_id_of(event[0].message_id) != event_id_of(stored.message_id):
            yield event
            event = []
        event.append(stored)
    if event:
        yield event
