"""The bus: connections to NATS, its streams, and the pull consumer."""

from turnfold.bus.connection import broker_options, connect, connect_options
from turnfold.bus.streams import (
    check_server,
    config_differences,
    ensure_streams,
    server_version,
    server_warnings,
    stream_created,
    wait_for_streams,
)

__all__ = [
    "broker_options",
    "check_server",
    "config_differences",
    "connect",
    "connect_options",
    "ensure_streams",
    "server_version",
    "server_warnings",
    "stream_created",
    "wait_for_streams",
]
