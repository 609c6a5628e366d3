"""Candidates for the ledger: exact values with their rank, their origin and their estimated cost.

`collect` makes candidates of values, `ranking` chooses among them. The importance of a value is
decided here and by `KIND_WEIGHTS`: by the role that named it, its kind, and its recurrence.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from turnfold.core.text.values import RANK_BY_ASSISTANT, RANK_BY_USER, Value, worth_of

MAX_RANK = 200
MAX_TIMES = 99

PATH_KINDS = frozenset({"path", "modified", "read"})
MEASURE = "measure"
_IDENTIFIERS = frozenset({"uuid", "ticket", "id", "email", "phone"})
_DIGIT, _PUNCTUATION = re.compile(r"\d"), re.compile(r"[^A-Za-z0-9]")


class Origin(NamedTuple):
    """Where a value of an entry comes from, and its rank.

    `message_ids` are the first and the newest message that name it. `times` is the number of
    versions whose messages named it.
    """

    message_ids: tuple[str, ...]
    rank: int
    times: int = 1


@dataclass(slots=True)
class Candidate:
    """A value that may enter the ledger. Mutable: every message that names the value updates it.

    `order` is the number of the newest message that names the value, from 1; 0 means carried or
    unknown. `is_new` says that a message of this version names it. `use_weight` is the decayed
    number of messages that use it, if it is a name and recurs.
    """

    value: Value
    message_ids: tuple[str, ...]
    rank: int
    times: int = 1
    order: int = 0
    is_new: bool = True
    use_weight: float = 0.0
    cached_parts: tuple[str, ...] | None = None
    token_estimate: float = field(init=False)

    def __post_init__(self) -> None:
        """Estimate the tokens once: the kind may change later, the text never does."""
        self.token_estimate = _estimate_tokens(self.value)

    @property
    def path_parts(self) -> tuple[str, ...]:
        """The parts of a path that could be paths themselves; empty for other values."""
        # Ranking asks for the parts of every candidate several times.
        if self.cached_parts is None:
            self.cached_parts = tuple(_path_parts(self.value))
        return self.cached_parts

    @property
    def origin(self) -> Origin:
        """The origin to store with the value."""
        # Every answer contains the ids, so less important values name only one message.
        keeps_all = self.is_stated or self.times > 1
        return Origin(
            self.message_ids if keeps_all else self.message_ids[:1], self.rank, self.times
        )

    @property
    def is_stated(self) -> bool:
        """Whether the user stated the value. Stated values precede all others at any cost."""
        return self.rank >= RANK_BY_USER

    @property
    def is_modified(self) -> bool:
        """Whether the value is a modified file, which has an entry even if a line holds it."""
        return self.value.kind == "modified"

    @property
    def is_likely_used(self) -> bool:
        """Whether the session will probably name the value again, so that it is worth an entry.

        The user stated it, a tool read or modified that file, it is an identifier that the agent
        named, or it recurs. A command recurs if messages of this version ran it again. A measure
        that only tools printed never does.
        """
        kind, is_named = self.value.kind, self.rank >= RANK_BY_ASSISTANT
        if self.is_stated or kind in ("modified", "read") or (is_named and kind in _IDENTIFIERS):
            return True
        if kind == "command":
            return self.is_new and self.times > 1
        if kind == MEASURE and not is_named:
            return False
        return self.times > 1 or self.use_weight > 0

    @property
    def utility(self) -> float:
        """The worth of the value per token; it is repeated if it came back after a summary."""
        is_command = self.value.kind == "command"
        worth = worth_of(self.rank, is_repeated=self.times > 1, is_command=is_command)
        return (worth + self.use_weight) / self.token_estimate


def _estimate_tokens(value: Value) -> float:
    """Estimate the tokens of a value from its characters. Digits cost most."""
    text = value.text.removesuffix("…")
    if not text.isascii():
        return 2 + len(text)
    return (
        1.2
        + 0.21 * len(text)
        + 0.65 * len(_DIGIT.findall(text))
        + 0.26 * len(_PUNCTUATION.findall(text))
    )


def digit_count(text: str) -> int:
    """Count the digits of a text."""
    return len(_DIGIT.findall(text))


def _path_parts(value: Value) -> Iterator[str]:
    """Yield each folder of a path, and what the path names inside that folder."""
    path = value.text
    slash = path.find("/", 1) if value.kind in PATH_KINDS else -1
    while slash > 0:
        yield path[:slash]
        yield path[slash + 1 :]
        slash = path.find("/", slash + 1)
