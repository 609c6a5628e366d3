"""Compressing a list of chat messages that nobody stored: the same window, decided and rendered from the list itself."""

import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from turnfold.core.history.pairing import CallPosition, ResultPosition, match_results
from turnfold.core.history.validity import validation_errors
from turnfold.core.policy.presets import Policy
from turnfold.core.text.estimates import estimate
from turnfold.core.text.tokens import MessageTokens, is_long, measure_with, text_of
from turnfold.core.window.assembler import SYSTEM_ROLES
from turnfold.core.window.render import entry_body
from turnfold.core.window.truncation import WHOLE
from turnfold.core.window.views import MessageView, ShownMessage, SynthesizedResult
from turnfold.core.window.window import (
    EMERGENCY_FIFTHS,
    UNLIMITED,
    WindowInput,
    WindowRequest,
    build_window,
)
from turnfold.errors import BadRequest, CannotFit
from turnfold.messages import ROLES, EventId, Json, Message, Role, UncountedText, UnrankedMessage

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

    def compress(
        self, messages: Sequence[Json], budget_tokens: int, *, is_emergency: bool = False
    ) -> Compressed:
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
        measured = measured_list(messages, [text_of(body) for body in messages], self.count)
        return sum([one.tokens for one in measured])

    def compress(
        self, messages: Sequence[Json], budget_tokens: int, *, is_emergency: bool = False
    ) -> Compressed:
        """A list that fits and may be sent comes back as it is.

        Raises:
            BadRequest: an entry is no chat message.
            CannotFit: see `Compressor.compress`; with `needed_messages` where the policy shows fewer messages than that.
        """
        bodies = [dict(body) for body in messages]
        texts = [text_of(body) for body in bodies]
        measured = measured_list(bodies, texts, self.count)
        total = sum([one.tokens for one in measured])
        cap = budget_tokens * EMERGENCY_FIFTHS // 5 if is_emergency else budget_tokens
        if (
            bodies
            and total <= cap
            and _others(bodies) <= (self.policy.max_messages or UNLIMITED)
            and not validation_errors(bodies)
        ):
            return Compressed(bodies, total)
        weighed = weighed_list(
            bodies,
            measured,
            [UncountedText(text, self.count) if is_long(text) else "" for text in texts],
        )
        rest = tuple([message for message in weighed if not message.role.is_system])
        kept = _kept_systems(weighed)
        system_tokens = sum([message.tokens for message in kept])
        left = max(cap - system_tokens, 0)
        asked = WindowRequest(
            budget_tokens=-(-left * 5 // EMERGENCY_FIFTHS) if is_emergency else left,
            is_emergency=is_emergency,
        )
        try:
            window = build_window(WindowInput(messages=rest, total=len(rest)), asked, self.policy)
        except CannotFit as error:
            if error.needed_tokens is None:
                raise
            needed = error.needed_tokens + (
                -(-system_tokens * 5 // EMERGENCY_FIFTHS) if is_emergency else system_tokens
            )
            raise CannotFit(
                f"the smallest list of these messages needs a budget of {needed} tokens",
                needed_tokens=needed,
            ) from error
        if system_tokens > cap:
            needed = (
                -(-(system_tokens + window.total) * 5 // EMERGENCY_FIFTHS)
                if is_emergency
                else system_tokens + window.total
            )
            raise CannotFit(
                f"the system messages alone count {system_tokens} tokens", needed_tokens=needed
            )
        places = [place for unit in window.units if unit.is_shown for place in unit.places]
        shown = [bodies[message.position] for message in kept] + [
            self._as_sent(place, bodies) for place in places
        ]
        omitted = (
            len(bodies)
            - len(shown)
            + sum([isinstance(place, SynthesizedResult) for place in places])
        )
        return Compressed(
            shown, system_tokens + window.total, is_whole=shown == bodies, omitted=omitted
        )

    def _as_sent(
        self, place: MessageView | SynthesizedResult, bodies: Sequence[dict[str, Any]]
    ) -> dict[str, Any]:
        """What stands in the list in this place: the very message that was given, where it is shown whole."""
        if isinstance(place, SynthesizedResult):
            return entry_body(place, {})
        body, form = bodies[place.message.position], place.form
        return (
            body
            if form is WHOLE
            else entry_body(
                ShownMessage(place.message, form, place.call), _copied(body), self.count
            )
        )


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


def measured_list(
    bodies: Sequence[Json], texts: Sequence[str], count: Callable[[str], int]
) -> list[MessageTokens]:
    """What each message of a list holds; `texts` are theirs (`text_of`)."""
    # All texts first, and nothing between two of them: what a tokenizer looks up stays near the processor.
    tokens = [count(text) if text else 0 for text in texts]
    return [
        measure_with(body, text, text_tokens, count)
        for body, text, text_tokens in zip(bodies, texts, tokens, strict=True)
    ]


def weighed_list(
    bodies: Sequence[Json], measured: Sequence[MessageTokens], cuts: Sequence[UncountedText | str]
) -> list[Message]:
    """The messages of a list as numbers and relations; the position of each is its index. `cuts` price their long texts.

    Raises:
        BadRequest: an entry has no role of a chat message.
    """
    called: dict[str, dict[str, Any]] = {}
    calls: defaultdict[str, list[CallPosition]] = defaultdict(list)
    results: defaultdict[str, list[int]] = defaultdict(list)
    found: list[Message] = []
    for index, (body, one, text_cuts) in enumerate(zip(bodies, measured, cuts, strict=True)):
        name = body.get("role")
        role = ROLES.get(name) if isinstance(name, str) else None
        if role is None:
            raise BadRequest(
                f"message {index} has the role {name!r}; a chat message has one of {', '.join(sorted(ROLES))}"
            )
        own_calls = one.calls if role is Role.ASSISTANT else ()
        for call in one.calls:
            called[call.call_id] = body["tool_calls"][call.slot]
        for call in own_calls:
            calls[call.call_id].append(CallPosition(index, call.slot))
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
                one.tokens,
                one.content_tokens,
                one.reasoning_tokens,
                one.characters,
                one.lines,
                UnrankedMessage(body, answered),
                own_calls,
                is_irregular=one.is_irregular or len(own_calls) < len(one.calls),
                cuts=text_cuts,
            )
        )
    for call_id, indices in results.items():
        # What they say matters only where there are several.
        seen = [
            ResultPosition(index, _said(bodies[index]) if len(indices) > 1 else b"")
            for index in indices
        ]
        for position, verdict in match_results(calls[call_id], seen).items():
            found[position].answers, found[position].is_copy = verdict.answers, verdict.is_copy
    return found


def _others(bodies: Sequence[Json]) -> int:
    """How many are no system messages."""
    return sum([body.get("role") not in SYSTEM_ROLES for body in bodies])


def _kept_systems(weighed: Sequence[Message]) -> list[Message]:
    """The system messages a list begins with, and the newest of the others."""
    begun = next(
        (index for index, message in enumerate(weighed) if not message.role.is_system), len(weighed)
    )
    later = [message for message in weighed[begun:] if message.role.is_system]
    return [*weighed[:begun], *later[-1:]]


def _said(body: Mapping[str, Any]) -> bytes:
    """Equal for results that say the same."""
    return json.dumps(body.get("content"), sort_keys=True, default=repr).encode(
        "utf-8", "surrogatepass"
    )
