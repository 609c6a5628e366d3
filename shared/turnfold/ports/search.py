"""The port of searches in the originals of a session."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from turnfold.core.text.search import Lookup
from turnfold.messages import SessionKey, State
from turnfold.ports.query import OriginalMessage


@dataclass(frozen=True, slots=True)
class Scope:
    """The messages of a session that are searched; None sets no condition.

    `version` limits the search to the messages that this version covers.
    """

    state: State | None = None
    role: str | None = None
    after_position: int | None = None
    before_position: int | None = None
    version: int | None = None


class Candidates(NamedTuple):
    """Messages to grade; `is_partial` if there were too many to read all of them."""

    originals: Sequence[OriginalMessage]
    is_partial: bool = False


class SearchStore(Protocol):
    """Find messages by their words.

    Raises:
        UnknownSession: there is no such session.
        Unavailable: the database cannot be read now.
    """

    async def unindexed(
        self, key: SessionKey, *, scope: Scope, after_position: int
    ) -> Sequence[OriginalMessage]:
        """Return a page of messages that the index may not have yet, in order; empty at the end.

        A search that reads these first and the index afterwards misses no message.
        """
        ...

    async def candidates(
        self, key: SessionKey, lookups: Sequence[Lookup], *, scope: Scope
    ) -> Candidates:
        """Return messages that the index has under all terms of a lookup.

        The number is bounded: if there are too many, the newest and the oldest are returned.
        """
        ...
