"""Match tool results with calls, per call id, as a function of the stream alone.

Retractions are part of the stream: a retracted result leaves its call open, and a retracted call
takes its result along.
"""

from bisect import insort
from collections import deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from turnfold.messages import MESSAGES_PER_EVENT, CallRef, position_of


class CallPosition(NamedTuple):
    """A call: the position of its message, its slot there, and the first retraction naming it."""

    position: int
    slot: int
    named_seq: int | None = None


class ResultPosition(NamedTuple):
    """A result, and the first retraction naming it; equal contents have equal digests."""

    position: int
    digest: bytes
    named_seq: int | None = None


class MatchedResult(NamedTuple):
    """A result answers a call, is a copy, or (neither) waits for its call.

    `retracted_seq` is the retraction that names it or its call. A result that was retracted alone
    keeps the call that it answered then.
    """

    answers: CallRef | None
    is_copy: bool
    retracted_seq: int | None = None


WAITS = MatchedResult(None, False)


def match_results(
    calls: Sequence[CallPosition],
    results: Sequence[ResultPosition],
    *,
    event_positions: int = MESSAGES_PER_EVENT,
) -> dict[int, MatchedResult]:
    """Match the results of one call id; return the match of each position.

    An event has `event_positions`.

    A result answers the nearest earlier unanswered call. Without one, it is a copy if it equals the
    last result; otherwise it waits for the next call that its own event leaves unanswered, and the
    oldest waiting result is matched first. Results and copies follow their retracted call. A result
    that is retracted earlier leaves its call to its first copy, or to the oldest waiting result, or
    to a later one.
    """
    # Most ids are used once; the general case takes five times as long.
    if len(calls) == 1 and len(results) == 1 and calls[0][2] is results[0][2] is None:
        return {results[0][0]: MatchedResult(CallRef(*calls[0][:2]), False)}
    matching = _Matching()
    ordered = _in_stream_order(calls, results)
    own: Mapping[CallPosition, bytes] | None = None
    for seen in ordered:
        if isinstance(seen, CallPosition):
            # Rarely needed, because most ids have no result that waits.
            if own is None and matching.may_wait:
                own = _own_results(ordered, event_positions)
            matching.add_call(seen, own=None if own is None else own.get(seen))
        elif isinstance(seen, ResultPosition):
            matching.add_result(seen)
        else:
            matching.retract(seen)
    return matching.verdicts()


def match_since(
    calls: Sequence[CallPosition],
    results: Sequence[ResultPosition],
    known: Mapping[int, MatchedResult],
    *,
    start: int,
    first: int,
) -> dict[int, MatchedResult] | None:
    """Match what stands since `start`, the first position of an event; None if that is too little.

    `results` include earlier ones that wait at `start`. `known` are the matches as they were before
    messages from `first` on were stored. There are no retractions.

    A result from `first` on for which no call since `start` is left may answer an older call,
    unless another one found no call in between: all older calls had been answered there.
    """
    matches = match_results(calls, results)
    are_older_answered = False
    for position, match in sorted(matches.items()):
        has_no_call = _found_no_call(position, match)
        if position >= first:
            if has_no_call and not are_older_answered:
                return None
        elif _before(first, match) != _before(first, known[position]):
            return None
        elif position >= start and has_no_call:
            are_older_answered = True
    return matches


def match_after_calls(
    results: Sequence[ResultPosition], known: Mapping[int, MatchedResult], *, first: int
) -> dict[int, MatchedResult] | None:
    """Match results since the last call, as `match_since` does; None if these are too few."""
    matches: dict[int, MatchedResult] = {}
    last, are_calls_answered = b"", False
    for position, digest, _ in sorted(results):
        if position < first:
            are_calls_answered |= _found_no_call(position, known[position])
        elif are_calls_answered:
            matches[position] = MatchedResult(None, digest == last)
        else:
            return None
        # A copy equals the last result that is none.
        last = digest
    return matches


def _found_no_call(position: int, match: MatchedResult) -> bool:
    """Return whether all earlier calls had been answered when a result came."""
    return match.answers is None or match.answers.position > position


def has_later_answer(call: CallPosition, known: Mapping[int, MatchedResult]) -> bool:
    """Return whether a later event answered a call, for which no result waited then."""
    answered, event = CallRef(call.position, call.slot), call.position // MESSAGES_PER_EVENT
    return any(
        match.answers == answered and position // MESSAGES_PER_EVENT > event
        for position, match in known.items()
    )


def _before(first: int, match: MatchedResult) -> MatchedResult:
    """Return what a match was before there was a call from a position on."""
    return WAITS if match.answers is not None and match.answers.position >= first else match


class _Naming(NamedTuple):
    """A retraction of a result; the newest of several at once is first: none answers in between."""

    position: int
    newest_first: int
    result: ResultPosition


def _in_stream_order(
    calls: Sequence[CallPosition], results: Sequence[ResultPosition]
) -> Sequence[CallPosition | ResultPosition | _Naming]:
    seen: list[CallPosition | ResultPosition | _Naming] = [*calls, *results]
    seen += [
        _Naming(position_of(result.named_seq, 0), -result.position, result)
        for result in results
        if result.named_seq is not None
    ]
    # A call, a result and a retraction never share a position; calls of one message are ordered by
    # slot.
    return sorted(seen)


def _own_results(
    ordered: Sequence[CallPosition | ResultPosition | _Naming], event_positions: int
) -> Mapping[CallPosition, bytes]:
    """Return the digest of the result that answers each call within its event, if one does."""
    own: dict[CallPosition, bytes] = {}
    unanswered: list[CallPosition] = []
    event = -1
    for seen in ordered:
        if seen.position // event_positions != event:
            event = seen.position // event_positions
            unanswered.clear()
        if isinstance(seen, CallPosition):
            unanswered.append(seen)
        elif isinstance(seen, ResultPosition) and unanswered:
            own[unanswered.pop()] = seen.digest
    return own


class _PlacedAnswer:
    """A result and its copies, by position. The first answers the call, or waits for one."""

    __slots__ = ("call", "digest", "positions")

    def __init__(self, call: CallPosition | None, result: ResultPosition) -> None:
        self.call = call
        self.digest = result.digest
        # Not a list, because any of thousands of copies may be retracted.
        self.positions = {result.position: None}

    def verdict(self, *, is_copy: bool, retracted_seq: int | None) -> MatchedResult:
        """Return the match of the first one, or of a copy."""
        call = None if is_copy else self.call
        answers = None if call is None else CallRef(call.position, call.slot)
        return MatchedResult(answers, is_copy, retracted_seq)

    def is_gone(self, position: int) -> bool:
        """Return whether its call is retracted before a position, or there."""
        named_seq = None if self.call is None else self.call.named_seq
        return named_seq is not None and position_of(named_seq, 0) <= position


class _Matching:
    """The answers so far, calls without one, answers without a call, and those retracted alone."""

    def __init__(self) -> None:
        self._answers: list[_PlacedAnswer] = []
        self._answer_of: dict[int, _PlacedAnswer] = {}
        self._unanswered: list[CallPosition] = []
        self._waiting: deque[_PlacedAnswer] = deque()
        self._waiting_by_digest: dict[bytes, deque[_PlacedAnswer]] = {}
        self._alone: dict[int, MatchedResult] = {}

    @property
    def may_wait(self) -> bool:
        """Whether results may wait for a call."""
        return bool(self._waiting)

    def add_call(self, call: CallPosition, *, own: bytes | None = None) -> None:
        """Let the oldest waiting result answer a call: one that equals its `own` result, if any.

        Otherwise, a result that waits since an id was used before would take the call of the next,
        and all later ones would be one call late.
        """
        waiting = self._waiting if own is None else self._waiting_by_digest.get(own, deque())
        while waiting:
            answer = waiting.popleft()
            # An answer without positions was retracted while it waited.
            if answer.positions and answer.call is None:
                answer.call = call
                return
        # A retraction may free a call that is older than others without an answer.
        insort(self._unanswered, call)

    def add_result(self, result: ResultPosition) -> None:
        """Let a result answer a call, repeat the last result, or wait."""
        position = result.position
        # The newest call: ids may repeat, and an older call of this id may never be answered.
        call = self._unanswered.pop() if self._unanswered else None
        # If all results of an answer were retracted, there is no last result to repeat.
        while self._answers and not self._answers[-1].positions:
            self._answers.pop()
        last = self._answers[-1] if self._answers and call is None else None
        # A result that is published again after its retraction is not a copy.
        if last is not None and last.digest == result.digest and not last.is_gone(position):
            last.positions[position] = None
            self._answer_of[position] = last
            return
        answer = self._answer_of[position] = _PlacedAnswer(call, result)
        self._answers.append(answer)
        if call is None:
            self._waiting.append(answer)
            self._waiting_by_digest.setdefault(result.digest, deque()).append(answer)

    def retract(self, naming: _Naming) -> None:
        """Retract a result alone, unless its call is retracted too."""
        position, named_seq = naming.result.position, naming.result.named_seq
        answer = self._answer_of[position]
        if answer.is_gone(naming.position):
            return
        is_copy = position != next(iter(answer.positions))
        self._alone[position] = answer.verdict(is_copy=is_copy, retracted_seq=named_seq)
        del answer.positions[position]
        if answer.call is not None and not answer.positions:
            self.add_call(answer.call)

    def verdicts(self) -> dict[int, MatchedResult]:
        """Return the match of each result."""
        verdicts = self._alone
        for answer in self._answers:
            with_call = None if answer.call is None else answer.call.named_seq
            is_copy = False
            for position in answer.positions:
                verdicts[position] = answer.verdict(is_copy=is_copy, retracted_seq=with_call)
                is_copy = True
        return verdicts
