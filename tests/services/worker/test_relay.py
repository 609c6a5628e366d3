"""The relay of notices, beside a client that forges acknowledgements, on a real nats-server."""

import json
from pathlib import Path

import nats
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js.api import DiscardPolicy, StreamConfig

from tests.nats_server import NatsServer, subscriptions_known
from tests.store_fixtures import new_sqlite, sql_stores, turns
from turnfold.bus.streams import NOTICES_CONFIG
from turnfold.contracts.subjects import NOTICES_STREAM
from turnfold.errors import Unavailable
from turnfold.nats_client.connection import NatsClient
from turnfold_worker.loops.relay import Relay


@pytest.fixture
def answers_match_their_models() -> None:
    """Acknowledgements are forged here."""


@pytest.mark.proves("L12", "O7")
async def test_a_notice_is_kept_while_the_stream_has_none_of_it_whatever_others_reply(
    tmp_path: Path,
    server: NatsServer,
) -> None:
    bus, own = await nats.connect(server.url), NatsClient()
    await own.connect(server.url)
    async with sql_stores(new_sqlite(tmp_path)) as stores:
        await bus.jetstream().add_stream(NOTICES_CONFIG)
        relay = Relay(store=stores.outbox, client=own, is_busy=lambda: False)
        await stores.ingest(*turns(1, 8))
        await relay.work()
        assert await stores.outbox.unsent(9) == []
        before = await notices_on(bus)
        assert before
        await bus.jetstream().update_stream(refusing(before))
        await forging(bus, seq=before + 1)
        await stores.ingest(*turns(9, 8))
        waiting = await stores.outbox.unsent(9)
        assert waiting

        with pytest.raises(Unavailable, match="cannot publish notices"):
            await relay.work()

        assert await stores.outbox.unsent(9) == waiting
        await bus.jetstream().update_stream(NOTICES_CONFIG)
        await relay.work()
        assert await stores.outbox.unsent(9) == []
        assert await notices_on(bus) == before + len(waiting)
    await own.close()
    await bus.close()


def refusing(messages: int) -> StreamConfig:
    """The stream of notices, full with so many."""
    return NOTICES_CONFIG.evolve(max_msgs=messages, discard=DiscardPolicy.NEW)


async def notices_on(bus: Client) -> int:
    return (await bus.jetstream().stream_info(NOTICES_STREAM)).state.messages


async def forging(bus: Client, *, seq: int) -> None:
    """Acknowledge every notice as the stream would, with the sequences that it would give."""

    async def on_notice(message: Msg) -> None:
        nonlocal seq
        forged = json.dumps({"stream": NOTICES_STREAM, "seq": seq}).encode()
        seq += 1
        await bus.publish(message.reply, forged)

    await bus.subscribe("context.compressed.>", cb=on_notice)
    await subscriptions_known(bus)
