"""Find the messages behind an entry or a line of a summary."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from turnfold.contracts.requests import (
    ExpandRequest,
)
from turnfold.core.text.defuse import defused
from turnfold.core.text.search import SearchQuery
from turnfold.errors import BadRequest
from turnfold.messages import SessionKey
from turnfold.operations.query.history import original_json
from turnfold.operations.query.search import found
from turnfold.ports.query import (
    HistoryStore,
    OriginalMessage,
    StoredSummary,
)
from turnfold.ports.search import Scope, SearchStore

MOST_MATCHED = 3
NEAR_ENOUGH = 0.6
"""The share of the best score that a matched message needs."""
LEFT_OUT = "left_out"


async def expand(
    key: SessionKey, request: ExpandRequest, *, histories: HistoryStore, searching: SearchStore
) -> str:
    """Return the messages behind a ledger entry or a line of the text, as JSON text.

    `how` is `recorded` if the version names the messages, and `matched` if they were found by a
    search of what the version covers.
    """
    if (request.entry is None) == (request.line is None):
        raise BadRequest(
            "give entry or line: the place of an entry in the ledger, or of a line in the text, "
            "counted from 0"
        )
    _, versions = await histories.versions(key, request.version)
    if not versions:
        raise BadRequest(f"there is no version {request.version} in this session")
    (version,) = versions
    field, place = ("entry", request.entry) if request.line is None else ("line", request.line)
    texts = json.loads(version.ledger) if field == "entry" else version.text.split("\n")
    if place is None or place >= len(texts):
        raise BadRequest(f"{field}: version {version.version} has {len(texts)}, counted from 0")
    recorded = _recorded(version, field, place)
    if recorded:
        sources, how = await histories.by_ids(key, recorded, is_cut=True), "recorded"
    else:
        sources, how = await _matched(key, version, field, texts[place], searching), "matched"
    answer = {
        "version": version.version,
        field: place,
        "text": defused(texts[place]),
        "how": how,
        "missing": len(recorded) - len(sources) if recorded else 0,
    }
    head = json.dumps(answer)
    return f'{head[:-1]}, "messages": [{", ".join(original_json(source) for source in sources)}]}}'


def _recorded(version: StoredSummary, field: str, place: int) -> list[str]:
    """Return the message ids that the version records for an entry or a line."""
    sections: dict[str, Any] = json.loads(version.sections)
    stored = sections.get("provenance" if field == "entry" else "sources")
    return (
        list(dict.fromkeys(_texts_in(stored[place])))
        if isinstance(stored, list) and place < len(stored)
        else []
    )


def _texts_in(stored: Any) -> Iterator[str]:
    """Return the ids in a provenance record, which also holds numbers and nested lists."""
    if isinstance(stored, str):
        if stored:
            yield stored
    elif isinstance(stored, list):
        for item in stored:
            yield from _texts_in(item)


async def _matched(
    key: SessionKey, version: StoredSummary, field: str, text: str, store: SearchStore
) -> Sequence[OriginalMessage]:
    """Return the best matching messages; for an entry, live messages are searched as well."""
    kind, _, value = text.partition(" ")
    if field == "entry" and kind == LEFT_OUT:
        return []
    question = SearchQuery.of((value or kind if field == "entry" else text)[:1_000])
    if not question.words:
        return []
    scope = Scope() if field == "entry" else Scope(version=version.version)
    hits = await found(key, question, scope=scope, limit=MOST_MATCHED, store=store)
    return [original for original, score in hits if score >= NEAR_ENOUGH * hits[0][1]]
