"""A stand-in for a provider: an OpenAI-compatible endpoint on loopback."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.hosts.chat import Message, says


@dataclass
class Provider:
    """Gives the answers of its script in order, and keeps the bodies that it was sent."""

    url: str = ""
    script: list[Message] = field(default_factory=list)
    requests: list[Message] = field(default_factory=list)

    @property
    def asked(self) -> list[list[Message]]:
        """The messages of each request."""
        return [body["messages"] for body in self.requests]


@contextmanager
def running_provider() -> Iterator[Provider]:
    """A provider on a free port."""
    provider = Provider()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            provider.requests.append(body)
            answer = provider.script.pop(0) if provider.script else says("Fine.")
            raw, kind = _reply(answer, is_streamed=body.get("stream") is True)
            self.send_response(200)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        def log_message(self, *_: Any) -> None:
            """Write nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    provider.url = f"http://127.0.0.1:{server.server_port}/v1"
    try:
        yield provider
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _reply(answer: Message, *, is_streamed: bool) -> tuple[bytes, str]:
    reason = "tool_calls" if answer.get("tool_calls") else "stop"
    head = {"id": "chatcmpl-1", "created": 1, "model": "scripted"}
    if not is_streamed:
        choice = {"index": 0, "message": answer, "finish_reason": reason}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        body = {**head, "object": "chat.completion", "choices": [choice], "usage": usage}
        return json.dumps(body).encode(), "application/json"
    entries = answer.get("tool_calls") or ()
    delta = {**answer, "tool_calls": [{**one, "index": at} for at, one in enumerate(entries)]}
    choices = [
        {"index": 0, "delta": delta, "finish_reason": None},
        {"index": 0, "delta": {}, "finish_reason": reason},
    ]
    lines = [
        f"data: {json.dumps({**head, 'object': 'chat.completion.chunk', 'choices': [one]})}\n\n"
        for one in choices
    ]
    return "".join([*lines, "data: [DONE]\n\n"]).encode(), "text/event-stream"
