"""Messages of a subscription that are taken as they arrive."""

import asyncio
from collections.abc import Callable

from nats.aio.msg import Msg


class Handover(asyncio.Future[Msg]):
    """The `future` of a subscription, on which nats-py calls `take` with each message at once.

    With a `cb`, each message waits in a queue until a task takes it, in a later round of the event
    loop. `take` must not raise: an error would end the reading of the connection.
    """

    def __init__(self, take: Callable[[Msg], object]) -> None:
        super().__init__()
        self._take = take

    def set_result(self, message: Msg, /) -> None:
        """Hand a message over."""
        self._take(message)
