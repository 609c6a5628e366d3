"""Choose the messages that leave the window when a trigger has fired."""

from collections.abc import Collection, Sequence
from operator import attrgetter
from typing import Final, NamedTuple

from turnfold.core.eviction.triggers import FiredTrigger, Trigger
from turnfold.core.history.blocks import Block, group, newest_request
from turnfold.core.policy.presets import Policy
from turnfold.messages import USER, Message


class Keep(NamedTuple):
    """The newest messages that stay: minimums, or a maximum number of messages."""

    tokens: int
    rounds: int
    at_most_messages: int

    @classmethod
    def of(cls, policy: Policy) -> "Keep":
        """Return what a policy keeps, whatever fired."""
        return cls(policy.keep_tokens, policy.keep_rounds, policy.keep_at_most_messages)


_BY_TOKENS: Final = (Trigger.TOKENS, Trigger.BUDGET, Trigger.USAGE)


def decide_eviction(
    live: Sequence[Message],
    policy: Policy,
    trigger: Trigger,
    *,
    now_ms: int,
    keep: Keep | None = None,
) -> tuple[Message, ...]:
    """Return the messages that leave when a trigger has fired, in order of position.

    `keep`, or else the policy, says how many of the newest stay, up to a safe boundary. Also kept
    are the system message, the newest request, blocks with open calls, and the request of every
    kept block. A gain below the minimum evicts nothing.
    """
    grouped = group(live)
    blocks = grouped.blocks
    first_kept = _boundary(blocks, policy, keep or Keep.of(policy))
    old = (*blocks[:first_kept], *_surplus(blocks[first_kept:], policy))
    if not old:
        return ()
    request = newest_request(live)
    border = blocks[first_kept].position if first_kept < len(blocks) else None
    leaving_blocks = [
        block
        for block in old
        # By identity, because `newest_request` returns one of the messages that were grouped.
        if block.head is not request and not _may_be_answered(block, policy, now_ms)
    ]
    needed = _requests_of_kept(blocks, {block.position for block in leaving_blocks})
    leaving: list[Message] = []
    for block in leaving_blocks:
        if block.position not in needed:
            leaving += block.stored
    # Loose messages belong to no block. They leave with the messages around them.
    leaving += [message for message in grouped.loose if border is None or message.position < border]
    evicted = tuple(sorted(leaving, key=attrgetter("position")))
    return evicted if _is_worth_it(evicted, policy, trigger) else ()


def _requests_of_kept(blocks: Sequence[Block], leaving: Collection[int]) -> Collection[int]:
    """Return the positions of the requests of blocks that stay; `leaving` are those that leave.

    An answer without its request misleads a model, and no later window could show both again.
    """
    needed: set[int] = set()
    request: Message | None = None
    for block in blocks:
        head = block.head
        # Rounds begin as in `WindowBuilder`, which shows what stays beside the same request.
        if head.role is USER and (request is None or request.is_meta or not head.is_meta):
            request = head
        elif request is not None and block.position not in leaving:
            needed.add(request.position)
    return needed


def _boundary(blocks: Sequence[Block], policy: Policy, keep: Keep) -> int:
    """Return the index of the first block that stays: at a user message if one is near."""
    needed = len(blocks)
    messages = tokens = rounds = 0
    least = max(policy.keep_messages, 1)
    while needed and (messages < least or not _is_enough(messages, tokens, rounds, keep)):
        needed -= 1
        head, results, joined = blocks[needed]
        if results or joined:
            messages += len(blocks[needed].stored)
            tokens += blocks[needed].tokens
        else:
            messages += 1
            tokens += head.tokens
        rounds += head.is_request
    # Bounded: a long stretch without a user message must not keep everything.
    allowed = max(policy.keep_messages, messages // 2)
    extra = 0
    for index in range(needed, -1, -1):
        if index < needed:
            extra += len(blocks[index].stored)
        if extra > allowed:
            break
        if index < len(blocks) and blocks[index].head.role is USER:
            return index
    return needed


def _surplus(kept: Sequence[Block], policy: Policy) -> Sequence[Block]:
    """Return the oldest tool blocks above the number that is kept."""
    tools = [block for block in kept if block.results]
    return tools[: -policy.max_live_tool_blocks] if policy.max_live_tool_blocks else ()


def _is_enough(messages: int, tokens: int, rounds: int, keep: Keep) -> bool:
    if rounds < keep.rounds:
        return False
    if keep.at_most_messages and messages >= keep.at_most_messages:
        return True
    return tokens >= keep.tokens


def _may_be_answered(block: Block, policy: Policy, now_ms: int) -> bool:
    age_ms = now_ms - block.head.created_at_ms
    return None in block.results and age_ms < policy.open_call_timeout_seconds * 1000


def _is_worth_it(evicted: Sequence[Message], policy: Policy, trigger: Trigger) -> bool:
    # Neither depends on size, so the minimum gain does not apply.
    if trigger in (Trigger.REQUEST, Trigger.ROUNDS):
        return True
    if trigger is Trigger.MESSAGES:
        return len(evicted) >= policy.min_gain_messages
    return sum(message.tokens for message in evicted) >= policy.min_gain_tokens


def first_eviction(
    triggers: Sequence[FiredTrigger],
    live: Sequence[Message],
    policy: Policy,
    *,
    now_ms: int,
    factor: float,
) -> tuple[FiredTrigger | None, tuple[Message, ...]]:
    """Return the first trigger for which enough messages would leave, and those messages.

    `factor` is the calibration factor of the session.
    """
    for trigger in triggers:
        keep = kept_after(policy, trigger, len(live), factor)
        evicted = decide_eviction(live, policy, trigger.trigger, now_ms=now_ms, keep=keep)
        if evicted:
            return trigger, evicted
    return None, ()


def kept_after(policy: Policy, fired: FiredTrigger, live: int, factor: float) -> Keep:
    """Return what stays of `live` messages after this trigger.

    It is a share of the limit that fired, if the policy has one; otherwise at most half of it. The
    limit is in tokens of the model, which are counted tokens times `factor`.
    """
    limit = int(fired.budget_tokens / factor)
    ratio, keep = policy.keep_ratio, Keep.of(policy)
    if ratio and fired.trigger in _BY_TOKENS:
        return keep._replace(tokens=int(ratio * limit), at_most_messages=0)
    if ratio and fired.trigger is Trigger.MESSAGES:
        return keep._replace(at_most_messages=max(keep.at_most_messages, int(ratio * live)))
    if not limit or keep.tokens + policy.min_gain_tokens <= limit:
        return keep
    # Otherwise nothing would leave, or the same trigger would fire at once again.
    return keep._replace(tokens=min(keep.tokens, limit // 2))
