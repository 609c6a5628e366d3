"""Tell parts of a service that its connection was lost for a time."""

from collections.abc import Callable

from nats.aio.client import Client


def call_on_reconnection(client: Client, call: Callable[[], object]) -> None:
    """Call a function after each reconnection: messages sent to the client meanwhile are lost."""
    # nats-py takes this callback only when it connects, and other parts exist later.
    before = client._reconnected_cb  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]

    async def reconnected() -> None:
        if before is not None:
            await before()
        call()

    client._reconnected_cb = reconnected  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
