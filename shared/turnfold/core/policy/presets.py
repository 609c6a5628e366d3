"""Policies (all numbers of the behavior), and presets (policies by name)."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from enum import StrEnum
from typing import Any, get_args, get_type_hints

from turnfold.messages import MOST_EXACT


class Mode(StrEnum):
    """Who decides when messages leave: nobody, a request, or the triggers."""

    OFF = "off"
    MANUAL = "manual"
    AUTO = "auto"


class Style(StrEnum):
    """How a model writes a summary."""

    NARRATIVE = "narrative"
    STRUCTURED = "structured"


class Commit(StrEnum):
    """When messages leave the window: at once, or only with the summary that covers them."""

    IMMEDIATE = "immediate"
    ON_SUMMARY = "on_summary"


class View(StrEnum):
    """Which steps of the ladder shorten a window before messages are left out."""

    FULL = "full"
    """Every step, LOW before HIGH."""
    NEWEST = "newest"
    """Long single messages are cut, then the oldest are left out, whatever their priority."""
    PREVIEWS = "previews"
    """Large arguments and results become previews."""
    PRIORITY = "priority"
    """A message is shortened only if none of lower priority can be left out."""


MOST_RECALL_SHARE = 0.9
META_PREFIXES = "Reflect on the results and decide"
"""The beginning of user messages that nanobot itself writes after a batch of calls."""
META_PREFIXES_AT_MOST = 4_000
LOW_WATER_RATIO = 0.85
"""The default of `low_water_ratio`. Only with it, the size of turns may make a trim deeper."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """All numbers of the behavior. 0 disables a trigger, a minimum that stays, or a cap.

    `scripts/reference-pages` makes the reference of policy numbers from these lines:

    Triggers:
        mode: `auto`: by triggers; `manual`: only on request; `off`: nothing leaves or is trimmed
        max_live_messages: evict above this many live messages
        messages_ratio: `max_live_messages` evicts only if live messages take at least this share
            of the limit in tokens; 0 if an override sets `max_live_messages`
        max_unread_messages: evict above this many live messages until a window is requested;
            0 if an override sets `max_live_messages`
        trigger_tokens: evict above this many live tokens
        trigger_ratio: evict above this share of the model's window
        reserve_tokens: evict if reported usage exceeds the window minus this (at most half); also
            if live tokens do, unless `trigger_tokens`, `trigger_ratio` or `max_context_tokens` is
            set
        follow_budget: also evict if windows are requested with budgets that are too small
        budget_memory_seconds: how long a requested budget counts for `follow_budget`
        every_rounds: evict after this many rounds
        idle_seconds: evict this many seconds after the last event
        retain_days: erase the session this many days after its last event
        commit: with `on_summary`, messages leave only with their summary

    Evictions:
        keep_messages: minimum that stays, in messages
        keep_tokens: the same in tokens
        keep_rounds: the same in rounds
        keep_ratio: keep this share of the limit that was exceeded instead, in tokens or messages;
            0 if an override sets `keep_tokens` or `keep_at_most_messages`
        keep_at_most_messages: most messages that `keep_tokens` keeps
        max_live_tool_blocks: at most this many tool blocks stay, the newest
        min_gain_messages: minimum gain for `max_live_messages`
        min_gain_tokens: minimum gain for triggers by tokens, usage and idle time
        open_call_timeout_seconds: how long a call without result stays
        image_tokens: tokens per image, sound or file; for the whole installation only

    Windows:
        context_window: window of every model, instead of the tables; 0 disables token and usage
            triggers
        max_context_tokens: most tokens of any window, whatever a request asks for; evicts like a
            model's window of that size
        max_output_tokens: left free for the answer in a computed budget
        margin_tokens: left free in addition
        reserve_ratio: instead of both, leave this share of the model's window and 2,000 tokens
            free; usually 0.15
        floor_tokens: the smallest computed budget
        max_chars: most characters of a window that is requested without `max_tokens`
        max_messages: most messages of any window
        view: how windows are trimmed: `full`, `newest`, `previews`, `priority`
        low_water_ratio: share of the budget to which a window is trimmed
        soft_ratio: window share above which one result is trimmed
        hard_ratio: window share above which all results are trimmed
        shows_pending: pending messages stay in the window while they fit; otherwise their digest
            replaces them
        digest_ratio: share of a window for the digest
        tool_result_max_chars: cap of a result
        user_max_chars: cap of a user's text
        assistant_max_chars: cap of an assistant's text
        reasoning_max_chars: cap of reasoning
        arguments_max_tokens: larger arguments of old calls become previews
        result_max_tokens: larger old results become previews
        preview_tokens: size of a preview
        keep_tool_blocks: newest tool blocks that trimming spares
        meta_prefixes: user messages that begin with one of these texts count as marked `is_meta`;
            separated by `;`
        recall_share: share of a window for recalled messages, at most 0.9; 0: none unless asked for
        recall_max_tokens: most tokens for recalled messages

    Summaries:
        style: `structured` or `narrative`
        uses_model: false means always extractive
        summary_model: an allowed model, or `session`; by default the installation's
        summary_tokens_per_day: an agent's tokens per UTC day, then extractive
        chunk_share: input above this share of the summarizer's window goes in parts
        summary_max_tokens: cap of a version's text
        summary_max_words: cap of its prose in words
        ledger_max_tokens: cap of a version's exact values
        rebuild_every_versions: rewrite from the originals after this many versions
        rebuild_max_tokens: rewrite only from originals of at most this many tokens
    """

    mode: Mode = Mode.AUTO
    commit: Commit = Commit.IMMEDIATE
    style: Style = Style.STRUCTURED
    view: View = View.FULL
    uses_model: bool = True
    summary_model: str | None = None

    max_live_messages: int = 250
    messages_ratio: float = 0.2
    max_unread_messages: int = 50
    trigger_tokens: int = 0
    trigger_ratio: float = 0.6
    reserve_tokens: int = 16_384
    every_rounds: int = 0
    idle_seconds: int = 0
    retain_days: int = 0

    keep_messages: int = 10
    keep_tokens: int = 20_000
    keep_ratio: float = 0.33
    keep_rounds: int = 0
    keep_at_most_messages: int = 25
    max_live_tool_blocks: int = 0
    open_call_timeout_seconds: int = 3_600
    min_gain_tokens: int = 2_000
    min_gain_messages: int = 5

    context_window: int | None = None
    max_context_tokens: int | None = None
    follow_budget: bool = True
    budget_memory_seconds: int = 600
    image_tokens: int = 1_200
    max_output_tokens: int = 8_192
    margin_tokens: int = 4_096
    floor_tokens: int = 4_096
    reserve_ratio: float = 0.0
    max_chars: int = 0
    low_water_ratio: float = LOW_WATER_RATIO
    max_messages: int = 0
    soft_ratio: float = 0.3
    hard_ratio: float = 0.5
    digest_ratio: float = 0.05
    shows_pending: bool = True
    tool_result_max_chars: int = 15_000
    user_max_chars: int = 30_000
    assistant_max_chars: int = 20_000
    reasoning_max_chars: int = 2_000
    arguments_max_tokens: int = 500
    result_max_tokens: int = 600
    preview_tokens: int = 200
    keep_tool_blocks: int = 5
    meta_prefixes: str = META_PREFIXES
    recall_share: float = 0.5
    recall_max_tokens: int = 16_000

    summary_max_tokens: int = 1_200
    summary_max_words: int = 200
    ledger_max_tokens: int = 2_000
    rebuild_every_versions: int = 10
    rebuild_max_tokens: int = 200_000
    chunk_share: float = 0.4
    summary_tokens_per_day: int = 0

    def __post_init__(self) -> None:
        """Reject numbers without a meaning."""
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, bool) or not isinstance(value, int | float):
                continue
            # NaN fails every comparison, so it is rejected here, too.
            if not 0 <= value <= MOST_EXACT:
                raise ValueError(
                    f"{field.name} is {_named(value)}; it is a number from 0 to {MOST_EXACT}"
                )
            if field.name.endswith("_ratio") and value > 1:
                raise ValueError(f"{field.name} is {value}; a ratio is at most 1")
        if self.recall_share > MOST_RECALL_SHARE:
            raise ValueError(
                f"recall_share is {self.recall_share}; "
                f"recall takes at most {MOST_RECALL_SHARE} of a window"
            )
        if len(self.meta_prefixes) > META_PREFIXES_AT_MOST:
            raise ValueError(
                f"meta_prefixes has {len(self.meta_prefixes)} characters; "
                f"at most {META_PREFIXES_AT_MOST} are allowed"
            )
        if self.low_water_ratio == 0:
            raise ValueError("low_water_ratio is 0; it must be above 0")
        if not 0 < self.chunk_share <= 1:
            raise ValueError(
                f"chunk_share is {self.chunk_share}; "
                "it is a share of the summarizer's window, above 0 and at most 1"
            )
        if self.summary_model is not None and not is_model_name(self.summary_model):
            raise ValueError(
                "summary_model must be a model's name without spaces, "
                "such as openai/gpt-4.1-mini, or session"
            )


_MODEL_NAME = re.compile(r"[A-Za-z0-9][\w.:/@+\-\[\]]{0,255}", re.ASCII)


def is_model_name(name: str) -> bool:
    """Return whether a text has the form of a model's name. It need not exist."""
    return _MODEL_NAME.fullmatch(name) is not None


_UNTRIGGERED = Policy(
    max_live_messages=0,
    messages_ratio=0.0,
    max_unread_messages=0,
    trigger_ratio=0.0,
    reserve_tokens=0,
    keep_messages=1,
    keep_tokens=0,
    keep_ratio=0.0,
    keep_at_most_messages=0,
)

PRESETS: Mapping[str, Policy] = {
    "balanced": Policy(),
    "static-buffer": replace(
        _UNTRIGGERED,
        style=Style.NARRATIVE,
        max_live_messages=50,
        keep_messages=10,
        shows_pending=False,
    ),
    "token-budget": replace(
        _UNTRIGGERED,
        reserve_tokens=16_384,
        keep_tokens=20_000,
        view=View.NEWEST,
        soft_ratio=1.0,
        user_max_chars=4_000,
        assistant_max_chars=4_000,
        tool_result_max_chars=4_000,
    ),
    "selective": replace(
        _UNTRIGGERED,
        trigger_ratio=0.85,
        keep_rounds=12,
        max_live_tool_blocks=5,
        commit=Commit.ON_SUMMARY,
        view=View.PREVIEWS,
    ),
    "adaptive": replace(
        _UNTRIGGERED,
        keep_rounds=1,
        image_tokens=300,
        max_messages=50,
        follow_budget=False,
        uses_model=False,
    ),
    "rolling": replace(
        _UNTRIGGERED,
        every_rounds=10,
        keep_messages=10,
        view=View.PRIORITY,
        rebuild_every_versions=5,
    ),
}
DEFAULT_PRESET = "balanced"

FOR_ALL = frozenset({"image_tokens"})
"""Numbers for a whole installation: messages are counted once, when they are stored."""

FIELD_TYPES: Mapping[str, Any] = get_type_hints(Policy)


SET_ASIDE: Mapping[str, frozenset[str]] = {
    "messages_ratio": frozenset({"max_live_messages"}),
    "max_unread_messages": frozenset({"max_live_messages"}),
    "keep_ratio": frozenset({"keep_tokens", "keep_at_most_messages"}),
}
"""Numbers that become 0 if one of these others is set, which then applies by itself."""


def adjusted(policy: Policy, overrides: Mapping[str, Any]) -> Policy:
    """Return the policy with some of its numbers replaced.

    Raises:
        ValueError: no policy has this name, or the value has another type. The message names it.
    """
    unknown = sorted(set(overrides) - set(FIELD_TYPES))
    if unknown:
        nearest = get_close_matches(unknown[0], FIELD_TYPES, n=1)
        advice = f"did you mean {nearest[0]!r}?" if nearest else "`turnfold policy show` lists all"
        raise ValueError(f"a policy has no {unknown[0]!r}; {advice}")
    unused = {name: 0 for name, others in SET_ASIDE.items() if others & overrides.keys()}
    numbers = {**unused, **overrides}
    return replace(policy, **{name: _converted(name, value) for name, value in numbers.items()})


def _converted(name: str, value: Any) -> Any:
    kind = FIELD_TYPES[name]
    accepted = get_args(kind) or (kind,)
    if value is None and type(None) in accepted:
        return None
    # A field of a policy has one type, and may also be unset.
    [target] = (member for member in accepted if member is not type(None))
    try:
        return _as(target, value)
    except (TypeError, ValueError, KeyError, OverflowError) as error:
        kinds = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
        wanted = kinds.get(target) or f"one of {', '.join(target)}"
        raise ValueError(f"{name} cannot be {_named(value)}, but {wanted}") from error


def _named(value: Any) -> str:
    try:
        return repr(value)[:80]
    except (ValueError, RecursionError):
        return "this"


def _as(target: Any, value: Any) -> Any:
    if target is bool:
        if isinstance(value, bool):
            return value
        words = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
        return words[str(value).lower()]
    # In Python a boolean is an int, and `str` and `int` accept more than they keep.
    is_other = isinstance(value, bool) or (target is str and not isinstance(value, str))
    if is_other or (target is int and isinstance(value, float) and not value.is_integer()):
        raise ValueError(value)
    return target(value)


def preset_named(name: str) -> Policy:
    """Return the policy with this name.

    Raises:
        ValueError: no preset has this name. The message lists the presets.
    """
    if name not in PRESETS:
        raise ValueError(f"no preset is called {name!r}; there are {', '.join(sorted(PRESETS))}")
    return PRESETS[name]
