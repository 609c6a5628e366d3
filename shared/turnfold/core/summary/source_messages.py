"""Convert stored messages to the form that summarizers read."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from turnfold.core.summary.extractive.picking import NOTICE_STARTS, is_notice
from turnfold.core.summary.sources import REQUEST_PREFIX, PreviousSummary, Source
from turnfold.core.text.calls import arguments_of
from turnfold.core.text.lines import printable
from turnfold.core.text.tokens import spoken_text
from turnfold.messages import JOINED, TOOL, Message, Role

EvictedSource = tuple[Message, str, bool]
"""A message, its JSON text, and whether it reports an error."""


def sources_of(stored: Iterable[EvictedSource]) -> tuple[Source, ...]:
    """Convert messages in the given order, without pinned system messages and joined items.

    An evicted pinned message was superseded by a newer one, so no summary needs it. The first item
    of a response has the texts of its joined items.
    """
    rows = [row for row in stored if not row[0].is_pinnable and row[0].element is not JOINED]
    names = {
        (message.position, call.slot): printable(call.name)
        for message, _, _ in rows
        for call in message.calls
    }
    return tuple(
        _source(message, json.loads(body), names, is_error=is_error)
        for message, body, is_error in rows
    )


def open_request(
    previous: PreviousSummary | None,
    covered: Iterable[EvictedSource],
    following: Iterable[Mapping[str, Any]],
) -> str | None:
    """Return the newest unanswered request that a version covers; None if there is none.

    `covered` are the messages that the version covers in addition to the previous one, `following`
    the bodies of later messages. An answer is a text of the assistant without tool
    calls. A notice of the agent is not a request.
    """
    entry = previous.ledger[0] if previous is not None and previous.ledger else ""
    request = entry.removeprefix(REQUEST_PREFIX) if entry.startswith(REQUEST_PREFIX) else None
    for message, stored, _ in covered:
        if message.is_request:
            text = spoken_text(json.loads(stored))
            if text and not _is_only_notice(text, request):
                request = text
        elif message.role is Role.ASSISTANT and _is_answer(json.loads(stored)):
            request = None
    is_answered = any(body.get("role") == "assistant" and _is_answer(body) for body in following)
    return None if is_answered else request


def _is_only_notice(text: str, request: str | None) -> bool:
    """Return whether the agent wrote a text, and not the user.

    Some hosts wrap requests in tags, so without a plain request, a text in tags may be one.
    """
    may_be_request = not request or request.lstrip().startswith("<")
    return is_notice(text) and (text.startswith(NOTICE_STARTS) or not may_be_request)


def _is_answer(body: Mapping[str, Any]) -> bool:
    return not body.get("tool_calls") and bool(spoken_text(body).strip())


def _source(
    message: Message, body: dict[str, Any], names: dict[tuple[int, int], str], *, is_error: bool
) -> Source:
    answers = message.answers
    name = body.get("name")
    tool_name = printable(name) if isinstance(name, str) else None
    # A named tuple equals the plain pair of position and slot that is a key of `names`.
    if answers is not None:
        tool_name = names.get(answers, tool_name)
    return Source(
        message.message_id,
        message.role.value,
        spoken_text(body),
        _calls(message, body) if message.calls else (),
        tool_name,
        # A `tool.result` is marked by its event, a result within a turn by its own field.
        is_error or body.get("is_error") is True,
        # Its call was summarized earlier. Without a note, a model would see a result of no call.
        is_late=message.role is TOOL and answers is not None and answers not in names,
    )


def _calls(message: Message, body: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    calls = []
    for call in message.calls:
        arguments = arguments_of(body["tool_calls"][call.slot])
        text = arguments if isinstance(arguments, str) else json.dumps(arguments)
        calls.append((printable(call.name), text))
    return tuple(calls)
