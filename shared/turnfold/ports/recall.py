"""Port for recall: find the messages and lines of a session that matter for a question."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from turnfold.core.recall.mask_ranking import Mask
from turnfold.core.recall.material import RecallMaterial
from turnfold.core.recall.question import RecallQuestion
from turnfold.core.recall.quotes import MarkedLine
from turnfold.core.recall.ranking import Matches, Speaker
from turnfold.core.text.search import Lookup


@dataclass(frozen=True, slots=True)
class SearchedSession:
    """The matches of a question's lookups in a session.

    `positions` and `tokens` are those of every message, in order; messages that are never recalled
    have 0 tokens. There is one mask per lookup of `question`, or in a session of more than
    `MOST_MASKED` messages no `masks`, but `matches`. `speakers` are those whom the question names.
    `look_up` searches a short session, and finds nothing for a lookup with more than a number of
    places. `texts` reads the texts of messages, and `marked_lines` the marked lines of so many of
    the newest ones, and of older ones that match a lookup. `is_own` has 1 for each message of the
    agent itself.
    """

    question: RecallQuestion

    positions: Sequence[int]
    tokens: Sequence[int]
    masks: Sequence[Mask] | None
    matches: Sequence[Matches]
    speakers: Sequence[Speaker]
    look_up: Callable[[Sequence[Lookup], int], Sequence[Mask]]
    texts: Callable[[Sequence[int]], Sequence[str]]
    marked_lines: Callable[[int, Sequence[Lookup]], Mapping[int, Sequence[MarkedLine]]]
    is_own: Sequence[int] = ()


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


class SessionMoved(Exception):
    """More than new messages has changed in a session since its window was read."""


class RecallStore(Protocol):
    """Find the messages of a session that matter for a question, in one snapshot."""

    async def recall(
        self,
        sid: int,
        *,
        until: int,
        question: Callable[[Callable[[int], str]], RecallQuestion],
        choose: Callable[[SearchedSession], Choice],
        changes: int | None = None,
    ) -> Recollection:
        """Return the messages and lines that `choose` names, of those before `until`.

        `question` is given a function that returns the body of the message at a position. `changes`
        is what the session must still have; see `SessionSnapshot.changes`.

        Raises:
            SessionMoved: the session has had other changes.
            Unavailable: the database cannot be read now.
        """
        ...
