"""Answer `context.get`: the window, from one snapshot, without a model or a tokenizer."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Protocol

from turnfold.contracts.requests import MAX_WAIT_MS, ContextRequest
from turnfold.core.history.as_of import AtMessage
from turnfold.core.window.framing import Placement
from turnfold.core.window.rendering.anthropic import OPENING, SILENT
from turnfold.core.window.rendering.character_limit import characters_of, next_chars_per_token
from turnfold.core.window.rendering.render import Rendered, render
from turnfold.errors import CannotFit
from turnfold.messages import Message, SessionKey
from turnfold.operations.query.as_of import parse_as_of
from turnfold.operations.query.environment import ContextReply, QueryEnvironment
from turnfold.operations.query.planning import PlannedWindow, Stale, WindowReading, with_hint
from turnfold.operations.query.recall import (
    Recall,
    RecallMoment,
    deciding_message,
    room_for_recall,
    shown_positions,
)
from turnfold.operations.query.replies import prepared_summary
from turnfold.operations.query.window_json import window_json
from turnfold.ports.query import WindowSnapshot, WindowStore


class IngestSignal(Protocol):
    """Signal that events are ingested."""

    async def reached(self, seq: int, seconds: float) -> None:
        """Return when every event up to `seq` is ingested, or after `seconds`.

        Raises:
            Unavailable: too many requests wait.
        """
        ...


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
    loop = asyncio.get_running_loop()
    deadline = loop.time() + min(request.wait_ms, MAX_WAIT_MS) / 1000
    moment = None if request.as_of is None else parse_as_of(request.as_of)
    chars_per_token = 1.0
    while True:
        patience, began = deadline - loop.time(), time.perf_counter()
        reading = WindowReading(
            key, request, answering, may_wait=patience > 0, chars_per_token=chars_per_token
        )
        if moment is None:
            seen, bodies = await store.window(
                key, on_session=reading.on_session, on_messages=reading.on_messages
            )
        else:
            seen, bodies = await store.window_as_of(
                key, moment, on_session=reading.on_session, on_messages=reading.on_messages
            )
        match seen:
            case ContextReply():
                return seen
            case Stale():
                await arrivals.reached(request.after or 0, patience)
            case PlannedWindow(max_characters=limit):
                planned = await _with_recall(seen, reading, store, answering.recall)
                rendered = _rendered(planned, bodies)
                if limit and (characters := _characters(planned, rendered)) > limit:
                    chars_per_token = next_chars_per_token(chars_per_token, characters, limit)
                    continue
                return _reply(planned, rendered, began, answering)


def _rendered(planned: PlannedWindow, bodies: Mapping[int, str]) -> Rendered:
    """Add the texts to a window."""
    summary = planned.snapshot.summary
    return render(
        planned.plan,
        bodies,
        digests={row.compaction_id: row.digest for row in planned.snapshot.pending},
        summary_text=summary.text if summary else "",
        ledger=prepared_summary(summary).ledger if summary else (),
    )


def _characters(planned: PlannedWindow, rendered: Rendered) -> int:
    """Return the number of characters of a window, at most."""
    beside = len(OPENING) + len(SILENT) if planned.is_anthropic else 0
    with_summary = planned.plan.placement is Placement.SEPARATE
    return beside + characters_of(rendered, with_summary=with_summary)


def _reply(
    planned: PlannedWindow, rendered: Rendered, began: float, environment: QueryEnvironment
) -> ContextReply:
    """Write the reply, and cache it and its builder for the next request."""
    body = window_json(planned, rendered)
    reply = ContextReply(
        body,
        planned.etag,
        is_fresh=planned.is_fresh,
        account=planned.plan.account,
        seconds=time.perf_counter() - began,
    )
    session = planned.snapshot.session
    if planned.request.as_of is not None or session is None:
        return reply
    if planned.budget is not None:
        environment.keep_budget(reply.etag, planned.budget)
    # Not a partial recall: it improves when the index catches up, and that changes no etag.
    if planned.recall is None or not planned.recall.is_partial:
        environment.keep_reply(reply)
    if not planned.asked.is_emergency:
        environment.keep_builder(session.sid, planned.asked, planned.builder, len(body))
    return with_hint(reply, planned.budget, session, planned.policy)


async def _with_recall(
    planned: PlannedWindow, reading: WindowReading, store: WindowStore, recall: Recall | None
) -> PlannedWindow:
    """Add the recall block of a window, if the request wants one and anything is not shown.

    The block is decided from the window of the moment when the deciding message had just arrived,
    so that every step of the turn, on every server, shows the same one.
    """
    session, builder = planned.snapshot.session, planned.builder
    request, message, wish = builder.request, deciding_message(builder), planned.recall_wish
    if session is None or request is None or message is None:
        return planned
    if wish is None or recall is None or planned.shows_everything:
        return planned
    shown = shown_positions(builder)
    is_of_now = planned.request.as_of is None
    key = (session.sid, message.position, planned.asked, wish) if is_of_now else None
    decision = recall.cached(key)
    is_at_moment = builder.taken[-1].position == message.position
    # Decided again if the window shows a message of the block by itself: it must not stand twice.
    # Also if the index was incomplete, but only until the turn goes on: the model has seen it then.
    if decision is None or decision.shows_any(shown) or (decision.is_partial and is_at_moment):
        try:
            then = planned if is_at_moment else await _window_at(message, reading, store)
        except CannotFit:  # a call that waited for its result took more than both take now
            return planned
        moment = RecallMoment(
            sid=session.sid,
            request_position=request.position,
            until=message.position + 1,
            shown=shown | shown_positions(then.builder),
            room=room_for_recall(then.builder, then.policy, wish, then.stored.factor),
        )
        decision = await recall.decide(moment, wish, key)
    return planned.with_recall(decision)


async def _window_at(message: Message, reading: WindowReading, store: WindowStore) -> PlannedWindow:
    """Plan the window of the moment when a message had just arrived."""

    def choose(snapshot: WindowSnapshot) -> tuple[PlannedWindow, Sequence[int]]:
        return reading.planned(snapshot, is_of_now=False), ()

    at = AtMessage(message.event_id, message.index)
    then, _ = await store.window_as_of(
        reading.key, at, on_session=lambda _: None, on_messages=choose
    )
    return then
