"""Decide the content of a recall block when a request arrives; later steps of the turn reuse it."""

import json
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Final, NamedTuple

from turnfold.cache import LRUCache
from turnfold.contracts.requests import ContextRequest, RecallFields
from turnfold.core.history.blocks import is_turn_boundary
from turnfold.core.policy.presets import Policy
from turnfold.core.recall.block import (
    FRAME_TOKENS,
    RecallBlock,
    write_block,
)
from turnfold.core.recall.mask_ranking import (
    MOST_PLACES_OF_ADDED,
    RELATED,
    SIMILAR,
    add_wishes,
    add_words,
    score_masks,
)
from turnfold.core.recall.material import RecallMaterial
from turnfold.core.recall.question import READ_CHARACTERS as QUERY_CHARACTERS
from turnfold.core.recall.question import (
    WISHES,
    RecallQuestion,
    begins_with,
    question_of,
    related_lookups,
    similar_lookups,
)
from turnfold.core.recall.quotes import (
    NEWEST_MESSAGES,
    READ_CHARACTERS,
    MarkedLine,
    NameNumber,
    best_lines,
    name_numbers,
    with_files,
)
from turnfold.core.recall.ranking import MOST_PLACES, rank, score, times_teller
from turnfold.core.text.tokens import text_of
from turnfold.core.window.builder import WindowBuilder
from turnfold.core.window.forms import Form
from turnfold.messages import Message
from turnfold.operations.query.reading_room import ReadingRoom
from turnfold.ports.recall import Choice, RecallStore, Recollection, SearchedSession

BodyAt = Callable[[int], str]
"""Returns the body of the message at a position. Evaluating the type takes 5 us each time."""
DecisionKey = tuple[int, *tuple[object, ...]]
"""The number of a session, and all else that decides its block."""
DECISIONS_BYTES: Final = 16_000_000
MESSAGE_BYTES: Final = 1_000
"""About the bytes that a message of a cached decision takes in addition to its text."""
LEAST_LEFT: Final = 0.05
"""If less than this share of it is left, no more messages are searched: the block is full."""
FIRST_RANKED: Final = 60
"""The number of messages that are ranked by the words of the question alone."""
RELATED_MESSAGES: Final = 8
"""The number of best messages whose shared words rank the others."""
LEAST_LEFT_TO_SEARCH_AGAIN: Final = 0.1
"""These words are looked up if at least this share of the room is left."""
QUOTES_FOR_QUERY: Final = 0.3
"""The share that lines take first if a request has a query of its own."""
MOST_FILLED: Final = 1_000
"""How many of the newest messages are examined to fill a block."""
SHOWN_CHARACTERS_A_TOKEN: Final = 1
"""About how many characters a token of a preview of arguments shows."""


class HiddenText(NamedTuple):
    """The characters of a message's quotable text that a window cuts out.

    Those from `unclear_from` on may be shown or not.
    """

    characters: range
    unclear_from: int = READ_CHARACTERS


_ALL: Final = HiddenText(range(READ_CHARACTERS))
_NOTHING: Final = HiddenText(range(0))


@dataclass(frozen=True, slots=True)
class RecallWish:
    """The requested recall; without a query, the text of the newest request is used.

    `tokens` and `share` (of the budget) limit the block.
    """

    query: str | None = None
    tokens: int | None = None
    share: float | None = None

    @property
    def weight(self) -> int:
        """About how many bytes it takes in the key of a decision."""
        return MESSAGE_BYTES + 4 * len(self.query or "")

    @staticmethod
    def of(request: ContextRequest, policy: Policy) -> "RecallWish | None":
        """Return the requested recall; None if the request or the policy disables it."""
        asked = request.recall
        if asked is False or request.mode == "emergency":
            return None
        given = request.query if asked is None or asked.query is None else asked.query
        # More is not read, and would be kept in the key of the decision.
        query = (given or "")[:QUERY_CHARACTERS]
        # Callers fill the query from a form or a variable that may be blank.
        if asked is None and not query.strip() and not policy.recall_share:
            return None
        asked = asked or RecallFields()
        return RecallWish(query if query.strip() else None, asked.tokens, asked.share)


@dataclass(frozen=True, slots=True)
class RecallMoment:
    """The window as it was when its block is decided.

    `shown` are the positions of its messages, `hidden` the parts that are cut out of them, and
    `known_names` the names in its summary and digest. `room` is the maximum of raw tokens for the
    block, and `share_of_quotes` the share of them that single lines take first. `until` is the
    position after its newest message. If the turn grew by less than `least_growth` since its
    request, no block is chosen. `request_body` spares a statement; None if it was not read.
    `changes` are those of the session that the window shows.
    """

    sid: int
    request_position: int
    until: int
    shown: frozenset[int]
    hidden: Mapping[int, HiddenText]
    known_names: frozenset[NameNumber]
    room: int
    share_of_quotes: float
    least_growth: int = 0
    request_body: str | None = None
    changes: int | None = None


@dataclass(frozen=True, slots=True)
class RecallDecision:
    """The block of a turn, and what it was written from."""

    block: RecallBlock | None
    recollection: Recollection
    quotes_share: float = 0.0
    shown: Collection[int] = ()

    @property
    def weight(self) -> int:
        """About how many bytes it takes."""
        material = self.recollection.material
        recalled = [
            *material.messages,
            *material.partners,
            *(quote.of for quote in material.quotes),
        ]
        return sum(MESSAGE_BYTES + 4 * entry.message.characters for entry in recalled)

    @property
    def is_partial(self) -> bool:
        """Whether some messages were not searched, because the index has not caught up."""
        return self.recollection.is_partial

    def shows_any(self, positions: frozenset[int]) -> bool:
        """Return whether the block holds any of these messages."""
        return self.block is not None and not positions.isdisjoint(self.block.positions)

    def fitting(self, room: int) -> RecallBlock | None:
        """Return the block; if the turn has outgrown its room, half of it or None."""
        if self.block is None or self.block.tokens <= room:
            return self.block
        # Half, not just what fits: otherwise each step of the turn would show a different block.
        half = self.block.tokens // 2
        if half > room:
            return None
        return write_block(
            self.recollection.material, half, quotes_share=self.quotes_share, shown=self.shown
        )


@dataclass(frozen=True, slots=True)
class Recall:
    """The recall of a query server: where it searches, and what it has decided."""

    store: RecallStore
    decisions: LRUCache[DecisionKey, RecallDecision] = field(
        default_factory=lambda: LRUCache(DECISIONS_BYTES)
    )

    async def decide(
        self, moment: RecallMoment, wish: RecallWish, key: DecisionKey | None
    ) -> RecallDecision:
        """Search the session, write the block, and remember the decision.

        `key` None is not remembered.

        Raises:
            SessionMoved: the session is no longer as the window shows it.
            Unavailable: the database cannot be read now.
        """
        share = moment.share_of_quotes
        # Steps of the turn need other names than its request has.
        is_asked = moment.request_position == moment.until - 1

        def question(body_at: BodyAt) -> RecallQuestion:
            nonlocal share, is_asked
            body = moment.request_body
            if body is None:
                body = body_at(moment.request_position)
            request = text_of(json.loads(body))
            if wish.query is None:
                return question_of(request)
            if not begins_with(request, wish.query):
                # Matches come first, then names that the turn may also need.
                share, is_asked = QUOTES_FOR_QUERY, True
            return question_of(wish.query)

        if not moment.room:
            decision = RecallDecision(None, Recollection(RecallMaterial(), moment.until))
        else:
            recollection = await self.store.recall(
                moment.sid,
                until=moment.until,
                question=question,
                choose=lambda session: _chosen(session, moment, is_asked=is_asked),
                changes=moment.changes,
            )
            shown = moment.shown
            block = write_block(recollection.material, moment.room, quotes_share=share, shown=shown)
            decision = RecallDecision(block, recollection, share, shown)
        if key is not None:
            self.decisions.put(key, decision, decision.weight + wish.weight)
        return decision


def _chosen(session: SearchedSession, moment: RecallMoment, *, is_asked: bool) -> Choice:
    """Choose what to read: the best matches, then the newest while room is left; the best lines.

    `is_asked` if lines with the names of the question come first.
    """
    known = len(session.positions)
    if moment.least_growth:
        request = bisect_right(session.positions, moment.request_position)
        if sum(session.tokens[request:known]) < moment.least_growth:
            return Choice(())
    room = ReadingRoom(session, moment.shown, moment.room - FRAME_TOKENS)
    newest = islice(range(known - 1, -1, -1), MOST_FILLED)
    # An agent at work needs what its tools returned, whoever asks.
    is_talk = not moment.share_of_quotes
    best = ranked(session, room.tokens, lambda: room.share_left, is_talk=is_talk)
    for ordinal in chain(best, newest):
        room.take(ordinal)
        if room.share_left < LEAST_LEFT:
            break
    lines = list(_lines(session, moment, is_asked=is_asked)) if moment.share_of_quotes else ()
    return Choice(list(room.taken), lines)


def ranked(
    session: SearchedSession,
    room: int,
    share_left: Callable[[], float] = lambda: 1.0,
    *,
    is_talk: bool = False,
) -> Iterator[int]:
    """Yield the ordinals of matching messages, best first, up to this many tokens.

    In a short session, words similar to the question's count, too, and words that the best messages
    share rank the later ones: both find messages with other words than the question's. The latter
    are looked up only if a share of the room is left by then. In a talk, without an agent at work,
    a question without a named speaker may be about who asks it, or about the agent: then their
    messages come first. The user's wishes for every answer count for any such question.
    """
    number, tokens = len(session.positions), session.tokens
    if session.masks is None:
        scores = score(session.matches, session.positions, tokens, room, session.speakers)
    else:
        scores = score_masks(session.masks, tokens, number, room, session.speakers)
        similar = session.look_up(similar_lookups(session.question), MOST_PLACES_OF_ADDED)
        add_words(scores, similar, number, SIMILAR)
        if is_talk and not session.speakers:
            [holders] = session.look_up([WISHES], MOST_PLACES)
            add_wishes(scores, holders, session.is_own, number)
    is_about_agent = session.question.is_about_agent

    def ordered() -> list[int]:
        told: Mapping[int, float] = scores
        if is_about_agent is not None and is_talk and not session.speakers:
            told = times_teller(scores, session.is_own, is_about_agent=is_about_agent)
        return rank(told, tokens, session.speakers, is_talk=is_talk)

    best = ordered()
    first = best[:FIRST_RANKED]
    yield from first
    if first and session.masks is not None and share_left() >= LEAST_LEFT_TO_SEARCH_AGAIN:
        lookups = related_lookups(session.texts(first[:RELATED_MESSAGES]), session.question)
        related = session.look_up(lookups, MOST_PLACES_OF_ADDED)
        add_words(scores, related, number, RELATED)
        known = set(first)
        yield from (ordinal for ordinal in ordered() if ordinal not in known)
    else:
        yield from best[FIRST_RANKED:]


def _lines(
    session: SearchedSession, moment: RecallMoment, *, is_asked: bool
) -> Iterator[tuple[int, MarkedLine]]:
    """Yield the best lines that the window does not show, while room is left."""
    known_names = set(moment.known_names)
    quotable: list[tuple[int, MarkedLine]] = []
    # More for a large window, which shows most of the newest itself.
    most = NEWEST_MESSAGES + 2 * len(moment.hidden)
    marked = session.marked_lines(most, session.question.name_lookups if is_asked else ())
    for ordinal, lines in sorted(marked.items(), reverse=True):
        position = session.positions[ordinal]
        hidden = moment.hidden.get(position, _NOTHING if position in moment.shown else _ALL)
        for line in lines:
            if line.start in hidden.characters:
                quotable.append((ordinal, line))
            elif position in moment.hidden and line.start < hidden.unclear_from:
                known_names.update(line.names)
    own = {ordinal for ordinal in marked if session.is_own[ordinal]}
    left = moment.room - FRAME_TOKENS
    newest = len(session.positions) - 1
    for ordinal, line in best_lines(
        marked,
        newest,
        quotable=quotable,
        known=known_names,
        own=own,
        asked=frozenset(name_numbers(with_files(session.question.names))) if is_asked else (),
        sizes=session.tokens,
    ):
        left -= line.tokens
        if left < 0:
            return
        yield ordinal, line


def newest_message(window: WindowBuilder) -> Message | None:
    """Return the newest message that is not an instruction."""
    return next((message for message in reversed(window.taken) if not message.is_pinnable), None)


def deciding_message(window: WindowBuilder) -> Message | None:
    """Return the message at which the block of a window is decided; None without a request.

    That is the newest request, the answer that ended its turn, or the message of a running turn at
    which the window was trimmed, because its beginning changed then anyway. A program may continue
    after an answer that seemed to end the turn.
    """
    if window.request is None:
        return None
    newest = newest_message(window)
    if newest is not None and is_turn_boundary(newest):
        return newest
    changes = (window.request.head.message, window.trimmed_after, window.made_room_after)
    return max(
        (message for message in changes if message is not None),
        key=lambda message: message.position,
    )


def hidden_texts(window: WindowBuilder) -> Mapping[int, HiddenText]:
    """Return what a window cuts out of each message that it shows, by position.

    For cut arguments, it is a guess: about the beginning is shown.
    """
    views = [view for block in window.blocks if block.is_shown for view in block.views]
    return {view.message.position: _hidden(view.form, view.message) for view in views}


def _hidden(form: Form, message: Message) -> HiddenText:
    if form.line is not None:
        return _ALL
    cut = range(0) if form.cut is None else range(form.cut.head, form.cut.tail)
    if not form.arguments:
        return HiddenText(cut)
    if form.cut is not None or len(form.arguments) < len(message.calls):
        # The place at which the arguments of each call begin is unknown here.
        return HiddenText(cut, unclear_from=message.characters)
    start = message.characters + SHOWN_CHARACTERS_A_TOKEN * min(form.arguments.values())
    return HiddenText(range(start, READ_CHARACTERS))


def shown_positions(window: WindowBuilder) -> frozenset[int]:
    """Return the positions of the messages that a window shows in any form."""
    views = [view for block in window.blocks if block.is_shown for view in block.views]
    return frozenset(view.message.position for view in views)
