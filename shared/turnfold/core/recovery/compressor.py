"""Compress a list of chat messages without a store.

The client and the plain library use this. It builds the same window as the service, from the list
itself.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from turnfold.core.history.pairing import CallPosition, ResultPosition, match_results
from turnfold.core.history.validation import validation_errors
from turnfold.core.policy.meta import is_written_by_program, without_mark
from turnfold.core.policy.presets import Policy
from turnfold.core.recovery.assembler import leading_count
from turnfold.core.text.estimates import estimate
from turnfold.core.text.tokens import MessageTokens, is_long, measure_with, text_of
from turnfold.core.window.budget_shares import UNLIMITED
from turnfold.core.window.builder import WindowBuilder
from turnfold.core.window.forms import WHOLE
from turnfold.core.window.rendering.render import entry_body
from turnfold.core.window.views import Entry, ShownMessage, SynthesizedResult
from turnfold.core.window.window import (
    EMERGENCY_FIFTHS,
    WindowInput,
    WindowRequest,
    build_window,
    emergency_budget,
)
from turnfold.errors import BadRequest, CannotFit
from turnfold.messages import (
    META_MARK,
    ROLES,
    EventId,
    Json,
    Message,
    Role,
    UncountedText,
    UnrankedMessage,
)

LIST: Final = EventId("messages")
"""The event id of messages in a list: `messages#3` is the fourth message of the list."""


def estimated(text: str) -> int:
    """Estimate tokens without a tokenizer, plus a tenth, so that the estimate is rarely too low."""
    return -(-estimate(text) * 11 // 10)


@dataclass(frozen=True, slots=True)
class Compressed:
    """Messages that a model accepts, and their tokens.

    `omitted` counts the messages of the input that are missing. `is_whole` if they are the input,
    unchanged.
    """

    messages: list[dict[str, Any]]
    tokens: int
    is_whole: bool = True
    omitted: int = 0


class Compressor(Protocol):
    """Fit chat messages into a budget.

    Pure: the same list and budget give the same messages, and the input is not modified.
    """

    def tokens(self, messages: Sequence[Json]) -> int:
        """Return the tokens of these messages."""
        ...

    def compress(
        self, messages: Sequence[Json], budget_tokens: int, *, is_emergency: bool = False
    ) -> Compressed:
        """Return valid messages of at most `budget_tokens`; in an emergency three fifths of it.

        Raises:
            CannotFit: even the smallest such list is too large. `needed_tokens` is the budget that
                works.
        """
        ...


@dataclass(frozen=True, slots=True)
class LadderCompressor:
    """The compressor of the service: trim by the ladder, the oldest messages first.

    `count` returns the tokens of a text. The newest request stays. The system messages at the
    beginning stay whole; later ones keep their place, longer than other messages do. Of the
    `policy`, only the view, its caps and `meta_prefixes` apply: `preset_named("adaptive")`, for
    example, shows at most 50 messages.
    """

    count: Callable[[str], int] = estimated
    policy: Policy = field(default_factory=Policy)

    def tokens(self, messages: Sequence[Json]) -> int:
        """Return the tokens of these messages, overhead included."""
        bodies = [without_mark(body) for body in messages]
        measured = measure_list(bodies, [text_of(body) for body in bodies], self.count)
        return sum([tokens.tokens for tokens in measured])

    def compress(
        self, messages: Sequence[Json], budget_tokens: int, *, is_emergency: bool = False
    ) -> Compressed:
        """Return messages that fit; a valid list that fits already is returned unchanged.

        A user message with `"is_meta": true`, or one that begins like the policy's
        `meta_prefixes`, was written by a program: the newest request is the newest other one, if
        there is one. The result has no such marks.

        Raises:
            BadRequest: an entry is not a chat message.
            CannotFit: see `Compressor.compress`. It has `needed_messages` if the policy shows
                fewer messages than needed.
        """
        bodies = [without_mark(body) for body in messages]
        texts = [text_of(body) for body in bodies]
        measured = measure_list(bodies, texts, self.count)
        total = sum([tokens.tokens for tokens in measured])
        cap = budget_tokens * EMERGENCY_FIFTHS // 5 if is_emergency else budget_tokens
        # Unchanged, so that the provider's cache of the beginning stays valid.
        if self._is_sendable(bodies, total, cap):
            return Compressed(bodies, total)
        cuts = [UncountedText(text, self.count) if is_long(text) else "" for text in texts]
        listed = to_messages(bodies, measured, cuts)
        for message, body, text in zip(listed, messages, texts, strict=True):
            message.is_meta = message.role is Role.USER and (
                body.get(META_MARK) is True or is_written_by_program(text, self.policy)
            )
        start = leading_count(bodies)
        systems, history = listed[:start], listed[start:]
        system_tokens = sum([message.tokens for message in systems])
        window = self._build_window(history, system_tokens, cap, is_emergency=is_emergency)
        return self._to_compressed(window, systems, system_tokens, bodies)

    def _is_sendable(self, bodies: Sequence[Json], total: int, cap: int) -> bool:
        """Return whether a list fits and is valid as it is."""
        return (
            bool(bodies)
            and total <= cap
            and len(bodies) - leading_count(bodies) <= (self.policy.max_messages or UNLIMITED)
            and not validation_errors(bodies)
        )

    def _build_window(
        self, history: Sequence[Message], system_tokens: int, cap: int, *, is_emergency: bool
    ) -> WindowBuilder:
        """Build the window of the history within the tokens that the system messages leave.

        Raises:
            CannotFit: as `compress`; the needed budget includes the system messages.
        """
        rest_tokens = max(cap - system_tokens, 0)
        asked = WindowRequest(
            # Three fifths of this budget, which an emergency window takes, are all of the rest.
            budget_tokens=emergency_budget(rest_tokens) if is_emergency else rest_tokens,
            is_emergency=is_emergency,
            tells_omitted=False,
        )
        try:
            window = build_window(
                WindowInput(messages=tuple(history), total=len(history)), asked, self.policy
            )
        except CannotFit as error:
            if error.needed_tokens is None:
                raise
            needed = error.needed_tokens + (
                emergency_budget(system_tokens) if is_emergency else system_tokens
            )
            raise CannotFit(
                f"the smallest list of these messages needs a budget of {needed} tokens",
                needed_tokens=needed,
                needed_messages=error.needed_messages,
            ) from error
        # Without a history there is a window for any budget, so this was not checked yet.
        if system_tokens > cap:
            needed = system_tokens + window.total
            raise CannotFit(
                f"the system messages alone count {system_tokens} tokens",
                needed_tokens=emergency_budget(needed) if is_emergency else needed,
            )
        return window

    def _to_compressed(
        self,
        window: WindowBuilder,
        systems: Sequence[Message],
        system_tokens: int,
        bodies: Sequence[dict[str, Any]],
    ) -> Compressed:
        """Render the system messages and the window as a list."""
        entries = [
            entry for block in window.blocks if block.is_shown for entry in block.part.entries
        ]
        shown = [bodies[message.position] for message in systems] + [
            self._rendered(entry, bodies) for entry in entries
        ]
        synthesized = sum([isinstance(entry, SynthesizedResult) for entry in entries])
        return Compressed(
            shown,
            system_tokens + window.total,
            is_whole=shown == bodies,
            omitted=len(bodies) - len(shown) + synthesized,
        )

    def _rendered(self, entry: Entry, bodies: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Return the chat message of an entry: the input itself if it is shown whole."""
        if not isinstance(entry, ShownMessage):
            return entry_body(entry, {})
        body = bodies[entry.message.position]
        return body if entry.form is WHOLE else entry_body(entry, _copied(body), self.count)


def _copied(body: dict[str, Any]) -> dict[str, Any]:
    """Copy a message as deep as rendering changes it: down to the arguments of its calls."""
    copy = dict(body)
    calls = copy.get("tool_calls")
    if isinstance(calls, list):
        copy["tool_calls"] = [
            {name: dict(part) if isinstance(part, Mapping) else part for name, part in call.items()}
            if isinstance(call, Mapping)
            else call
            for call in calls
        ]
    return copy


def measure_list(
    bodies: Sequence[Json], texts: Sequence[str], count: Callable[[str], int]
) -> list[MessageTokens]:
    """Count the tokens of each message; `texts` are the results of `text_of`."""
    # All texts in one loop, so that the tokenizer's tables stay in the CPU cache.
    tokens = [count(text) if text else 0 for text in texts]
    return [
        measure_with(body, text, text_tokens, count)
        for body, text, text_tokens in zip(bodies, texts, tokens, strict=True)
    ]


def to_messages(
    bodies: Sequence[Json], measured: Sequence[MessageTokens], cuts: Sequence[UncountedText | str]
) -> list[Message]:
    """Convert a list to `Message` values; the position of each is its index in the list.

    `cuts` hold the long texts, so that their token offsets can be counted when needed.

    Raises:
        BadRequest: an entry has no role of a chat message.
    """
    called: dict[str, dict[str, Any]] = {}
    calls: defaultdict[str, list[CallPosition]] = defaultdict(list)
    results: defaultdict[str, list[int]] = defaultdict(list)
    messages: list[Message] = []
    for index, (body, tokens, text_cuts) in enumerate(zip(bodies, measured, cuts, strict=True)):
        role = _role(index, body)
        # Calls of another role may not be sent. Such a message is irregular: rendering repairs it.
        own_calls = tokens.calls if role is Role.ASSISTANT else ()
        for call in tokens.calls:
            called[call.call_id] = body["tool_calls"][call.slot]
        for call in own_calls:
            calls[call.call_id].append(CallPosition(index, call.slot))
        answered = None
        if role is Role.TOOL and isinstance(call_id := body.get("tool_call_id"), str) and call_id:
            results[call_id].append(index)
            answered = called.get(call_id)
        messages.append(
            Message(
                index,
                LIST,
                index,
                role,
                tokens.tokens,
                tokens.content_tokens,
                tokens.reasoning_tokens,
                tokens.characters,
                tokens.lines,
                UnrankedMessage(body, answered),
                own_calls,
                is_irregular=tokens.is_irregular or len(own_calls) < len(tokens.calls),
                cuts=text_cuts,
            )
        )
    _match_results(messages, bodies, calls, results)
    return messages


def _role(index: int, body: Json) -> Role:
    name = body.get("role")
    role = ROLES.get(name) if isinstance(name, str) else None
    if role is None:
        roles = ", ".join(sorted(ROLES))
        raise BadRequest(
            f"message {index} has the role {name!r}; a chat message has one of {roles}"
        )
    return role


def _match_results(
    messages: Sequence[Message],
    bodies: Sequence[Json],
    calls: Mapping[str, list[CallPosition]],
    results: Mapping[str, list[int]],
) -> None:
    """Set the call that each result answers; `calls` and `results` are by call id."""
    for call_id, indices in results.items():
        # The content decides between several results of one call id, and only then.
        positions = [
            ResultPosition(index, _content_key(bodies[index]) if len(indices) > 1 else b"")
            for index in indices
        ]
        # The list is one event, however long.
        matches = match_results(calls.get(call_id, ()), positions, event_positions=len(messages))
        for position, match in matches.items():
            messages[position].answers = match.answers
            messages[position].is_copy = match.is_copy


def _content_key(body: Mapping[str, Any]) -> bytes:
    """Return bytes that are equal for results of equal content."""
    return json.dumps(body.get("content"), sort_keys=True, default=repr).encode(
        "utf-8", "surrogatepass"
    )
