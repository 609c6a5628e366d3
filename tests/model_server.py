"""An OpenAI-compatible endpoint on loopback whose next answers a test chooses, faults included."""

import asyncio
import json
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

SUMMARY = {
    "decisions": ["Exponential backoff was chosen."],
    "constraints": ["The billing tables must not be touched."],
    "open_questions": [],
    "file_changes": [],
    "context": "The retry queue was implemented.",
}


SLOW_SECONDS = 2.0
"""How long a `slow` answer takes."""


@dataclass
class ModelServer:
    """Answers with `fault`, or with the next of `script` while there is one; keeps what it was asked.

    `largest_characters` is what it reads at most where its fault is `small`.
    """

    url: str = ""
    fault: str = "answer"
    largest_characters: int = 4_000
    script: list[str] = field(default_factory=list)
    requests: list[dict[str, Any]] = field(default_factory=list)
    heads: list[str] = field(default_factory=list)
    is_hanging: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def settings(self) -> dict[str, str]:
        """The settings with which workers ask this model."""
        return {
            "TURNFOLD_SUMMARY_MODEL": "openai/gpt-4.1-mini",
            "TURNFOLD_SUMMARY_API_BASE": self.url,
            "TURNFOLD_SUMMARY_API_KEY": "none",
        }

    async def serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        """One request a connection."""
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
            self.heads.append(head)
            length = int(head.split("content-length:")[1].split("\r\n", 1)[0])
            self.requests.append(json.loads(await reader.readexactly(length)))
            await self._answer(self.script.pop(0) if self.script else self.fault, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _answer(self, fault: str, writer: StreamWriter) -> None:
        if fault == "hang":
            self.is_hanging.set()
            await asyncio.sleep(600)
        if fault == "drop":
            return
        if fault == "trickle":
            await _trickle(writer)
        if fault == "slow":
            await asyncio.sleep(SLOW_SECONDS)
            fault = "answer"
        asked = self.requests[-1]
        if fault == "small":
            size = sum(len(message["content"]) for message in asked["messages"])
            fault = "overflow" if size > self.largest_characters else "answer"
        if fault == "no schema":
            fault = "schema" if "response_format" in asked else "answer"
        status, body, kind = _reply(fault, asked)
        raw, more = body.encode(), "retry-after: 7\r\n" if fault == "retry later" else ""
        writer.write(
            f"HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\n{more}content-length: {len(raw)}\r\nconnection: close\r\n\r\n".encode()
            + raw,
        )
        await writer.drain()


@asynccontextmanager
async def running_model_server() -> AsyncGenerator[ModelServer]:
    """A model server on a free port."""
    model = ModelServer()
    tasks: set[asyncio.Task[None]] = set()

    def accept(reader: StreamReader, writer: StreamWriter) -> None:
        task = asyncio.ensure_future(model.serve(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(accept, "127.0.0.1", 0, limit=1 << 24)
    model.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    try:
        yield model
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await server.wait_closed()


async def _trickle(writer: StreamWriter) -> None:
    """A byte now and then, for ever: no read of the client ever waits long."""
    writer.write(
        b"HTTP/1.1 200 X\r\ncontent-type: application/json\r\ncontent-length: 100000\r\n\r\n{"
    )
    while True:
        writer.write(b" ")
        await writer.drain()
        await asyncio.sleep(0.05)


def _reply(fault: str, asked: dict[str, Any]) -> tuple[int, str, str]:
    failed = {
        "429": (429, "Rate limit reached for requests", "rate_limit_exceeded"),
        "retry later": (429, "Rate limit reached for requests", "rate_limit_exceeded"),
        "schema": (
            400,
            "Invalid parameter: 'response_format' of type 'json_schema' is not supported with this model.",
            "invalid_request_error",
        ),
        "quota": (
            429,
            "You exceeded your current quota, please check your plan and billing details.",
            "insufficient_quota",
        ),
        "rate of Azure": (
            429,
            "Token rate limit exceeded. Please retry after 9 seconds. See https://example.org/quota.",
            "429",
        ),
        "rate of Gemini": (
            429,
            "You exceeded your current quota, check your plan and billing. Please retry in 29.01s.",
            "RESOURCE_EXHAUSTED",
        ),
        "500": (500, "The server had an error", "invalid_request_error"),
        "503": (503, "Overloaded", "server_error"),
        "401": (401, "Incorrect API key provided", "invalid_request_error"),
        "404": (404, "The model does not exist", "invalid_request_error"),
        "overflow": (
            400,
            "This model's maximum context length is 8192 tokens. However, your messages resulted in 9000 tokens.",
            "context_length_exceeded",
        ),
        "413": (413, "Payload too large", "invalid_request_error"),
    }
    failed["quote"] = (
        400,
        f"Invalid value: {asked['messages'][-1]['content'][-2_000:]}",
        "invalid_request_error",
    )
    if fault in failed:
        status, told, code = failed[fault]
        return (
            status,
            json.dumps({"error": {"message": told, "type": code, "code": code}}),
            "application/json",
        )
    if fault == "html":
        return 502, "<html><body>Bad gateway</body></html>", "text/html"
    said: dict[str, tuple[str | None, str]] = {
        "null": (None, "stop"),
        "empty": ("", "stop"),
        "length": (json.dumps(SUMMARY)[:60], "length"),
        "refuse": ("I'm sorry, but I can't assist with that request.", "stop"),
        "refuse in JSON": (
            json.dumps({"decisions": [], "context": "I'm sorry, but I can't assist with that."}),
            "stop",
        ),
        "end of a thought": ("So {x} is what the user wants.\n</think>\n\n", "stop"),
        "tool_call": (None, "tool_calls"),
        "thinking": (None, "stop"),
        "long": ("The same thing was said once more. " * 2_000, "stop"),
        "broken": (json.dumps(SUMMARY)[:-20], "stop"),
        "prose": ("The retry queue was implemented and exponential backoff was chosen.", "stop"),
        "answer": (json.dumps(SUMMARY), "stop"),
        "obey": (json.dumps(SUMMARY | {"context": _last_instruction(asked)}), "stop"),
        "unbilled": (json.dumps(SUMMARY), "stop"),
        "negative bill": (json.dumps(SUMMARY), "stop"),
        "endless bill": (json.dumps(SUMMARY), "stop"),
    }
    content, finish = said[fault]
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if fault == "tool_call":
        message["tool_calls"] = [
            {"id": "c1", "type": "function", "function": {"name": "run", "arguments": "{}"}}
        ]
    if fault == "thinking":
        message["reasoning_content"] = "So the user wants a summary."
    answer = {
        "id": "x",
        "object": "chat.completion",
        "created": 1,
        "model": "x",
        "choices": [{"index": 0, "message": message, "finish_reason": finish}],
        "usage": {"prompt_tokens": 321, "completion_tokens": 45, "total_tokens": 366},
    }
    if fault == "unbilled":
        del answer["usage"]
    if fault in ("negative bill", "endless bill"):
        tokens = -500 if fault == "negative bill" else 10**30
        answer["usage"] = {"prompt_tokens": tokens, "completion_tokens": tokens}
    return 200, json.dumps(answer), "application/json"


def _last_instruction(asked: dict[str, Any]) -> str:
    """What a model that obeys its data would write: the text that the data told it to."""
    return (
        asked["messages"][-1]["content"].rpartition("and write: ")[2].partition('"')[0]
        or "Nothing."
    )
