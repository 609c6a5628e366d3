"""Joining what a provider tells with an agent's own list, which may hold more: nothing twice, and nothing newer left out."""

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from turnfold.client.provider import History, is_context_note, without_notes
from turnfold.core.window.assembler import SYSTEM_ROLES, leading_systems
from turnfold.messages import Json


class MergedHistory(NamedTuple):
    """What an assembler puts together: the agent's system messages, what was told, and what is not told yet."""

    systems: list[dict[str, Any]]
    told: list[dict[str, Any]]
    newer: list[dict[str, Any]]


def merge_history(own: Sequence[Json], history: History) -> MergedHistory:
    """The history as told, and what the agent has beyond it.

    Where the agent's list begins with system messages, those of the history are left out. Results that stand in for
    others are left out too: the real ones may be in the agent's list.
    """
    systems = leading_systems(own)
    told = [body for place, body in enumerate(history.messages) if place not in history.synthesised]
    if systems:
        told = [body for body in told if body.get("role") not in SYSTEM_ROLES]
    rest = without_notes(own[len(systems) :])
    return MergedHistory(
        systems, told, _newer(rest, [body for body in told if not is_context_note(body)])
    )


def _newer(own: Sequence[dict[str, Any]], told: Sequence[Json]) -> list[dict[str, Any]]:
    """What the agent said after the newest message that was told; everything, where nothing of it was told.

    The place in the agent's list is where the longest run of equal messages ends, so that a word said twice is not
    taken for the other time. A list that ends with a request always has it answered: where more was told after such a
    request, it is asked again.
    """
    ours, theirs = [_key(body) for body in own], [_key(body) for body in told]
    places: dict[str, list[int]] = {}
    for place, key in enumerate(ours):
        places.setdefault(key, []).append(place)
    for end in range(len(theirs) - 1, -1, -1):
        if candidates := places.get(theirs[end]):
            newer = list(own[_ends_longest_run(ours, theirs, end, candidates) + 1 :])
            is_asked_again = not newer and end < len(theirs) - 1 and own[-1].get("role") == "user"
            return [own[-1]] if is_asked_again else newer
    return list(own)


def _ends_longest_run(
    ours: Sequence[str], theirs: Sequence[str], end: int, candidates: Sequence[int]
) -> int:
    """The earliest of the places at which the longest run ends."""
    best, longest = candidates[0], 0
    for place in candidates:
        run = 0
        while run <= min(place, end) and ours[place - run] == theirs[end - run]:
            run += 1
        if run > longest:
            best, longest = place, run
    return best


def _key(body: Json) -> str:
    """Equal for two forms of one message: a call and a result are known by their ids, however they were shortened."""
    role = body.get("role")
    if role == "tool":
        return json.dumps(["tool", body.get("tool_call_id")], default=repr)
    calls = body.get("tool_calls")
    if isinstance(calls, list) and calls:
        return json.dumps(
            [role, [call.get("id") if isinstance(call, dict) else None for call in calls]],
            default=repr,
        )
    return json.dumps([role, body.get("content") or ""], default=repr, sort_keys=True)
