"""Answer `context.get`: the window, from one snapshot, without a model or a tokenizer."""

import asyncio
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from hashlib import blake2b
from json.encoder import encode_basestring_ascii as _quoted
from typing import Protocol

from turnfold.cache import LRUCache
from turnfold.contracts.requests import MAX_WAIT_MS, ContextRequest
from turnfold.core.eviction.limits import limited_window
from turnfold.core.history.as_of import AtMessage
from turnfold.core.history.gist import forget_gists
from turnfold.core.policy.overrides import PolicyOverrides
from turnfold.core.policy.presets import Mode, Policy
from turnfold.core.recall.block import RecallBlock
from turnfold.core.window.builder import WindowBuilder
from turnfold.core.window.framing import Placement
from turnfold.core.window.limits import PendingDigest
from turnfold.core.window.rendering.anthropic import (
    ASIDE_MESSAGES,
    ASIDE_TOKENS,
    OPENING,
    SILENT,
    AnthropicWindow,
    to_anthropic,
)
from turnfold.core.window.rendering.character_limit import characters_of, next_spread
from turnfold.core.window.rendering.render import Rendered, render
from turnfold.core.window.window import (
    WindowAccount,
    WindowInput,
    WindowPlan,
    WindowRequest,
    billed,
    budget_of,
    build_window,
    to_plan,
)
from turnfold.errors import CannotFit
from turnfold.messages import Message, SessionKey
from turnfold.operations.query.as_of import parse_as_of
from turnfold.operations.query.recall import (
    Recall,
    RecallDecision,
    RecallMoment,
    RecallWish,
    deciding_message,
    room_for_recall,
    shown_positions,
)
from turnfold.operations.query.replies import prepared_summary, rfc3339, shown_summary_json
from turnfold.ports.ingest import PolicyResolver
from turnfold.ports.query import SessionSnapshot, WindowSnapshot, WindowStore


class IngestSignal(Protocol):
    """Signal that events are ingested."""

    async def reached(self, seq: int, seconds: float) -> None:
        """Return when every event up to `seq` is ingested, or after `seconds`.

        Raises:
            Unavailable: too many requests wait.
        """
        ...


BUILDERS_BYTES = 16_000_000
MESSAGE_BYTES = 400
"""About how many bytes of a cached builder one message takes."""

REPLIES_BYTES = 8_000_000
"""The most bytes of cached replies."""


@dataclass(frozen=True, slots=True)
class QueryEnvironment:
    """What answers depend on besides the store, and two caches.

    `builders` continues a window instead of building it from the first message. `replies` holds
    finished replies by etag and freshness. Without `recall`, windows have no recall block.
    """

    policy: PolicyResolver
    model_window: Callable[[str | None, Policy], int]
    recall: Recall | None = None
    builders: LRUCache[tuple[int, WindowRequest], WindowBuilder] = field(
        default_factory=lambda: LRUCache(BUILDERS_BYTES)
    )
    replies: "LRUCache[tuple[str, bool], ContextReply]" = field(
        default_factory=lambda: LRUCache(REPLIES_BYTES)
    )

    def clear_caches(self) -> None:
        """Remove all text from memory, because something was erased."""
        self.builders.clear()
        self.replies.clear()
        forget_gists()
        if self.recall is not None:
            self.recall.clear_caches()
        prepared_summary.cache_clear()


@dataclass(frozen=True, slots=True)
class ContextReply:
    """A window as JSON.

    `is_fresh` is false if the requested sequence is not ingested yet. `seconds` is the time that
    the window took to build, without waiting; None if it was cached.
    """

    body: bytes
    etag: str
    is_modified: bool = True
    is_fresh: bool = True
    account: WindowAccount | None = None
    seconds: float | None = field(default=None, compare=False)


async def context(
    key: SessionKey,
    request: ContextRequest,
    *,
    store: WindowStore,
    answering: QueryEnvironment,
    arrivals: IngestSignal,
) -> ContextReply:
    """Answer `context.get`; wait for the sequence that the request names, within a limit.

    Raises:
        BadRequest: the session has no such version or message, or `as_of` is no time.
        CannotFit: no window is that small; the error names the smallest budget that works.
        Unavailable: the database cannot be read now.
        TooLargeHere: the heavy lane builds windows of this session; the wait is over.
    """
    deadline = asyncio.get_running_loop().time() + min(request.wait_ms, MAX_WAIT_MS) / 1000
    moment = None if request.as_of is None else parse_as_of(request.as_of)
    spread = 1.0
    while True:
        patience, began = deadline - asyncio.get_running_loop().time(), time.perf_counter()
        reading = _Reading(key, request, answering, may_wait=patience > 0, spread=spread)
        if moment is None:
            seen, bodies = await store.window(
                key, glance=reading.on_session, choose=reading.on_messages
            )
        else:
            seen, bodies = await store.window_as_of(
                key, moment, glance=reading.on_session, choose=reading.on_messages
            )
        match seen:
            case ContextReply():
                return seen
            case _Stale():
                await arrivals.reached(request.after or 0, patience)
            case _Planned():
                seen = await _with_recall(seen, reading, store, answering)
                rendered = seen.rendered(bodies)
                if seen.max_chars and (characters := seen.characters(rendered)) > seen.max_chars:
                    spread = next_spread(spread, characters, seen.max_chars)
                    continue
                answer = seen.answer(rendered, began)
                if moment is None and seen.facts.session is not None:
                    _remember(answering, seen, answer, seen.facts.session.sid)
                return answer


def _remember(
    answering: QueryEnvironment, seen: "_Planned", answer: ContextReply, sid: int
) -> None:
    """Cache a builder and a reply for the next request."""
    if seen.recalled is None or not seen.recalled.recollection.is_partial:
        answering.replies.put(
            (answer.etag, answer.is_fresh), replace(answer, seconds=None), len(answer.body)
        )
    if not seen.asked.is_emergency:
        answering.builders.put(
            (sid, seen.asked),
            seen.window,
            len(answer.body) + MESSAGE_BYTES * len(seen.window.taken),
        )


@dataclass(frozen=True, slots=True)
class _Stale:
    """The requested sequence is not ingested yet, and there is time left to wait."""


@dataclass(frozen=True, slots=True)
class _Planned:
    """A window without its texts."""

    key: SessionKey
    facts: WindowSnapshot
    asked: WindowRequest
    window: WindowBuilder
    plan: WindowPlan
    model_window: int
    is_fresh: bool
    etag: str
    max_chars: int
    is_anthropic: bool
    stored: WindowInput
    policy: Policy
    wish: RecallWish | None
    recalled: RecallDecision | None = None
    block: RecallBlock | None = None

    def rendered(self, bodies: Mapping[int, str]) -> Rendered:
        """Add the texts."""
        summary = self.facts.summary
        return render(
            self.plan,
            bodies,
            digests={row.compaction_id: row.digest for row in self.facts.pending},
            summary_text=summary.text if summary else "",
            ledger=prepared_summary(summary).ledger if summary else (),
        )

    def characters(self, rendered: Rendered) -> int:
        """The number of characters of the window, at most."""
        beside = len(OPENING) + len(SILENT) if self.is_anthropic else 0
        return beside + characters_of(
            rendered, with_summary=self.plan.placement is Placement.SEPARATE
        )

    def answer(self, rendered: Rendered, began: float) -> ContextReply:
        """Write the reply in the requested shape."""
        body = _as_json(
            self, to_anthropic(self.plan, rendered) if self.is_anthropic else None, rendered
        )
        return ContextReply(
            body,
            self.etag,
            is_fresh=self.is_fresh,
            account=self.plan.account,
            seconds=time.perf_counter() - began,
        )


async def _with_recall(
    planned: _Planned, past: "_Reading", store: WindowStore, answering: QueryEnvironment
) -> _Planned:
    """Add the recall block of a window, if the request wants one and anything is not shown.

    `past` reads the same request at an earlier moment.
    """
    counts, session, recall = planned.plan.account, planned.facts.session, answering.recall
    window, wish, request = planned.window, planned.wish, planned.window.request
    message = deciding_message(window)
    is_all_shown = not counts.covered + counts.folded + counts.pending_digested
    if wish is None or recall is None or session is None or request is None or message is None:
        return planned
    if is_all_shown:
        return planned
    shown = shown_positions(window)
    key = (session.sid, message.position, planned.asked, wish) if past.is_of_now else None
    decision = recall.cached(key)
    is_at_moment = window.taken[-1].position == message.position
    may_improve = decision is not None and decision.recollection.is_partial and is_at_moment
    if decision is None or may_improve or decision.shows_any(shown):
        try:
            then = planned if is_at_moment else await _window_at(message, planned.key, past, store)
        except CannotFit:  # a call that waited for its result took more than both take now
            return planned
        moment = RecallMoment(
            sid=session.sid,
            request_position=request.position,
            until=message.position + 1,
            shown=shown | shown_positions(then.window),
            room=room_for_recall(then.window, then.policy, wish, then.stored.factor),
        )
        decision = await recall.decide(moment, wish, key)
    room = window.limits.tokens - window.total
    block = decision.fitting(room) if window.size < window.limits.messages else None
    plan = to_plan(window, planned.stored, planned.asked, block)
    return replace(planned, plan=plan, recalled=decision, block=block)


async def _window_at(
    message: Message, key: SessionKey, past: "_Reading", store: WindowStore
) -> _Planned:
    """Return the window of the moment when a message had just arrived, without its texts."""

    def choose(facts: WindowSnapshot) -> tuple[_Planned, Sequence[int]]:
        return past.planned(facts, is_of_now=False), ()

    at = AtMessage(message.event_id, message.index)
    then, _ = await store.window_as_of(key, at, glance=lambda _: None, choose=choose)
    return then


class _Reading:
    """The two steps of reading one session for one request."""

    def __init__(
        self,
        key: SessionKey,
        request: ContextRequest,
        answering: QueryEnvironment,
        *,
        may_wait: bool,
        spread: float,
    ) -> None:
        self._key = key
        self._request = request
        self._answering = answering
        self._may_wait = may_wait
        self._spread = spread

    def on_session(self, facts: WindowSnapshot) -> "ContextReply | _Stale | _Planned | None":
        """Answer without reading messages, if possible: a known etag, a cached reply, or a wait."""
        request = self._request
        is_fresh = request.after is None or request.after <= facts.ingested_to
        if not is_fresh and self._may_wait:
            return _Stale()
        etag = self._etag(facts.session, *self._terms(facts.session))
        if request.etag == etag:
            return ContextReply(
                json.dumps({"not_modified": True, "etag": etag}).encode(), etag, is_modified=False
            )
        reply = self._answering.replies.pop((etag, is_fresh))
        if reply is not None:
            self._answering.replies.put((etag, is_fresh), reply, len(reply.body))
        return reply

    @property
    def is_of_now(self) -> bool:
        """Whether the request asks for the session as it is, not as it was."""
        return self._request.as_of is None

    def on_messages(
        self, facts: WindowSnapshot
    ) -> "tuple[ContextReply | _Stale | _Planned, Sequence[int]]":
        """Decide the window, and which texts it needs."""
        planned = self.planned(facts, is_of_now=self.is_of_now)
        return planned, planned.plan.positions

    def planned(self, facts: WindowSnapshot, *, is_of_now: bool) -> _Planned:
        """Decide the window; the cache is used only if `facts` are those of now."""
        request, session = self._request, facts.session
        policy, model_window = self._terms(session)
        stored = _stored(facts)
        budget = budget_of(
            max_tokens=request.max_tokens,
            model_window=model_window,
            policy=policy,
            system_tokens=request.system_tokens,
            tools_tokens=request.tools_tokens,
            max_output_tokens=request.max_output_tokens,
        )
        is_free = policy.mode is Mode.OFF and request.max_tokens is None
        max_chars = policy.max_chars if request.max_tokens is None and not is_free else 0
        is_anthropic = request.format == "anthropic"
        wish = RecallWish.of(request, policy)
        asked = WindowRequest(
            budget_tokens=None
            if is_free
            else min(budget, int(max_chars / self._spread))
            if max_chars
            else budget,
            max_messages=request.max_messages,
            is_emergency=request.mode == "emergency",
            placement=Placement(request.placement),
            aside_tokens=ASIDE_TOKENS if is_anthropic else 0,
            aside_messages=ASIDE_MESSAGES if is_anthropic else 0,
            recall_share=policy.recall_share if wish and self._answering.recall else 0.0,
        )
        # By its number: a session that begins afresh after it was erased has another.
        earlier = (
            self._answering.builders.pop((session.sid, asked))
            if session is not None and is_of_now
            else None
        )
        window = build_window(stored, asked, policy, earlier)
        window_plan = to_plan(window, stored, asked)
        is_fresh = request.after is None or request.after <= facts.ingested_to
        etag = self._etag(session, policy, model_window)
        return _Planned(
            self._key,
            facts,
            asked,
            window,
            window_plan,
            model_window,
            is_fresh,
            etag,
            max_chars,
            is_anthropic,
            stored,
            policy,
            wish,
        )

    def _terms(self, session: SessionSnapshot | None) -> tuple[Policy, int]:
        from_session = (session.agent_wishes, session.wishes) if session else (_NONE, _NONE)
        policy = self._answering.policy(*from_session)
        model = self._request.model or (session.model if session else None)
        window = self._answering.model_window(model, policy)
        limit = session.limits.get(model) if session and model else None
        return policy, limited_window(window, limit, policy)

    def _etag(self, session: SessionSnapshot | None, policy: Policy, window: int) -> str:
        request = self._request
        asked = (
            request.max_tokens, request.system_tokens, request.tools_tokens, request.max_output_tokens, request.max_messages,
            request.mode, request.placement, window, request.format, request.as_of, request.query, request.recall,
        )  # fmt: skip
        state = (session.sid, session.revision) if session else (0, 0)
        text = f"{state} {asked} {_fingerprint(policy)}"
        return blake2b(text.encode(), digest_size=12).hexdigest()


def _stored(facts: WindowSnapshot) -> WindowInput:
    session, summary = facts.session, facts.summary
    if session is None:
        return WindowInput(messages=())
    return WindowInput(
        messages=facts.messages,
        pending=tuple(
            PendingDigest(row.compaction_id, row.digest_tokens, row.messages)
            for row in facts.pending
        ),
        summary=prepared_summary(summary).facts if summary else None,
        covered=session.messages_total - len(facts.messages),
        total=session.messages_total,
        factor=session.factor,
    )


def _as_json(planned: _Planned, shape: AnthropicWindow | None, rendered: Rendered) -> bytes:
    """Write the reply; messages are inserted as their stored JSON text.

    Written field by field, because a JSON encoder that runs once in a while is slow each time.
    """
    shown, pending, counts = planned.plan, planned.facts.pending, planned.plan.account
    since = _quoted(rfc3339(min(row.requested_at_ms for row in pending))) if pending else "null"
    budget = "null" if shown.budget_tokens is None else shown.budget_tokens
    messages, system = (
        (rendered.messages, "")
        if shape is None
        else (shape.messages, f'"system": {json.dumps(shape.system)}, ')
    )
    if shape is None:
        ids = ", ".join(
            [
                "null" if message_id is None else _quoted(message_id)
                for message_id in rendered.message_ids
            ]
        )
    else:
        ids = ", ".join(map(json.dumps, shape.message_ids))
    head = (
        f'{{"agent_id": {_quoted(planned.key.agent_id)}, "session_id": {_quoted(planned.key.session_id)}, '
        f'"fresh": {"true" if planned.is_fresh else "false"}, "etag": "{planned.etag}", '
        f'"summary": {shown_summary_json(planned.facts.summary, rendered)}, {system}"messages": ['
    )
    tail = (
        f'], "message_ids": [{ids}], "window": {{"tokens": {shown.tokens}, "budget_tokens": {budget}, '
        f'"messages": {len(messages)}, "model_window": {planned.model_window}}}, '
        f'"account": {{"total": {counts.total}, "shown": {counts.shown}, "trimmed": {counts.trimmed}, "folded": {counts.folded}, '
        f'"covered": {counts.covered}, "pending_shown": {counts.pending_shown}, "pending_digested": {counts.pending_digested}, '
        f'"recalled": {counts.recalled}, "synthesised": {counts.synthesised}, "folded_told": {counts.folded_told}, "untold": {counts.untold}}}, '
        f'"recall": {_recall_json(planned)}, '
        f'"pending": {{"messages": {sum([row.messages for row in pending])}, "tokens": {sum([row.tokens for row in pending])}, '
        f'"since": {since}}}}}'
    )
    # Each text by itself: one letter beyond ASCII would make a joined text several times as wide.
    return b"".join(
        (head.encode(), b", ".join([message.encode() for message in messages]), tail.encode())
    )


def _recall_json(planned: _Planned) -> str:
    if planned.recalled is None or planned.block is None:
        return "null"
    recollection, block = planned.recalled.recollection, planned.block
    return json.dumps(
        {
            "tokens": billed(block.tokens, planned.stored.factor),
            "messages": len(block.positions),
            "message_ids": block.message_ids,
            "is_partial": recollection.is_partial,
            "indexed_to": recollection.indexed_to,
        }
    )


@lru_cache(maxsize=1_024)
def _fingerprint(policy: Policy) -> str:
    return blake2b(repr(policy).encode(), digest_size=8).hexdigest()


_NONE = PolicyOverrides()
