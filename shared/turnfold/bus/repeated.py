"""Messages that were delivered often: one of them may fail or end each process that handles it."""

import random
from collections import Counter, deque
from typing import Final

from nats.aio.msg import Msg

OFTEN: Final = 3
"""A message that was delivered more often than this may be the cause."""
PAUSE_SECONDS: Final = 2.0
"""The time that other messages have before the first of these, which may end the process."""
MOST_BYTES: Final = 16 * 1024 * 1024
"""The messages that wait have fewer bytes, half of what a consumer holds."""
LEAST_BYTES: Final = 4 * 1024
"""A smaller message counts as so many, which limits their number to four thousand."""
ACK_TOKENS: Final = 9
MOST_DIGITS: Final = 19


def acknowledgement_tokens(reply: str) -> list[str]:
    """Return the tokens of a reply subject, without the domain and the account.

    The subject is `$JS.ACK.<stream>.<consumer>.<deliveries>.<sequence>.<consumer sequence>.`
    `<time>.<pending>`. In its newer form, the domain and the account stand before the stream, and
    one more token ends it.
    """
    tokens = reply.split(".")
    return tokens if len(tokens) == ACK_TOKENS else tokens[:2] + tokens[4:]


def is_repeated(message: Msg) -> bool:
    """Return whether a message was delivered often; any client may have written its reply."""
    deliveries = acknowledgement_tokens(message.reply)[4:5]
    return any((number_of(text) or 0) > OFTEN for text in deliveries)


def number_of(text: str) -> int | None:
    """Return the number that a text is; None if it is none, as any client may have written it."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < MOST_DIGITS else None


def oldest_of(waiting: deque[Msg], most: int, most_bytes: int) -> list[Msg]:
    """Remove the first of these messages and return them; see `PullConsumer.take`."""
    taken: list[Msg] = []
    while waiting and len(taken) < most:
        most_bytes -= len(waiting[0].data)
        if taken and most_bytes < 0:
            break
        taken.append(waiting.popleft())
    return taken


class RepeatedMessages:
    """Messages that were delivered often, of which a few are taken at a time.

    A batch comes back whole if one of its messages fails, or ends the process. So one is taken at
    first, and twice as many after each batch that was stored, of each subject in turn: all messages
    of a session may fail.
    """

    def __init__(self) -> None:
        self._waiting: deque[Msg] = deque()
        self._taken: dict[int, Msg] = {}
        """By their ids, which other messages could have if these were not kept."""
        self._bytes: Counter[str] = Counter()
        self._all_bytes = 0
        self._most = 1
        self._due_at = 0.0

    def add(self, message: Msg, now: float) -> bool:
        """Add a message, unless many of its subject wait; return whether it was added."""
        # A quarter of what is free: there is room for another subject, however many wait.
        if self._bytes[message.subject] >= (MOST_BYTES - self._all_bytes) // 4:
            return False
        if not self._waiting:
            self._due_at = now + PAUSE_SECONDS
        self._waiting.append(message)
        self._count(message)
        return True

    def _count(self, *messages: Msg) -> None:
        for message in messages:
            size = max(len(message.data), LEAST_BYTES)
            self._bytes[message.subject] += size
            self._all_bytes += size

    def due_in(self, now: float) -> float | None:
        """Return the seconds until some may be taken; None if none wait, or some are taken."""
        return max(0.0, self._due_at - now) if self._waiting and not self._taken else None

    def take(self, most: int, most_bytes: int) -> list[Msg]:
        """Return some messages; see `PullConsumer.take`."""
        # At random, because otherwise all messages behind the faulty one would wait forever.
        random.shuffle(self._waiting)
        turns: Counter[str] = Counter()

        def turn_of(message: Msg) -> tuple[int, float]:
            turns[message.subject] += 1
            # At random again, or a subject with many messages would nearly always begin.
            return turns[message.subject], random.random()  # noqa: S311  # nobody gains by guessing

        self._waiting = deque(sorted(self._waiting, key=turn_of))
        taken = oldest_of(self._waiting, min(most, self._most), most_bytes)
        self._bytes, self._all_bytes = Counter(), 0
        self._count(*self._waiting)
        self._taken = {id(message): message for message in taken}
        return taken

    def settle(self, message: Msg, now: float, *, is_stored: bool) -> None:
        """Note whether the batch of a message was stored; others are ignored."""
        if id(message) not in self._taken:
            return
        self._taken.clear()
        self._most, self._due_at = (2 * self._most, now) if is_stored else (1, now + PAUSE_SECONDS)

    def drop(self, message: Msg) -> None:
        """Forget a message that the stream did not deliver."""
        self._taken.pop(id(message), None)

    def clear(self) -> list[Msg]:
        """Return all messages that wait."""
        waiting = [*self._waiting]
        self._waiting.clear()
        return waiting
