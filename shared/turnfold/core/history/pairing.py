"""Which result answers which call: a function of the stream alone, decided for one call id at a time."""

from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from turnfold.messages import CallRef


class CallPosition(NamedTuple):
    """A call of this id: the position of its message and its slot there."""

    position: int
    slot: int


class ResultPosition(NamedTuple):
    """A result that carries this id; equal contents have equal digests."""

    position: int
    digest: bytes


class MatchedResult(NamedTuple):
    """What a result is: the answer to a call, or a copy, or (neither) one that waits for its call."""

    answers: CallRef | None
    is_copy: bool


WAITS = MatchedResult(None, False)


def match_results(
    calls: Iterable[CallPosition], results: Iterable[ResultPosition]
) -> dict[int, MatchedResult]:
    """Decide for each result of one call id, by its position.

    A result answers the nearest earlier call that is unanswered. Where there is none and it says what the last result
    said, it is a copy; else it waits for the next call of the id, and the one that waited longest is taken first.
    """
    verdicts: dict[int, MatchedResult] = {}
    unanswered: list[CallPosition] = []
    waiting: deque[ResultPosition] = deque()
    last: bytes | None = None
    for seen in _in_stream_order(calls, results):
        if isinstance(seen, CallPosition):
            if waiting:
                verdicts[waiting.popleft().position] = MatchedResult(CallRef(*seen), False)
            else:
                unanswered.append(seen)
        elif unanswered:
            verdicts[seen.position] = MatchedResult(CallRef(*unanswered.pop()), False)
            last = seen.digest
        elif seen.digest == last:
            verdicts[seen.position] = MatchedResult(None, True)
        else:
            verdicts[seen.position] = WAITS
            waiting.append(seen)
            last = seen.digest
    return verdicts


def _in_stream_order(
    calls: Iterable[CallPosition], results: Iterable[ResultPosition]
) -> Sequence[CallPosition | ResultPosition]:
    # A call and a result never share a position; calls of one message are ordered by slot.
    return sorted([*calls, *results])
