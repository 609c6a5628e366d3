"""Session files of nanobot, converted to the messages that it sends."""

from collections import Counter
from collections.abc import Iterable
from typing import Final

from turnfold.contracts.elements import chat_fault
from turnfold.messages import Json
from turnfold.transcripts.parsed import ParsedConversation, RecordFault

AGENT = "nanobot"

_SENT: Final = (
    "role",
    "content",
    "tool_calls",
    "tool_call_id",
    "name",
    "reasoning_content",
    "thinking_blocks",
)
"""The fields of a stored message that nanobot sends to a model."""

_MACHINE_MADE: Final = ("_hidden_history", "_automation_turn", "_cron_turn")
"""The marks of messages that nanobot or one of its schedules wrote in the user's name."""


class SessionFile:
    """The lines of a session file, which is one conversation.

    The first line has the key of the session. Messages that answer a command, and fields that no
    model sees, are left out.
    """

    def __init__(self) -> None:
        self.left_out: Counter[str] = Counter()
        self._conversation = ParsedConversation("", AGENT)

    def add(self, record: Json) -> None:
        """Add the record of one line."""
        kind = record.get("_type")
        if kind == "metadata":
            if isinstance(record.get("key"), str):
                self._conversation.name = record["key"]
        elif kind is not None:
            self.left_out[str(kind)] += 1
        elif record.get("_command"):
            self.left_out["commands"] += 1
        else:
            self._add_message(record)

    def conversations(self) -> Iterable[ParsedConversation]:
        """Return the one conversation."""
        return [self._conversation]

    def _add_message(self, record: Json) -> None:
        if fault := chat_fault(record):
            raise RecordFault(fault)
        if record.get("media"):
            self.left_out["messages with media files"] += 1
        if any(map(record.get, _MACHINE_MADE)):
            self._conversation.machine_made_indexes.add(len(self._conversation.messages))
        self._conversation.messages.append({name: record[name] for name in _SENT if name in record})
