"""Compare two windows of a session: what was added, folded, returned or retracted in between."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

STORED = frozenset({"whole", "cut", "line", "mended"})
"""Forms of messages that were published; the others are written for a window."""


@dataclass(frozen=True, slots=True)
class WindowThen:
    """A window as `context.get` returns it with `entries`, and the requested moment.

    `as_of` is None for now. `messages` are those of `history.get` by id, as they were then.
    """

    as_of: str | None
    answer: Mapping[str, Any]
    messages: Mapping[str, Mapping[str, Any]]


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
    stored = then or was or {"position": 0, "message": {}}
    state_before, state_after = (was or {}).get("state"), (then or {}).get("state")
    return {
        "message_id": name,
        "position": stored["position"],
        "role": str(stored["message"].get("role", "")),
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
