"""Compare two windows of a session: what was added, folded, returned or retracted in between."""

import json
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from turnfold.contracts.history_requests import DifferenceRequest
from turnfold.contracts.requests import ContextRequest
from turnfold.errors import TooLarge
from turnfold.messages import SessionKey
from turnfold.operations.query.as_of import parse_as_of
from turnfold.operations.query.environment import ContextReply
from turnfold.ports.query import HistoryStore, OriginalMessage

STORED = frozenset({"whole", "cut", "line", "mended"})
"""Forms of messages that were published; the others are written for a window."""
IDS = 500
"""The messages whose states are read at once."""

ReadWindow = Callable[[SessionKey, ContextRequest], Awaitable[ContextReply]]


@dataclass(frozen=True, slots=True)
class WindowThen:
    """A window as `context.get` returns it with `entries`, and the requested moment.

    `as_of` is None for now. `messages` has the place, role and state then of each, by id.
    """

    as_of: str | None
    answer: Mapping[str, Any]
    messages: Mapping[str, Mapping[str, Any]]


async def compare(
    key: SessionKey, request: DifferenceRequest, *, window: ReadWindow, store: HistoryStore
) -> str:
    """Return what changed between the windows of two moments, as JSON text."""
    moments = request.before, request.after
    answers: list[dict[str, Any]] = [
        json.loads((await window(key, _window_at(moment, request))).body) for moment in moments
    ]
    changed = changed_ids(*map(forms_of, answers))
    old, new = [
        WindowThen(moment, answer, await _messages(key, changed, moment, store))
        for moment, answer in zip(moments, answers, strict=True)
    ]
    return json.dumps(difference(old, new, limit=request.limit))


def _window_at(moment: str | None, request: DifferenceRequest) -> ContextRequest:
    return ContextRequest(
        as_of=moment,
        max_tokens=request.max_tokens,
        model=request.model,
        entries=True,
        bodies="changed",
        # With the summary in it, as the console shows windows.
        placement="user",
        follow_budget=False,
    )


async def _messages(
    key: SessionKey, ids: Sequence[str], moment: str | None, store: HistoryStore
) -> dict[str, dict[str, Any]]:
    """Return messages by id with the states of a moment."""
    then = None if moment is None else await store.states_as_of(key, parse_as_of(moment))
    messages: dict[str, dict[str, Any]] = {}
    for first in range(0, len(ids), IDS):
        for original in await _originals(key, ids[first : first + IDS], store):
            state = original.state if then is None else then.state_of(original)
            if state is not None:
                role = str(json.loads(original.body).get("role", ""))
                place = {"position": original.position, "role": role, "state": state}
                messages[original.message_id] = place
    return messages


async def _originals(
    key: SessionKey, ids: Sequence[str], store: HistoryStore
) -> list[OriginalMessage]:
    """Return messages, in parts if they are too large to be read at once."""
    try:
        return list(await store.by_ids(key, ids, with_retracted=True))
    except TooLarge:
        if len(ids) == 1:
            raise
    half = len(ids) // 2
    return [*await _originals(key, ids[:half], store), *await _originals(key, ids[half:], store)]


def forms_of(answer: Mapping[str, Any]) -> dict[str, str]:
    """Return the forms of the published messages that a window shows, by id."""
    forms: dict[str, str] = {}
    for entry in answer["entries"]:
        if entry["form"] in STORED:
            ids = entry["id"] if isinstance(entry["id"], list) else [entry["id"]]
            forms |= {message_id: entry["form"] for message_id in ids if message_id}
    return forms


def changed_ids(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """Return the messages whose forms differ between two windows."""
    return [name for name in {**before, **after} if before.get(name) != after.get(name)]


def difference(before: WindowThen, after: WindowThen, *, limit: int) -> dict[str, Any]:
    """Return what changed from one window to another; at most `limit` messages, the newest."""
    old, new = forms_of(before.answer), forms_of(after.answer)
    changes = [_change(name, old, new, before, after) for name in changed_ids(old, new)]
    counts = Counter([change["change"] for change in changes])
    return {
        "before": _moment_json(before),
        "after": _moment_json(after),
        "counts": {
            kind: counts[kind] for kind in ("added", "folded", "returned", "gone", "changed")
        }
        | {"same": len(old.keys() & new.keys()) - counts["changed"]},
        "changes": _newest(changes, limit),
    }


def _newest(changes: Sequence[dict[str, Any]], limit: int) -> list[dict[str, Any]]:
    return sorted(changes, key=lambda change: change["position"])[-limit:]


def _change(
    name: str, old: Mapping[str, str], new: Mapping[str, str], before: WindowThen, after: WindowThen
) -> dict[str, Any]:
    was, then = before.messages.get(name), after.messages.get(name)
    stored = then or was or {"position": 0, "role": ""}
    state_before, state_after = (was or {}).get("state"), (then or {}).get("state")
    return {
        "message_id": name,
        "position": stored["position"],
        "role": stored["role"],
        "change": _kind(old.get(name), new.get(name), state_before, state_after),
        "form_before": old.get(name),
        "form_after": new.get(name),
        "state_before": state_before,
        "state_after": state_after,
    }


def _kind(
    form_before: str | None,
    form_after: str | None,
    state_before: str | None,
    state_after: str | None,
) -> str:
    if state_before is None:
        return "added"
    if state_after in {None, "retracted"}:
        return "gone"
    if form_before is None:
        return "returned"
    return "folded" if form_after is None else "changed"


def _moment_json(then: WindowThen) -> dict[str, Any]:
    summary = then.answer["summary"]
    return {
        "as_of": then.as_of,
        "tokens": then.answer["window"]["tokens"],
        "messages": then.answer["account"]["total"],
        "summary_version": None if summary is None else summary["version"],
    }
