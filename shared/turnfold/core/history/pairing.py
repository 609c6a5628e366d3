"""Match tool results with calls, per call id, as a function of the stream alone."""

from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from turnfold.messages import CallRef


class CallPosition(NamedTuple):
    """A call: the position of its message, and its slot there."""

    position: int
    slot: int


class ResultPosition(NamedTuple):
    """A result; equal contents have equal digests."""

    position: int
    digest: bytes


class MatchedResult(NamedTuple):
    """A result answers a call, is a copy, or (neither) waits for its call."""

    answers: CallRef | None
    is_copy: bool


WAITS = MatchedResult(None, False)


def match_results(
    calls: Iterable[CallPosition], results: Iterable[ResultPosition]
) -> dict[int, MatchedResult]:
    """Match the results of one call id; return the match of each position.

    A result answers the nearest earlier unanswered call. Without one, it is a copy if it equals the
    last result; otherwise it waits for the next call, and the oldest waiting result is matched
    first.
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
            # The newest call: ids may repeat, and an older call of this id may never be answered.
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
