"""Retract the newest messages of a session for one caller.

The stream decides: it accepts a retraction only if no other one of the session has arrived since
the messages were chosen. So workers need no common lock, and a rebuilt database gets the same
result.
"""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from secrets import token_hex
from typing import Final

from turnfold.contracts.history_requests import PopRequest
from turnfold.core.history.audit_chain import LOCAL
from turnfold.errors import TooLarge, Unavailable
from turnfold.messages import SessionKey, State
from turnfold.operations.query.history import original_json
from turnfold.ports.admin import RetractionStream
from turnfold.ports.query import (
    HistoryStore,
    OriginalMessage,
)

POP_SECONDS = 8.0
"""The time limit of a request, below that of HTTP for the reply."""
LOOK_SECONDS = 0.005
_SEPARATOR: Final = ", "


async def pop(
    key: SessionKey,
    request: PopRequest,
    *,
    store: HistoryStore,
    stream: RetractionStream,
    ingested_to: Callable[[], Awaitable[int]],
    most_bytes: int,
    asked_at: float,
    actor: str = LOCAL,
) -> str:
    """Retract the newest messages, and return them as JSON text once they are retracted.

    Fewer are retracted if their JSON has more than `most_bytes`. `asked_at` is the time of the
    request by `time.monotonic`, which may have waited for others.

    Raises:
        UnknownSession: there is no such session.
        TooLarge: the newest message alone has more bytes.
        Unavailable: the events of the session were not stored in time, or the stream did not
            answer. Unless it says otherwise, nothing was retracted.
    """
    ends = asked_at + POP_SECONDS
    while True:
        # Before the messages are chosen: a retraction in between makes `retract` fail.
        newest = await stream.newest(key)
        if not await stored_in_time(newest.seq, ingested_to, ends):
            raise Unavailable("the newest events of the session are not stored yet; try again")
        page = await store.page(key, limit=request.count, newest_first=True)
        if not page:
            return _answer((), newest.seq)
        # Before they are retracted: nobody would get what does not fit into the answer.
        chosen = _fitting(page, most_bytes)
        if not chosen:
            raise TooLarge(
                f"the newest message has more than {most_bytes} bytes, which no answer carries;"
                " read it with history.get, and retract it with turn.retracted"
            )
        # A caller that no longer waits would ask again, and lose these.
        if time.monotonic() > ends:
            raise Unavailable("the messages could not be retracted in time; try again")
        event_id = f"pop-{token_hex(16)}"
        event = {
            "event_id": event_id,
            **key._asdict(),
            "message_ids": [original.message_id for original in chosen],
        }
        seq = await stream.retract(
            key,
            json.dumps(event).encode(),
            event_id=event_id,
            newest_seq=newest.retraction_seq,
            actor=actor,
        )
        if seq is not None:
            # The messages are this caller's now, whether or not they are stored as retracted. After
            # an error it would ask again, and retract others.
            with suppress(Unavailable):
                await stored_in_time(seq, ingested_to, ends)
            return _answer(chosen, seq)


async def stored_in_time(seq: int, ingested_to: Callable[[], Awaitable[int]], ends: float) -> bool:
    """Wait until all events up to a sequence are stored; return whether they are."""
    while await ingested_to() < seq:
        if time.monotonic() > ends:
            return False
        await asyncio.sleep(LOOK_SECONDS)
    return True


def _fitting(newest_first: Iterable[OriginalMessage], most_bytes: int) -> list[OriginalMessage]:
    """Return the newest messages that an answer has room for, in order."""
    fitting: list[OriginalMessage] = []
    for original in newest_first:
        most_bytes -= len(_entry(original).encode()) + len(_SEPARATOR)
        if most_bytes < 0:
            break
        fitting.append(original)
    return fitting[::-1]


def _answer(chosen: Sequence[OriginalMessage], seq: int) -> str:
    messages = _SEPARATOR.join(map(_entry, chosen))
    return f'{{"messages": [{messages}], "seq": {seq}}}'


def _entry(original: OriginalMessage) -> str:
    return original_json(original._replace(state=State.RETRACTED))
