"""Joining what a provider tells with an agent's own list, which may hold more: nothing twice, and nothing newer left out."""

import json
from collections.abc import Sequence
from typing import Any

from turnfold.client.provider import History, is_note, without_notes
from turnfold.messages import Json

SYSTEM = ("system", "developer")


def joined(own: Sequence[Json], history: History) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The history as told, and what is to be added to it: the agent's system messages, and what the history does not hold yet.

    The list to send is the first, then the second, with the system messages of the second in front (`ordered`). Where
    the agent's list begins with system messages, that of the history is left out.
    """
    systems = leading_systems(own)
    told = [body for place, body in enumerate(history.messages) if place not in history.synthesised]
    if systems:
        told = [body for body in told if body.get("role") not in SYSTEM]
    rest = without_notes(own[len(systems) :])
    return told, [*systems, *_newer(rest, [body for body in told if not is_note(body)])]


def ordered(told: Sequence[dict[str, Any]], added: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Both as one list: leading system messages, then what was told, then the rest."""
    systems = leading_systems(added)
    return [*systems, *told, *added[len(systems) :]]


def leading_systems(messages: Sequence[Json]) -> list[dict[str, Any]]:
    """The system messages a list begins with."""
    count = next((index for index, body in enumerate(messages) if body.get("role") not in SYSTEM), len(messages))
    return [dict(body) for body in messages[:count]]


def _newer(own: Sequence[dict[str, Any]], told: Sequence[Json]) -> list[dict[str, Any]]:
    """What the agent said after the newest message that was told; everything, where nothing of it was told.

    The place in the agent's list is where the longest run of equal messages ends, so that a word said twice is not
    taken for the other time.
    """
    ours, theirs = [_key(body) for body in own], [_key(body) for body in told]
    places: dict[str, list[int]] = {}
    for place, key in enumerate(ours):
        places.setdefault(key, []).append(place)
    for end in range(len(theirs) - 1, -1, -1):
        if candidates := places.get(theirs[end]):
            return list(own[_ends_longest_run(ours, theirs, end, candidates) + 1 :])
    return list(own)


def _ends_longest_run(ours: Sequence[str], theirs: Sequence[str], end: int, candidates: Sequence[int]) -> int:
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
        return json.dumps([role, [call.get("id") if isinstance(call, dict) else None for call in calls]], default=repr)
    return json.dumps([role, body.get("content") or ""], default=repr, sort_keys=True)
