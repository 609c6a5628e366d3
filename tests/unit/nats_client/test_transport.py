"""The bytes of a connection to the bus."""

import asyncio

from turnfold.nats_client.transport import ConnectionTransport


async def test_what_has_arrived_is_read_at_once() -> None:
    """An answer of 200 kB takes one round of the event loop, and not one for every 32 KiB."""
    transport = ConnectionTransport()  # type: ignore[no-untyped-call]
    transport._io_reader = reader = asyncio.StreamReader()
    reader.feed_data(b"x" * 200_000)

    assert len(await transport.read(32_768)) == 200_000
