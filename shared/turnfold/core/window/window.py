"""Decide which messages of a session the model sees next, from token counts alone.

`build_window` is the entry point for the query service and the compressor. Texts are added
afterwards by `render`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil, floor
from typing import Final

from turnfold.core.history.blocks import pinned_message
from turnfold.core.policy.presets import Mode, Policy
from turnfold.core.recall.block import RecallBlock
from turnfold.core.window.budget_shares import UNLIMITED, WindowLimitsByActivity, window_limits
from turnfold.core.window.builder import WindowBuilder
from turnfold.core.window.digest.digest import DigestForm, DigestText
from turnfold.core.window.framing import Placement, SummaryForm, SummarySize
from turnfold.core.window.growth import grow
from turnfold.core.window.ladder import trim_for_emergency
from turnfold.core.window.prefix import PendingDigest, WindowPrefix
from turnfold.core.window.views import BlockContent, Entry, ShownMessage, recall_part
from turnfold.errors import CannotFit
from turnfold.messages import Message, Role, Shape

EMERGENCY_FIFTHS: Final = 3
"""An emergency window takes at most three fifths of its budget."""
RESERVE_MARGIN_TOKENS: Final = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowInput:
    """A stored session without texts: its live and pending messages by position, and counts.

    `total` counts every message of the session, `covered` those that the summary in force covers.
    `factor` is the calibration factor: the model's token count divided by the vocabulary's.
    """

    messages: tuple[Message, ...]
    pending: tuple[PendingDigest, ...] = ()
    summary: SummarySize | None = None
    covered: int = 0
    total: int = 0
    factor: float = 1.0
    covered_calls: tuple[Message, ...] = ()
    covered_system: Message | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowRequest:
    """The limits of a caller; None means no limit.

    `max_messages` does not count the pinned system message. `aside_tokens` (raw counts) and
    `aside_messages` stay free for additions by the shape of the answer. With `tells_omitted`, a
    digest describes the omitted messages. `recall_share` of the tokens stays free for a
    recall block when a request arrives, and more if the agent does not act, most if `is_asked`: the
    request has a query of its own.
    """

    budget_tokens: int | None = None
    max_messages: int | None = None
    is_emergency: bool = False
    placement: Placement = Placement.SEPARATE
    shape: Shape = Shape.CHAT
    aside_tokens: int = 0
    aside_messages: int = 0
    tells_omitted: bool = True
    recall_share: float = 0.0
    is_asked: bool = False


@dataclass(frozen=True, slots=True)
class WindowAccount:
    """Counts of all messages of the session, by where they are; the names of the contract."""

    total: int
    shown: int
    trimmed: int
    folded: int
    covered: int
    pending_shown: int
    pending_digested: int
    recalled: int
    synthesised: int
    folded_told: int
    untold: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowPlan:
    """A window without texts: pinned message, summary, digests and blocks, in this order.

    `tokens` and `budget_tokens` are in tokens of the session's model. `digest` describes the
    messages that are left out.
    """

    pinned: Message | None
    summary: SummaryForm | None
    placement: Placement
    shape: Shape
    digest: DigestText
    parts: tuple[BlockContent, ...]
    account: WindowAccount
    tokens: int
    budget_tokens: int | None

    @property
    def entries(self) -> tuple[Entry, ...]:
        """The messages of the blocks, in order."""
        return tuple(entry for part in self.parts for entry in part.entries)

    @property
    def positions(self) -> tuple[int, ...]:
        """The positions of the messages whose bodies are needed to render the window, in order."""
        shown = [
            position for part in self.parts if part.texts is None for position in part.positions
        ]
        return tuple(sorted([*shown, self.pinned.position] if self.pinned else shown))

    @property
    def elements(self) -> frozenset[int]:
        """The positions that are rendered as they were published, not as chat messages."""
        if self.shape is Shape.CHAT:
            return frozenset()
        messages = [
            message
            for entry in self.entries
            if isinstance(entry, ShownMessage)
            for message in (entry.message, *entry.joined)
        ]
        if self.pinned is not None and self.shows_pinned_as_stored:
            messages.append(self.pinned)
        return frozenset(
            [message.position for message in messages if message.element.shape is self.shape]
        )

    @property
    def shows_pinned_as_stored(self) -> bool:
        """Whether nothing is appended to the pinned message."""
        return self.summary is None or self.placement is not Placement.SYSTEM


def build_window(
    stored: WindowInput, asked: WindowRequest, policy: Policy, earlier: WindowBuilder | None = None
) -> WindowBuilder:
    """Build the window of a session: add its messages in order, and trim whenever it is too large.

    `earlier` is the result of the same request some messages ago, and only saves work. It is
    continued if that gives the same window; otherwise its rendered texts are reused.

    Raises:
        CannotFit: the pinned system message, the newest request and the newest open block exceed
            the budget even at their shortest (with mode `off`: the whole history does).
    """
    limits = _limits(asked, policy, stored.factor)
    new = None
    if earlier is not None and not asked.is_emergency:
        new = _new_messages(earlier, stored, asked, policy, limits)
    if earlier is not None and new is not None:
        window = earlier
    else:
        prefix = _prefix(stored, asked, pinned_message(stored.messages))
        window = WindowBuilder(limits, policy, prefix, tells_omitted=asked.tells_omitted)
        new = stored.messages
    if policy.mode is Mode.OFF:
        window.extend(new)
        _shorten_digest(window)
    elif asked.is_emergency:
        window.extend(new)
        trim_for_emergency(window)
    else:
        grow(window, new)
    needed = _needed_messages(window, asked) if window.size > window.limits.messages else 0
    is_long = needed > window.limits.messages + asked.aside_messages
    if window.total > window.limits.tokens:
        # In other modes a larger budget may change the messages.
        messages = needed if is_long and policy.mode is Mode.OFF else None
        raise _too_long(window.total, stored.factor, asked, messages)
    if is_long:
        raise CannotFit(f"the window needs {needed} messages", needed_messages=needed)
    if earlier is not None and window is not earlier:
        _inherit(window, earlier)
    return window


def _shorten_digest(window: WindowBuilder) -> None:
    """Shorten the digest of a window that may lose no message, as far as needed."""
    for form in (DigestForm.NAMES, DigestForm.SHORT, DigestForm.NONE):
        if window.is_over:
            window.shorten_digest(form)
            window.can_continue = False


def _needed_messages(window: WindowBuilder, asked: WindowRequest) -> int:
    """Return the window's size; a shape may add a message before an answer that begins it."""
    first = next((block for block in window.blocks if block.is_shown), None)
    is_whole = first is not None and first.head.message.role is not Role.ASSISTANT
    return window.size + (0 if is_whole else asked.aside_messages)


def _inherit(window: WindowBuilder, earlier: WindowBuilder) -> None:
    """Reuse the rendered texts of blocks that are shown as before."""
    parts = {block.position: block.part for block in earlier.blocks if block.is_shown}
    for block in window.blocks:
        if (
            block.is_shown
            and (part := parts.get(block.position)) is not None
            and part.reads_like(block.part)
        ):
            block.part.texts = part.texts


def _new_messages(
    earlier: WindowBuilder,
    stored: WindowInput,
    asked: WindowRequest,
    policy: Policy,
    limits: WindowLimitsByActivity,
) -> Sequence[Message] | None:
    """Return the messages that an earlier window lacks; None if it cannot be continued.

    It can if everything that it was built from is the same, and comes before what is new.
    """
    known = len(earlier.taken)
    # An eviction, a retraction or a message that came late changes what was taken.
    if earlier.taken != list(stored.messages[:known]):
        return None
    new = stored.messages[known:]
    # A covered system message is taken from what is stored now: a retraction may change it.
    pinned = None if earlier.prefix.is_pinned_covered else earlier.prefix.pinned
    prefix = _prefix(stored, asked, pinned_message(new) or pinned)
    is_same = (earlier.all_limits, earlier.policy, earlier.prefix) == (limits, policy, prefix)
    return new if is_same and (earlier.can_continue or not new) else None


def _prefix(stored: WindowInput, asked: WindowRequest, pinned: Message | None) -> WindowPrefix:
    return WindowPrefix(
        pinned=pinned or stored.covered_system,
        is_pinned_covered=pinned is None and stored.covered_system is not None,
        summary=stored.summary,
        placement=asked.placement,
        shape=asked.shape,
        pending={row.compaction_id: row for row in stored.pending},
        covered_calls=stored.covered_calls,
    )


def budget_of(
    *,
    max_tokens: int | None,
    model_window: int,
    policy: Policy,
    system_tokens: int = 0,
    tools_tokens: int = 0,
    max_output_tokens: int | None = None,
) -> int:
    """Return the budget of a window: `max_tokens`, or else the tokens that the model leaves.

    The `max_context_tokens` of the policy limits both.

    The caller's other tokens and the answer are subtracted from the model's window; a policy with
    a `reserve_ratio` keeps a share of the window free for the answer. The floor of the policy
    applies last, but never exceeds the model's window unless that is unknown (0).
    """
    ceiling = policy.max_context_tokens or UNLIMITED
    if max_tokens is not None:
        return min(max_tokens, ceiling)
    usable = int((1 - policy.reserve_ratio) * model_window)
    if policy.reserve_ratio:
        reserved = RESERVE_MARGIN_TOKENS
    else:
        reserved = policy.margin_tokens + (
            policy.max_output_tokens if max_output_tokens is None else max_output_tokens
        )
    budget = usable - reserved - system_tokens - tools_tokens
    floor_tokens = min(policy.floor_tokens, usable) if model_window > 0 else policy.floor_tokens
    return min(max(budget, floor_tokens), ceiling)


def _limits(asked: WindowRequest, policy: Policy, factor: float) -> WindowLimitsByActivity:
    # The most tokens that the window may take, as its model counts them.
    cap = UNLIMITED
    if asked.budget_tokens is not None:
        cap = asked.budget_tokens * (EMERGENCY_FIFTHS if asked.is_emergency else 5) // 5
    tokens = floor(cap / factor)
    # Rounding up may bill a token more than the cap.
    while billed(tokens, factor) > cap:
        tokens -= 1
    tokens = max(0, tokens - asked.aside_tokens)
    most = [most for most in (policy.max_messages or None, asked.max_messages) if most is not None]
    messages = min(most) - asked.aside_messages if most else UNLIMITED
    return window_limits(tokens, messages, asked.recall_share, policy, is_asked=asked.is_asked)


def billed(tokens: int, factor: float) -> int:
    """Convert raw counts to tokens of the session's model."""
    return ceil(tokens * factor) if factor != 1.0 else tokens


def emergency_budget(tokens: int) -> int:
    """Return the budget of which an emergency window may take this many tokens."""
    # Rounded up, so that three fifths of the result are enough.
    return -(-tokens * 5 // EMERGENCY_FIFTHS)


def _too_long(tokens: int, factor: float, asked: WindowRequest, messages: int | None) -> CannotFit:
    needed = billed(tokens + asked.aside_tokens, factor)
    needed = emergency_budget(needed) if asked.is_emergency else needed
    text = f"the smallest window of this session needs a budget of {needed} tokens"
    if messages is not None:
        text += f" and {messages} messages"
    return CannotFit(text, needed_tokens=needed, needed_messages=messages)


def to_plan(window: WindowBuilder, stored: WindowInput, asked: WindowRequest) -> WindowPlan:
    """Return the plan of a window that `build_window` made from these values."""
    parts, account = _shown(window, stored)
    return WindowPlan(
        pinned=window.prefix.pinned,
        summary=window.summary,
        placement=asked.placement,
        shape=asked.shape,
        digest=window.digest.content,
        parts=tuple(parts),
        account=account,
        tokens=billed(window.total + asked.aside_tokens, stored.factor) if window.total else 0,
        budget_tokens=asked.budget_tokens,
    )


def with_block(
    plan: WindowPlan, window: WindowBuilder, asked: WindowRequest, factor: float, block: RecallBlock
) -> WindowPlan:
    """Return the plan of a window with a block that fits, directly before the newest request."""
    shown = [other for other in window.blocks if other.is_shown]
    # A plan has one part per shown block, in the same order, so one index fits both.
    place = shown.index(window.request) if window.request is not None else len(shown)
    return replace(
        plan,
        parts=(*plan.parts[:place], recall_part(block.text), *plan.parts[place:]),
        account=replace(plan.account, recalled=len(block.positions)),
        tokens=billed(window.total + block.tokens + asked.aside_tokens, factor),
    )


def _shown(window: WindowBuilder, stored: WindowInput) -> tuple[list[BlockContent], WindowAccount]:
    """Return the shown blocks, and count every message of the session once, by where it is."""
    pinned = window.prefix.pinned
    is_covered = window.prefix.is_pinned_covered
    is_live = pinned is not None and not is_covered and pinned.compaction_id is None
    parts: list[BlockContent] = []
    live_shown = int(is_live)
    pending_shown = int(pinned is not None and not is_covered) - live_shown
    trimmed = synthesised = 0
    # In one pass: a window has hundreds of blocks, and each request plans one.
    for block in window.blocks:
        if not block.is_shown:
            continue
        part = block.part
        parts.append(part)
        if block.compaction_id is None:
            live_shown += part.stored
            trimmed += part.trimmed
        else:
            pending_shown += part.stored
        if block.results:
            synthesised += block.results.count(None)
    return parts, WindowAccount(
        total=stored.total,
        shown=live_shown + is_covered,
        trimmed=trimmed,
        folded=window.live - live_shown,
        covered=stored.covered - is_covered,
        pending_shown=pending_shown,
        pending_digested=len(stored.messages) - window.live - pending_shown,
        recalled=0,
        synthesised=synthesised,
        folded_told=window.digest.told,
        untold=window.digest.untold,
    )
