"""The room for messages that are read for a recall block, in the order of their rank."""

from typing import Final

from turnfold.ports.recall import SearchedSession

MORE_READ: Final = 1.1
"""Messages of this many times the room are read: neighbors take fewer tokens in a block."""


class ReadingRoom:
    """The room for messages that are read. Mutable: each message that is taken makes it smaller.

    A message that no longer fits in the block's room is read beyond it. The room itself stays for
    smaller messages: a block would have a gap if the large message does not fit after all.
    """

    def __init__(self, session: SearchedSession, shown: frozenset[int], tokens: int) -> None:
        self.tokens = int(MORE_READ * tokens)
        self._left, self._beyond = tokens, self.tokens - tokens
        self.taken: dict[int, None] = {}
        self._session, self._shown = session, shown

    @property
    def share_left(self) -> float:
        """The share that is left."""
        # The divisor is never 0: a block has more room than its frame takes (`LEAST_ROOM`).
        return (self._left + self._beyond) / self.tokens

    def take(self, ordinal: int) -> None:
        """Take a message, if it fits, was not taken, and is not shown anyway.

        The call of a result, or the results of a call, are quoted with it and not counted here:
        messages that are read in addition fill the rest of the block.
        """
        tokens = self._session.tokens[ordinal]
        if (
            not 0 < tokens <= max(self._left, self._beyond)
            or ordinal in self.taken
            or self._session.positions[ordinal] in self._shown
        ):
            return
        self.taken[ordinal] = None
        if tokens <= self._left:
            self._left -= tokens
        else:
            self._beyond -= tokens
