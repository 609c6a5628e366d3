"""Publishing to a stream, and the rule for what counts as an acknowledgement.

Every subscriber of an event may reply to it, also with a forged acknowledgement. `judge` classifies
a reply. `Publisher` waits for the right one, and reads the message from the stream if the reply
alone is not proof.
"""

import asyncio
import base64
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import Any, Final, NamedTuple

import nats.errors

from turnfold.contracts.json_values import json_object
from turnfold.contracts.publish_errors import NO_BATCH
from turnfold.errors import NotAllowed
from turnfold.messages import MOST_INT64
from turnfold.nats_client.connection import Denied, NatsClient, Replies
from turnfold.nats_client.responses import API, UNREADABLE, is_no_responders

AHEAD: Final = 1_000
"""An acknowledged sequence at most this far above the greatest known one needs no lookup."""
MOST_BYTES: Final = 4_096
"""The maximum size of an acknowledgement."""
REFUSED_SECONDS: Final = 0.5
"""Time to wait for an acknowledgement after a rejection, which may be forged."""
DISTURBED_SECONDS: Final = 60.0
"""Time after a foreign reply for which every acknowledgement is looked up."""
READ_SECONDS: Final = 2.0
UNREADABLE_SECONDS: Final = 60.0
"""Time without lookups after the server has denied one."""
_NO_MESSAGE: Final = 10_037
_MESSAGE_ID: Final = "Nats-Msg-Id"

log = logging.getLogger("turnfold.bus")


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """The stream stores the message, or the last one of a batch, at this sequence.

    `stored` is what the stream holds under the id of a duplicate; None if it was not read.
    """

    seq: int
    is_duplicate: bool = False
    is_batch: bool = False
    stored: bytes | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Doubtful:
    """A possible acknowledgement: it is one if the stream holds the message at the sequence."""

    claimed: Acknowledgement


@dataclass(frozen=True, slots=True)
class Rejection:
    """The stream has rejected the message."""

    code: int | None
    description: str | None


class AckBatch(NamedTuple):
    """A batch that ends with the acknowledged message."""

    batch_id: str
    events: int


AckVerdict = Acknowledgement | Doubtful | Rejection | None


def judge(
    data: bytes,
    *,
    stream: str,
    floor: int | None,
    is_unproven: bool = False,
    batch: AckBatch | None = None,
) -> AckVerdict:
    """Classify a reply to a published message; return None if it is not from the stream.

    `floor` is the greatest sequence known before the message was sent; a new message has a greater
    one. A duplicate may have any sequence, so it always needs a lookup. So do all replies while no
    sequence is known, and if `is_unproven`.
    """
    reply = _object_in(data)
    if reply is None:
        return None
    if "error" in reply:
        return _refusal(reply["error"])
    seq = reply.get("seq")
    # Not `isinstance`, for which the JSON value `true` is the integer 1.
    if reply.get("stream") != stream or type(seq) is not int or not 1 <= seq <= MOST_INT64:
        return None
    if batch is not None and (reply.get("batch"), reply.get("count")) != batch:
        return None
    events = 1 if batch is None else batch.events
    claimed = Acknowledgement(
        seq, is_duplicate=reply.get("duplicate") is True, is_batch=batch is not None
    )
    is_next = floor is not None and events <= seq - floor <= AHEAD + events
    return (
        claimed if is_next and not claimed.is_duplicate and not is_unproven else Doubtful(claimed)
    )


def _object_in(data: bytes) -> dict[str, Any] | None:
    # Before parsing: a forged reply may have megabytes.
    return json_object(data) if 1 <= len(data) <= MOST_BYTES else None


def _refusal(failure: object) -> Rejection | None:
    if not isinstance(failure, dict) or type(failure.get("code")) is not int:
        return None
    code, description = failure.get("err_code"), failure.get("description")
    return Rejection(
        code if type(code) is int else None, description if isinstance(description, str) else None
    )


class _Lookup(Enum):
    """The result of looking up the acknowledged sequence in the stream."""

    OURS = auto()
    ANOTHER = auto()
    NOTHING = auto()
    UNREADABLE = auto()
    """The credentials do not allow the lookup."""
    UNKNOWN = auto()
    """The server did not reply."""


@dataclass(slots=True)
class _PendingPublish:
    """A published message that waits for its acknowledgement.

    `fallback` is the result if no better reply follows.
    """

    floor: int | None
    deadline: float
    rejected_seqs: set[int] = field(default_factory=set)
    fallback: Acknowledgement | Rejection | None = None
    has_no_responders: bool = False


Read = Callable[[str, bytes], Awaitable[bytes]]
"""Send a request with this subject and body to the JetStream API, and return the reply."""


class Publisher:
    """Publishes to one stream over one connection.

    `read` sends requests to the JetStream API; the default uses the connection. Credentials that
    may not send them belong to an own account, in which no other client receives the messages.
    `on_foreign` is called for each reply that is not from the stream. With `looks_up_all`, no reply
    alone is proof: for a publisher that deletes its own copy once the message is acknowledged.
    """

    def __init__(
        self,
        client: NatsClient,
        stream: str,
        *,
        read: Read | None = None,
        on_foreign: Callable[[], object] = lambda: None,
        looks_up_all: bool = False,
    ) -> None:
        self._client = client
        self._stream = stream
        self._looks_up_all = looks_up_all
        self._read = read or self._ask
        self._on_foreign = on_foreign
        self._replies = Replies(client, on_stray=self._disturbed)
        self._floor: int | None = None
        self._connections = 0
        self._unreadable_until = 0.0
        self._disturbed_until = 0.0

    async def publish(
        self,
        subject: str,
        payload: bytes,
        *,
        headers: Mapping[str, str],
        seconds: float,
        batch: AckBatch | None = None,
    ) -> Acknowledgement | Rejection:
        """Publish a message with a `Nats-Msg-Id`, and return the reply of the stream.

        Raises:
            nats.errors.NoRespondersError: no stream accepts the message.
            nats.errors.TimeoutError: no reply in time; the message may be stored or not.
        """
        result = await self._publish(subject, payload, headers, seconds, batch)
        assert result is not None
        return result

    async def open_batch(
        self, subject: str, payload: bytes, *, headers: Mapping[str, str], seconds: float
    ) -> Acknowledgement | Rejection | None:
        """Publish the first message of a batch; return None if the stream waits for the others.

        A stream without batches stores it as a single message, and acknowledges it.

        Raises:
            nats.errors.Error: as in `publish`.
        """
        return await self._publish(subject, payload, headers, seconds, None, opens_batch=True)

    async def _publish(
        self,
        subject: str,
        payload: bytes,
        headers: Mapping[str, str],
        seconds: float,
        batch: AckBatch | None,
        *,
        opens_batch: bool = False,
    ) -> Acknowledgement | Rejection | None:
        pending = _PendingPublish(self._known(), asyncio.get_running_loop().time() + seconds)
        async with self._replies.to(subject, payload, headers) as inbox:
            while (reply := await inbox.next(pending.deadline)) is not None:
                if is_no_responders(reply):
                    pending.has_no_responders = True
                    self._hurry(pending)
                    continue
                # The stream confirms an open batch by an empty reply.
                if opens_batch and not reply.data:
                    return None
                verdict = await self._verdict(
                    reply.data,
                    subject,
                    headers[_MESSAGE_ID],
                    pending,
                    batch,
                    opens_batch=opens_batch,
                )
                match verdict:
                    case Acknowledgement():
                        # It may be a lower one: a duplicate has the sequence of its original.
                        self._floor = max(self._floor or 0, verdict.seq)
                        return verdict
                    case Rejection() if (opens_batch or batch) and verdict.code in NO_BATCH:
                        # At once, even if forged: to send events one by one is never wrong.
                        return verdict
                    case Rejection():
                        # Possibly forged. The stream's own reply follows within the rest of the
                        # time.
                        pending.fallback = pending.fallback or verdict
                        self._hurry(pending)
                    case None:
                        self._disturbed()
                    case _:
                        pass
        if pending.fallback is not None:
            return pending.fallback
        raise (
            nats.errors.NoRespondersError if pending.has_no_responders else nats.errors.TimeoutError
        )

    async def _verdict(
        self,
        data: bytes,
        subject: str,
        message_id: str,
        pending: "_PendingPublish",
        batch: AckBatch | None,
        *,
        opens_batch: bool,
    ) -> Acknowledgement | Rejection | _Lookup | None:
        """Judge a reply, and look the message up if the reply alone is not proof."""
        judged = judge(
            data,
            stream=self._stream,
            floor=pending.floor,
            # The reply to an open batch decides whether the rest of it is sent, so it is always
            # looked up.
            is_unproven=opens_batch or self._looks_up_all or self._is_disturbed,
            batch=batch,
        )
        if isinstance(judged, Doubtful):
            return await self._look_up(judged.claimed, subject, message_id, pending)
        return judged

    async def _look_up(
        self, claimed: Acknowledgement, subject: str, message_id: str, pending: "_PendingPublish"
    ) -> Acknowledgement | _Lookup | None:
        """Return the acknowledgement if the stream holds the message there, or else None."""
        outcome, stored = (
            (_Lookup.ANOTHER, None)
            if claimed.seq in pending.rejected_seqs
            else await self._at(claimed.seq, subject, message_id, is_duplicate=claimed.is_duplicate)
        )
        match outcome:
            case _Lookup.OURS:
                return replace(claimed, stored=stored) if claimed.is_duplicate else claimed
            # Such credentials belong to an account in which no other client receives the messages.
            case _Lookup.UNREADABLE if claimed.is_duplicate or claimed.seq > (pending.floor or 0):
                return claimed
            case _Lookup.NOTHING if claimed.is_duplicate:
                # The message was erased meanwhile, or the reply is forged.
                pending.fallback = claimed
                self._hurry(pending)
                return outcome
            case _Lookup.UNKNOWN:
                raise nats.errors.TimeoutError
            case _:
                # A client that repeats a forged reply causes one lookup, not one per reply.
                pending.rejected_seqs.add(claimed.seq)
                return None

    def _known(self) -> int | None:
        """Return the greatest known sequence of this connection. Other servers may differ."""
        if (connections := self._client.stats["reconnects"]) != self._connections:
            # After a failover, the new leader may not have the last sequences of the old one.
            self._connections, self._floor = connections, None
        return self._floor

    def _hurry(self, pending: "_PendingPublish") -> None:
        """Wait briefly for a better reply, or in full while other clients reply as well."""
        if not self._is_disturbed:
            pending.deadline = min(
                pending.deadline, asyncio.get_running_loop().time() + REFUSED_SECONDS
            )

    @property
    def _is_disturbed(self) -> bool:
        return asyncio.get_running_loop().time() < self._disturbed_until

    def _disturbed(self) -> None:
        self._on_foreign()
        if not self._is_disturbed:
            log.warning(
                "another client replies to events published to %s; see docs/events.md, Listening",
                self._stream,
            )
        self._disturbed_until = asyncio.get_running_loop().time() + DISTURBED_SECONDS

    async def _at(
        self, seq: int, subject: str, message_id: str, *, is_duplicate: bool
    ) -> tuple[_Lookup, bytes | None]:
        """Read the message that the stream holds at a sequence, and its payload if it is ours.

        The original of a duplicate may have another subject: an event id belongs to one session.
        """
        time = asyncio.get_running_loop().time
        if time() < self._unreadable_until:
            return _Lookup.UNREADABLE, None
        try:
            answer = json.loads(
                await self._read(
                    f"{API}STREAM.MSG.GET.{self._stream}", json.dumps({"seq": seq}).encode()
                )
            )
            if failure := answer.get("error"):
                is_missing = failure.get("err_code") == _NO_MESSAGE
                return _Lookup.NOTHING if is_missing else _Lookup.ANOTHER, None
            stored = answer["message"]
            # With both line ends, so that the id is not found within another one or within another
            # header.
            named = f"\r\n{_MESSAGE_ID}: {message_id}\r\n".encode()
            is_ours = (
                stored["seq"] == seq
                and (is_duplicate or stored["subject"] == subject)
                and named in base64.b64decode(stored.get("hdrs", ""))
            )
            payload = base64.b64decode(stored.get("data", "")) if is_ours else None
        except (NotAllowed, Denied, nats.errors.NoRespondersError):
            self._unreadable_until = time() + UNREADABLE_SECONDS
            return _Lookup.UNREADABLE, None
        except (nats.errors.Error, TimeoutError, *UNREADABLE):
            return _Lookup.UNKNOWN, None
        return _Lookup.OURS if is_ours else _Lookup.ANOTHER, payload

    async def _ask(self, subject: str, body: bytes) -> bytes:
        return (await self._client.request(subject, body, timeout=READ_SECONDS)).data
