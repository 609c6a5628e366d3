"""Show dead letters, and publish them again after a fix."""

import asyncio
import base64
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from turnfold.contracts.requests import (
    ReplayRequest,
)
from turnfold.errors import BadRequest
from turnfold.operations.query.history import dead_letter_json
from turnfold.ports.admin import DeadLetterStore, EventStream, StoredDeadLetter
from turnfold.ports.query import (
    DeadLetterRow,
)

AT_ONCE = 50
GONE = "gone"
"""The outcome of a letter whose bytes are no longer available."""
SETTLE_SECONDS = 3.0
"""How long a reply waits for the outcome of a replay."""
LOOK_SECONDS = 0.05


class ReplayResult(NamedTuple):
    """The outcome for one letter: its new sequence, or why it was not published."""

    letter: StoredDeadLetter
    seq: int | None
    outcome: str


async def show(dead_letter_id: int, *, store: DeadLetterStore) -> dict[str, Any]:
    """Return a dead letter with its stored bytes: as text if they are UTF-8, otherwise as base64.

    Raises:
        BadRequest: there is no letter with this id.
    """
    letters = await store.letters([dead_letter_id])
    if not letters:
        raise BadRequest(f"there is no dead letter {dead_letter_id}")
    (letter,) = letters
    try:
        payload = {"payload": letter.payload.decode()}
    except UnicodeDecodeError:
        payload = {"payload_base64": base64.b64encode(letter.payload).decode()}
    return dead_letter_json(letter.row) | {"is_whole": letter.is_whole} | payload


async def replay(
    request: ReplayRequest,
    *,
    store: DeadLetterStore,
    stream: EventStream,
    now_ms: Callable[[], int],
) -> dict[str, Any]:
    """Publish dead letters again, one page at a time, and return the outcome of each.

    A letter is replayed once. If the event is still bad, it becomes a new dead letter, which can be
    replayed in turn. If the event was stored in the meantime, the replay is a duplicate.

    Raises:
        Unavailable: the stream is full or does not answer; letters published before are
            recorded.
    """
    letters, until, is_done = await _chosen(request, store)
    results = [await _replay(letter, store, stream, now_ms) for letter in letters]
    outcomes = await _replay_outcomes(
        [result.seq for result in results if result.seq is not None], store
    )
    known = {letter.row.dead_letter_id for letter in letters}
    # An erasure has meanwhile deleted the letter, and what was published of it.
    kept = {letter.row.dead_letter_id for letter in await store.letters(sorted(known))}
    results = [
        result
        if result.letter.row.dead_letter_id in kept
        else ReplayResult(result.letter, None, GONE)
        for result in results
    ]
    unknown = [
        {"dead_letter_id": letter_id, "outcome": "unknown"}
        for letter_id in request.dead_letter_ids or ()
        if letter_id not in known
    ]
    return {
        "dead_letters": [*(_result_json(result, outcomes) for result in results), *unknown],
        "after": max(known, default=request.after),
        "until": until,
        "is_done": is_done,
    }


async def _chosen(
    request: ReplayRequest, store: DeadLetterStore
) -> tuple[Sequence[StoredDeadLetter], int, bool]:
    """Return a page of the requested letters, its end, and whether it is the last."""
    if [request.dead_letter_ids is not None, request.reason is not None, request.all].count(
        True
    ) != 1:
        raise BadRequest("name dead_letter_ids, or a reason, or all")
    # Before the replay: letters that fail again get greater ids, and are not chosen.
    until = await store.newest_id() if request.until is None else request.until
    if request.dead_letter_ids is not None:
        return await store.letters(request.dead_letter_ids), until, True
    letters = await store.unreplayed(
        reason=request.reason, after=request.after, until=until, limit=AT_ONCE
    )
    return letters, until, len(letters) < AT_ONCE


async def _replay(
    letter: StoredDeadLetter, store: DeadLetterStore, stream: EventStream, now_ms: Callable[[], int]
) -> ReplayResult:
    """Publish a letter, then record it.

    After a crash between the two steps it is published once more, as the same event.
    """
    # If it fails again, its successor is a separate dead letter.
    if letter.row.replayed_at_ms is not None:
        return ReplayResult(letter, None, "replayed_before")
    # Dead letters keep the beginning only. The stream has the rest, unless it was purged.
    payload = letter.payload if letter.is_whole else await stream.payload_of(letter.row.stream_seq)
    # In a stream that was restored from an older backup, it may be another event by now.
    if payload is None or not letter.is_of(payload):
        return ReplayResult(letter, None, GONE)
    seq = await stream.publish_again(letter.row.subject, payload, seq=letter.row.stream_seq)
    await store.replayed(letter.row.dead_letter_id, now_ms=now_ms())
    return ReplayResult(letter, seq, "published")


async def _replay_outcomes(
    sequences: Sequence[int], store: DeadLetterStore
) -> dict[int, DeadLetterRow | None]:
    """Return the outcome of these sequences, as far as they are ingested soon."""
    deadline = asyncio.get_running_loop().time() + SETTLE_SECONDS
    while True:
        outcomes = await store.replay_outcomes(sequences)
        if len(outcomes) == len(set(sequences)) or asyncio.get_running_loop().time() > deadline:
            return dict(outcomes)
        await asyncio.sleep(LOOK_SECONDS)


def _result_json(result: ReplayResult, outcomes: dict[int, DeadLetterRow | None]) -> dict[str, Any]:
    result_json = {
        "dead_letter_id": result.letter.row.dead_letter_id,
        "subject": result.letter.row.subject,
        "outcome": result.outcome,
        "seq": result.seq,
    }
    if result.seq is None or result.seq not in outcomes:
        return result_json
    worse = outcomes[result.seq]
    if worse is None:
        return result_json | {"outcome": "stored"}
    return result_json | {"outcome": "dead", "reason": worse.reason, "became": worse.dead_letter_id}
