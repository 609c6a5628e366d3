"""Answer requests about the past: messages, versions, the audit, and lists of sessions."""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from json.encoder import encode_basestring_ascii as _quoted
from typing import Any

from turnfold.contracts.history_requests import AuditRequest, ElementsRequest, HistoryRequest
from turnfold.contracts.requests import (
    SessionRequest,
    SummaryRequest,
)
from turnfold.core.eviction.usage import usage_state
from turnfold.core.history.audit_chain import NO_ROWS
from turnfold.errors import BadRequest, UnknownSession
from turnfold.messages import META_MARK, SessionKey, State
from turnfold.operations.query.as_of import parse_as_of
from turnfold.operations.query.replies import (
    place_of,
    place_text,
    rfc3339,
    summary_json,
    with_times,
)
from turnfold.ports.query import (
    END_POSITION,
    DeadLetterRow,
    HistoryStore,
    OriginalMessage,
    SessionCounts,
    StatesThen,
    StoredSummary,
)


async def history(key: SessionKey, request: HistoryRequest, *, store: HistoryStore) -> str:
    """Return original messages as JSON text; each is inserted as it was stored."""
    after, before = request.after_position or 0, request.before_position
    until = END_POSITION if before is None else before
    span = _Span(key, after, until, store, with_retracted=request.include_retracted)
    if request.as_of is not None:
        span = span.at(await store.states_as_of(key, parse_as_of(request.as_of)))
    if request.message_ids is not None:
        chosen = await store.by_ids(key, request.message_ids, with_retracted=span.reads_retracted)
        return _page(request, span.seen(chosen), {"next_position": None})
    if request.newest is None and (before is None or request.after_position is not None):
        page, end = await span.page(request.limit)
        return _page(request, page, {"next_position": end})
    count = request.limit if request.newest is None else request.newest
    page, end = await span.page(count, newest_first=True)
    return _page(request, page[::-1], {"next_position": None, "previous_position": end})


@dataclass(frozen=True, slots=True)
class _Span:
    """The messages of a session between two positions, with their states now or `then`."""

    key: SessionKey
    after: int
    before: int
    store: HistoryStore
    with_retracted: bool
    then: StatesThen | None = None

    def at(self, then: StatesThen) -> "_Span":
        """Return the part of the span that existed at an earlier time."""
        return replace(self, then=then, before=min(self.before, then.until + 1))

    @property
    def reads_retracted(self) -> bool:
        """Whether retracted messages are read; they may not have been retracted then."""
        return self.with_retracted or self.then is not None

    def seen(self, originals: Sequence[OriginalMessage]) -> list[OriginalMessage]:
        """Return the messages that belong to the answer, with their states."""
        if self.then is None:
            return list(originals)
        states = [(original, self.then.state_of(original)) for original in originals]
        return [
            original._replace(state=state)
            for original, state in states
            if state is not None and (self.with_retracted or state is not State.RETRACTED)
        ]

    async def page(
        self, limit: int, *, newest_first: bool = False
    ) -> tuple[list[OriginalMessage], int | None]:
        """Return a page, and the position at which it ends; None if nothing follows it.

        Only the last page is empty.
        """
        span = self
        while True:
            read = await self.store.page(
                self.key,
                after_position=span.after,
                before_position=span.before,
                limit=limit + 1,
                newest_first=newest_first,
                with_retracted=self.reads_retracted,
            )
            if not read:
                return [], None
            page = read[:limit]
            # By the rows read, not by those shown: a page of the past may show no message.
            end = page[-1].position
            span = replace(span, before=end) if newest_first else replace(span, after=end)
            # A page may also be short because of long messages.
            has_more = len(read) > limit or await self.store.has_messages(
                self.key,
                after_position=span.after,
                before_position=span.before,
                with_retracted=self.reads_retracted,
            )
            seen = self.seen(page)
            if seen or not has_more:
                return seen, end if has_more else None


def _page(
    request: HistoryRequest,
    originals: Sequence[OriginalMessage],
    places: Mapping[str, int | None],
) -> str:
    has_views = not (isinstance(request, ElementsRequest) and request.bodies)
    messages = ", ".join([original_json(original, has_view=has_views) for original in originals])
    return f'{{"messages": [{messages}], {json.dumps(places)[1:]}'


def original_json(
    original: OriginalMessage, score: float | None = None, *, has_view: bool = True
) -> str:
    """Return a message as JSON text, with its body as it was stored.

    Without `has_view`, leave out the chat view of an element, which repeats its texts.
    """
    # Joined, because an encoder takes twice as long for the many short fields of a page.
    parts = [
        f'"message_id": {_quoted(original.message_id)}',
        f'"position": {original.position}, "state": "{original.state}"',
    ]
    if original.is_meta:
        parts.append(f'"{META_MARK}": true')
    if original.is_error:
        parts.append('"is_error": true')
    if score is not None:
        parts.append(f'"score": {json.dumps(score)}')
    if original.element is not None:
        parts.append(f'"shape": "{original.shape}"')
    if has_view or original.element is None:
        parts.append(f'"message": {original.body}')
    if original.original_content is not None:
        parts.append(f'"original_content": {original.original_content}')
    if original.element is not None:
        parts.append(f'"element": {original.element}')
    if original.carry is not None:
        parts.append(f'"carry": {original.carry}')
    return f"{{{', '.join(parts)}}}"


async def session(key: SessionKey, _: SessionRequest, *, store: HistoryStore) -> dict[str, Any]:
    """Return the counts of a session."""
    return session_json(await store.counts(key))


def session_json(counts: SessionCounts) -> dict[str, Any]:
    """Return the counts of a session in the form of the contract."""
    counts_json = with_times(counts._asdict())
    del counts_json["sid"]
    counts_json["messages_covered"] = counts.messages_covered
    counts_json["usage"] = {
        "state": usage_state(counts_json.pop("usage_evictions")),
        "reported_tokens": counts_json.pop("reported_tokens"),
    }
    failures, until, reason = (
        counts_json.pop(name) for name in ("failures", "cooldown_until", "cooldown_reason")
    )
    counts_json["cooldown"] = (
        {"failures": failures, "until": until, "reason": reason} if failures else None
    )
    counts_json["audit"] = {
        "rows": counts_json.pop("audit_rows"),
        "hash": counts_json.pop("audit_hash"),
    }
    return counts_json


async def sessions(
    *, agent_ids: Collection[str] | None, after: str | None, limit: int, store: HistoryStore
) -> dict[str, Any]:
    """Return a page of sessions, newest event first; `next_after` is null on the last page.

    A session that receives an event between two pages moves to the front, so it may be missed or
    seen twice.
    """
    page = await store.sessions(
        agent_ids=agent_ids, after=None if after is None else place_of(after), limit=limit
    )
    return {
        "sessions": [session_json(counts) for counts in page],
        "next_after": place_text(page[-1].place) if len(page) == limit else None,
    }


async def summaries(key: SessionKey, _: SessionRequest, *, store: HistoryStore) -> dict[str, Any]:
    """Return all versions without their texts."""
    in_force, versions = await store.versions(key)
    summaries_json = [_version_json(version, in_force) for version in versions]
    for fields in summaries_json:
        for name in ("text", "sections", "ledger"):
            del fields[name]
    return {"summaries": summaries_json}


async def summary(
    key: SessionKey, request: SummaryRequest, *, store: HistoryStore
) -> dict[str, Any]:
    """Return one version."""
    in_force, versions = await store.versions(key, request.version)
    if not versions:
        raise BadRequest(f"there is no version {request.version} in this session")
    return _version_json(versions[0], in_force)


def _version_json(version: StoredSummary, in_force: int | None) -> dict[str, Any]:
    return summary_json(version) | {
        "in_force": version.version == in_force,
        "base_version": version.base_version,
        "compaction_id": version.compaction_id,
    }


async def audit(key: SessionKey, request: AuditRequest, *, store: HistoryStore) -> dict[str, Any]:
    """Return audit rows; `audit_id` counts the rows of the session, and `after` takes it.

    The end of the chain is read before the rows, so that no row is missing that it counts.
    """
    end = await store.chain_end(key)
    rows = await store.audit(key, after=request.after, limit=request.limit)
    if end is None and not rows and request.after == 0:
        raise UnknownSession
    rows_json = []
    for row in rows:
        fields = row._asdict()
        fields["audit_id"] = row.ordinal
        fields["compaction_id"] = None if row.compaction_id is None else str(row.compaction_id)
        fields["at"] = rfc3339(row.at_ms)
        rows_json.append(fields)
    return {"audit": rows_json, "end": (end or NO_ROWS)._asdict()}


async def dead_letters(
    *, after: int, before: int | None = None, limit: int, store: HistoryStore
) -> dict[str, Any]:
    """Return events that could not be stored."""
    rows = await store.dead_letters(after=after, before=before, limit=limit)
    return {"dead_letters": [dead_letter_json(row) for row in rows]}


def dead_letter_json(row: DeadLetterRow) -> dict[str, Any]:
    """Return a dead letter without its bytes."""
    return with_times(row._asdict())
