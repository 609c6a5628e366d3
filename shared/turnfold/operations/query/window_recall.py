"""Add the recall block to a window, as decided at an earlier moment of the turn."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import NamedTuple

from turnfold.core.history.as_of import AsOf, AtMessage, AtTime, AtVersion
from turnfold.core.recall.quotes import NameNumber, numbers_in_lines
from turnfold.core.window.rendering.render import visible_summary
from turnfold.errors import BadRequest, CannotFit
from turnfold.messages import Message
from turnfold.operations.query.planning import PlannedWindow, WindowReading, fingerprint
from turnfold.operations.query.recall_decisions import (
    DecisionKey,
    Recall,
    RecallDecision,
    RecallMoment,
    RecallWish,
    deciding_message,
    hidden_texts,
    shown_positions,
)
from turnfold.operations.query.recall_room import room_for_recall, share_of_quotes
from turnfold.operations.query.replies import prepared_summary
from turnfold.ports.query import (
    SessionSnapshot,
    WindowSnapshot,
    WindowStore,
)


async def with_recall(
    planned: PlannedWindow,
    reading: WindowReading,
    store: WindowStore,
    recall: Recall | None,
    bodies: Mapping[int, str],
) -> PlannedWindow:
    """Add the recall block of a window, if the request wants one and anything is not shown.

    `bodies` are those that were read for the window.

    The block is decided from the window as it was while the deciding message was the newest, so
    that every step of the turn, on every server, shows the same one. A new version of the summary
    changes the beginning of the window, so it may change the block: always until the next message,
    later only if the turn has outgrown the room of its request, or if its request has no block.

    Raises:
        SessionMoved: the session is no longer as the window shows it.
    """
    session, builder = planned.snapshot.session, planned.builder
    wish = RecallWish.of(planned.request, planned.policy)
    if wish is None or recall is None or session is None or builder.request is None:
        return planned
    message = deciding_message(builder)
    if message is None or planned.shows_everything:
        return planned
    taken = builder.taken
    after = bisect_right(taken, message.position, key=attrgetter("position"))
    moments = _moments(planned, message, following=taken[after] if after < len(taken) else None)
    # Later steps find this decision again, but not after an event came late or moved.
    until_then = session.messages_total - (len(taken) - after)
    state = (session.retracted_seq, session.evicted_changes, until_then, session.version)
    position = builder.request.position
    deciding = _Deciding(
        planned, reading, store, recall, wish, session, position, bodies.get(position), state
    )
    for moment in moments:
        try:
            decision = await deciding.decision(message, moment)
        except (CannotFit, BadRequest):
            # A call that waited for its result was larger than both are now, or what names the
            # moment was retracted or erased since the window was read.
            return planned
        # Without a block of a turn that has grown, that of the turn's request stays.
        if decision.block is not None or moment is moments[-1]:
            return planned.with_recall(decision)
    return planned


class _Moment(NamedTuple):
    """A moment for which a block may be decided; now if `at` is None.

    `needs_growth` if only a turn that has outgrown the room of its request gets this block.
    """

    at: AsOf | None
    needs_growth: bool = False


def _moments(
    planned: PlannedWindow, message: Message, *, following: Message | None
) -> list[_Moment]:
    """Return the moments for which a block may be decided, in order of preference."""
    if following is None:
        return [_Moment(None)]
    before = _Moment(_before(following, message))
    summary = planned.snapshot.summary
    if summary is None or summary.created_at_ms < following.created_at_ms:
        return [before]
    version = AtVersion(summary.version)
    return [_Moment(version, needs_growth=True), before, _Moment(version)]


def _before(following: Message, message: Message) -> AsOf:
    """Return the last moment at which a message was the newest."""
    if following.created_at_ms > message.created_at_ms:
        return AtTime(following.created_at_ms - 1)
    # The following one is not of a later millisecond: no time lies between the two.
    return AtMessage(message.event_id, message.index)


@dataclass(frozen=True, slots=True)
class _Deciding:
    """Decides the block of one window, for the request at a position, whose body may be known.

    The messages up to the deciding one are others only in another `state`.
    """

    planned: PlannedWindow
    reading: WindowReading
    store: WindowStore
    recall: Recall
    wish: RecallWish
    session: SessionSnapshot
    request_position: int
    request_body: str | None
    state: tuple[object, ...]

    async def decision(self, message: Message, moment: _Moment) -> RecallDecision:
        """Decide the block of a moment, or return what was decided before.

        Now is while the deciding `message` is the newest. Later steps find this decision again,
        until a version of the summary is written.

        Raises:
            CannotFit: the window of that moment needs a larger budget.
        """
        planned, session, at = self.planned, self.session, moment.at
        shown = shown_positions(planned.builder)
        key: DecisionKey | None = None
        if planned.request.as_of is None:
            by = moment if isinstance(at, AtVersion) else message.position
            key = (
                session.sid, self.state, by, planned.asked, fingerprint(planned.policy), self.wish,
            )  # fmt: skip
        decision = None if key is None else self.recall.decisions.get(key)
        # Decided again if the window itself shows a message of the block, which must not appear
        # twice. Even if the index was incomplete, but only until the turn continues: then the
        # model has seen the block.
        if decision is None or decision.shows_any(shown) or (decision.is_partial and at is None):
            then = planned if at is None else await self._window_at(at)
            last = then.builder.taken[-1].position if then.builder.taken else self.request_position
            quotes, hidden_now = share_of_quotes(then.builder), hidden_texts(planned.builder)
            recall_moment = RecallMoment(
                sid=self.session.sid,
                request_position=self.request_position,
                until=last + 1,
                shown=shown | shown_positions(then.builder),
                # A newer version may have made room for what was cut out then.
                hidden={
                    position: hidden_now.get(position, text)
                    for position, text in hidden_texts(then.builder).items()
                },
                known_names=_shown_names(then) if quotes else frozenset(),
                room=room_for_recall(then.builder, then.policy, self.wish, then.stored.factor),
                share_of_quotes=quotes,
                # A turn of more tokens has outgrown the room that its request made.
                least_growth=int(then.policy.recall_share * then.builder.limits.tokens)
                if moment.needs_growth
                else 0,
                request_body=self.request_body,
                changes=session.changes,
            )
            decision = await self.recall.decide(recall_moment, self.wish, key)
        return decision

    async def _window_at(self, at: AsOf) -> PlannedWindow:
        """Plan the window of an earlier moment."""

        def choose(snapshot: WindowSnapshot) -> tuple[PlannedWindow, Sequence[int]]:
            return self.reading.planned(snapshot, is_of_now=False), ()

        then, _ = await self.store.window_as_of(
            self.reading.key, at, on_session=lambda _: None, on_messages=choose
        )
        return then


def _shown_names(planned: PlannedWindow) -> frozenset[NameNumber]:
    """Return the names in what a window shows of the summary, and in its digest."""
    digest = planned.plan.digest
    digest_of = {row.compaction_id: row.digest for row in planned.snapshot.pending}
    digests = [digest.text, *map(digest_of.__getitem__, digest.compaction_ids)]
    lines = [line for text in digests for line in text.split("\n")]
    summary = planned.snapshot.summary
    if summary is not None:
        text, ledger = visible_summary(planned.plan, summary.text, prepared_summary(summary).ledger)
        lines += [*text.split("\n"), *ledger]
    return numbers_in_lines(lines)
