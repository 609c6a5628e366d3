"""Compressing a list of chat messages that nobody stored: the same window, decided and rendered from the list itself."""

import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from turnfold.core.estimates import estimate
from turnfold.core.forms import WHOLE
from turnfold.core.pairing import CallSeen, ResultSeen, pair
from turnfold.core.pieces import Entry, StandIn
from turnfold.core.presets import Policy
from turnfold.core.priority import classify
from turnfold.core.render import entry_body
from turnfold.core.sendable import faults, is_role
from turnfold.core.tokens import is_long, measure_with, text_of
from turnfold.core.window import EMERGENCY_FIFTHS, UNLIMITED, Asked, Stored, plan
from turnfold.errors import BadRequest, CannotFit
from turnfold.messages import ROLES, EventId, Json, LongText, Message, Role

LIST: Final = EventId("messages")
"""What stands where a stored message names its event: `messages#3` is the fourth of the list that was given."""


def estimated(text: str) -> int:
    """The tokens of a text without a tokenizer, a tenth more than is likely, so that it is hardly ever too few."""
    return -(-estimate(text) * 11 // 10)


@dataclass(frozen=True, slots=True)
class Compressed:
    """Messages that may be sent. `tokens` is what they count, `omitted` how many of the given are not among them.

    `is_whole` says that they are the messages that were given, unchanged.
    """

    messages: list[dict[str, Any]]
    tokens: int
    is_whole: bool = True
    omitted: int = 0


class Compressor(Protocol):
    """Makes a list of chat messages fit. Pure: the same list and budget give the same messages, and no list is changed."""

    def tokens(self, messages: Sequence[Json]) -> int:
        """What these count together."""
        ...

    def compress(self, messages: Sequence[Json], budget_tokens: int, *, is_emergency: bool = False) -> Compressed:
        """Messages that may be sent and count at most `budget_tokens`; in an emergency three fifths of it.

        Raises:
            CannotFit: not even the smallest such list does; `needed_tokens` is the budget that would.
        """
        ...


@dataclass(frozen=True, slots=True)
class LadderCompressor:
    """The compressor of the service: the ladder of trims, oldest first, with the system messages and the newest request kept.

    `count` gives the tokens of a text. The system messages at the beginning stay whole, and the newest of any later
    ones; the older of those are left out where the list does not fit. Of the `policy` the view and its caps are used, such
    as `preset_named("adaptive")`, which never shows more than 50 messages.
    """

    count: Callable[[str], int] = estimated
    policy: Policy = field(default_factory=Policy)

    def tokens(self, messages: Sequence[Json]) -> int:
        """What these count together, overhead included."""
        texts = [text_of(body) for body in messages]
        found = zip(messages, texts, counted(texts, self.count), strict=True)
        return sum([measure_with(body, text, tokens, self.count).tokens for body, text, tokens in found])

    def compress(self, messages: Sequence[Json], budget_tokens: int, *, is_emergency: bool = False) -> Compressed:
        """A list that fits and may be sent comes back as it is.

        Raises:
            BadRequest: an entry is no chat message.
            CannotFit: see `Compressor.compress`; with `needed_messages` where the policy shows fewer messages than that.
        """
        bodies = [dict(body) for body in messages]
        weighed = weighed_list(bodies, self.count)
        cap = budget_tokens * EMERGENCY_FIFTHS // 5 if is_emergency else budget_tokens
        total = sum([message.tokens for message in weighed])
        rest = tuple([message for message in weighed if not message.role.is_system])
        if bodies and total <= cap and len(rest) <= (self.policy.max_messages or UNLIMITED) and not faults(bodies):
            return Compressed(bodies, total)
        kept = _kept_systems(weighed)
        system_tokens = sum([message.tokens for message in kept])
        left = max(cap - system_tokens, 0)
        asked = Asked(budget_tokens=-(-left * 5 // EMERGENCY_FIFTHS) if is_emergency else left, is_emergency=is_emergency)
        try:
            planned = plan(Stored(messages=rest, total=len(rest)), asked, self.policy)
        except CannotFit as error:
            if error.needed_tokens is None:
                raise
            needed = error.needed_tokens + (-(-system_tokens * 5 // EMERGENCY_FIFTHS) if is_emergency else system_tokens)
            raise CannotFit(f"the smallest list of these messages needs a budget of {needed} tokens", needed_tokens=needed) from error
        if system_tokens > cap:
            needed = -(-(system_tokens + planned.tokens) * 5 // EMERGENCY_FIFTHS) if is_emergency else system_tokens + planned.tokens
            raise CannotFit(f"the system messages alone count {system_tokens} tokens", needed_tokens=needed)
        shown = [bodies[message.position] for message in kept]
        shown += [self._as_sent(entry, bodies) for entry in planned.entries]
        omitted = len(bodies) - len(kept) - sum([part.stored for part in planned.parts])
        return Compressed(shown, system_tokens + planned.tokens, is_whole=shown == bodies, omitted=omitted)

    def _as_sent(self, entry: Entry, bodies: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """What stands in the list for an entry: the very message that was given, where it is shown whole."""
        if isinstance(entry, StandIn):
            return entry_body(entry, {})
        body = bodies[entry.message.position]
        return body if entry.form is WHOLE else entry_body(entry, _copied(body), self.count)


def _copied(body: dict[str, Any]) -> dict[str, Any]:
    """A copy as deep as a message is changed for a window: down to the arguments of its calls."""
    copy = dict(body)
    calls = copy.get("tool_calls")
    if isinstance(calls, list):
        copy["tool_calls"] = [
            {**call, "function": dict(call["function"])}
            if isinstance(call, Mapping) and isinstance(call.get("function"), Mapping)
            else call
            for call in calls
        ]
    return copy


def counted(texts: Sequence[str], count: Callable[[str], int]) -> list[int]:
    """The tokens of each text. One after the other they take less time: what a tokenizer looks up stays near the processor."""
    return [count(text) if text else 0 for text in texts]


def weighed_list(bodies: Sequence[dict[str, Any]], count: Callable[[str], int]) -> list[Message]:
    """The messages of a list as numbers and relations; the position of each is its index.

    Raises:
        BadRequest: an entry has no role of a chat message.
    """
    called: dict[str, dict[str, Any]] = {}
    calls: defaultdict[str, list[CallSeen]] = defaultdict(list)
    results: defaultdict[str, list[int]] = defaultdict(list)
    found: list[Message] = []
    texts = [text_of(body) for body in bodies]
    for index, (body, text, text_tokens) in enumerate(zip(bodies, texts, counted(texts, count), strict=True)):
        name = body.get("role")
        if not is_role(name):
            raise BadRequest(f"message {index} has the role {name!r}; a chat message has one of {', '.join(sorted(ROLES))}")
        role = ROLES[name]
        measured = measure_with(body, text, text_tokens, count)
        is_calling = bool(measured.calls) and role is Role.ASSISTANT
        for call in measured.calls:
            called[call.call_id] = body["tool_calls"][call.slot]
            if is_calling:
                calls[call.call_id].append(CallSeen(index, call.slot))
        answered = None
        if role is Role.TOOL and isinstance(call_id := body.get("tool_call_id"), str) and call_id:
            results[call_id].append(index)
            answered = called.get(call_id)
        found.append(
            Message(
                index,
                LIST,
                index,
                role,
                measured.tokens,
                content_tokens=measured.content_tokens,
                reasoning_tokens=measured.reasoning_tokens,
                characters=measured.characters,
                lines=measured.lines,
                priority=classify(body, call=answered),
                calls=measured.calls if is_calling else (),
                is_irregular=measured.is_irregular or (bool(measured.calls) and not is_calling),
                cuts=LongText(text, count) if is_long(text) else "",
            )
        )
    for call_id, indices in results.items():
        # What they say matters only where there are several.
        seen = [ResultSeen(index, _said(bodies[index]) if len(indices) > 1 else b"") for index in indices]
        for position, verdict in pair(calls[call_id], seen).items():
            found[position].answers, found[position].is_copy = verdict.answers, verdict.is_copy
    return found


def _kept_systems(weighed: Sequence[Message]) -> list[Message]:
    """The system messages a list begins with, and the newest of the others."""
    begun = next((index for index, message in enumerate(weighed) if not message.role.is_system), len(weighed))
    later = [message for message in weighed[begun:] if message.role.is_system]
    return [*weighed[:begun], *later[-1:]]


def _said(body: Mapping[str, Any]) -> bytes:
    """Equal for results that say the same."""
    return json.dumps(body.get("content"), sort_keys=True, default=repr).encode("utf-8", "surrogatepass")
