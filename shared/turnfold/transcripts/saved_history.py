"""Saved histories of sessions, from `turnfold history --json` or pages of `GET …/history`."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from turnfold.messages import Json, Role, Shape, State
from turnfold.transcripts.parsed import ParsedConversation, RecordFault


def is_page(value: Json) -> bool:
    """Return whether a value is a page of a history."""
    return "next_position" in value and isinstance(value.get("messages"), list)


def is_stored_message(value: Any) -> bool:
    """Return whether a value is one message of a history."""
    return isinstance(value, Mapping) and {"message_id", "state", "message"} <= value.keys()


class SavedHistory:
    """The messages of one session, each once, without retracted ones.

    If all were published as items of the Responses API, they are again; else as chat messages.
    """

    def __init__(self) -> None:
        self.left_out: Counter[str] = Counter()
        self._stored: dict[str, Json] = {}

    def add(self, record: Json) -> None:
        """Add a page or a message."""
        for stored in record["messages"] if is_page(record) else [record]:
            if not is_stored_message(stored):
                raise RecordFault("a message has no message_id, state or message")
            known = len(self._stored)
            self._stored.setdefault(str(stored["message_id"]), stored)
            if len(self._stored) == known:
                continue
            if stored["state"] == State.RETRACTED:
                self.left_out["retracted messages"] += 1
            elif "carry" in stored:
                self.left_out["carried values"] += 1

    def conversations(self) -> Iterable[ParsedConversation]:
        """Return the one conversation."""
        kept = [message for message in self._stored.values() if message["state"] != State.RETRACTED]
        are_items = all(message.get("shape") == Shape.RESPONSES for message in kept)
        if not are_items:
            # The chat message of a response is that of its first item; the others have none.
            kept = [message for message in kept if message["message"]]
        conversation = ParsedConversation(
            "",
            shape=Shape.RESPONSES if are_items else Shape.CHAT,
            messages=[
                message["element"] if are_items else _chat_message(message) for message in kept
            ],
            machine_made_indexes={i for i, row in enumerate(kept) if row.get("is_meta")},
            pinned_indexes={i for i, row in enumerate(kept) if _is_pinned(row)},
        )
        return [conversation]


def _is_pinned(stored: Json) -> bool:
    """Return whether a system message began its event, which pinned it in place of others."""
    message = stored["message"]
    is_system = isinstance(message, Mapping) and message.get("role") in (
        Role.SYSTEM,
        Role.DEVELOPER,
    )
    return is_system and str(stored["message_id"]).endswith("#0")


def _chat_message(stored: Json) -> dict[str, Any]:
    message: dict[str, Any] = stored["message"]
    if "original_content" in stored:
        message = message | {"content": stored["original_content"]}
    return message | {"is_error": True} if stored.get("is_error") else message
