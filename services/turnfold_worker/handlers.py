"""Requests that write: translate each message to an operation, and its outcome to a reply."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import structlog
from faststream.nats import NatsMessage, NatsRouter
from nats.aio.msg import Msg

from turnfold.bus.admission import INSTALLATION, ConcurrencyLimiter
from turnfold.bus.answering import answer, is_led
from turnfold.bus.broker import passthrough_decoder
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


Handle = Callable[[str, bytes, str], Awaitable[Mapping[str, Any]]]
"""Execute a request, given its subject, its body and its actor; return the reply."""


class CommandServer:
    """Run requests that write, a limited number at once. Reject the others with `unavailable`."""

    def __init__(self, limiter: ConcurrencyLimiter, actors: Actors) -> None:
        self._limiter = limiter
        self._actors = actors
        self._open: set[asyncio.Task[None]] = set()

    def listen(self, router: NatsRouter, name: str, levels: int, handle: Handle) -> None:
        """Answer requests with this name, whose subject ends in `levels` ids.

        All workers share one queue group, so that one of them answers.
        """

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
        """Finish the running requests."""
        await asyncio.gather(*self._open, return_exceptions=True)

    async def _answer(self, name: str, handle: Handle, message: Msg) -> None:
        if name in POLICY_READS and is_policy_read(message.data):
            # A query server answers these.
            return
        reply = await answered(name, self._admitted(name, handle, message))
        if message.reply:
            await answer(message, json.dumps(reply).encode())

    async def _admitted(self, name: str, handle: Handle, message: Msg) -> Mapping[str, Any]:
        # Otherwise a reply subject or a trace of one client could write in the name of another.
        if is_led(message.headers):
            raise NotAllowed(
                "a request has to come straight from the account of the client that asks"
            )
        agent_id = _agent_of(name, message.subject)
        await self._limiter.turn(agent_id)
        # After the turn: a request that waits for its turn takes no place from others.
        with self._limiter.admitted(agent_id):
            return await handle(message.subject, message.data, await self._actors.actor_of(message))


def _agent_of(name: str, subject: str) -> str:
    """Return the agent whose share of the concurrent requests a request uses."""
    return subject.removeprefix(name).removeprefix(".").partition(".")[0] or INSTALLATION


def make_request_router(
    *,
    commands: SessionCommands,
    installation: Installation,
    now_ms: Callable[[], int],
    on_change: Callable[[], object],
    last_seq: Callable[[], Awaitable[int]],
    on_erased: Callable[[], object],
    server: CommandServer,
) -> NatsRouter:
    """Route the requests that change policies, open compactions and erase."""
    router = NatsRouter()

    def policy_handler(name: str) -> Handle:
        async def on_policy(subject: str, body: bytes, actor: str) -> Mapping[str, Any]:
            key = key_of_subject(name, subject)
            policy = await commands.set_policy(
                key,
                read_command(PolicyRequest, key, body),
                installation=installation,
                now_ms=now_ms(),
                actor=actor,
            )
            on_change()
            return policy

        return on_policy

    async def on_compaction(subject: str, body: bytes, actor: str) -> Mapping[str, Any]:
        key = key_of_subject("compaction.request", subject)
        read_command(CompactionRequest, key, body)
        assert isinstance(key, SessionKey)
        opened = await commands.compact_now(
            key, installation=installation, now_ms=now_ms(), actor=actor
        )
        on_change()
        return {"compaction_id": opened}

    def erase_handler(name: str) -> Handle:
        async def on_erase(subject: str, body: bytes, actor: str) -> Mapping[str, Any]:
            key = key_of_subject(name, subject)
            read_command(EraseRequest, key, body)
            # Events up to last_seq are erased even if no worker has stored them yet.
            erased = await commands.erase(
                key, last_seq=await last_seq(), now_ms=now_ms(), actor=actor
            )
            on_erased()
            ids = key._asdict() if isinstance(key, SessionKey) else {"agent_id": key}
            return {**ids, **erased._asdict()}

        return on_erase

    for name, levels in (("session.erase", 2), ("agent.erase", 1)):
        server.listen(router, name, levels, erase_handler(name))
    for name, levels in (("session.policy", 2), ("agent.policy", 1)):
        server.listen(router, name, levels, policy_handler(name))
    server.listen(router, "compaction.request", 2, on_compaction)
    return router


async def answered(name: str, answering: Awaitable[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the reply, or the error as the contract defines it."""
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
