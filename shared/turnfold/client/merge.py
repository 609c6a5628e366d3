"""Merge the service's history with the agent's own messages, without duplicates or gaps."""

import json
import re
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from turnfold.client.provider import History, split_notes
from turnfold.core.recovery.assembler import leading_count, leading_systems
from turnfold.core.text.calls import call_entries
from turnfold.core.text.tokens import text_of
from turnfold.core.window.forms import CUT_MARK
from turnfold.errors import BadRequest
from turnfold.messages import META_MARK, Json

LEAST_SHOWN: Final = 16
"""The characters that a cut text must show. With fewer, it could be one of many messages."""
SHORTENED: Final = re.compile(r"TRUNCATED original~\d|\d tokens left out")
"""A mark in each text, result and call that a window has shortened."""


class MergedHistory(NamedTuple):
    """The input of an assembler.

    `systems` are the agent's system messages, `provided` is the service's history, and `newer`
    holds the agent's messages that are not in it yet. `inserted` are the agent's results in the
    history.
    """

    systems: list[dict[str, Any]]
    provided: list[dict[str, Any]]
    newer: list[dict[str, Any]]
    inserted: list[dict[str, Any]]


def message_json(message: Any) -> dict[str, Any]:
    """Return a message as a dictionary; model objects of libraries are converted, also in calls.

    Raises:
        BadRequest: the message is neither a dictionary nor a model object.
    """
    body = _converted(message)
    if not isinstance(body, Mapping):
        raise BadRequest(
            f"a message is a dictionary or a model with model_dump, not {type(message).__name__}"
        )
    calls = body.get("tool_calls")
    if isinstance(calls, list | tuple):
        return {**body, "tool_calls": list(map(_converted, calls))}
    return dict(body)


def _converted(value: Any) -> Any:
    """Return a model object as a dictionary, and everything else as it is."""
    dump = None if isinstance(value, Mapping) else getattr(value, "model_dump", None)
    return value if dump is None else dump(exclude_none=True)


def merge_history(own: Sequence[Json], history: History) -> MergedHistory:
    """Split both lists into system messages, the provided history, and the agent's newer messages.

    If the agent's list begins with system messages, those of the history are dropped. Real results
    of the agent's list take the place of placeholders, which are dropped where there is none.
    Messages of the history get the marks that they have in the agent's list.
    """
    systems = leading_systems(own)
    results = _results(own)
    provided: list[Json] = []
    inserted: list[dict[str, Any]] = []
    for place, body in enumerate(history.messages):
        if place not in history.synthesised:
            provided.append(body)
        elif (result := results.get(_call_id(body))) is not None:
            provided.append(result)
            inserted.append(dict(result))
    if systems:
        provided = provided[leading_count(provided) :]
    listed = _in_call_order(split_notes(own[len(systems) :])[1])
    newer = _newer(listed, split_notes(provided)[1])
    return MergedHistory(systems, with_marks(provided, own), newer, inserted)


def _in_call_order(own: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the messages as windows have them: results after their call, in the order of calls.

    An agent's list may have them as they came.
    """
    blocks: list[list[dict[str, Any] | None]] = []
    unanswered: dict[str, list[tuple[int, int]]] = {}
    for body in own:
        waiting = unanswered.get(_call_id(body)) if body.get("role") == "tool" else None
        if waiting:
            block, slot = waiting.pop()
            blocks[block][slot] = body
            continue
        ids = [str(call.get("id")) for call in call_entries(body) if isinstance(call, Mapping)]
        # The last slot first: calls of one message that share an id are answered in their order.
        for slot in range(len(ids), 0, -1):
            unanswered.setdefault(ids[slot - 1], []).append((len(blocks), slot))
        blocks.append([body, *[None for _ in ids]])
    return [body for block in blocks for body in block if body is not None]


def _results(own: Sequence[Json]) -> Mapping[str, Json]:
    """Return the results by the ids of their calls, but of no id that has several."""
    results = [body for body in own if body.get("role") == "tool"]
    number = Counter(_call_id(body) for body in results)
    return {_call_id(body): body for body in results if number[_call_id(body)] == 1}


def _call_id(result: Json) -> str:
    return str(result.get("tool_call_id"))


def with_marks(messages: Sequence[Json], own: Sequence[Json]) -> list[dict[str, Any]]:
    """Return messages with the marks (`is_meta`) that equal messages of the agent's list have.

    A text gets no mark if a person wrote it as well.
    """
    written = [body for body in own if body.get("role") == "user"]
    marked = {_key(body) for body in written if body.get(META_MARK) is True}
    if marked:
        # The two texts are equal, and only one of them is a program's.
        marked -= {_key(body) for body in written if body.get(META_MARK) is not True}
    return [
        {**body, META_MARK: True}
        if marked and body.get("role") == "user" and _key(body) in marked
        else dict(body)
        for body in messages
    ]


def is_same_text(one: str, other: str) -> bool:
    """Return whether two texts are equal, or one of them is what a window has cut the other to."""
    if one[:LEAST_SHOWN] != other[:LEAST_SHOWN]:
        return False
    return _is_same(*(_side({"role": "user", "content": text}) for text in (one, other)))


def _newer(own: Sequence[dict[str, Any]], provided: Sequence[Json]) -> list[dict[str, Any]]:
    """Return the agent's messages after the newest provided one, or all if none was provided.

    The two lists are aligned where the longest run of the same messages ends, so that a repeated
    message is not mistaken for its earlier copy. A list that ends with a user message always keeps
    it: if the history continues after that message, the message is sent again.
    """
    own_sides, provided_sides = list(map(_side, own)), list(map(_side, provided))
    cut_places = [place for place, side in enumerate(own_sides) if side.is_cut]
    places: dict[str, list[int]] = {}
    for place, side in enumerate(own_sides):
        places.setdefault(side.key, []).append(place)
    # From the newest provided message backwards: the agent's list may lack some of the last ones.
    for end in range(len(provided_sides) - 1, -1, -1):
        newest = provided_sides[end]
        candidates = places.get(newest.key, [])
        # Two texts of one template may look the same when cut. If the history goes on after a text
        # that only looks the same, the agent's list may have begun anew.
        if not candidates and end == len(provided_sides) - 1:
            candidates = [
                place
                for place in (range(len(own_sides)) if newest.is_cut else cut_places)
                if _is_same(own_sides[place], newest)
            ]
        if candidates:
            newer = list(own[_ends_longest_run(own_sides, provided_sides, end, candidates) + 1 :])
            is_asked_again = (
                not newer and end < len(provided_sides) - 1 and own[-1].get("role") == "user"
            )
            return [own[-1]] if is_asked_again else newer
    return list(own)


def _ends_longest_run(
    own: Sequence["_Side"], provided: Sequence["_Side"], end: int, candidates: Sequence[int]
) -> int:
    """Return the first of the candidate positions at which the longest run ends.

    Ids of calls may be used again, so a run with more equal messages precedes a longer one, and
    ends for it where two calls or results of one id tell something else.
    """

    def alike(place: int) -> tuple[int, int]:
        equal = alike = 0
        while alike <= min(place, end) and _is_same(own[place - alike], provided[end - alike]):
            one, other = own[place - alike], provided[end - alike]
            is_equal = one.content == other.content
            if not (is_equal or one.is_shortened or other.is_shortened):
                break
            alike += 1
            equal += is_equal
        return equal, alike

    def run(place: int) -> tuple[int]:
        run = 0
        while run <= min(place, end) and _is_same(own[place - run], provided[end - run]):
            run += 1
        return (run,)

    # Runs are compared in full only where it matters: an id of every call has as many candidates.
    return _largest(_largest(candidates, alike, end), run, end)[0]


def _largest(
    candidates: Sequence[int], measure: Callable[[int], tuple[int, ...]], end: int
) -> Sequence[int]:
    """Return those of ascending positions whose measure is the largest."""
    largest: deque[int] = deque()
    most: tuple[int, ...] = ()
    for place in reversed(candidates):
        # No run that ends here or earlier is as long.
        if most and min(place, end) + 1 < most[0]:
            break
        found = measure(place)
        if found > most:
            most = found
            largest.clear()
        if found == most:
            largest.appendleft(place)
    return largest


class _Side(NamedTuple):
    """A message as it is compared.

    Of a cut text, `head` and `tail` are what stands before and after the mark. Otherwise, both are
    the whole text. `content` is the text with the calls.
    """

    key: str
    role: Any
    head: str
    tail: str
    is_cut: bool
    content: str
    is_shortened: bool


def _side(body: Json) -> _Side:
    text, calls = text_of(body), body.get("tool_calls")
    functions = [
        call.get("function", call.get("custom")) if isinstance(call, Mapping) else call
        for call in call_entries(body)
    ]
    content = f"{text}{functions}" if functions else text
    is_shortened = SHORTENED.search(content) is not None
    # Calls and results are compared by their ids alone.
    is_text = body.get("role") != "tool" and not calls
    marks = list(CUT_MARK.finditer(text)) if is_text else []
    head, tail = (text[: marks[0].start()], text[marks[-1].end() :]) if marks else (text, text)
    return _Side(_key(body), body.get("role"), head, tail, bool(marks), content, is_shortened)


def _is_same(one: _Side, other: _Side) -> bool:
    """Return whether two messages are one: equal, or a text and what a window has cut it to.

    Both may be cut, the agent's by an earlier window.
    """
    if one.key == other.key:
        return True
    less, more = (one, other) if len(one.head) <= len(other.head) else (other, one)
    return (
        less.is_cut
        and less.role == more.role
        and len(less.head) + len(less.tail) >= LEAST_SHOWN
        and more.head.startswith(less.head)
        and (more.tail.endswith(less.tail) or less.tail.endswith(more.tail))
    )


def _key(body: Json) -> str:
    """Return a key that is equal for two forms of one message.

    Calls and results are compared by their ids, because a window may contain them shortened.
    """
    role = body.get("role")
    if role == "tool":
        return json.dumps(["tool", body.get("tool_call_id")], default=repr)
    if calls := call_entries(body):
        return json.dumps(
            [role, [call.get("id") if isinstance(call, dict) else None for call in calls]],
            default=repr,
        )
    return json.dumps([role, body.get("content") or ""], default=repr, sort_keys=True)
