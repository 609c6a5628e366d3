"""The messages of a session that are kept in memory between windows."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

from turnfold.messages import Message
from turnfold.store.database.message_rows import FACTS
from turnfold.store.database.schema import (
    messages,
)

CHANGING_COLUMNS = [
    messages.c[name] for name in ("position", "answers_position", "answers_slot", "is_copy")
]
"""The columns that can change while a message stays live: which call it answers."""
AT_HAND = 512
"""The most messages that are read in the event loop's thread; more would delay other requests."""

KNOWN_AT_HAND = 2_048
"""The most messages, most of them cached, for which a window is decided in the loop's thread."""

State = tuple[Any, ...]
"""The columns `CHANGING_COLUMNS` of a live message.

A position belongs to one message forever, and everything else that is stored of a live message
never changes. A message that was read in a state is therefore valid whenever that state is found
again.
"""


@dataclass(slots=True)
class CachedSession:
    """The messages of a session as they were read: live ones by state, evicted ones by eviction.

    Evicted messages hardly ever change; the session counts when they do (`changes`).
    `covered_calls` are those of the windows of `calls_of`: a version, and the first request shown.
    """

    changes: int = 0
    live: dict[State, Message] = field(default_factory=dict)
    evicted: dict[int, list[Message]] = field(default_factory=dict)
    calls_of: State = ()
    covered_calls: tuple[Message, ...] = ()

    @property
    def size(self) -> int:
        """The number of messages."""
        evicted = sum([len(evicted) for evicted in self.evicted.values()])
        return len(self.live) + evicted + len(self.covered_calls)

    def is_at_hand(self, live: int, changes: int, pending: Sequence[Sequence[Any]]) -> bool:
        """Return whether few enough messages must be read to do it in the loop's thread."""
        known = self.evicted if self.changes == changes else {}
        unknown: int = sum([row[1] for row in pending if row[0] not in known])
        size: int = live + sum([row[1] for row in pending])
        return size <= KNOWN_AT_HAND and max(0, live - len(self.live)) + unknown <= AT_HAND


state_of_row = itemgetter(*(FACTS.index(column) for column in CHANGING_COLUMNS))
