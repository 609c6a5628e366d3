"""The lane's side: searches, and windows of large sessions, from its own connections to the database."""

import asyncio
import gc
import os
import signal
from functools import partial

import structlog
import uvloop

from turnfold.contracts.requests import ContextRequest, SearchRequest
from turnfold.errors import RequestError, Unavailable
from turnfold.operations.query import context as query
from turnfold.operations.query import expand, search
from turnfold.process.child_process import (
    check_started,
    decode_message,
    encode_frame,
    encode_message,
    open_stream,
    parent_socket,
    read_frame,
)
from turnfold.process.turns import ASKER
from turnfold.settings import Settings
from turnfold.store.database.engine import Database
from turnfold.store.query.history import SqlHistoryStore
from turnfold.store.query.search import SqlSearchStore
from turnfold.store.query.window import SqlWindowStore
from turnfold_query.lane import wire
from turnfold_query.windows import answering_of

log = structlog.get_logger()

Answer = bytes | query.ContextReply | RequestError | None


def main(settings: Settings) -> int:
    """Answer the query server at the other end of standard input, until it is gone; the status to exit with.

    Raises:
        StartError: no query server started this.
    """
    check_started("lane")
    for number in (signal.SIGINT, signal.SIGTERM):
        # Who is told to stop is the query server; it lets its lane finish what is in hand.
        signal.signal(number, signal.SIG_IGN)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_run(settings))
    return 0


async def _run(settings: Settings) -> None:
    reader, writer = await open_stream(parent_socket())
    child = Child(settings, writer)
    gc.freeze()
    while (body := await read_frame(reader)) is not None:
        child.take(decode_message(body))
    # A thread that still computes must not outlive the query server.
    os._exit(0)


class Child:
    """The questions in hand."""

    def __init__(self, settings: Settings, writer: asyncio.StreamWriter) -> None:
        # One at a time of each asker: the next one begins when the thread of one that was cancelled is free.
        self._database = Database(settings.database_url, writes=False, readers_each=1)
        self._windows = SqlWindowStore(self._database)
        self._histories = SqlHistoryStore(self._database)
        self._searching = SqlSearchStore(self._database)
        self._answering = answering_of(settings)
        self._writer = writer
        self._open: dict[int, asyncio.Task[Answer]] = {}

    def take(self, word: wire.Ask | wire.Cancel | wire.Forget) -> None:
        """Begin with a question, end one, or forget."""
        match word:
            case wire.Ask():
                task = asyncio.create_task(self._answer(word))
                self._open[word.number] = task
                # A callback, because a task that is cancelled before its first step never runs.
                task.add_done_callback(partial(self._reply, word.number))
            case wire.Cancel(number):
                if (cancelled := self._open.get(number)) is not None:
                    cancelled.cancel()
            case wire.Forget():
                self._windows.forget()
                self._answering.clear_caches()

    async def _answer(self, asked: wire.Ask) -> Answer:
        ASKER.set(asked.asker)
        try:
            return await self._told(asked)
        except asyncio.CancelledError:
            await self._database.settled()
            return None
        except RequestError as error:
            return error
        except Exception:
            log.exception("request.failed", request=type(asked.request).__name__)
            return Unavailable("the request failed; the log of the query service says why")

    def _reply(self, number: int, task: asyncio.Task[Answer]) -> None:
        """Send the answer; None if the question was cancelled."""
        del self._open[number]
        answer = None if task.cancelled() else task.result()
        self._writer.write(encode_frame(encode_message(wire.Told(number, answer))))

    async def _told(self, asked: wire.Ask) -> bytes | query.ContextReply:
        key, request = asked.key, asked.request
        if isinstance(request, ContextRequest):
            return await query.context(
                key, request, store=self._windows, answering=self._answering, arrivals=_Nobody()
            )
        if isinstance(request, SearchRequest):
            return (await search.search(key, request, store=self._searching)).encode()
        return (
            await expand.expand(key, request, histories=self._histories, searching=self._searching)
        ).encode()


class _Nobody:
    """Nobody waits for events here: the query server has done that before it asked."""

    async def reached(self, seq: int, seconds: float) -> None:
        """Go on at once."""
