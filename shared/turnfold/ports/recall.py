"""Port for recall: find the messages and lines of a session that matter for a question."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from turnfold.core.recall.block import RecallMaterial
from turnfold.core.recall.question import RecallQuestion
from turnfold.core.recall.quotes import MarkedLine
from turnfold.core.recall.ranking import FoundPlaces


@dataclass(frozen=True, slots=True)
class SearchedSession:
    """Where the lookups of a question match in a session, by ordinals of its messages.

    `positions` and `tokens` are those of every message, in order; messages that are never recalled
    have 0 tokens. `matches` has one entry per lookup. `spoken` are the messages of the speaker whom
    the question names, None unless it names exactly one. `marked_lines` reads the marked lines of
    the newest messages, oldest first.
    """

    positions: Sequence[int]
    tokens: Sequence[int]
    matches: Sequence[FoundPlaces]
    spoken: Collection[int] | None
    marked_lines: Callable[[], Mapping[int, Sequence[MarkedLine]]]


@dataclass(frozen=True, slots=True)
class Recollection:
    """The messages and lines found for a question, best first.

    `indexed_to` is the sequence up to which every message of the session is in the index; later
    ones were read, unless there were too many (`is_partial`).
    """

    material: RecallMaterial
    indexed_to: int
    is_partial: bool = False


class Choice(NamedTuple):
    """Messages of a session by their ordinals, and lines with the ordinals of theirs."""

    messages: Sequence[int]
    lines: Sequence[tuple[int, MarkedLine]] = ()


class RecallStore(Protocol):
    """Find the messages of a session that matter for a question, in one snapshot."""

    def forget(self) -> None:
        """Remove what is cached, because something was erased."""
        ...

    async def recall(
        self,
        sid: int,
        *,
        until: int,
        question: Callable[[Callable[[int], str]], RecallQuestion],
        choose: Callable[[SearchedSession], Choice],
    ) -> Recollection:
        """Return the messages and lines that `choose` names, of those before `until`.

        `question` is given a function that returns the body of the message at a position.

        Raises:
            Unavailable: the database cannot be read now.
        """
        ...
