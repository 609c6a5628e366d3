"""Keep a session equal to the lists of its calls, and track how much of them is recorded.

The proxy is the only publisher of a session, so a list that continues the recorded one is published
without asking what the session holds. The window shows afterwards whether that was right.
"""

import asyncio
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from turnfold.client import Session, Window
from turnfold.client.mirror import mirror, mirror_longer
from turnfold.client.mirrored_list import MirroredList, place_of
from turnfold_proxy.apis.api import Api, Element
from turnfold_proxy.continuing import ListBytes, ListDigest


@dataclass(frozen=True, slots=True)
class RecordedList:
    """The list of the call of this `number`, and what the session holds: its answer as well.

    `is_answered`: that is a whole answer.
    """

    number: int
    listed: ListDigest
    mirrored: MirroredList
    stored: MirroredList
    is_answered: bool = False


@dataclass(slots=True)
class SessionState:
    """The newest call of a session, by number, and what keeps its calls in order.

    `begun` is the newest call whose list the session was made equal to, or may have been; before
    that, the first call. It is newer than all calls before an erasure.
    `recorded` is None if the session must be asked what it holds. `factor` is that of the model,
    as it was when `factor_of` described the session.
    """

    begun: int
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    newest: int = 0
    recorded: RecordedList | None = None
    factor: float | None = None
    factor_of: Hashable = None

    def is_late(self, number: int, elements: Sequence[Element], *, is_whole: bool) -> bool:
        """Return whether the caller has another answer by now, or has dropped that of a call.

        `number` and `elements` are those of the call.
        """
        recorded, is_newest = self.recorded, self.newest == number
        if is_newest and is_whole:
            return False
        if recorded is None:
            # Newer calls may not have reached the session.
            return number < self.begun
        if recorded.listed == ListBytes(elements).digest:
            # If equal calls run at once, the caller leaves all for the first whole answer.
            return recorded.is_answered
        # A newer call that was recorded holds the answer itself, or the caller has dropped it.
        return not is_newest and recorded.number > number


class EventOf(NamedTuple):
    """The session of a list, and what its events hold besides elements."""

    session: Session
    api: Api
    model: str | None
    usage: dict[str, Any] | None = None

    @property
    def shape(self) -> Literal["responses", "anthropic"] | None:
        """The shape of the elements; None for chat messages."""
        return None if self.api.shape == "chat" else self.api.shape


async def mirror_all(
    event: EventOf, elements: Sequence[Element], *, compare_all: bool = False
) -> MirroredList:
    """Compare a list with its session, and make the session equal to it.

    With `compare_all`, an event at the end that was published without a comparison proves nothing.
    """
    receipt = await mirror(
        event.session,
        [event.api.stored(element) for element in elements],
        shape=event.shape,
        model=event.model,
        usage=event.usage,
        identity=event.api.identity,
        compare_all=compare_all,
    )
    return receipt.mirrored


async def mirror_rest(
    event: EventOf, recorded: RecordedList, elements: Sequence[Element]
) -> MirroredList | None:
    """Publish what is new in a list that begins with a recorded one.

    Returns None, and publishes nothing, if the session holds something else after that.
    """
    # Reasoning after the last counted element is published with the next one.
    places = reversed(range(recorded.listed.length))
    last = next((at for at in places if event.api.identity(elements[at]) is not None), None)
    # `mirror_longer` begins with the last counted element, which reasoning alone does not have.
    if last is None:
        return None
    receipt = await mirror_longer(
        event.session,
        recorded.mirrored,
        [event.api.stored(element) for element in elements[last:]],
        stored=recorded.stored,
        shape=event.shape,
        model=event.model,
        usage=event.usage,
        identity=event.api.identity,
    )
    return None if receipt is None else receipt.mirrored


def shows_all(window: Window, mirrored: MirroredList, *, is_compared: bool) -> bool:
    """Return whether a session holds a list and nothing else, as far as its window shows.

    Of a session that was compared before, only erased messages can be missing.
    """
    if is_compared:
        return window.account.total == mirrored.messages
    shown = [ids if isinstance(ids, list) else [ids] for ids in window.message_ids]
    return (
        window.account.total == mirrored.messages
        and bool(shown)
        and mirrored.is_newest(shown[-1])
        # Ids are None for messages that are not stored, such as the summary.
        and all(name is None or place_of(name) is not None for ids in shown for name in ids)
    )


def calibrated_by(window: Window) -> Hashable:
    """Return what changes whenever the factor of a session's model may have changed.

    That is an eviction or a new version of the summary.
    """
    account = window.account
    version = window.summary.version if window.summary is not None else 0
    return version, account.covered + account.pending_shown + account.pending_digested
