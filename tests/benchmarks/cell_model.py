"""The summary model of the cell: `python -m tests.benchmarks.cell_model SECONDS`.

It answers every request after so many seconds, as many at once as are asked, and keeps none.
"""

import asyncio
import json
import sys
from asyncio import StreamReader, StreamWriter
from contextlib import suppress
from functools import partial
from random import Random

import uvloop

from tests.benchmarks.cell_texts import CellTexts

LARGEST_REQUEST = 1 << 24


def answer_of_usual_size() -> bytes:
    """A response whose record has about 600 tokens, as models write them for 25 messages."""
    texts = CellTexts(Random("model"))
    record = {
        "decisions": [texts.text_of(140) for _ in range(6)],
        "constraints": [texts.text_of(120) for _ in range(3)],
        "open_questions": [texts.text_of(100) for _ in range(2)],
        "file_changes": [],
        "context": texts.text_of(900),
    }
    message = {"role": "assistant", "content": json.dumps(record)}
    body = json.dumps(
        {
            "id": "x",
            "object": "chat.completion",
            "created": 1,
            "model": "x",
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 7_320, "completion_tokens": 600, "total_tokens": 7_920},
        }
    ).encode()
    head = (
        f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def _answer(
    reader: StreamReader, writer: StreamWriter, *, seconds: float, response: bytes
) -> None:
    """Answer the requests of one connection, one after the other."""
    with suppress(asyncio.IncompleteReadError, ConnectionError):
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            length = int(head.split(b"content-length:")[1].split(b"\r\n", 1)[0])
            await reader.readexactly(length)
            await asyncio.sleep(seconds)
            writer.write(response)
            await writer.drain()
    writer.close()


async def _serve(seconds: float) -> None:
    answering = partial(_answer, seconds=seconds, response=answer_of_usual_size())
    server = await asyncio.start_server(answering, "127.0.0.1", 0, limit=LARGEST_REQUEST)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    with suppress(asyncio.CancelledError), asyncio.Runner(loop_factory=uvloop.new_event_loop) as it:
        it.run(_serve(float(sys.argv[1])))
