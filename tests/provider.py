"""A provider of models on loopback whose answers a test writes, and which keeps what it was sent."""

import asyncio
import json
from asyncio import StreamReader, StreamWriter
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]

DATE = "Thu, 26 Nov 2026 12:00:00 GMT"
"""The date of every answer."""


@dataclass
class ProviderReply:
    """Chunks of an answer; after the first it waits for `gate`, and with `is_cut` it breaks off.

    With `is_raw`, they are the head as well.
    """

    chunks: Sequence[bytes]
    kind: str = "application/json"
    status: int = 200
    gate: asyncio.Event | None = None
    is_cut: bool = False
    is_raw: bool = False


@dataclass
class ProviderRequest:
    """A request as it came."""

    path: str
    headers: dict[str, str]
    content: bytes

    @property
    def body(self) -> Json:
        """The JSON of the request."""
        body: Json = json.loads(self.content)
        return body


@dataclass
class Provider:
    """Replies with the next of `script`, else with what `reply` makes of a request."""

    reply: Callable[[ProviderRequest], ProviderReply]
    url: str = ""
    script: deque[ProviderReply] = field(default_factory=deque)
    requests: list[ProviderRequest] = field(default_factory=list)
    hung_up: asyncio.Event = field(default_factory=asyncio.Event)

    async def serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        """Answer the requests of one connection."""
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                first, *lines = head.strip().split("\r\n")
                headers = {
                    name.lower(): value
                    for name, _, value in (line.partition(": ") for line in lines)
                }
                content = await reader.readexactly(int(headers.get("content-length", "0")))
                request = ProviderRequest(first.split()[1], headers, content)
                self.requests.append(request)
                reply = self.script.popleft() if self.script else self.reply(request)
                await self._write(reply, reader, writer)
                if reply.is_cut:
                    break
        writer.close()

    async def _write(
        self, reply: ProviderReply, reader: StreamReader, writer: StreamWriter
    ) -> None:
        if reply.is_raw:
            writer.writelines(reply.chunks)
            await writer.drain()
            return
        head = f"HTTP/1.1 {reply.status} X\r\ncontent-type: {reply.kind}\r\nx-request-id: req-1\r\n"
        head += f"date: {DATE}\r\nserver: provider\r\n"
        writer.write(f"{head}transfer-encoding: chunked\r\n\r\n".encode())
        for place, chunk in enumerate(reply.chunks):
            writer.write(b"%x\r\n%b\r\n" % (len(chunk), chunk))
            await writer.drain()
            if place == 0 and reply.gate is not None:
                opened = asyncio.ensure_future(reply.gate.wait())
                left = asyncio.ensure_future(reader.read(1))
                await asyncio.wait((opened, left), return_when=asyncio.FIRST_COMPLETED)
                if left.done() and left.result() == b"":
                    self.hung_up.set()
                    raise ConnectionError
                left.cancel()
                await asyncio.wait([left])
        if not reply.is_cut:
            writer.write(b"0\r\n\r\n")
        await writer.drain()


@asynccontextmanager
async def running_provider(
    reply: Callable[[ProviderRequest], ProviderReply],
) -> AsyncGenerator[Provider]:
    """A provider on a free port."""
    provider = Provider(reply)
    tasks: set[asyncio.Task[None]] = set()

    def accept(reader: StreamReader, writer: StreamWriter) -> None:
        task = asyncio.ensure_future(provider.serve(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(accept, "127.0.0.1", 0, limit=1 << 26)
    provider.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield provider
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def completion(text: str | None, *, calls: Sequence[Json] = ()) -> ProviderReply:
    """A chat completion that says a text and calls tools."""
    message: Json = {"role": "assistant", "content": text, "refusal": None, "annotations": []}
    if calls:
        message["tool_calls"] = list(calls)
    body = {
        "id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "gpt-4.1",
        "choices": [{"index": 0, "message": message, "logprobs": None,
                     "finish_reason": "tool_calls" if calls else "stop"}],
        "usage": {"prompt_tokens": 40, "completion_tokens": 8, "total_tokens": 48},
    }  # fmt: skip
    return ProviderReply([json.dumps(body, indent=1).encode()])


def chunks(*deltas: Json, usage: Json | None = None) -> list[bytes]:
    """The events of a streamed chat completion, one chunk each."""
    head: Json = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "gpt-4.1"}
    ended = "tool_calls" if any("tool_calls" in delta for delta in deltas) else "stop"
    choices = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
    events = [
        head | {"choices": [choice]}
        for choice in (*choices, {"index": 0, "delta": {}, "finish_reason": ended})
    ]
    if usage is not None:
        events.append(head | {"choices": [], "usage": usage})
    return [
        *(f"data: {json.dumps(event)}\n\n".encode() for event in events),
        b"data: [DONE]\n\n",
    ]


def sse(*events: Json) -> ProviderReply:
    """A stream of events that name their type, as those of messages and responses do."""
    pieces = [f"event: {one['type']}\ndata: {json.dumps(one)}\n\n".encode() for one in events]
    return ProviderReply(pieces, "text/event-stream")
