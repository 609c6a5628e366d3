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
from turnfold.contracts.reading import (
    is_policy_read,
    read_command,
)
from turnfold.contracts.requests import (
    AgentEraseRequest,
    CompactionRequest,
    EraseRequest,
    PolicyRequest,
)
from turnfold.contracts.subjects import POLICY_READS, WORKER_QUEUE, key_of_subject
from turnfold.errors import NotAllowed, RequestError, TurnfoldError, Unavailable
from turnfold.messages import SessionKey
from turnfold.ports.admin import SessionCommands
from turnfold.ports.ingest import Installation
from turnfold_worker.actors import Actors

log = structlog.get_logger()

INGEST_SECONDS = 3.0
INGEST_POLL_SECONDS = 0.05


Reply = Mapping[str, Any] | str
"""A reply as fields, or as JSON text."""
Handle = Callable[[str, bytes, str], Awaitable[Reply]]
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
            text = reply if isinstance(reply, str) else json.dumps(reply)
            await answer(message, text.encode())

    async def _admitted(self, name: str, handle: Handle, message: Msg) -> Reply:
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
    ingested_to: Callable[[], Awaitable[int]],
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

    def erase_handler(name: str, shape: type[EraseRequest]) -> Handle:
        async def on_erase(subject: str, body: bytes, actor: str) -> Mapping[str, Any]:
            key = key_of_subject(name, subject)
            request = read_command(shape, key, body)
            # Events up to last_seq are erased even if no worker has stored them yet.
            until = await last_seq()
            prefix = request.prefix if isinstance(request, AgentEraseRequest) else None
            if prefix is not None:
                # Only stored sessions can be found by a prefix.
                await _wait_for_ingest(until, ingested_to)
            erased = await commands.erase(
                key, last_seq=until, now_ms=now_ms(), actor=actor, prefix=prefix
            )
            on_erased()
            ids = key._asdict() if isinstance(key, SessionKey) else {"agent_id": key}
            return {**ids, **erased._asdict()}

        return on_erase

    server.listen(router, "session.erase", 2, erase_handler("session.erase", EraseRequest))
    server.listen(router, "agent.erase", 1, erase_handler("agent.erase", AgentEraseRequest))
    for name, levels in (("session.policy", 2), ("agent.policy", 1)):
        server.listen(router, name, levels, policy_handler(name))
    on_compaction = _compaction_handler(commands, installation, now_ms, on_change)
    server.listen(router, "compaction.request", 2, on_compaction)
    return router


def _compaction_handler(
    commands: SessionCommands,
    installation: Installation,
    now_ms: Callable[[], int],
    on_change: Callable[[], object],
) -> Handle:
    async def on_compaction(subject: str, body: bytes, actor: str) -> Mapping[str, Any]:
        key = key_of_subject("compaction.request", subject)
        read_command(CompactionRequest, key, body)
        assert isinstance(key, SessionKey)
        opened = await commands.compact_now(
            key, installation=installation, now_ms=now_ms(), actor=actor
        )
        on_change()
        return {"compaction_id": opened}

    return on_compaction


async def _wait_for_ingest(seq: int, ingested_to: Callable[[], Awaitable[int]]) -> None:
    """Return when every event up to a sequence is stored.

    Raises:
        Unavailable: it is not after INGEST_SECONDS.
    """
    deadline = asyncio.get_running_loop().time() + INGEST_SECONDS
    while await ingested_to() < seq:
        if asyncio.get_running_loop().time() >= deadline:
            raise Unavailable(
                "events that were published before are not stored yet; try again later"
            )
        await asyncio.sleep(INGEST_POLL_SECONDS)


async def answered(name: str, answering: Awaitable[Reply]) -> Reply:
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
