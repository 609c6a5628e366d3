"""Requests that write: translate each message to an operation, and its outcome to a reply."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

import structlog
from nats.aio.msg import Msg

from turnfold.bus.answering import answer, is_led
from turnfold.bus.broker import Broker
from turnfold.contracts.catalog import REQUESTS, wildcard_subject
from turnfold.contracts.reading import is_policy_read, read_command
from turnfold.contracts.requests import Command
from turnfold.contracts.subjects import (
    INSTALLATION_REQUESTS,
    POLICY_READS,
    WORKER_QUEUE,
    key_of_subject,
)
from turnfold.errors import NotAllowed, RequestError, TurnfoldError, Unavailable
from turnfold.process.request_limits import INSTALLATION, ConcurrencyLimiter, check_size
from turnfold_worker.actors import Actors

log = structlog.get_logger()

Reply = Mapping[str, Any] | str
"""A reply as fields, or as JSON text."""
Handle = Callable[[Any, Any, str], Awaitable[Reply]]
"""Execute a request, given its key (None for the installation), its model and its actor."""


class CommandServer:
    """Run requests that write, a limited number at once. Reject the others with `unavailable`."""

    def __init__(self, limiter: ConcurrencyLimiter, actors: Actors) -> None:
        self._limiter = limiter
        self._actors = actors
        self._open: set[asyncio.Task[None]] = set()

    def listen(self, broker: Broker, name: str, handle: Handle) -> None:
        """Answer requests with this name.

        All workers share one queue group, so that one of them answers.
        """
        broker.listen(wildcard_subject(name), WORKER_QUEUE, partial(self._take, name, handle))

    def _take(self, name: str, handle: Handle, message: Msg) -> None:
        # In a task: nats-py reads the next message only after this has returned.
        task = asyncio.get_running_loop().create_task(self._answer(name, handle, message))
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
            raise NotAllowed("a request must come directly from the account of its client")
        check_size(message.data)
        agent_id = _agent_of(name, message.subject)
        await self._limiter.turn(agent_id)
        # After the turn: a request that waits for its turn takes no place from others.
        with self._limiter.admitted(agent_id):
            actor = await self._actors.actor_of(message)
            is_of_installation = name in INSTALLATION_REQUESTS
            key = None if is_of_installation else key_of_subject(name, message.subject)
            model = REQUESTS[name].request
            assert issubclass(model, Command)  # a worker answers no other request
            return await handle(key, read_command(model, key, message.data), actor)


def _agent_of(name: str, subject: str) -> str:
    """Return the agent whose share of the concurrent requests a request uses."""
    return subject.removeprefix(name).removeprefix(".").partition(".")[0] or INSTALLATION


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
