"""A bare pass-through: the proxy's HTTP server, client and relay, with no Turnfold between them.

Run as a program it is the floor of the proxy: `python -m tests.benchmarks.passthrough URL PORT`.
"""

import asyncio
import sys

import uvloop
from starlette.types import Receive, Scope, Send

from turnfold.process.http_server import HttpServer
from turnfold_proxy.relay import relay
from turnfold_proxy.upstream import Upstream

CONNECTIONS = 100


async def main(url: str, port: int) -> None:
    """Serve until the process ends."""
    upstream = Upstream(url)

    async def forward(scope: Scope, receive: Receive, send: Send) -> None:
        chunks: list[bytes] = []
        while True:
            message = await receive()
            chunks.append(message.get("body", b""))
            if not message.get("more_body", False):
                break
        target = scope["raw_path"].decode("latin-1")
        response = await upstream.send(
            scope["method"], target, scope["headers"], b"".join(chunks), is_plain=True
        )
        await relay(response, receive, send, headers={})

    server = HttpServer(
        forward, host="127.0.0.1", port=port, port_setting="--port", connections=CONNECTIONS
    )
    await server.open()
    print("{}", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main(sys.argv[1], int(sys.argv[2])))
