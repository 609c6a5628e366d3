"""Add the recall block to a window, as it was decided at an earlier moment of the turn."""

from collections.abc import Sequence
from dataclasses import dataclass

from turnfold.core.history.as_of import AtMessage, AtVersion
from turnfold.core.recall.quotes import NameNumber, numbers_of_names
from turnfold.core.window.rendering.render import visible_summary
from turnfold.errors import CannotFit
from turnfold.operations.query.planning import PlannedWindow, WindowReading
from turnfold.operations.query.recall import (
    Recall,
    RecallDecision,
    RecallMoment,
    RecallWish,
    deciding_message,
    room_for_recall,
    share_of_quotes,
    shown_positions,
    whole_positions,
)
from turnfold.operations.query.replies import prepared_summary
from turnfold.ports.query import (
    SessionSnapshot,
    WindowSnapshot,
    WindowStore,
)


async def with_recall(
    planned: PlannedWindow, reading: WindowReading, store: WindowStore, recall: Recall | None
) -> PlannedWindow:
    """Add the recall block of a window, if the request wants one and anything is not shown.

    The block is decided from the window of the moment when the deciding message had just arrived,
    so that every step of the turn, on every server, shows the same one. A turn that has outgrown
    the room of its request gets another one with each version of the summary: that moves the
    beginning of the window anyway, and shows less of the turn.
    """
    session, builder = planned.snapshot.session, planned.builder
    message, wish = deciding_message(builder), planned.recall_wish
    if session is None or builder.request is None or message is None:
        return planned
    if wish is None or recall is None or planned.shows_everything:
        return planned
    moments: list[AtMessage | AtVersion] = [AtMessage(message.event_id, message.index)]
    summary = planned.snapshot.summary
    if summary is not None and summary.created_at_ms > message.created_at_ms:
        moments.insert(0, AtVersion(summary.version))
    deciding = _Deciding(planned, reading, store, recall, wish, session, builder.request.position)
    for moment in moments:
        try:
            decision = await deciding.decision(moment)
        except CannotFit:  # a call that waited for its result took more than both take now
            return planned
        if decision.block is not None or moment is moments[-1]:
            return planned.with_recall(decision)
    return planned


@dataclass(frozen=True, slots=True)
class _Deciding:
    """Decides the block of one window, for the request at a position."""

    planned: PlannedWindow
    reading: WindowReading
    store: WindowStore
    recall: Recall
    wish: RecallWish
    session: SessionSnapshot
    request_position: int

    async def decision(self, at: AtMessage | AtVersion) -> RecallDecision:
        """Decide the block of a moment, or return what was decided before.

        Raises:
            CannotFit: the window of that moment needs a larger budget.
        """
        planned = self.planned
        shown, newest = shown_positions(planned.builder), planned.builder.taken[-1]
        is_now = at == AtMessage(newest.event_id, newest.index)
        # A retraction changes what may be told.
        state = (self.session.sid, self.session.retracted_seq)
        key = (state, at, planned.asked, self.wish) if planned.request.as_of is None else None
        decision = self.recall.cached(key)
        # Decided again if the window shows a message of the block by itself: it must not stand
        # twice. Also if the index was incomplete, but only until the turn goes on: the model has
        # seen it then.
        if decision is None or decision.shows_any(shown) or (decision.is_partial and is_now):
            then = planned if is_now else await self._window_at(at)
            last = then.builder.taken[-1].position if then.builder.taken else self.request_position
            moment = RecallMoment(
                sid=self.session.sid,
                request_position=self.request_position,
                until=last + 1,
                shown=shown | shown_positions(then.builder),
                whole=whole_positions(then.builder),
                known_names=_names_in_summary(then),
                room=room_for_recall(then.builder, then.policy, self.wish, then.stored.factor),
                share_of_quotes=share_of_quotes(then.builder),
                least_growth=_least_growth(then) if isinstance(at, AtVersion) else 0,
            )
            decision = await self.recall.decide(moment, self.wish, key)
        return decision

    async def _window_at(self, at: AtMessage | AtVersion) -> PlannedWindow:
        """Plan the window of an earlier moment."""

        def choose(snapshot: WindowSnapshot) -> tuple[PlannedWindow, Sequence[int]]:
            return self.reading.planned(snapshot, is_of_now=False), ()

        then, _ = await self.store.window_as_of(
            self.reading.key, at, on_session=lambda _: None, on_messages=choose
        )
        return then


def _least_growth(then: PlannedWindow) -> int:
    """Return the tokens above which a turn has outgrown the room that its request made."""
    return int(then.policy.recall_share * then.builder.limits.tokens)


def _names_in_summary(planned: PlannedWindow) -> frozenset[NameNumber]:
    """Return the names in the part of the summary that a window shows."""
    summary = planned.snapshot.summary
    if summary is None:
        return frozenset()
    text, ledger = visible_summary(planned.plan, summary.text, prepared_summary(summary).ledger)
    return numbers_of_names("\n".join([text, *ledger]))
