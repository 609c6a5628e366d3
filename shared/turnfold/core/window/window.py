"""The window: what of a session a model sees next, decided on numbers alone."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor
from typing import Final

from turnfold.core.history.blocks import newest_system
from turnfold.core.policy.presets import Mode, Policy
from turnfold.core.window.builder import PendingDigest, WindowBuilder, WindowLimits, WindowPrefix
from turnfold.core.window.framing import Placement, SummaryForm, SummarySize
from turnfold.core.window.ladder import trim_for_emergency, trim_to_budget
from turnfold.core.window.views import BlockContent, Entry
from turnfold.errors import CannotFit
from turnfold.messages import CompactionId, Message

UNLIMITED: Final = 1 << 52
EMERGENCY_FIFTHS: Final = 3
"""An emergency window takes three fifths of its budget at most."""

RESERVE_MARGIN_TOKENS: Final = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowInput:
    """A session as it is stored, without texts: what is live or pending by position, and counts of the rest.

    `total` counts every message of the session, `covered` those the summary in force stands for. `factor` is by how
    much the session's model counts more than the vocabulary does.
    """

    messages: tuple[Message, ...]
    pending: tuple[PendingDigest, ...] = ()
    summary: SummarySize | None = None
    covered: int = 0
    total: int = 0
    factor: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowRequest:
    """What a caller has room for. No `budget_tokens` means any size; `max_messages` counts all but the pinned system message.

    `aside_tokens` (raw counts) and `aside_messages` are kept free for what the shape of the answer may add.
    """

    budget_tokens: int | None = None
    max_messages: int | None = None
    is_emergency: bool = False
    placement: Placement = Placement.SEPARATE
    aside_tokens: int = 0
    aside_messages: int = 0


@dataclass(frozen=True, slots=True)
class WindowAccount:
    """Where every message of the session is, in the words of the contract."""

    total: int
    shown: int
    trimmed: int
    folded: int
    covered: int
    pending_shown: int
    pending_digested: int
    recalled: int
    synthesised: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowPlan:
    """A window without its texts: the pinned message, the summary, the digests, then the blocks, in this order.

    `tokens` and `budget_tokens` are what the session's model counts. `positions` are the messages whose bodies are
    needed to render it; `digests` the rows whose digest is shown.
    """

    pinned: Message | None
    summary: SummaryForm | None
    placement: Placement
    digests: tuple[CompactionId, ...]
    parts: tuple[BlockContent, ...]
    account: WindowAccount
    tokens: int
    budget_tokens: int | None

    @property
    def entries(self) -> tuple[Entry, ...]:
        """What the blocks show, message by message."""
        return tuple(entry for part in self.parts for entry in part.entries)

    @property
    def positions(self) -> tuple[int, ...]:
        """The positions of the messages whose texts are still to be read, in order."""
        shown = [
            position for part in self.parts if part.texts is None for position in part.positions
        ]
        return tuple(sorted([*shown, self.pinned.position] if self.pinned else shown))


def plan(stored: WindowInput, asked: WindowRequest, policy: Policy) -> WindowPlan:
    """Decide what of a session a model sees next; a pure function.

    Raises:
        CannotFit: as `grown`.
    """
    return to_plan(build_window(stored, asked, policy), stored, asked)


def build_window(
    stored: WindowInput, asked: WindowRequest, policy: Policy, earlier: WindowBuilder | None = None
) -> WindowBuilder:
    """The window of a session: how it grew is replayed, and it is trimmed whenever it outgrew its budget.

    `earlier`, what this returned for the same question some messages ago, saves work: it is continued where that comes to
    the same, and else what was rendered of it is used again.

    Raises:
        CannotFit: not even the pinned system message, the newest request and the newest open block fit, as short as
            they can be (with mode `off`: the whole history does not); it names what would.
    """
    limits = _limits(asked, policy, stored.factor)
    window, new = _begun(stored, asked, policy, limits, earlier)
    window.extend(new)
    if asked.is_emergency and not window.never_overflows:
        trim_for_emergency(window)
    if window.total > limits.tokens:
        raise _too_long(window.total, stored.factor, asked)
    if window.size > limits.messages:
        needed = window.size + asked.aside_messages
        raise CannotFit(f"the window needs {needed} messages", needed_messages=needed)
    if earlier is not None and window is not earlier:
        _inherit(window, earlier)
    return window


def _inherit(window: WindowBuilder, earlier: WindowBuilder) -> None:
    """Take over the texts of what is shown as it was."""
    parts = {unit.position: unit.part for unit in earlier.units if unit.is_shown}
    for unit in window.units:
        if (
            unit.is_shown
            and (part := parts.get(unit.position)) is not None
            and part.reads_like(unit.part)
        ):
            unit.part.texts = part.texts


def _begun(
    stored: WindowInput,
    asked: WindowRequest,
    policy: Policy,
    limits: WindowLimits,
    earlier: WindowBuilder | None,
) -> tuple[WindowBuilder, Sequence[Message]]:
    """A window to grow, and the messages it still has to take in."""
    messages = stored.messages
    rows = {row.compaction_id: row for row in stored.pending}
    if (
        earlier is not None
        and not asked.is_emergency
        and earlier.taken == list(messages[: len(earlier.taken)])
    ):
        new = messages[len(earlier.taken) :]
        frame = WindowPrefix(
            pinned=newest_system(new) or earlier.frame.pinned,
            facts=stored.summary,
            placement=asked.placement,
            rows=rows,
        )
        is_same = (earlier.can_continue or not new) and (
            earlier.limits,
            earlier.policy,
            earlier.frame,
        ) == (limits, policy, frame)
        if is_same and (
            not earlier.never_overflows or policy.mode is Mode.OFF or earlier.has_room_for(new)
        ):
            return earlier, new
    frame = WindowPrefix(
        pinned=newest_system(messages), facts=stored.summary, placement=asked.placement, rows=rows
    )
    window = WindowBuilder(
        limits, policy, frame, relieve=None if asked.is_emergency else trim_to_budget
    )
    window.never_overflows = policy.mode is Mode.OFF or (
        not asked.is_emergency and window.has_room_for(messages)
    )
    return window, messages


def budget_of(
    *,
    max_tokens: int | None,
    model_window: int,
    policy: Policy,
    system_tokens: int = 0,
    tools_tokens: int = 0,
    max_output_tokens: int | None = None,
) -> int:
    """How many tokens a window may take: what was asked for, else what the model's window leaves.

    What the caller sends besides and the answer are taken off the model's window; with a `reserve_ratio` a share of the
    window is left free for the answer. The floor is never above what that leaves, unless the window is 0 and says nothing.
    """
    if max_tokens is not None:
        return max_tokens
    most = int((1 - policy.reserve_ratio) * model_window)
    if policy.reserve_ratio:
        reserved = RESERVE_MARGIN_TOKENS
    else:
        reserved = policy.margin_tokens + (
            policy.max_output_tokens if max_output_tokens is None else max_output_tokens
        )
    budget = most - reserved - system_tokens - tools_tokens
    return max(budget, min(policy.floor_tokens, most) if model_window > 0 else policy.floor_tokens)


def _cap(asked: WindowRequest) -> int:
    """The tokens the window may take as its model counts them."""
    if asked.budget_tokens is None:
        return UNLIMITED
    return (
        asked.budget_tokens * EMERGENCY_FIFTHS // 5 if asked.is_emergency else asked.budget_tokens
    )


def _limits(asked: WindowRequest, policy: Policy, factor: float) -> WindowLimits:
    cap = _cap(asked)
    tokens = floor(cap / factor)
    while _billed(tokens, factor) > cap:
        tokens -= 1
    tokens = max(0, tokens - asked.aside_tokens)
    messages = min(
        policy.max_messages or UNLIMITED,
        UNLIMITED if asked.max_messages is None else asked.max_messages - asked.aside_messages,
    )
    return WindowLimits(
        tokens=tokens,
        target_tokens=floor(policy.low_water_ratio * tokens),
        messages=messages,
        target_messages=floor(policy.low_water_ratio * messages),
    )


def _billed(tokens: int, factor: float) -> int:
    """What a model counts for so many tokens."""
    return ceil(tokens * factor) if factor != 1.0 else tokens


def _too_long(tokens: int, factor: float, asked: WindowRequest) -> CannotFit:
    needed = _billed(tokens + asked.aside_tokens, factor)
    if asked.is_emergency:
        needed = -(-needed * 5 // EMERGENCY_FIFTHS)
    return CannotFit(
        f"the smallest window of this session needs a budget of {needed} tokens",
        needed_tokens=needed,
    )


def to_plan(window: WindowBuilder, stored: WindowInput, asked: WindowRequest) -> WindowPlan:
    """What a window shows that was `grown` from these values."""
    units = [unit for unit in window.units if unit.is_shown]
    parts = [unit.part for unit in units]
    live = [part for unit, part in zip(units, parts, strict=True) if unit.row is None]
    pinned = window.frame.pinned
    live_shown = sum([part.stored for part in live]) + (
        pinned is not None and pinned.compaction_id is None
    )
    stored_shown = sum([part.stored for part in parts])
    pending_shown = stored_shown + (pinned is not None) - live_shown
    account = WindowAccount(
        total=stored.total,
        shown=live_shown,
        trimmed=sum([part.trimmed for part in live]),
        folded=window.live - live_shown,
        covered=stored.covered,
        pending_shown=pending_shown,
        pending_digested=len(stored.messages) - window.live - pending_shown,
        recalled=0,
        synthesised=sum([len(part.entries) for part in parts]) - stored_shown,
    )
    return WindowPlan(
        pinned=pinned,
        summary=window.summary,
        placement=asked.placement,
        digests=tuple(row for row in window.frame.rows if row in window.digested),
        parts=tuple(parts),
        account=account,
        tokens=_billed(window.total + asked.aside_tokens, stored.factor) if window.total else 0,
        budget_tokens=asked.budget_tokens,
    )
