"""Rollouts of OpenAI Codex: items of the Responses API, as the file has them."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final

from turnfold.contracts.elements import item_fault
from turnfold.messages import Json, Role, Shape
from turnfold.transcripts.parsed import ParsedConversation, RecordFault

AGENT = "codex"

_NO_ITEMS: Final = (
    "compaction",
    "compaction_summary",
    "context_compaction",
    "ghost_snapshot",
    "other",
)
"""Types of items that stand for others, or that no model reads."""

_REPEATS: Final = frozenset(
    {"user_message", "agent_message", "agent_reasoning", "agent_reasoning_raw_content"}
)
"""Types of events that show an item of the same file."""

_TAGS: Final = (
    "codex_internal_context",
    "environment_context",
    "extension_context",
    r"external_[^\s>]*",
    "goal_context",
    "hook_prompt",
    "recommended_plugins",
    "skill",
    "subagent_notification",
    "turn_aborted",
    "user_instructions",
    "user_shell_command",
)
_MACHINE_MADE: Final = re.compile(
    rf"\s*(?:<({'|'.join(_TAGS)})(?:\s[^>]*)?>.*</\1>"
    r"|# agents\.md instructions.*</instructions>)\s*",
    re.DOTALL | re.IGNORECASE,
)
"""The texts that Codex writes in the user's name. A user's own may begin as they do."""


class Rollout:
    """The lines of a rollout file, which is one conversation.

    Lines have a `type` and a `payload`. In files of older versions they are items themselves, below
    a first line with the id.
    """

    def __init__(self) -> None:
        self.left_out: Counter[str] = Counter()
        self._conversation = ParsedConversation("", AGENT, shape=Shape.RESPONSES)

    def add(self, record: Json) -> None:
        """Add the record of one line."""
        payload = record.get("payload")
        if not isinstance(payload, Mapping):
            self._add_bare(record)
            return
        match record.get("type"):
            case "session_meta":
                self._add_meta(payload)
            case "turn_context":
                if isinstance(model := payload.get("model"), str) and model:
                    self._conversation.model = model
            case "response_item":
                self._add_item(payload)
            case "event_msg":
                self._add_event(payload)
            case kind:
                self.left_out[str(kind)] += 1

    def conversations(self) -> Iterable[ParsedConversation]:
        """Return the one conversation."""
        return [self._conversation]

    def _add_bare(self, record: Json) -> None:
        if "record_type" in record:
            self.left_out[str(record["record_type"])] += 1
        elif "id" in record and record.keys().isdisjoint(("type", "role", "messages")):
            self._add_meta(record)
        else:
            self._add_item(record)

    def _add_meta(self, meta: Json) -> None:
        """Take the id of the first meta; those of the sessions that it was forked from follow."""
        if isinstance(meta.get("id"), str):
            self._conversation.name = self._conversation.name or meta["id"]
        if meta.get("base_instructions") or meta.get("instructions"):
            self.left_out["base instructions"] += 1

    def _add_item(self, item: Json) -> None:
        kind = item.get("type", "message")
        if kind in _NO_ITEMS:
            self.left_out[kind] += 1
            return
        if fault := item_fault(item):
            raise RecordFault(fault)
        if _is_machine_made(item):
            self._conversation.machine_made_indexes.add(len(self._conversation.messages))
        self._conversation.messages.append(dict(item))

    def _add_event(self, event: Json) -> None:
        kind = str(event.get("type"))
        if kind == "thread_rolled_back" and isinstance(event.get("num_turns"), int):
            self._roll_back(event["num_turns"])
        elif kind not in _REPEATS:
            self.left_out[kind] += 1

    def _roll_back(self, count: int) -> None:
        """Drop the newest turns, which the user took back, from their first message on."""
        conversation = self._conversation
        own = [
            index
            for index, item in enumerate(conversation.messages)
            if item.get("role") == Role.USER and index not in conversation.machine_made_indexes
        ]
        if count < 1 or not own:
            return
        # As in Codex, items before the first turn stay, however many turns were taken back.
        start = own[-count] if count <= len(own) else own[0]
        self.left_out["rolled back items"] += len(conversation.messages) - start
        del conversation.messages[start:]
        conversation.machine_made_indexes = {
            index for index in conversation.machine_made_indexes if index < start
        }


def _is_machine_made(item: Json) -> bool:
    if item.get("role") != Role.USER:
        return False
    # As in Codex, which counts the turns that a user takes back, one such text is enough.
    return any(map(_MACHINE_MADE.fullmatch, _texts(item.get("content"))))


def _texts(content: Any) -> list[str]:
    if isinstance(content, str):
        return [content]
    parts = content if isinstance(content, list) else []
    return [str(part.get("text", "")) for part in parts if isinstance(part, Mapping)]
