"""The results of the readers of other programs' logs."""

from dataclasses import dataclass, field
from typing import Any

from turnfold.messages import Shape


class RecordFault(Exception):
    """A record that cannot be read; the text is the cause."""


@dataclass(slots=True)
class ParsedConversation:
    """One conversation of a log, built record by record; without a name, it has that of its file.

    `answers` and `tools` index its messages by answer id and tool names by call id.
    """

    name: str
    agent: str | None = None
    model: str | None = None
    shape: Shape = Shape.CHAT
    messages: list[dict[str, Any]] = field(default_factory=list)
    machine_made_indexes: set[int] = field(default_factory=set)
    pinned_indexes: set[int] = field(default_factory=set)
    answers: dict[str, dict[str, Any]] = field(default_factory=dict)
    tools: dict[str, str] = field(default_factory=dict)
