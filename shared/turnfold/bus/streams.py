"""The streams of the contract: create them, update them, and compare their settings."""

import asyncio
from collections.abc import Mapping
from dataclasses import fields
from datetime import UTC, datetime
from typing import Any

import nats.errors
import structlog
from nats.aio.client import Client
from nats.js import JetStreamContext
from nats.js.api import (
    AckPolicy,
    ConsumerConfig,
    DeliverPolicy,
    DiscardPolicy,
    RetentionPolicy,
    StorageType,
    StreamConfig,
    StreamInfo,
)
from nats.js.errors import APIError, NotFoundError, ServiceUnavailableError

from turnfold.contracts.subjects import (
    EVENTS_CONSUMER,
    EVENTS_STREAM,
    EVENTS_SUBJECTS,
    NOTICES_STREAM,
    NOTICES_SUBJECTS,
)
from turnfold.errors import StartError
from turnfold.nats_client.responses import UNREADABLE

log = structlog.get_logger()

OLDEST_SERVER = (2, 11, 0)
ADVISED_SERVER = (2, 12, 3)
ATOMIC_SERVER = (2, 12, 0)
"""The first version with atomic batches. Older ones drop the setting, and clients use none."""
EVENT_BYTES = 4 * 1024 * 1024
DUPLICATE_WINDOW_SECONDS = 600.0
NOTICES_MAX_AGE_SECONDS = 7 * 86_400.0
NAME_IN_USE = 10_058
POLL_SECONDS = 0.1
QUIET_SECONDS = 3.0
"""The time after which streams that are not there yet are logged."""

EVENTS = StreamConfig(
    name=EVENTS_STREAM,
    subjects=list(EVENTS_SUBJECTS),
    retention=RetentionPolicy.LIMITS,
    storage=StorageType.FILE,
    # A full stream refuses new events: dropping old ones would lose what no worker has stored.
    discard=DiscardPolicy.NEW,
    duplicate_window=DUPLICATE_WINDOW_SECONDS,
    max_age=0.0,
    # Erase deletes single messages by their sequence.
    deny_delete=False,
    allow_direct=True,
    # Clients may publish several events atomically.
    allow_atomic=True,
)
NOTICES_CONFIG = StreamConfig(
    name=NOTICES_STREAM,
    subjects=list(NOTICES_SUBJECTS),
    retention=RetentionPolicy.LIMITS,
    storage=StorageType.FILE,
    discard=DiscardPolicy.OLD,
    duplicate_window=DUPLICATE_WINDOW_SECONDS,
    max_age=NOTICES_MAX_AGE_SECONDS,
    allow_direct=True,
)
INGEST = ConsumerConfig(
    name=EVENTS_CONSUMER,
    durable_name=EVENTS_CONSUMER,
    deliver_policy=DeliverPolicy.ALL,
    ack_policy=AckPolicy.EXPLICIT,
    # Short, because receivers report unfinished messages as in progress every two seconds.
    ack_wait=5.0,
    # An event that can never be stored becomes a dead letter. Giving up on others would lose them.
    max_deliver=-1,
    # Also those that are retried without limit. Each worker holds fewer.
    max_ack_pending=100_000,
)
_STREAM_FIELDS = (
    "subjects",
    "retention",
    "storage",
    "discard",
    "duplicate_window",
    "max_age",
    # Beyond this limit, the server deletes events whatever `discard` says.
    "max_msgs_per_subject",
    "deny_delete",
    "allow_direct",
    "allow_atomic",
)
_CONSUMER_FIELDS = (
    "durable_name",
    "deliver_policy",
    "ack_policy",
    "ack_wait",
    "max_deliver",
    "max_ack_pending",
    "deliver_subject",
    "filter_subject",
    "filter_subjects",
    "headers_only",
    "inactive_threshold",
)


async def ensure_streams(
    client: Client, *, first_seq: int, replicas: int = 1, max_bytes: int | None = None
) -> str:
    """Create or update the streams and the consumer; idempotent, and safe to run concurrently.

    Return the creation time of the event stream (RFC 3339). A new stream starts at `first_seq`, one
    above the greatest sequence ever stored. `max_bytes` limits the event stream, which then rejects
    further events. Without it, an existing stream keeps its limit, and always its replicas and
    placement.

    Raises:
        StartError: the server is too old, has no JetStream, or keeps a different setting.
    """
    check_server(client)
    jetstream = client.jetstream()
    try:
        events = await _ensure_stream(
            jetstream, _events_on(client), first_seq=first_seq, replicas=replicas
        )
        if max_bytes is not None and events.config.max_bytes != max_bytes:
            events = await jetstream.update_stream(events.config.evolve(max_bytes=max_bytes))
            log.info("stream.limited", stream=EVENTS_STREAM, max_bytes=max_bytes)
        await _ensure_stream(jetstream, NOTICES_CONFIG, first_seq=1, replicas=replicas)
        await _ensure_consumer(jetstream)
        # Read back: an older server drops settings that it does not know, without an error.
        differing = await config_differences(client)
    except (nats.errors.NoRespondersError, ServiceUnavailableError) as error:
        raise StartError(
            "this NATS server has no streams; start it with JetStream (`nats-server -js`)"
        ) from error
    except nats.errors.TimeoutError as error:
        raise StartError(
            "the bus does not answer about its streams; "
            "these credentials may need the permissions of a provisioner"
        ) from error
    except APIError as error:
        raise StartError(
            f"the bus refused a stream: {error.description}; "
            "remove the cause, and run `turnfold migrate` again"
        ) from error
    if differing:
        raise StartError(f"the bus did not apply all settings of a stream: {'; '.join(differing)}")
    return _created(events)


async def wait_for_streams(client: Client, *, seconds: float = 60.0) -> str:
    """Wait for the streams and the consumer, and return the creation time of the event stream.

    A log line says if they are not there after some seconds.

    Raises:
        StartError: they do not exist after `seconds`.
    """
    check_server(client)
    jetstream = client.jetstream(timeout=2.0)
    began = asyncio.get_running_loop().time()
    is_quiet = True
    while True:
        try:
            info = await jetstream.stream_info(EVENTS_STREAM)
            await jetstream.consumer_info(EVENTS_STREAM, EVENTS_CONSUMER)
            return _created(info)
        except (APIError, nats.errors.Error, *UNREADABLE) as error:
            waited_seconds = asyncio.get_running_loop().time() - began
            if waited_seconds > min(seconds, QUIET_SECONDS) and is_quiet:
                is_quiet = False
                log.info("streams.awaited", made_by="turnfold migrate", seconds=seconds)
            if waited_seconds > seconds:
                raise StartError(
                    f"the streams are not there after {seconds:g} s; run `turnfold migrate` first"
                ) from error
        await asyncio.sleep(POLL_SECONDS)


async def stream_created(client: Client) -> str:
    """Return the creation time of the event stream (RFC 3339), which identifies it."""
    return _created(await client.jetstream().stream_info(EVENTS_STREAM))


async def first_sequence(client: Client) -> int:
    """Return the first sequence of the event stream, which an empty one gives its next event."""
    return (await client.jetstream().stream_info(EVENTS_STREAM)).state.first_seq


async def config_differences(client: Client) -> list[str]:
    """Return how the streams and the consumer differ from the required ones, one text each."""
    jetstream = client.jetstream()
    differences: list[str] = []
    for wanted in (_events_on(client), NOTICES_CONFIG):
        try:
            actual = (await jetstream.stream_info(str(wanted.name))).config
        except NotFoundError:
            differences.append(f"the stream {wanted.name} does not exist")
        else:
            differences += _differing(str(wanted.name), wanted, actual, _STREAM_FIELDS)
    try:
        consumer = await jetstream.consumer_info(EVENTS_STREAM, EVENTS_CONSUMER)
    except NotFoundError:
        differences.append(f"the consumer {EVENTS_CONSUMER} does not exist")
    else:
        differences += _differing(
            f"the consumer {EVENTS_CONSUMER}", INGEST, consumer.config, _CONSUMER_FIELDS
        )
    return differences


def check_server(client: Client) -> None:
    """Check the version of the server, and log warnings about it.

    Raises:
        StartError: it is older than 2.11 and would silently drop settings.
    """
    version = _version(client)
    if version < OLDEST_SERVER:
        raise StartError(
            f"this NATS server is {server_version(client)}, which ignores settings silently; "
            f"use {_dotted(OLDEST_SERVER)} or newer"
        )
    for warning in server_warnings(client):
        log.warning("bus.advisory", advice=warning)


def server_warnings(client: Client) -> list[str]:
    """Return warnings about a server that works."""
    version = _version(client)
    warnings = []
    if version < ADVISED_SERVER:
        warnings.append(
            f"NATS {server_version(client)} can lose acknowledged messages in a cluster; "
            f"{_dotted(ADVISED_SERVER)} or newer is advised"
        )
    if client.max_payload < EVENT_BYTES:
        warnings.append(
            f"the server takes {client.max_payload} bytes a message and events may have "
            f"{EVENT_BYTES}; set max_payload: 8MB"
        )
    return warnings


def _events_on(client: Client) -> StreamConfig:
    """Return the configuration of the event stream for this version of the server."""
    return EVENTS if _version(client) >= ATOMIC_SERVER else EVENTS.evolve(allow_atomic=False)


def server_version(client: Client) -> str:
    """Return the version of the server, such as `2.14.0`."""
    return _dotted(_version(client))


def _version(client: Client) -> tuple[int, int, int]:
    version = client.connected_server_version
    return version.major, version.minor, version.patch


def _dotted(version: tuple[int, int, int]) -> str:
    return ".".join(map(str, version))


async def _ensure_stream(
    jetstream: JetStreamContext, wanted: StreamConfig, *, first_seq: int, replicas: int
) -> StreamInfo:
    try:
        info = await jetstream.stream_info(str(wanted.name))
    except NotFoundError:
        try:
            created = await jetstream.add_stream(
                wanted.evolve(first_seq=max(1, first_seq), num_replicas=replicas)
            )
        except APIError as error:
            if error.err_code != NAME_IN_USE:
                raise
            # Another process created it between the two calls.
            info = await jetstream.stream_info(str(wanted.name))
        else:
            log.info("stream.created", stream=wanted.name, first_seq=max(1, first_seq))
            return created
    if differing := _differing(str(wanted.name), wanted, info.config, _STREAM_FIELDS):
        changes = {name: getattr(wanted, name) for name in _STREAM_FIELDS}
        info = await jetstream.update_stream(info.config.evolve(**changes))
        log.info("stream.updated", stream=wanted.name, differing=differing)
    return info


async def _ensure_consumer(jetstream: JetStreamContext) -> None:
    try:
        info = await jetstream.consumer_info(EVENTS_STREAM, EVENTS_CONSUMER)
    except NotFoundError:
        await jetstream.add_consumer(EVENTS_STREAM, INGEST)
        return
    if differing := _differing(
        f"the consumer {EVENTS_CONSUMER}", INGEST, info.config, _CONSUMER_FIELDS
    ):
        changes = {name: getattr(INGEST, name) for name in _CONSUMER_FIELDS}
        await jetstream.add_consumer(
            EVENTS_STREAM, info.config.evolve(name=EVENTS_CONSUMER, **changes)
        )
        log.info("consumer.updated", consumer=EVENTS_CONSUMER, differing=differing)


def _differing(name: str, wanted: Any, actual: Any, compared: tuple[str, ...]) -> list[str]:
    expected, current = _plain(wanted), _plain(actual)
    return [
        f"{name} has {field} {current[field]!r}, not {expected[field]!r}"
        for field in compared
        if expected[field] != current[field]
    ]


def _plain(config: Any) -> Mapping[str, Any]:
    """Return the fields in comparable form: enums as texts, lists sorted, absent values as 0."""
    return {field.name: _comparable(getattr(config, field.name)) for field in fields(config)}


def _comparable(value: Any) -> Any:
    if isinstance(value, list):
        return sorted(value)
    if isinstance(value, str):
        return str(getattr(value, "value", value))
    return value or 0


def _created(info: StreamInfo) -> str:
    created = info.created or datetime.fromtimestamp(0, UTC)
    return created.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
