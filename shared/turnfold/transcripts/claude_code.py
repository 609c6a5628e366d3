"""Session logs of Claude Code, converted to OpenAI chat messages."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from turnfold.core.text.calls import chat_call
from turnfold.messages import Json
from turnfold.transcripts.parsed import ParsedConversation, RecordFault

AGENT = "claude-code"
SUB_AGENT = "claude-code-subagent"


@dataclass(slots=True)
class Transcript:
    """The records of a log, grouped into the main conversation and one per sub-agent.

    Repeated records, and records that are not messages (titles, snapshots, progress, hooks, system
    notes), are not in them; `left_out` counts the latter.
    """

    by_branch: dict[tuple[str, str], ParsedConversation] = field(default_factory=dict)
    seen: set[str] = field(default_factory=set)
    roots: dict[str, str] = field(default_factory=dict)
    left_out: Counter[str] = field(default_factory=Counter)

    def add(self, record: Json) -> None:
        """Add the record of one line."""
        message = record.get("message")
        kind = record.get("type")
        if not isinstance(kind, str):
            raise RecordFault("a record has no type")
        identifier = str(record.get("uuid") or "")
        if record.get("isSidechain"):
            # Records of a sub-agent name only the record before, so the first one names the branch.
            # That may be a record that is left out.
            self.roots[identifier] = self.roots.get(str(record.get("parentUuid")), identifier)
        if kind not in ("user", "assistant") or not isinstance(message, Mapping):
            self.left_out[kind] += 1
            return
        if record.get("isApiErrorMessage"):
            self.left_out["errors of the API"] += 1
            return
        if identifier and identifier in self.seen:
            return
        self.seen.add(identifier)
        conversation = self._conversation_of(record, identifier)
        if kind == "assistant":
            _add_answer(conversation, message, identifier)
        else:
            is_meta = bool(record.get("isMeta") or record.get("isCompactSummary"))
            _add_request(conversation, message, is_meta=is_meta)

    def conversations(self) -> Iterable[ParsedConversation]:
        """Return the conversations in the order in which they began."""
        return self.by_branch.values()

    def _conversation_of(self, record: Json, identifier: str) -> ParsedConversation:
        session = str(record.get("sessionId") or "")
        branch = ""
        if record.get("isSidechain"):
            branch = str(record.get("agentId") or self.roots[identifier])
        name = ":".join(part for part in (session, branch) if part)
        return self.by_branch.setdefault(
            (session, branch), ParsedConversation(name, SUB_AGENT if branch else AGENT)
        )


def _add_answer(conversation: ParsedConversation, message: Json, identifier: str) -> None:
    """Add a record of a model's answer.

    The records of one answer share its id and hold one or two blocks each. Together they form one
    message.
    """
    # The log names `<synthetic>` for answers that no model gave.
    if isinstance(message.get("model"), str) and not message["model"].startswith("<"):
        conversation.model = message["model"]
    key = str(message.get("id") or identifier)
    answer = conversation.answers.get(key)
    if answer is None:
        answer = conversation.answers[key] = {"role": "assistant", "content": None}
        conversation.messages.append(answer)
    for block in _blocks(message.get("content")):
        match block.get("type"):
            case "tool_use":
                conversation.tools[str(block.get("id"))] = str(block.get("name"))
                arguments = json.dumps(block.get("input") or {}, ensure_ascii=False)
                call = chat_call(block.get("id"), block.get("name"), arguments)
                answer.setdefault("tool_calls", []).append(call)
            case "thinking" | "redacted_thinking":
                answer.setdefault("thinking_blocks", []).append(block)
                if thought := block.get("thinking"):
                    answer["reasoning_content"] = _join(answer.get("reasoning_content"), thought)
            case _:
                answer["content"] = _join(answer["content"], _text(block))


def _add_request(conversation: ParsedConversation, message: Json, *, is_meta: bool) -> None:
    """Add a user record; its tool results come before the user's own text."""
    own_blocks: list[Json] = []
    for block in _blocks(message.get("content")):
        if block.get("type") != "tool_result":
            own_blocks.append(block)
            continue
        call_id = str(block.get("tool_use_id"))
        content = _content(_blocks(block.get("content")))
        result: dict[str, Any] = {"role": "tool", "tool_call_id": call_id, "content": content}
        if call_id in conversation.tools:
            result["name"] = conversation.tools[call_id]
        if block.get("is_error"):
            result["is_error"] = True
        conversation.messages.append(result)
    # After the results: in a chat, results directly follow the message with their calls.
    if own_blocks:
        if is_meta:
            conversation.machine_made_indexes.add(len(conversation.messages))
        conversation.messages.append({"role": "user", "content": _content(own_blocks)})


def _blocks(content: Any) -> list[Json]:
    if content is None:
        return []
    blocks = content if isinstance(content, list) else [content]
    return [
        block if isinstance(block, Mapping) else {"type": "text", "text": str(block)}
        for block in blocks
    ]


def _content(blocks: list[Json]) -> str | list[Json]:
    """Return text blocks as a string, and blocks with images as a list of parts."""
    if all(block.get("type") != "image" for block in blocks):
        return "\n".join(_text(block) for block in blocks)
    return [_part(block) for block in blocks]


def _part(block: Json) -> Json:
    source = block.get("source")
    if block.get("type") != "image" or not isinstance(source, Mapping):
        return {"type": "text", "text": _text(block)}
    url = source.get("url") or f"data:{source.get('media_type')};base64,{source.get('data')}"
    return {"type": "image_url", "image_url": {"url": url}}


def _text(block: Json) -> str:
    source = block.get("source")
    if block.get("type") == "document" and isinstance(source, Mapping) and "data" in source:
        is_text = source.get("type") == "text"
        return str(source["data"]) if is_text else f"[document: {source.get('media_type')}]"
    text = block.get("text")
    return text if isinstance(text, str) else json.dumps(block, ensure_ascii=False)


def _join(before: str | None, more: str) -> str:
    return more if not before else f"{before}\n{more}"
