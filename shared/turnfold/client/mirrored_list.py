"""A list of elements as the events that hold it, and the ids of these events."""

import json
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import accumulate
from typing import Any, Final, NamedTuple

from turnfold.contracts.elements import FAULTS
from turnfold.core.shapes.anthropic import chat_views
from turnfold.core.shapes.responses import is_of_model
from turnfold.core.text.calls import has_pairable_calls
from turnfold.errors import BadRequest
from turnfold.messages import SYSTEM_ROLES, ShapeName

# mirror-<end>-<elements>-<hash up to the end>-<mark>[-<bits of uncounted messages, in base64url>].
# Bounded, as any publisher may name events: there is room for the 1,000 messages of an event.
_ID: Final = re.compile(
    r"mirror-(\d{1,9})-(\d{1,9})-([0-9a-f]{32})-([0-9a-f]{1,16})"
    r"(?:-((?:[\w-]{4}){0,41}[\w-]{2,4}))?",
    re.ASCII,
)

Element = dict[str, Any]


@dataclass(frozen=True, slots=True)
class MirroredList:
    """A list that a session holds: so many elements, their hash, and its messages of the session.

    New events of the session get the `mark`.
    """

    length: int
    digest: str
    messages: int
    mark: str

    def is_newest(self, message_ids: Sequence[str | None]) -> bool:
        """Return whether one of these messages is of the event with which the list ends."""
        runs = (run_of(message_id) for message_id in message_ids if message_id is not None)
        return any(
            run is not None and (run.end, run.digest) == (self.length, self.digest) for run in runs
        )


class EventRun(NamedTuple):
    """The elements of one event, between two places of the list, and the hash up to its end.

    `uncounted` has a bit for each message of the event, which is set if that is uncounted.
    """

    start: int
    end: int
    digest: str
    mark: str
    uncounted: int = 0

    @property
    def event_id(self) -> str:
        """The id of the event."""
        end = f"-{_text_of_bits(self.uncounted)}" if self.uncounted else ""
        return f"mirror-{self.end}-{self.end - self.start}-{self.digest}-{self.mark}{end}"


class ListPlace(NamedTuple):
    """The place in a mirrored list of the element to which a message belongs.

    An uncounted message belongs to the element after it: lists with it and without it are the same.
    """

    number: int
    is_uncounted: bool


def place_of(message_id: str) -> ListPlace | None:
    """Return the place of a message; None if no mirror published it.

    A message of Anthropic is in an event of its own.
    """
    run, index = run_of(message_id), message_id.rpartition("#")[2]
    if run is None or not index.isdecimal():
        return None
    bits = run.uncounted
    # Bounded: an Anthropic element may be several messages, so the index may lie beyond it.
    before = min(int(index), run.end - run.start + bits.bit_count())
    counted = before - (bits & ((1 << before) - 1)).bit_count()
    is_uncounted = bool(bits >> min(int(index), bits.bit_length()) & 1)
    return ListPlace(min(run.start + counted, run.end - 1), is_uncounted)


def run_of(message_id: str) -> EventRun | None:
    """Return what the event id of a message says; None if no mirror published it."""
    match = _ID.fullmatch(event_id_of(message_id))
    if match is None or int(match[2]) > int(match[1]):
        return None
    start = int(match[1]) - int(match[2])
    return EventRun(start, int(match[1]), match[3], match[4], _bits_of_text(match[5] or ""))


def are_distinguishable(messages: Iterable[Element]) -> bool:
    """Return whether the calls of chat messages have ids and names of their own."""
    return all(map(has_pairable_calls, messages))


def event_id_of(message_id: str) -> str:
    """Return the id of the event of a message."""
    return message_id.rpartition("#")[0]


class ElementList:
    """The elements of a list after its `beginning`, with the hash of each longer beginning of it.

    Elements whose `identity` is None are uncounted: they belong to the next counted one, and have
    no place of their own. `before` is the last counted element of the beginning.
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
        if fault := next(filter(None, map(FAULTS[self._shape], elements)), None):
            raise BadRequest(fault)
        compared: list[Any] = list(elements if identity is None else map(identity, elements))
        counted = [at for at, value in enumerate(compared) if value is not None]
        # Indexed by place: the number of elements up to the counted one before that place.
        self._ends = [0, *(at + 1 for at in counted)]
        self.length = self._first + len(counted)
        texts = [_canonical(compared[at]) for at in counted]
        # Chained to the hash of the beginning, so that its elements are not needed.
        digests = accumulate(texts, hashed, initial=beginning.digest)
        counts = self._message_counts()
        totals = accumulate([counts[at] for at in counted], initial=0)
        self._digests = dict(enumerate(digests, start=self._first))
        self._totals = dict(enumerate(totals, start=self._first))

    def holds(self, beginning: MirroredList) -> bool:
        """Return whether the list begins with this one."""
        return self._digests.get(beginning.length) == beginning.digest

    def mirrored(self, kept: int, messages: int, mark: str) -> MirroredList:
        """Return the list, as all of it is stored after `kept` elements in so many messages."""
        length, digest = self.length, self._digests[self.length]
        uncounted = len(self._slice(kept, length)) - (length - kept)
        new = self._totals[length] - self._totals[kept] + uncounted
        return MirroredList(length, digest, messages + new, mark)

    def elements_of(self, run: EventRun) -> Sequence[Element]:
        """Return the elements of one event."""
        return [self._elements[at] for at in self._slice(run.start, run.end)]

    def carried(self, run: EventRun, carry: Sequence[Any]) -> Sequence[Any]:
        """Return the values that are carried for the elements of one event."""
        return [carry[at] for at in self._slice(run.start, run.end)]

    def is_beginning(self, run: EventRun, messages: int) -> bool:
        """Return whether this part of the list is so many counted messages."""
        return (
            self._digests.get(run.end) == run.digest
            and messages == self._totals[run.end] - self._totals[run.start]
        )

    def uncounted_before(self, place: int) -> int:
        """Return how many elements before a place are uncounted."""
        at = min(place, self.length) - self._first
        return self._ends[at] - at

    def runs(self, start: int, mark: str) -> Iterator[EventRun]:
        """Yield the parts of the list from a place on, each for one event."""
        places = [place for place in range(start + 1, self.length) if not self.joins(place)]
        if start < self.length:
            for end in (*places, self.length):
                uncounted = self._uncounted(start, end)
                yield EventRun(start, end, self._digests[end], mark, uncounted)
                start = end

    def joins(self, place: int) -> bool:
        """Return whether an element belongs into the event of the element before it.

        Instructions in mid-conversation keep their place only there, and so do the items of one
        response.
        """
        if not 0 < place < self.length:
            return False
        at = place - self._first
        before = self._elements[self._ends[at] - 1] if at else self._before
        element = self._elements[self._ends[at + 1] - 1]
        if element.get("role") in SYSTEM_ROLES:
            return True
        if self._shape != "responses" or before is None:
            return False
        return is_of_model(before) and is_of_model(element)

    def _slice(self, start: int, end: int) -> range:
        """Return where the elements between two places are, uncounted ones included."""
        return range(self._ends[start - self._first], self._ends[end - self._first])

    def _uncounted(self, start: int, end: int) -> int:
        inner = self._slice(start, end)
        counted = {self._ends[place - self._first] - 1 for place in range(start + 1, end + 1)}
        return sum(1 << number for number, at in enumerate(inner) if at not in counted)

    def _message_counts(self) -> list[int]:
        if self._shape != "anthropic":
            return [1] * len(self._elements)
        counts = [0] * len(self._elements)
        for view in chat_views(self._elements, [json.dumps(element) for element in self._elements]):
            counts[view.source] += 1
        return counts


def _text_of_bits(bits: int) -> str:
    data = bits.to_bytes((bits.bit_length() + 7) // 8, "big")
    return urlsafe_b64encode(data).decode().rstrip("=")


def _bits_of_text(text: str) -> int:
    return int.from_bytes(urlsafe_b64decode(text + "=" * (-len(text) % 4)), "big")


def hashed(*parts: str) -> str:
    """Return the hash of texts."""
    # JSON has this character only escaped, so no two lists of parts give one text.
    text = "\x1f".join(parts)
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _canonical(element: Any) -> str:
    try:
        # Sorted, because a host may build an element anew with its fields in another order.
        return json.dumps(element, sort_keys=True, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise BadRequest(f"a message cannot be sent as JSON: {error}") from error
