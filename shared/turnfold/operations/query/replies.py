"""Write versions, times and errors in the form of the contract."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from turnfold.contracts.subjects import id_of, token_of
from turnfold.core.text.caches import cached_text
from turnfold.core.text.defuse import defused
from turnfold.core.text.json_text import with_texts
from turnfold.core.window.framing import SummarySize, measure_summary
from turnfold.core.window.rendering.render import Rendered
from turnfold.errors import BadRequest, RequestError
from turnfold.ports.query import (
    ListPlace,
    StoredSummary,
)

# The time is -1 if the session has a policy but no event yet.
_PLACE = re.compile(r"(-1|\d{1,18})\.([^.]+)\.([^.]*)", re.ASCII)


@dataclass(frozen=True, slots=True)
class _PreparedSummary:
    """A version prepared for windows: its sizes, its ledger, and its JSON text. Immutable."""

    size: SummarySize
    ledger: tuple[str, ...]
    as_json: str


@cached_text(128)
def prepared_summary(summary: StoredSummary) -> _PreparedSummary:
    """Prepare a version for windows. Cached, because a version never changes."""
    ledger = tuple(json.loads(summary.ledger))
    version_json = summary_json(summary)
    sections: dict[str, Any] = version_json["sections"]
    size = measure_summary(
        summary.version,
        summary.text,
        ledger,
        tokens=summary.tokens,
        text_tokens=summary.text_tokens,
        cuts=summary.cuts,
        entry_tokens=sections.get("entry_tokens", ()),
    )
    version_json["sections"] = {
        name: value for name, value in sections.items() if name not in BOOKKEEPING
    }
    return _PreparedSummary(size, ledger, json.dumps(version_json))


def shown_summary_json(summary: StoredSummary | None, rendered: Rendered) -> str:
    """Return the shown part of the version as JSON text."""
    if summary is None:
        return "null"
    prepared = prepared_summary(summary)
    if len(rendered.summary_text) == len(summary.text) and len(rendered.ledger) == len(
        prepared.ledger
    ):
        return prepared.as_json
    shown = _version_json(summary, rendered.summary_text, {}, rendered.ledger)
    return json.dumps(shown | {"trimmed": True})


BOOKKEEPING = frozenset({"provenance", "left_out", "names", "entry_tokens", "sources"})
"""Sections that record the origin of a version; `summary.get` shows them, windows do not."""


def summary_json(summary: StoredSummary) -> dict[str, Any]:
    """Return a whole version in the form of the contract."""
    return _version_json(
        summary,
        defused(summary.text),
        with_texts(json.loads(summary.sections), defused, names=True),
        with_texts(json.loads(summary.ledger), defused),
    )


def _version_json(
    summary: StoredSummary, text: str, sections: Mapping[str, Any], ledger: Sequence[str]
) -> dict[str, Any]:
    return {
        "version": summary.version,
        "kind": summary.kind,
        "style": summary.style,
        "model": summary.model,
        "text": text,
        "sections": sections,
        "ledger": ledger,
        "tokens": summary.tokens,
        "covers": {
            "first": summary.covers_first,
            "last": summary.covers_last,
            "messages": summary.messages_covered,
        },
        "created_at": rfc3339(summary.created_at_ms),
    }


def rfc3339(at_ms: int) -> str:
    """Format a time as the contract does."""
    return (
        datetime.fromtimestamp(at_ms / 1000, tz=UTC)
        .isoformat(timespec="milliseconds")
        .replace("+00:00", "Z")
    )


def optional_time(at_ms: int | None) -> str | None:
    """Format a time as `rfc3339` does; None without one."""
    return None if at_ms is None else rfc3339(at_ms)


def with_times(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a row, its times formatted and without `_ms` in their names."""
    return {
        name.removesuffix("_ms"): optional_time(value) if name.endswith("_ms") else value
        for name, value in fields.items()
    }


def as_error(error: RequestError) -> str:
    """Return the JSON text of an error reply."""
    return json.dumps(error.as_json())


def place_text(place: ListPlace) -> str:
    """Write the place of the last entry of a page."""
    at_ms, agent_id, session_id = place
    return f"{at_ms}.{token_of(agent_id)}.{token_of(session_id)}"


def place_of(after: str) -> ListPlace:
    """Read the place after which a page begins.

    Raises:
        BadRequest: no page ends there.
    """
    if match := _PLACE.fullmatch(after):
        agent_id, session_id = id_of(match[2]), id_of(match[3]) if match[3] else ""
        if agent_id is not None and session_id is not None:
            return int(match[1]), agent_id, session_id
    raise BadRequest("after: take next_after of the page before")
