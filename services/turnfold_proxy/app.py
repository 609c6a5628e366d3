"""The process of a proxy: it listens until a signal ends it."""

import os
import sys
from functools import partial

import structlog
import uvloop

from turnfold.access.bearers import check_bind_address
from turnfold.access.own_site import OwnSiteMiddleware
from turnfold.client import BufferOptions, connect
from turnfold.client.token_counter import load
from turnfold.errors import StartError
from turnfold.process.http_server import HttpServer
from turnfold.process.ready import ANNOUNCE, announce
from turnfold.process.scheduling import tune_interpreter
from turnfold.process.tasks import stop_event
from turnfold.process.watchdog import Watchdog
from turnfold.settings import Settings, http_url
from turnfold_proxy.http import ProxyApp
from turnfold_proxy.lookups import RecallTools
from turnfold_proxy.metrics import ProxyMetrics
from turnfold_proxy.pauses import Pauses
from turnfold_proxy.recorder import Recorder
from turnfold_proxy.upstream import Upstream

ATTEMPTS = 2

log = structlog.get_logger()


def main(settings: Settings) -> int:
    """Run a proxy until a signal stops it; return the exit status.

    Raises:
        StartError: no provider is named, or the port is in use.
    """
    if settings.proxy_upstream is None:
        raise StartError(
            "the proxy needs a provider; pass --upstream URL, or set TURNFOLD_PROXY_UPSTREAM"
        )
    check_bind_address(
        settings.proxy_host, has_tokens=False, is_checked_elsewhere=settings.http_checked_elsewhere
    )
    uvloop.run(_run(settings, settings.proxy_upstream))
    return 0


async def _run(settings: Settings, upstream_url: str) -> None:
    stop = stop_event()
    watchdog = Watchdog(settings.watchdog_seconds)
    watchdog.start()
    upstream, metrics = Upstream(upstream_url), ProxyMetrics()
    wait_seconds = settings.proxy_wait_seconds
    try:
        # Buffering, so that the proxy also starts, and forwards calls, while Turnfold is away.
        async with connect(
            settings.nats_url,
            timeout_seconds=wait_seconds,
            attempts=ATTEMPTS,
            buffering=BufferOptions(),
            # Not those of the environment alone: a file may have them, too.
            environ=settings.identity.as_environ(),
        ) as client:
            # Before it listens, so that no call waits until the tokenizer is loaded.
            await load()
            pauses = Pauses()
            recorder = Recorder(client.session, client.erasures, pauses, wait_seconds=wait_seconds)
            app = ProxyApp(
                upstream,
                recorder,
                metrics,
                RecallTools(client.session, pauses, wait_seconds=wait_seconds),
                agent_id=settings.proxy_agent,
                has_tools=settings.proxy_tools,
            )
            http_server = HttpServer(
                OwnSiteMiddleware(
                    app,
                    is_local=not settings.http_checked_elsewhere,
                    on_refusal=partial(log.warning, "proxy.other_site"),
                ),
                host=settings.proxy_host,
                port=settings.proxy_port,
                port_setting="--port or TURNFOLD_PROXY_PORT",
                connections=settings.max_connections,
                has_date=False,
            )
            try:
                await http_server.open()
                tune_interpreter()
                _announce(http_url(settings.proxy_host, http_server.port))
                await http_server.until(stop)
            finally:
                # The server first, so that answers that end now are still recorded.
                await http_server.close()
                await recorder.close()
            log.info("proxy.stopped")
    finally:
        await upstream.close()
        watchdog.stop()


def _announce(url: str) -> None:
    """Say where the proxy listens: to the supervisor, or on standard output."""
    log.info("proxy.started", pid=os.getpid(), url=url)
    announce({"proxy": os.getpid()})
    if os.environ.get(ANNOUNCE) != "1":
        sys.stdout.write(f"turnfold proxy: {url}\n")
        sys.stdout.flush()
