"""The bus: connections to NATS, and the streams on it."""

from turnfold.bus.connection import broker_options, connect, connect_options
from turnfold.bus.streams import (
    check_server,
    differences,
    provision,
    server_warnings,
    stream_created,
    wait_for_streams,
)

__all__ = [
    "broker_options",
    "check_server",
    "connect",
    "connect_options",
    "differences",
    "provision",
    "server_warnings",
    "stream_created",
    "wait_for_streams",
]
