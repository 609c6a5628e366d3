"""A local stand-in for the API of the model, which answers from a script."""

import json
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class ScriptedApi(ThreadingHTTPServer):
    """Answers each question of a person with the next text; keeps what it was asked."""

    def __init__(self, answers: list[str]) -> None:
        super().__init__(("127.0.0.1", 0), ScriptedAnswers)
        self.answers = answers
        self.asked: list[list[dict[str, Any]]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class ScriptedAnswers(BaseHTTPRequestHandler):
    """Answers one request."""

    server: Any

    def do_HEAD(self) -> None:
        self._send(b"", "application/json")

    def do_GET(self) -> None:
        self._send(b"{}", "application/json")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if not self.path.startswith("/v1/messages") or "count_tokens" in self.path:
            self._send(b'{"input_tokens": 10}', "application/json")
            return
        is_question = bool(body.get("tools")) and body.get("stream")
        text = "A title"
        if is_question:
            self.server.asked.append(body["messages"])
            text = self.server.answers[len(self.server.asked) - 1]
        if body.get("stream"):
            self._send("".join(_stream(text)).encode(), "text/event-stream")
        else:
            message = {**_MESSAGE, "content": [{"type": "text", "text": text}]}
            self._send(
                json.dumps(message | {"stop_reason": "end_turn"}).encode(), "application/json"
            )

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""

    def _send(self, body: bytes, kind: str) -> None:
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


_MESSAGE: dict[str, Any] = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "claude-sonnet-4-5",
    "content": [],
    "stop_reason": None,
    "stop_sequence": None,
    "usage": {"input_tokens": 10, "output_tokens": 5},
}


def _stream(text: str) -> Iterator[str]:
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": _MESSAGE},
        {
            "type": "content_block_start",
            "index": 0,
            "content_block": {"type": "text", "text": ""},
        },
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}},
        {"type": "content_block_stop", "index": 0},
        {
            "type": "message_delta",
            "delta": {"stop_reason": "end_turn", "stop_sequence": None},
            "usage": {"output_tokens": 5},
        },
        {"type": "message_stop"},
    ]
    for event in events:
        yield f"event: {event['type']}\ndata: {json.dumps(event)}\n\n"


@contextmanager
def scripted_api(*answers: str) -> Generator[ScriptedApi]:
    """Serve the answers until the end of the block."""
    with ScriptedApi(list(answers)) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
