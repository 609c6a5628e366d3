"""Publishing to a stream, and the one decision about what is an acknowledgement of it.

An event travels with the subject for its acknowledgement, and every listener may reply there: with what a framework sends for
nothing, or with what looks like an acknowledgement. `judge` decides what a reply is; `Publisher` waits on until the right
one comes, and reads the message in the stream where the reply alone does not show that it is right.
"""

import asyncio
import base64
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Final, NamedTuple

import nats.errors

from turnfold.contracts.publish_errors import NO_BATCH
from turnfold.errors import NotAllowed
from turnfold.nats_client.connection import API, Denied, NatsClient, Replies, tells_no_responders

AHEAD: Final = 1_000
"""An acknowledged sequence that is so little above the greatest known one is believed without being looked up."""
MOST_BYTES: Final = 4_096
"""No acknowledgement is larger."""
MOST_SEQUENCE: Final = 2**63 - 1
REFUSED_SECONDS: Final = 0.5
"""After a refusal, an acknowledgement is waited for so long: a refusal may be anybody's, and an event that is stored is not refused."""
DISTURBED_SECONDS: Final = 60.0
"""So long after a foreign reply every acknowledgement is looked up."""
READ_SECONDS: Final = 2.0
UNREADABLE_SECONDS: Final = 60.0
"""So long nothing is looked up where these credentials may not."""
_NO_MESSAGE: Final = 10_037
_MESSAGE_ID: Final = "Nats-Msg-Id"

log = logging.getLogger("turnfold.bus")


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """The stream has the message, or the last message of a batch, at this sequence."""

    seq: int
    is_duplicate: bool = False
    is_batch: bool = False


@dataclass(frozen=True, slots=True)
class Doubtful:
    """It has the form of an acknowledgement, and is one if the stream holds the message at that sequence."""

    claimed: Acknowledgement


@dataclass(frozen=True, slots=True)
class Rejection:
    """The stream says that it does not take the message."""

    code: int | None
    description: str | None


class AckBatch(NamedTuple):
    """A batch that ends with the message that is acknowledged."""

    batch_id: str
    events: int


AckVerdict = Acknowledgement | Doubtful | Rejection | None


def judge(
    data: bytes,
    *,
    stream: str,
    floor: int | None,
    is_disturbed: bool = False,
    batch: AckBatch | None = None,
) -> AckVerdict:
    """Decide what a reply to a publish is; None where it is nothing of the stream's.

    `floor` is the greatest sequence that was known before the message was sent: the stream gives a new message a greater one.
    A duplicate may have any, so it is always doubtful; so is everything else while nothing is known, or `is_disturbed`.
    """
    told = _object_in(data)
    if told is None:
        return None
    if "error" in told:
        return _refusal(told["error"])
    seq = told.get("seq")
    if told.get("stream") != stream or type(seq) is not int or not 1 <= seq <= MOST_SEQUENCE:
        return None
    if batch is not None and (told.get("batch"), told.get("count")) != batch:
        return None
    events = 1 if batch is None else batch.events
    claimed = Acknowledgement(
        seq, is_duplicate=told.get("duplicate") is True, is_batch=batch is not None
    )
    is_next = floor is not None and events <= seq - floor <= AHEAD + events
    return (
        claimed if is_next and not claimed.is_duplicate and not is_disturbed else Doubtful(claimed)
    )


def _object_in(data: bytes) -> dict[str, Any] | None:
    if not 1 <= len(data) <= MOST_BYTES:
        return None
    try:
        told = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return told if isinstance(told, dict) else None


def _refusal(failure: object) -> Rejection | None:
    if not isinstance(failure, dict) or type(failure.get("code")) is not int:
        return None
    code, description = failure.get("err_code"), failure.get("description")
    return Rejection(
        code if type(code) is int else None, description if isinstance(description, str) else None
    )


class _Found(Enum):
    """The kinds of message that the stream can hold at an acknowledged sequence."""

    OURS = auto()
    ANOTHER = auto()
    NOTHING = auto()
    UNREADABLE = auto()
    """These credentials may not look."""
    UNKNOWN = auto()
    """It did not answer."""


@dataclass(slots=True)
class _Listening:
    """The replies to one message so far; `spare` is the result if no better reply follows."""

    floor: int | None
    deadline: float
    wrong: set[int] = field(default_factory=set)
    spare: Acknowledgement | Rejection | None = None
    is_unheard: bool = False


Read = Callable[[str, bytes], Awaitable[bytes]]
"""Asks the JetStream API: the subject and the body of a request, and its answer."""


class Publisher:
    """Publishes to one stream over one connection.

    `read` asks the JetStream API; without it the connection does. Where these credentials may not ask, they are in an account
    of their own, and nobody else there hears what is published. `on_foreign` is called for every reply that is not the
    stream's.
    """

    def __init__(
        self,
        client: NatsClient,
        stream: str,
        *,
        read: Read | None = None,
        on_foreign: Callable[[], object] = lambda: None,
    ) -> None:
        self._client = client
        self._stream = stream
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
        """Publish a message with a `Nats-Msg-Id`; what the stream says to it.

        Raises:
            nats.errors.NoRespondersError: there is no stream that takes it.
            nats.errors.TimeoutError: the stream said nothing in time; the message may be stored or not.
        """
        told = await self._told(subject, payload, headers, seconds, batch)
        assert told is not None
        return told

    async def open_batch(
        self, subject: str, payload: bytes, *, headers: Mapping[str, str], seconds: float
    ) -> Acknowledgement | Rejection | None:
        """Publish the first message of a batch; None when the stream waits for the others.

        A stream that knows no batches takes it as a message of its own, and acknowledges that.

        Raises:
            nats.errors.Error: as of `publish`.
        """
        return await self._told(subject, payload, headers, seconds, None, opens_batch=True)

    async def _told(
        self,
        subject: str,
        payload: bytes,
        headers: Mapping[str, str],
        seconds: float,
        batch: AckBatch | None,
        *,
        opens_batch: bool = False,
    ) -> Acknowledgement | Rejection | None:
        listening = _Listening(self._known(), asyncio.get_running_loop().time() + seconds)
        async with self._replies.to(subject, payload, headers) as inbox:
            while (reply := await inbox.next(listening.deadline)) is not None:
                if tells_no_responders(reply):
                    listening.is_unheard = True
                    self._hurry(listening)
                    continue
                if opens_batch and not reply.data:
                    return None
                is_disturbed = opens_batch or self._is_disturbed
                judged = judge(
                    reply.data,
                    stream=self._stream,
                    floor=listening.floor,
                    is_disturbed=is_disturbed,
                    batch=batch,
                )
                verdict: Acknowledgement | Rejection | _Found | None
                if isinstance(judged, Doubtful):
                    verdict = await self._looked_up(
                        judged.claimed, subject, headers[_MESSAGE_ID], listening
                    )
                else:
                    verdict = judged
                if isinstance(verdict, Acknowledgement):
                    self._floor = max(self._floor or 0, verdict.seq)
                    return verdict
                if isinstance(verdict, Rejection):
                    if (opens_batch or batch is not None) and verdict.code in NO_BATCH:
                        return verdict
                    listening.spare = listening.spare or verdict
                    self._hurry(listening)
                elif verdict is None:
                    self._disturbed()
        if listening.spare is not None:
            return listening.spare
        raise nats.errors.NoRespondersError if listening.is_unheard else nats.errors.TimeoutError

    async def _looked_up(
        self, claimed: Acknowledgement, subject: str, message_id: str, listening: "_Listening"
    ) -> Acknowledgement | _Found | None:
        """The acknowledgement, if the stream holds the message there; None where it holds another."""
        found = (
            _Found.ANOTHER
            if claimed.seq in listening.wrong
            else await self._at(claimed.seq, subject, message_id)
        )
        match found:
            case _Found.OURS:
                return claimed
            case _Found.UNREADABLE if claimed.is_duplicate or claimed.seq > (listening.floor or 0):
                return claimed
            case _Found.NOTHING if claimed.is_duplicate:
                # It was erased meanwhile, or this is somebody else's word.
                listening.spare = claimed
                self._hurry(listening)
                return found
            case _Found.UNKNOWN:
                raise nats.errors.TimeoutError
            case _:
                listening.wrong.add(claimed.seq)
                return None

    def _known(self) -> int | None:
        """The greatest sequence known on this connection; another server may have other streams."""
        if (connections := self._client.stats["reconnects"]) != self._connections:
            self._connections, self._floor = connections, None
        return self._floor

    def _hurry(self, listening: "_Listening") -> None:
        """Wait a little for better than this; while others reply too, as long as for anything."""
        if not self._is_disturbed:
            listening.deadline = min(
                listening.deadline, asyncio.get_running_loop().time() + REFUSED_SECONDS
            )

    @property
    def _is_disturbed(self) -> bool:
        return asyncio.get_running_loop().time() < self._disturbed_until

    def _disturbed(self) -> None:
        self._on_foreign()
        if not self._is_disturbed:
            log.warning(
                "somebody on the bus replies to what is published to %s: see docs/events.md, Listening",
                self._stream,
            )
        self._disturbed_until = asyncio.get_running_loop().time() + DISTURBED_SECONDS

    async def _at(self, seq: int, subject: str, message_id: str) -> _Found:
        """Look up the message that the stream holds at a sequence."""
        time = asyncio.get_running_loop().time
        if time() < self._unreadable_until:
            return _Found.UNREADABLE
        try:
            told = json.loads(
                await self._read(
                    f"{API}STREAM.MSG.GET.{self._stream}", json.dumps({"seq": seq}).encode()
                )
            )
            if failure := told.get("error"):
                return _Found.NOTHING if failure.get("err_code") == _NO_MESSAGE else _Found.ANOTHER
            held = told["message"]
            named = f"\r\n{_MESSAGE_ID}: {message_id}\r\n".encode()
            is_ours = (
                held["seq"] == seq
                and held["subject"] == subject
                and named in base64.b64decode(held.get("hdrs", ""))
            )
        except (NotAllowed, Denied, nats.errors.NoRespondersError):
            self._unreadable_until = time() + UNREADABLE_SECONDS
            return _Found.UNREADABLE
        except (nats.errors.Error, TimeoutError):
            return _Found.UNKNOWN
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            return _Found.UNKNOWN
        return _Found.OURS if is_ours else _Found.ANOTHER

    async def _ask(self, subject: str, body: bytes) -> bytes:
        return (await self._client.request(subject, body, timeout=READ_SECONDS)).data
