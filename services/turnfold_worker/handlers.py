"""What arrives on the bus becomes an operation, and its outcome an acknowledgement or an answer."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import structlog
from faststream.nats import NatsMessage, NatsRouter
from nats.aio.msg import Msg

from turnfold.bus.admission import INSTALLATION, ConcurrencyLimiter
from turnfold.bus.answering import answer, is_led
from turnfold.contracts.requests import (
    CompactionRequest,
    EraseRequest,
    PolicyRequest,
    is_policy_read,
    read_command,
)
from turnfold.contracts.subjects import POLICY_READS, WORKER_QUEUE, key_of_subject
from turnfold.errors import NotAllowed, RequestError, TurnfoldError, Unavailable
from turnfold.messages import SessionKey
from turnfold.ports.admin import SessionCommands
from turnfold.ports.ingest import Installation
from turnfold_worker.actors import Actors

log = structlog.get_logger()


async def passthrough_decoder(message: NatsMessage) -> NatsMessage:
    """Leave a request to its own model, and hand the handler the message itself."""
    return message


Handle = Callable[[str, bytes, str], Awaitable[Mapping[str, Any]]]
"""Does what a request asks for, by its subject, its body and who asked."""


class CommandServer:
    """Where requests that write are taken: some are worked on side by side, and beyond them the rest are told to come back."""

    def __init__(self, admission: ConcurrencyLimiter, actors: Actors) -> None:
        self._admission = admission
        self.actors = actors
        self._open: set[asyncio.Task[None]] = set()

    def listen(self, router: NatsRouter, name: str, levels: int, handle: Handle) -> None:
        """Answer a request whose subject names so many ids, in one queue group with every other worker."""

        @router.subscriber(
            f"{name}{'.*' * levels}",
            queue=WORKER_QUEUE,
            decoder=passthrough_decoder,
            no_reply=True,
            title=name,
        )
        async def on_request(message: NatsMessage) -> None:
            raw = message.raw_message
            assert isinstance(raw, Msg)
            task = asyncio.get_running_loop().create_task(self._answer(name, handle, raw))
            self._open.add(task)
            task.add_done_callback(self._open.discard)

    async def close(self) -> None:
        """Finish what is in hand."""
        await asyncio.gather(*self._open, return_exceptions=True)

    async def _answer(self, name: str, handle: Handle, message: Msg) -> None:
        if name in POLICY_READS and is_policy_read(message.data):
            # A query server answers.
            return
        told = await answered(name, self._admitted(name, handle, message))
        if message.reply:
            await answer(message, json.dumps(told).encode())

    async def _admitted(self, name: str, handle: Handle, message: Msg) -> Mapping[str, Any]:
        if is_led(message.headers):
            raise NotAllowed(
                "a request has to come straight from the account of the client that asks"
            )
        asker = _asker_of(name, message.subject)
        await self._admission.turn(asker)
        with self._admission.admitted(asker):
            return await handle(message.subject, message.data, await self.actors.actor_of(message))


def _asker_of(name: str, subject: str) -> str:
    """Whose share a request counts for: the agent's that its subject names."""
    return subject.removeprefix(name).removeprefix(".").partition(".")[0] or INSTALLATION


def make_request_router(
    *,
    changes: SessionCommands,
    installation: Installation,
    now_ms: Callable[[], int],
    on_change: Callable[[], object],
    last_seq: Callable[[], Awaitable[int]],
    on_erased: Callable[[], object],
    desk: CommandServer,
) -> NatsRouter:
    """Requests that write: answered here, where the writing is done."""
    router = NatsRouter()

    async def on_policy(subject: str, body: bytes, actor: str) -> Mapping[str, Any]:
        key = key_of_subject("session.policy", subject)
        policy = await changes.set_policy(
            key,
            read_command(PolicyRequest, key, body),
            installation=installation,
            now_ms=now_ms(),
            actor=actor,
        )
        on_change()
        return policy

    async def on_agent_policy(subject: str, body: bytes, actor: str) -> Mapping[str, Any]:
        key = key_of_subject("agent.policy", subject)
        policy = await changes.set_policy(
            key,
            read_command(PolicyRequest, key, body),
            installation=installation,
            now_ms=now_ms(),
            actor=actor,
        )
        on_change()
        return policy

    async def on_compaction(subject: str, body: bytes, actor: str) -> Mapping[str, Any]:
        key = key_of_subject("compaction.request", subject)
        read_command(CompactionRequest, key, body)
        assert isinstance(key, SessionKey)
        opened = await changes.compact_now(
            key, installation=installation, now_ms=now_ms(), actor=actor
        )
        on_change()
        return {"compaction_id": opened}

    async def on_erase(subject: str, body: bytes, actor: str) -> Mapping[str, Any]:
        key = key_of_subject("session.erase", subject)
        read_command(EraseRequest, key, body)
        assert isinstance(key, SessionKey)
        # What is in the stream by now is erased, also where no worker has seen it yet.
        done = await changes.erase(key, last_seq=await last_seq(), now_ms=now_ms(), actor=actor)
        on_erased()
        return {**key._asdict(), **done._asdict()}

    async def on_agent_erase(subject: str, body: bytes, actor: str) -> Mapping[str, Any]:
        key = key_of_subject("agent.erase", subject)
        read_command(EraseRequest, key, body)
        assert not isinstance(key, SessionKey)
        done = await changes.erase(key, last_seq=await last_seq(), now_ms=now_ms(), actor=actor)
        on_erased()
        return {"agent_id": key, **done._asdict()}

    desk.listen(router, "session.erase", 2, on_erase)
    desk.listen(router, "agent.erase", 1, on_agent_erase)
    desk.listen(router, "session.policy", 2, on_policy)
    desk.listen(router, "agent.policy", 1, on_agent_policy)
    desk.listen(router, "compaction.request", 2, on_compaction)
    return router


async def answered(name: str, answering: Awaitable[Mapping[str, Any]]) -> Mapping[str, Any]:
    """An answer, or the error in the words of the contract."""
    try:
        return await answering
    except RequestError as error:
        return error.as_json()
    except TurnfoldError as error:
        log.warning("request.failed", request=name, error=str(error))
        return Unavailable(str(error)).as_json()
    except Exception:
        log.exception("request.failed", request=name)
        return Unavailable("the request failed; the log of the worker says why").as_json()
