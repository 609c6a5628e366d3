"""Convert a rendered window to the format of Anthropic's Messages API.

There, the system text is separate, and messages of users and assistants alternate.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from turnfold.core.shapes.blocks import (
    OPENING,
    SILENT,
    AlternatingTurns,
    answer_blocks,
    content_blocks,
    instruction_blocks,
    result_block,
    text_block,
    unused_id,
)
from turnfold.core.text.tokens import MESSAGE_TOKENS, text_of, token_upper_bound
from turnfold.core.window.forms import STAND_IN
from turnfold.core.window.rendering.blocks import is_blocks, paired_blocks, sendable_blocks
from turnfold.core.window.rendering.render import Rendered, entry_position
from turnfold.core.window.views import Entry, RecallEntry, ShownMessage, SynthesizedResult
from turnfold.core.window.window import WindowPlan
from turnfold.messages import Ids, Message, Role, ToolCall

ASIDE_TOKENS: Final = MESSAGE_TOKENS + token_upper_bound(OPENING) + token_upper_bound(SILENT)
ASIDE_MESSAGES: Final = 1
"""Upper bounds of the tokens and messages that the conversion adds to a window."""


@dataclass(frozen=True, slots=True)
class AnthropicWindow:
    """The system text (None without one), the messages as JSON texts, and the ids of each."""

    system: str | None
    messages: tuple[str, ...]
    message_ids: tuple[Ids, ...]


def to_anthropic(plan: WindowPlan, rendered: Rendered) -> AnthropicWindow:
    """Convert the window of a plan; `rendered` is the same window in the format of OpenAI.

    Neighbors of one role are merged. All results of a turn come first in the user message after
    it. The id of an empty message is added to those of the message before it.
    """
    entries = plan.entries
    # Each entry is one message here, so the other messages are those before the entries.
    before = len(rendered.messages) - len(entries)
    converter = _Converter()
    for text, message_id in zip(
        rendered.messages[:before], rendered.message_ids[:before], strict=True
    ):
        converter.begin(json.loads(text), message_id)
    rest = zip(entries, rendered.messages[before:], rendered.message_ids[before:], strict=True)
    for entry, text, message_id in as_published(list(rest)):
        role, blocks = converter.blocks(entry, text)
        converter.turns.add(role, blocks, message_id)
    system_text = "\n\n".join(text for text in converter.system if text.strip())
    messages, ids = converter.turns.finished(is_needed=bool(rendered.messages))
    return AnthropicWindow(system_text or None, paired_blocks(messages), ids)


class _Converter:
    """A window under conversion: its system texts, its turns, and the ids of the newest calls."""

    def __init__(self) -> None:
        self.turns = AlternatingTurns()
        self.system: list[str] = []
        self._api_ids: dict[str, str] = {}
        self._used: dict[str, int] = {}

    def begin(self, body: Mapping[str, Any], message_id: Ids) -> None:
        """Add a message before the blocks: an instruction, a summary or a digest."""
        if Role(body["role"]).is_system:
            self.system.append(text_of(body))
        else:
            self.turns.add("user", content_blocks(body.get("content"), "user"), message_id)

    def blocks(self, entry: Entry, text: str) -> tuple[str, list[Any]]:
        """Return the role and the blocks of an entry."""
        match entry:
            case RecallEntry():
                return "user", content_blocks(json.loads(text)["content"], "user")
            case SynthesizedResult(call=call):
                return "user", [result_block(self._api_ids[call.call_id], [text_block(STAND_IN)])]
            case ShownMessage(message=message, call=call):
                return self._stored_blocks(message, call, text)

    def _stored_blocks(
        self, message: Message, call: ToolCall | None, text: str
    ) -> tuple[str, list[Any]]:
        if message.role is Role.ASSISTANT:
            # Ids may repeat in a history, but not in a request: each answer renames its own calls.
            self._api_ids = {
                call.call_id: unused_id(call.call_id, self._used) for call in message.calls
            }
            if is_blocks(message):
                return "assistant", sendable_blocks(text, self._api_ids)
            return "assistant", answer_blocks(json.loads(text), message.calls, self._api_ids)
        if message.role.is_system:
            return "user", instruction_blocks(json.loads(text))
        if is_blocks(message):
            return "user", sendable_blocks(text, self._api_ids)
        body = json.loads(text)
        if call is None:
            return "user", content_blocks(body.get("content"), "user")
        # A `tool.result` is marked by its event, a result within a turn by its own field.
        is_error = message.is_error or body.get("is_error") is True
        content = content_blocks(body.get("content"), "tool")
        return "user", [result_block(self._api_ids[call.call_id], content, is_error=is_error)]


Rendering = tuple[Entry, str, Ids]
"""An entry of a window, its text, and its ids."""


def as_published(renderings: list[Rendering]) -> list[Rendering]:
    """Return the entries with the results of a stored message in the order in which they came."""
    ordered: list[Rendering] = []
    start = 0
    for end, (entry, *_) in enumerate(renderings):
        if not isinstance(entry, SynthesizedResult | ShownMessage) or entry.call is None:
            ordered += _in_order(renderings[start:end])
            start = end
    return ordered + _in_order(renderings[start:])


def _in_order(block: list[Rendering]) -> list[Rendering]:
    head = block[0][0] if block else None
    if not isinstance(head, ShownMessage) or not is_blocks(head.message):
        return block
    return [block[0], *sorted(block[1:], key=lambda rendering: entry_position(rendering[0]))]
