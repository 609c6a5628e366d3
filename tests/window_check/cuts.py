"""Window cuts: one question to one session, planned, rendered and checked."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from math import exp, log
from random import Random

from tests import window_rules as laws
from tests.histories import History, counter
from tests.window_check.sessions import Sitting
from turnfold.core.policy.presets import Policy
from turnfold.core.recall.block import RecallBlock
from turnfold.core.text.token_offsets import STEP_BYTES
from turnfold.core.window.builder import WindowBuilder
from turnfold.core.window.forms import MARK_CHARACTERS, MENDED
from turnfold.core.window.framing import Placement
from turnfold.core.window.rendering.render import Rendered
from turnfold.core.window.views import Entry, ShownMessage
from turnfold.core.window.window import (
    WindowPlan,
    WindowRequest,
    build_window,
    to_plan,
    with_block,
)
from turnfold.errors import CannotFit
from turnfold.messages import Role
from turnfold.operations.query.recall_decisions import RecallWish
from turnfold.operations.query.recall_room import room_for_recall

FULL, DEFAULT = Policy(low_water_ratio=1.0), Policy()
POLICIES = {
    "first fit": FULL,
    "balanced": DEFAULT,
    "low": Policy(low_water_ratio=0.5, keep_tool_blocks=1),
    "small previews": Policy(result_max_tokens=40, arguments_max_tokens=40),
    "no previews": Policy(preview_tokens=0),
}
STAND_IN_TOKENS = 24
"""More than the text that closes an open call can cost."""
RECALLED = "recalled "
MARKER_TOKENS = 3
"""More than a marker in a summary can cost once it is defused."""


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked of a session, and under which policy."""

    asked: WindowRequest
    policy: str


@dataclass(slots=True)
class Tally:
    """What came of many cuts."""

    cuts: int = 0
    sessions: int = 0
    evictions: int = 0
    refused: int = 0
    emergencies: int = 0
    steady: int = 0
    used: dict[tuple[str, str], tuple[float, int]] = field(default_factory=dict)
    failures: list[tuple[int, str]] = field(default_factory=list)

    def add(self, other: "Tally") -> None:
        """Take in what another process found."""
        self.cuts += other.cuts
        self.sessions += other.sessions
        self.evictions += other.evictions
        self.refused += other.refused
        self.emergencies += other.emergencies
        self.steady += other.steady
        self.failures += other.failures
        for key, (total, number) in other.used.items():
            before = self.used.get(key, (0.0, 0))
            self.used[key] = (before[0] + total, before[1] + number)

    def note_use(self, policy: str, origin: str, share: float) -> None:
        """A window left out or shortened something: this share of its budget it used."""
        total, number = self.used.get((policy, origin), (0.0, 0))
        self.used[policy, origin] = (total + share, number + 1)


MEASURED_FROM = 1_000
"""Smaller budgets hold too few messages for a goal: one that does not fit leaves much of them unused."""


class Subject:
    """A session as stored and as told, with the checks of its windows."""

    def __init__(self, sitting: Sitting, weights: dict[str, int]) -> None:
        self.sitting = sitting
        self.stored: History = sitting.stored()
        self.told = sitting.told()
        self._weights = weights
        messages = self.stored.stored.messages
        facts = self.stored.stored.summary
        calls = sum(len(message.calls) for message in messages)
        self.tokens = sum(message.tokens for message in messages) + (facts.tokens if facts else 0)
        markers = facts.tags if facts else 0
        self.most_tokens = (
            self.tokens + STAND_IN_TOKENS * calls + MARKER_TOKENS * markers
        ) * sitting.factor + 1
        self.has_media = any(isinstance(one.body.get("content"), list) for one in sitting.said)
        self.mended = sum(
            message.is_irregular and message.compaction_id is None for message in messages
        )

    def ask(self, question: Question) -> tuple[WindowPlan, Rendered]:
        """One window; with recall, a block takes all the room that the service has for it.

        Raises:
            CannotFit: as the service says it.
        """
        stored, policy, asked = self.stored.stored, POLICIES[question.policy], question.asked
        window = self.window(question)
        made = to_plan(window, stored, asked)
        room = room_for_recall(window, policy, RecallWish(), stored.factor)
        if asked.recall_share and window.request is not None and room:
            block = RecallBlock(RECALLED * (room // 4), room, (), ())
            made = with_block(made, window, asked, stored.factor, block)
        return made, self.stored.rendered(made)

    def window(self, question: Question) -> WindowBuilder:
        """The window before its block is added."""
        return build_window(self.stored.stored, question.asked, POLICIES[question.policy])

    def faults(self, question: Question, made: WindowPlan, rendered: Rendered) -> list[str]:
        """All that is wrong with a window."""
        asked, account = question.asked, made.account
        budget = asked.budget_tokens
        if budget is not None and asked.is_emergency:
            budget = budget * 3 // 5
        found = laws.faults(
            self.told,
            laws.Answer(
                rendered.messages,
                rendered.message_ids,
                {name: getattr(account, name) for name in account.__slots__},
                made.tokens,
                budget,
                asked.max_messages,
                (rendered.summary_text, *rendered.ledger)
                if asked.placement is Placement.SEPARATE
                else (),
                asked.placement is Placement.SYSTEM
                and bool(rendered.summary_text or rendered.ledger),
            ),
            counter(),
            self._weights,
        )
        if self.leaves_out(made) and self.fits_whole(asked):
            found.append("L7: it would have fitted whole")
        blocks = [place for place, text in enumerate(rendered.messages) if is_block(text)]
        if blocks and blocks != [(_place_of(self.told, self.told.request, rendered) or 0) - 1]:
            found.append(f"L11: the block does not stand directly before the request: {blocks}")
        if asked.recall_share and self.cuts_request(made):
            without, _ = self.ask(replace(question, asked=replace(asked, recall_share=0.0)))
            if not self.cuts_request(without):
                found.append("W4: the newest request was cut to make room for recall")
        return found

    def cuts_request(self, made: WindowPlan) -> bool:
        """Whether a window shortens the newest request."""
        place = self.told.request
        if place is None:
            return False
        message_id = self.told.told[place].message_id
        return any(
            entry.message.message_id == message_id
            for entry in made.entries
            if isinstance(entry, ShownMessage) and _is_shortened(entry)
        )

    def leaves_out(self, made: WindowPlan) -> bool:
        """Whether more history was at hand than the window shows."""
        return self.leaves_messages_out(made) or made.account.trimmed > self.mended

    def leaves_messages_out(self, made: WindowPlan) -> bool:
        """Whether whole messages are missing that could stand in a window."""
        loose = len([place for place in self.told.loose if not self.told.told[place].is_pending])
        return made.account.folded > loose

    def could_show_more(self, made: WindowPlan, policy: Policy) -> bool:
        """Whether a window left something out that its policy might show, were there room.

        Not so where every message is there, and results above the policy's cap are as long as the cap lets any result be.
        """
        return self.leaves_out(made) and (
            self.leaves_messages_out(made)
            or any(
                not _is_at_its_cap(entry, policy) for entry in made.entries if _is_shortened(entry)
            )
        )

    def fits_whole(self, asked: WindowRequest) -> bool:
        """Whether there was room for everything, however many calls were open at a time."""
        is_plain = (
            not asked.is_emergency
            and not asked.recall_share
            and asked.max_messages is None
            and asked.placement is Placement.SEPARATE
        )
        return is_plain and (asked.budget_tokens is None or asked.budget_tokens >= self.most_tokens)


def is_block(text: str) -> bool:
    """Whether a text of a window is the block of recall."""
    return RECALLED * 2 in text


def _is_shortened(entry: Entry) -> bool:
    return isinstance(entry, ShownMessage) and not entry.form.is_whole and entry.form != MENDED


def _is_at_its_cap(entry: Entry, policy: Policy) -> bool:
    """Whether a result is as long as the policy lets any be: its cap less the mark, and less a step of the grid at either end."""
    if (
        not isinstance(entry, ShownMessage)
        or entry.form.cut is None
        or entry.message.role is not Role.TOOL
    ):
        return False
    shown = entry.form.cut.head + entry.message.characters - entry.form.cut.tail
    return 0 < policy.tool_result_max_chars - MARK_CHARACTERS - 2 * STEP_BYTES <= shown


def questions(random: Random, tokens: int, number: int) -> Iterator[Question]:
    """What is asked of a session of so many tokens: budgets of every size, most of them too small for it."""
    for turn in range(number):
        budget = _budget(random, tokens)
        policy = (
            "first fit", "balanced", "first fit", "balanced", "low", "small previews", "no previews",
        )[turn % 7]  # fmt: skip
        is_emergency = random.random() < 0.12
        max_messages = random.randint(1, 40) if random.random() < 0.1 else None
        placement = random.choice(list(Placement)) if random.random() < 0.3 else Placement.SEPARATE
        asked = WindowRequest(
            budget_tokens=budget,
            max_messages=max_messages,
            is_emergency=is_emergency,
            placement=placement,
            recall_share=0.5 if not is_emergency and random.random() < 0.2 else 0.0,
        )
        yield Question(asked, policy)


def _budget(random: Random, tokens: int) -> int:
    kind = random.random()
    if kind < 0.5:
        return max(1, int(tokens * random.uniform(0.02, 1.1)))
    if kind < 0.85:
        return int(exp(random.uniform(0, log(tokens * 1.2 + 2))))
    return random.randint(1, 4_000) if kind < 0.95 else random.randint(1, 1_000_000)


def cut(subject: Subject, question: Question, tally: Tally) -> list[str]:
    """Ask once, and again with what a refusal names; everything that is wrong with either."""
    tally.cuts += 1
    try:
        made, rendered = subject.ask(question)
    except CannotFit as refused:
        tally.refused += 1
        return _asked_again(subject, question, refused, tally)
    asked, budget = question.asked, question.asked.budget_tokens
    tally.emergencies += asked.is_emergency
    # Media cannot be shown in part.
    is_measured = (
        question.policy in ("first fit", "balanced")
        and not asked.is_emergency
        and not asked.recall_share
        and asked.max_messages is None
        and not subject.has_media
    )
    if (
        is_measured
        and budget is not None
        and budget >= MEASURED_FROM * subject.sitting.factor
        and subject.could_show_more(made, POLICIES[question.policy])
    ):
        origin = "generated" if subject.sitting.name == "generated" else "recorded"
        tally.note_use(question.policy, origin, made.tokens / budget)
    return subject.faults(question, made, rendered)


def _asked_again(
    subject: Subject, question: Question, refused: CannotFit, tally: Tally
) -> list[str]:
    """A refusal names more than was asked for, and asking with it succeeds; first the tokens, then the messages."""
    asked = question.asked
    for _ in range(2):
        tokens, messages = refused.needed_tokens, refused.needed_messages
        if tokens is not None and asked.budget_tokens is not None and tokens > asked.budget_tokens:
            asked = replace(asked, budget_tokens=tokens)
        elif (
            messages is not None
            and asked.max_messages is not None
            and messages > asked.max_messages
        ):
            asked = replace(asked, max_messages=messages)
        else:
            return [f"C13: {asked} was refused with {tokens} tokens and {messages} messages"]
        tally.cuts += 1
        try:
            made, rendered = subject.ask(replace(question, asked=asked))
        except CannotFit as again:
            if again.needed_tokens is not None and tokens is not None:
                return [f"C13: {tokens} tokens were said to do, and then {again.needed_tokens}"]
            refused = again
            continue
        return subject.faults(replace(question, asked=asked), made, rendered)
    return [f"C13: {asked} was refused three times"]


def steadiness(before: Subject, after: Subject, question: Question, tally: Tally) -> list[str]:
    """One message later: the window begins as it did if both limits have room for that message, and nothing comes back (L11).

    Exceptions are a new system message, what a result replaces, and the block of recall. An emergency window continues no other: it
    follows a window that was too large, and the next one is an ordinary window again.
    """
    newest = after.told.told[-1]
    # No eviction takes the newest request: the message that follows it came before the eviction.
    request = before.told.request
    is_impossible = request is not None and before.told.told[request].is_pending
    if question.asked.is_emergency or is_impossible or newest.body["role"] in laws.SYSTEMS:
        return []
    try:
        old, old_texts = before.ask(question)
        new, new_texts = after.ask(question)
    except CannotFit:
        return []
    tally.cuts += 2
    tally.steady += 1
    found = before.faults(question, old, old_texts) + after.faults(question, new, new_texts)
    # Results that came before their call stand in no window until it comes.
    waited = [
        message
        for message in after.stored.stored.messages
        if message.answers is not None
        and message.answers.position == after.stored.stored.messages[-1].position
    ]
    known = {None, *old_texts.message_ids, newest.message_id, *[one.message_id for one in waited]}
    if back := [one for one in new_texts.message_ids if one not in known]:
        found.append(f"L11: {back} came back")
    window, limits = before.window(question), after.window(question).limits
    grown = after.most_tokens - before.most_tokens + window.total * before.sitting.factor + 1
    grown += sum(one.tokens for one in waited) * after.sitting.factor
    calls = len(after.stored.stored.messages[-1].calls)
    if (
        grown <= limits.arrival_tokens * after.sitting.factor
        and window.size + 1 + calls <= limits.messages
        and not newest.is_pending
    ):
        same = [
            one for one in old_texts.messages[: _unchanged(after, old_texts)] if not is_block(one)
        ]
        if [one for one in new_texts.messages if not is_block(one)][: len(same)] != same:
            found.append(
                "L11: there was room for one message more, and the window begins otherwise"
            )
    return found


def _unchanged(after: Subject, old_texts: Rendered) -> int | None:
    """How many texts of a window stay if the newest message comes: all (None), or those before its stand-in."""
    owner = after.told.answers.get(len(after.told.told) - 1)
    if owner is None:
        return None
    head = _place_of(after.told, owner.head, old_texts)
    return None if head is None else head + 1 + owner.place


def _place_of(told: laws.Session, number: int | None, rendered: Rendered) -> int | None:
    """Where a window shows the message of this number, if it does."""
    ids = [*map(str, rendered.message_ids)]
    name = None if number is None else told.told[number].message_id
    return ids.index(name) if name in ids else None
