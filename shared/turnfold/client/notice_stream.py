"""The stream of notices, read by direct gets."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from nats.aio.msg import Msg
from pydantic import ValidationError

from turnfold.contracts.notice_models import (
    NOTICE_MODELS,
    CompactionFailed,
    ContextCompressed,
    SummaryUpdated,
)
from turnfold.contracts.notices import notice_of
from turnfold.contracts.subjects import NOTICES_STREAM
from turnfold.nats_client.connection import NatsClient

READ_SECONDS: Final = 5.0
_GET: Final = f"$JS.API.DIRECT.GET.{NOTICES_STREAM}"
_NONE_STATUS: Final = ("404", "408")

NoticeContent = ContextCompressed | SummaryUpdated | CompactionFailed


@dataclass(frozen=True, slots=True)
class StoredNotice:
    """A notice that the stream has.

    `seq` is its position in the stream of notices. It begins at 1 and grows.
    """

    seq: int
    name: str
    content: NoticeContent


class KeptMessage(NamedTuple):
    """A message of the stream: its position, and the notice if it is one."""

    seq: int
    notice: StoredNotice | None


class NoticeStream:
    """Reads single messages of the stream; None where there is none.

    All methods raise what a request of `NatsClient.reply` does.
    """

    def __init__(self, bus: NatsClient) -> None:
        self._bus = bus

    async def last(self, subject: str) -> KeptMessage | None:
        """Return the newest message of a subject, which may have wildcards."""
        return await self._by({"last_by_subj": subject})

    async def following(self, subject: str, seq: int) -> KeptMessage | None:
        """Return the first message of a subject, which may have wildcards, after a position."""
        return await self._by({"seq": seq + 1, "next_by_subj": subject})

    async def newest(self, subject: str) -> KeptMessage | None:
        """Return the newest message of a subject, with the permission to read this alone."""
        return await self._get(f"{_GET}.{subject}", b"")

    async def _by(self, request: Mapping[str, Any]) -> KeptMessage | None:
        return await self._get(_GET, json.dumps(request).encode())

    async def _get(self, subject: str, payload: bytes) -> KeptMessage | None:
        answers: list[KeptMessage | None] = await self._bus.reply(
            subject, payload, seconds=READ_SECONDS, read=_answer
        )
        return answers[0]


def _answer(message: Msg) -> list[KeptMessage | None] | None:
    """Read the answer of the stream; None for anything else that came in its place."""
    headers = message.headers or {}
    if headers.get("Status") in _NONE_STATUS:
        return [None]
    subject, seq = headers.get("Nats-Subject"), headers.get("Nats-Sequence", "")
    if headers.get("Nats-Stream") != NOTICES_STREAM or not subject or not seq.isdecimal():
        return None
    return [KeptMessage(int(seq), _notice(int(seq), subject, message.data))]


def _notice(seq: int, subject: str, payload: bytes) -> StoredNotice | None:
    """Return the notice of a message; None if its ids differ from its subject, or it is none."""
    received = notice_of(NOTICES_STREAM, subject, payload)
    if received is None:
        return None
    try:
        content = NOTICE_MODELS[received.name].model_validate(received.fields)
    except ValidationError:
        return None
    assert isinstance(content, NoticeContent)
    return StoredNotice(seq, received.name, content)
