"""The lane process: searches, windows of large sessions and large events of HTTP.

It has its own database connections.
"""

import asyncio
import gc
import os
from functools import partial

import structlog

from turnfold.contracts.history_requests import DifferenceRequest, SearchRequest
from turnfold.contracts.requests import (
    ContextRequest,
    ToolRequest,
)
from turnfold.errors import RequestError, Unavailable
from turnfold.messages import SessionKey
from turnfold.model_info.context_windows import installed_windows
from turnfold.operations.query import context as query
from turnfold.operations.query import difference, expand, search, tools
from turnfold.operations.query.environment import ContextReply
from turnfold.process.caller_order import ASKER
from turnfold.process.child_process import (
    decode_message,
    encode_frame,
    encode_message,
    open_stream,
    parent_socket,
    read_frame,
    serve_parent,
)
from turnfold.process.memory import return_freed_memory
from turnfold.settings import Settings
from turnfold.store.database.engine import Database
from turnfold.store.query.history import SqlHistoryStore
from turnfold.store.query.recall import SqlRecallStore
from turnfold.store.query.search import SqlSearchStore
from turnfold.store.query.window import SqlWindowStore
from turnfold_query.environment import query_environment
from turnfold_query.erasures import erasure_follower
from turnfold_query.lane import wire
from turnfold_query.posted_events import EventBody, read_posted

log = structlog.get_logger()

Outcome = wire.Answer | RequestError | None
REPLIES_BYTES = 4_000_000
"""The most bytes of cached replies. Those of the lane are large, and hardly asked for again."""


def main(settings: Settings) -> int:
    """Answer the query server at the other end of standard input, and return the exit status.

    Raises:
        StartError: no query server started this process.
    """
    return serve_parent("lane", partial(_run, settings))


async def _run(settings: Settings) -> None:
    reader, writer = await open_stream(parent_socket())
    server = LaneServer(settings, writer)
    # Objects that exist by now are exempt from garbage collection.
    gc.freeze()
    trimming = asyncio.create_task(return_freed_memory(), name="memory")
    forgetting = asyncio.create_task(server.erasures.run(), name="erasures")
    while (body := await read_frame(reader)) is not None:
        server.take(decode_message(body))
    trimming.cancel()
    forgetting.cancel()
    # A thread that still computes must not outlive the query server.
    os._exit(0)


class LaneServer:
    """The requests that the lane works on."""

    def __init__(self, settings: Settings, writer: asyncio.StreamWriter) -> None:
        # One request per agent: the next begins when the thread of a cancelled one is free.
        self._database = Database(settings.database_url, writes=False, readers_each=1)
        # Without a limit on sizes: the query server sends here the sessions that it refuses.
        self._windows = SqlWindowStore(self._database)
        self._histories = SqlHistoryStore(self._database)
        self._searching = SqlSearchStore(self._database)
        self._recall = SqlRecallStore(self._database)
        self._tools = tools.ToolStores(self._histories, self._searching, self._recall)
        self._environment = query_environment(
            settings, self._recall, installed_windows(), replies_bytes=REPLIES_BYTES
        )
        self._writer = writer
        self._open: dict[int, asyncio.Task[Outcome]] = {}
        self.erasures = erasure_follower(
            self._database, self._windows, self._recall, self._environment
        )

    def take(self, message: wire.Ask | wire.Cancel | wire.Erased) -> None:
        """Start a request, cancel one, or forget what was erased."""
        match message:
            case wire.Ask():
                task = asyncio.create_task(self._answer(message))
                self._open[message.number] = task
                # A callback, because a task that is cancelled before its first step never runs.
                task.add_done_callback(partial(self._reply, message.number))
            case wire.Cancel(number):
                # The answer may already be on its way to the query server.
                if (cancelled := self._open.get(number)) is not None:
                    cancelled.cancel()
            case wire.Erased():
                self.erasures.notify()

    async def _answer(self, message: wire.Ask) -> Outcome:
        # Each request is a task with a context of its own, so this names its caller alone.
        ASKER.set(message.asker)
        try:
            return await self._execute(message)
        except asyncio.CancelledError:
            # The turn of the agent ends with its thread, or the next request would compute beside
            # it.
            await self._database.settled()
            return None
        except RequestError as error:
            return error
        except Exception:
            log.exception("request.failed", request=type(message.request).__name__)
            return Unavailable("the request failed; the log of the query service says why")

    def _reply(self, number: int, task: asyncio.Task[Outcome]) -> None:
        """Send the answer; None if the request was cancelled."""
        del self._open[number]
        answer = None if task.cancelled() else task.result()
        # Without `drain`: the query server has at most two requests here, so few answers wait.
        self._writer.write(encode_frame(encode_message(wire.Answered(number, answer))))

    async def _execute(self, message: wire.Ask) -> wire.Answer:
        key, request = message.key, message.request
        if isinstance(request, EventBody):
            return read_posted(request)
        if isinstance(request, ContextRequest):
            return await self._window(key, request)
        if isinstance(request, DifferenceRequest):
            comparing = difference.compare(key, request, window=self._window, store=self._histories)
            return (await comparing).encode()
        if isinstance(request, SearchRequest):
            return (await search.search(key, request, store=self._searching)).encode()
        if isinstance(request, ToolRequest):
            return (await tools.run_tool(key, request, self._tools)).encode()
        return (
            await expand.expand(key, request, histories=self._histories, searching=self._searching)
        ).encode()

    async def _window(self, key: SessionKey, request: ContextRequest) -> ContextReply:
        return await query.context(
            key,
            request,
            store=self._windows,
            environment=self._environment,
            ingest_signal=_no_wait,
        )


async def _no_wait(_seq: int, _seconds: float) -> None:
    """Return at once: the query server has waited for events before it forwarded the request."""
