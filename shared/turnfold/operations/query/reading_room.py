"""The room for messages that are read for a recall block, in the order of their rank."""

from collections.abc import Sequence

from turnfold.ports.recall import SearchedSession


class ReadingRoom:
    """The room for messages that are read. Mutable: each message that is taken makes it smaller."""

    def __init__(self, session: SearchedSession, shown: frozenset[int], tokens: int) -> None:
        self.tokens = self._left = tokens
        self.taken: dict[int, None] = {}
        self._session, self._shown = session, shown
        self._told_beside: set[int] = set()

    @property
    def share_left(self) -> float:
        """The share that is left."""
        return self._left / self.tokens

    def take(self, ordinal: int) -> None:
        """Take a message, if it fits, was not taken, and is not shown anyway.

        A block tells a result with its call, and a call with its results if these fit, so they are
        counted with it. Otherwise twice the messages that fit would be read for an agent that calls
        tools.
        """
        session = self._session
        tokens = 0 if ordinal in self._told_beside else session.tokens[ordinal]
        if (
            tokens > self._left
            or not session.tokens[ordinal]
            or ordinal in self.taken
            or session.positions[ordinal] in self._shown
        ):
            return
        beside = self._beside(ordinal)
        more = sum([session.tokens[other] for other in beside])
        if tokens + more > self._left:
            if session.calls_before[ordinal]:
                return
            beside, more = (), 0
        self.taken[ordinal] = None
        self._told_beside.update(beside)
        self._left -= tokens + more

    def _beside(self, ordinal: int) -> Sequence[int]:
        """Return the call of a result, or the results that follow a call, of those not counted."""
        before = self._session.calls_before
        if distance := before[ordinal]:
            beside = [ordinal - distance]
        else:
            beside, at = [], ordinal + 1
            while at < len(self._session.positions) and before[at] == at - ordinal:
                beside.append(at)
                at += 1
        counted = self._told_beside
        return [at for at in beside if at not in counted and at not in self.taken]
