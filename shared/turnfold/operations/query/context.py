"""Answer `context.get`: the window, from one snapshot, without a model or a tokenizer."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial

from turnfold.contracts.requests import ContextRequest
from turnfold.core.shapes.responses import OUTPUT, kind_of
from turnfold.core.window.framing import Placement
from turnfold.core.window.rendering.anthropic import to_anthropic
from turnfold.core.window.rendering.character_limit import (
    characters_of,
    characters_of_blocks,
    next_chars_per_token,
)
from turnfold.core.window.rendering.entries import stored_positions
from turnfold.core.window.rendering.render import Rendered
from turnfold.core.window.rendering.shaped import render_shaped
from turnfold.errors import Unavailable
from turnfold.messages import SessionKey, Shape
from turnfold.operations.query.as_of import parse_as_of
from turnfold.operations.query.environment import MESSAGE_BYTES, ContextReply, QueryEnvironment
from turnfold.operations.query.planning import (
    PlannedWindow,
    Stale,
    WindowReading,
    max_characters,
    with_hint,
)
from turnfold.operations.query.replies import prepared_summary
from turnfold.operations.query.window_json import Originals, window_json
from turnfold.operations.query.window_recall import with_recall
from turnfold.ports.query import WindowStore
from turnfold.ports.recall import SessionMoved

MOST_MOVES = 20
"""A session that changes more often while one window of it is read is answered no more."""


IngestSignal = Callable[[int, float], Awaitable[None]]
"""Returns when every event up to a sequence is ingested, or after so many seconds.

`Unavailable` if too many requests wait.
"""


async def context(
    key: SessionKey,
    request: ContextRequest,
    *,
    store: WindowStore,
    environment: QueryEnvironment,
    ingest_signal: IngestSignal,
) -> ContextReply:
    """Answer `context.get`; wait for the sequence that the request names, within a limit.

    Raises:
        BadRequest: the session has no such version or message, or `as_of` is not a time.
        CannotFit: no window is that small; the error names the smallest budget that works.
        Unavailable: the database cannot be read now, or the session changes all the time.
        TooLargeHere: the lane builds windows of this session; the wait is over.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + request.wait_seconds
    moment = None if request.as_of is None else parse_as_of(request.as_of)
    chars_per_token, moves = 1.0, 0
    while True:
        patience, began = deadline - loop.time(), time.perf_counter()
        reading = WindowReading(
            key, request, environment, may_wait=patience > 0, chars_per_token=chars_per_token
        )
        read = store.window if moment is None else partial(store.window_as_of, moment=moment)
        chosen, bodies = await read(
            key,
            on_session=reading.on_session,
            on_messages=reading.on_messages,
            refused_to=reading.refused_to,
        )
        match chosen:
            case ContextReply():
                return chosen
            case Stale():
                await ingest_signal(request.after_seq, patience)
            case PlannedWindow():
                limit = max_characters(request, chosen.policy)
                try:
                    planned = await with_recall(chosen, reading, store, environment.recall, bodies)
                except SessionMoved:
                    # The etag names the state of the window, and one state has one block.
                    if (moves := moves + 1) > MOST_MOVES:
                        raise Unavailable("the session changes too fast; try again") from None
                    continue
                rendered = _rendered(planned, bodies)
                if limit and (characters := _characters(planned, rendered)) > limit:
                    # It grows by a quarter or more: the window fits, or `CannotFit` ends the loop.
                    chars_per_token = next_chars_per_token(chars_per_token, characters, limit)
                    continue
                if moment is not None and planned.plan.shape is Shape.RESPONSES:
                    planned = _recounted(planned, rendered)
                originals = await _originals(planned, store)
                return _reply(planned, rendered, originals, began, environment)


def _rendered(planned: PlannedWindow, bodies: Mapping[int, str]) -> Rendered:
    """Add the texts to a window."""
    summary = planned.snapshot.summary
    return render_shaped(
        planned.plan,
        bodies,
        digests={row.compaction_id: row.digest for row in planned.snapshot.pending},
        summary_text=summary.text if summary else "",
        ledger=prepared_summary(summary).ledger if summary else (),
    )


def _recounted(planned: PlannedWindow, rendered: Rendered) -> PlannedWindow:
    """Count the stand-ins that are shown: in mid-response, later calls and theirs are left out."""
    items = zip(rendered.messages, rendered.message_ids, strict=True)
    shown = sum([ids is None and kind_of(json.loads(item)).endswith(OUTPUT) for item, ids in items])
    account = replace(planned.plan.account, synthesised=shown)
    return replace(planned, plan=replace(planned.plan, account=account))


def _characters(planned: PlannedWindow, rendered: Rendered) -> int:
    """Return the number of characters of a window, at most."""
    with_summary = planned.plan.placement is Placement.SEPARATE
    if not planned.is_anthropic:
        return characters_of(rendered, with_summary=with_summary)
    window = to_anthropic(planned.plan, rendered)
    return characters_of_blocks(rendered, window, with_summary=with_summary)


async def _originals(planned: PlannedWindow, store: WindowStore) -> Originals:
    """Return the shown messages as they are stored, if the request asks for their forms."""
    session, request = planned.snapshot.session, planned.request
    if session is None or not (request.entries or request.bodies == "changed"):
        return {}
    return await store.originals(session.sid, stored_positions(planned.plan))


def _reply(
    planned: PlannedWindow,
    rendered: Rendered,
    originals: Originals,
    began: float,
    environment: QueryEnvironment,
) -> ContextReply:
    """Write the reply, and cache it and its builder for the next request."""
    body = window_json(planned, rendered, originals)
    reply = ContextReply(
        body,
        planned.etag,
        is_fresh=planned.is_fresh,
        account=planned.plan.account,
        seconds=time.perf_counter() - began,
        budget=planned.budget,
    )
    session = planned.snapshot.session
    if planned.request.as_of is not None or session is None:
        return reply
    # Not with a partial recall: it improves when the index catches up, which changes no etag.
    if planned.recall is None or not planned.recall.is_partial:
        # Without its seconds: a window from the cache is not built.
        environment.replies.put((session.sid, reply.etag), replace(reply, seconds=None), len(body))
    # An emergency window is always built from the start.
    if not planned.asked.is_emergency:
        size = len(body) + MESSAGE_BYTES * len(planned.builder.taken)
        environment.builders.put((session.sid, planned.asked), planned.builder, size)
    return with_hint(reply, session, planned.policy)
