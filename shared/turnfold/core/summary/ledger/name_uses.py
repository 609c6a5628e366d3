"""Record how often and how recently messages used names, from one version to the next.

A version stores a 32-bit number for each of the names used most. `build` reads the record of the
previous version, and stores the new one in the section `names`.
"""

import struct
from base64 import b64encode
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from math import exp
from typing import Final

from turnfold.core.recall.quotes import NameNumber, number_of_name, numbers_of_names
from turnfold.core.summary.ledger.left_out import decoded
from turnfold.core.summary.sources import PreviousSummary

SECTION: Final = "names"
DECAY_MESSAGES: Final = 60
"""After this many messages, the weight of a use has fallen by a factor of e."""
MOST_NAMES: Final = 500
LEAST_WEIGHT: Final = 1.75
"""A name that messages used less has no worth: 57% of lines with such names are useful, 90% of
others."""
_ITEM: Final = struct.Struct("<Iex")
"""A name's number and weight. Records of an earlier release have a count in the last byte."""
_LEAST_STORED: Final = 0.01
_MOST_STORED: Final = 1_000.0
_COMMON_NAMES = (
    "README.md package.json package-lock.json node_modules tsconfig.json index.html index.js "
    "index.ts main.py app.py setup.py __init__ __init__.py __main__ __name__ __pycache__ mix.exs "
    "pyproject.toml requirements.txt Cargo.toml go.mod JavaScript TypeScript GitHub GitLab "
    "PostgreSQL LiveView GenServer has_many belongs_to handle_event handle_info handle_call "
    "handle_cast start_link /dev/null /usr/bin /usr/bin/env /bin/bash /bin/sh /usr/local "
    "console.log JSON.stringify toString forEach setTimeout addEventListener isinstance "
    "is_error file_path old_string new_string tool_use tool_result and/or true/false "
    "1000 1024 2000 2048 3000 4096 5000 8000 8080 8192 10000 65536 0.0.0.0 127.0.0.1"
)
COMMON: Final = frozenset(map(number_of_name, _COMMON_NAMES.split()))
"""Names and numbers that occur in every project and identify nothing."""


@dataclass(slots=True)
class NameUses:
    """The decayed uses of names in the covered messages, and in those that follow them.

    Mutable: messages are added in order. The uses of following messages are not stored, because
    the version that covers those messages will count them.
    """

    _covered: dict[NameNumber, float] = field(default_factory=dict)
    _following: dict[NameNumber, float] = field(default_factory=dict)
    _messages_following: int = 0

    @classmethod
    def of(cls, previous: PreviousSummary | None) -> "NameUses":
        """Read the record of the previous version. An unreadable record counts as empty."""
        packed = decoded(previous.sections.get(SECTION) if previous else None)
        # A record that was cut off still has whole items before the cut.
        packed = packed[: len(packed) // _ITEM.size * _ITEM.size]
        return cls(
            {
                number: weight
                for number, weight in _ITEM.iter_unpack(packed)
                # A half float may be infinite or NaN: neither passes both comparisons.
                if 0 < weight < _MOST_STORED
            }
        )

    def __bool__(self) -> bool:
        """Return whether names were counted, which is so in conversations with tools."""
        return bool(self._covered)

    def add_covered(self, names_of_messages: Sequence[Collection[NameNumber]]) -> None:
        """Add the names of the messages that this version covers in addition."""
        _add(self._covered, names_of_messages)

    def add_following(self, texts: Iterable[str]) -> None:
        """Add the names of messages that are not covered yet."""
        names = [numbers_of_names(text) for text in texts]
        _add(self._following, names)
        self._messages_following = len(names)

    def weights(self) -> dict[NameNumber, float]:
        """Return the worth of each name that recurs: frequency x e^(-age / 60 messages)."""
        fade = exp(-self._messages_following / DECAY_MESSAGES)
        found: dict[NameNumber, float] = {}
        for number, weight in self._covered.items():
            worth = fade * weight + self._following.get(number, 0.0)
            if worth >= LEAST_WEIGHT and number not in COMMON:
                found[number] = worth
        return found

    def as_json(self) -> str:
        """Return the record as a version stores it: the names used most, within a limit."""
        # Equal weights are ordered by number, so that the same uses give the same record.
        best = sorted(self._covered.items(), key=lambda item: (-item[1], item[0]))
        return b64encode(
            b"".join(
                _ITEM.pack(number, weight)
                for number, weight in best[:MOST_NAMES]
                if weight >= _LEAST_STORED
            )
        ).decode("ascii")


def _add(
    uses: dict[NameNumber, float], names_of_messages: Sequence[Collection[NameNumber]]
) -> None:
    """Add messages after those counted so far, which become older."""
    added = len(names_of_messages)
    fade = exp(-added / DECAY_MESSAGES)
    # One decay for all of them, then each by its age: the sum is that of single messages.
    for number in uses:
        uses[number] *= fade
    for age, names in zip(range(added - 1, -1, -1), names_of_messages, strict=True):
        weight = exp(-age / DECAY_MESSAGES)
        for number in names:
            uses[number] = uses.get(number, 0.0) + weight
