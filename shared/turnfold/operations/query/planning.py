"""Plan the window of a request: the state that it shows, under which terms, and its messages."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from hashlib import blake2b
from typing import NamedTuple

from turnfold.contracts.hints import BudgetHint
from turnfold.contracts.requests import (
    ContextRequest,
)
from turnfold.core.eviction.budgets import is_hint_due
from turnfold.core.eviction.reported_limits import limited_window
from turnfold.core.policy.presets import Mode, Policy
from turnfold.core.recall.block import RecallBlock
from turnfold.core.recall.question import begins_with
from turnfold.core.text.tokens import text_of
from turnfold.core.window.budget_shares import UNLIMITED
from turnfold.core.window.builder import WindowBuilder
from turnfold.core.window.framing import Placement
from turnfold.core.window.prefix import PendingDigest
from turnfold.core.window.rendering.anthropic import ASIDE_MESSAGES, ASIDE_TOKENS
from turnfold.core.window.window import (
    WindowInput,
    WindowPlan,
    WindowRequest,
    budget_of,
    build_window,
    to_plan,
    with_block,
)
from turnfold.messages import SHAPE_OF_FORMAT, SessionKey, Shape
from turnfold.operations.query.environment import ContextReply, QueryEnvironment
from turnfold.operations.query.recall_decisions import RecallDecision, RecallWish
from turnfold.operations.query.replies import prepared_summary
from turnfold.ports.query import (
    END_SEQ,
    NO_OVERRIDES,
    SessionSnapshot,
    WindowSnapshot,
)
from turnfold.process.clock import now_ms


@dataclass(frozen=True, slots=True)
class Stale:
    """The requested sequence is not ingested yet, and there is time left to wait."""


@dataclass(frozen=True, slots=True)
class PlannedWindow:
    """A window without its texts, and what it was planned from.

    `recall` is the decision that applies to this turn, and `block` the part that fits.
    """

    key: SessionKey
    request: ContextRequest
    snapshot: WindowSnapshot
    policy: Policy
    model_window: int
    etag: str
    stored: WindowInput
    asked: WindowRequest
    builder: WindowBuilder
    plan: WindowPlan
    recall: RecallDecision | None = None
    block: RecallBlock | None = None

    @property
    def is_fresh(self) -> bool:
        """Whether the sequence that the request names is ingested."""
        return is_fresh(self.request, self.snapshot)

    @property
    def is_anthropic(self) -> bool:
        """Whether the window is written in the format of Anthropic."""
        return SHAPE_OF_FORMAT[self.request.format] is Shape.ANTHROPIC

    @property
    def budget(self) -> BudgetHint | None:
        """The budget, and the live messages that it left no room for; None if it does not count."""
        tokens = self.asked.budget_tokens
        if self.asked.is_emergency or self.request.as_of is not None or not tokens:
            return None
        window, account = self.builder, self.plan.account
        # Messages that make room for a recall block alone do not count, nor those of a window with
        # a limit on messages.
        lacks_tokens = window.trimmed_after is not None and window.limits.messages >= UNLIMITED
        folded = min(account.folded, account.folded_told + account.untold)
        return BudgetHint(tokens, folded if lacks_tokens else 0)

    @property
    def shows_everything(self) -> bool:
        """Whether every message of the session is shown whole, which leaves nothing to recall."""
        account = self.plan.account
        left_out = account.covered or account.folded or account.pending_digested
        return not (left_out or account.trimmed)

    def with_recall(self, decision: RecallDecision) -> "PlannedWindow":
        """Return this window with as much of a decided block as it has room for."""
        builder = self.builder
        has_place = builder.size < builder.limits.messages
        room = builder.limits.tokens - builder.total
        block = decision.fitting(room) if has_place else None
        plan = self.plan
        if block is not None:
            plan = with_block(plan, builder, self.asked, self.stored.factor, block)
        return replace(self, plan=plan, recall=decision, block=block)


def with_hint(reply: ContextReply, session: SessionSnapshot, policy: Policy) -> ContextReply:
    """Add the hint that a worker needs, given what it has stored of earlier ones."""
    if reply.budget is None:
        return reply
    is_due = is_hint_due(session.budgets, reply.budget, policy, at_ms=now_ms())
    return replace(reply, hint=reply.budget) if is_due else reply


def is_fresh(request: ContextRequest, snapshot: WindowSnapshot) -> bool:
    """Return whether a snapshot holds every event up to the sequence that the request names."""
    return request.after_seq <= snapshot.ingested_to


def max_characters(request: ContextRequest, policy: Policy) -> int:
    """Return the character limit of the policy, unless the request names tokens; 0 means none."""
    return 0 if request.max_tokens is not None else policy.max_chars


@lru_cache(maxsize=256)
def _for_windows(policy: Policy) -> Policy:
    """Return a policy without the numbers that mode `off` suspends: its windows hold everything."""
    if policy.mode is not Mode.OFF:
        return policy
    return replace(policy, shows_pending=True, max_messages=0, max_chars=0)


class _Terms(NamedTuple):
    """The terms of a window, which follow from its request and a session row."""

    session: SessionSnapshot | None
    policy: Policy
    model_window: int
    etag: str


@dataclass(slots=True)
class WindowReading:
    """One reading of a session: first its row, then, if that does not answer, its messages.

    `may_wait` is false once the time to wait for a sequence is over. `chars_per_token` turns a
    character limit into a budget.
    """

    key: SessionKey
    request: ContextRequest
    environment: QueryEnvironment
    may_wait: bool
    chars_per_token: float
    _last_terms: _Terms | None = field(default=None, init=False)

    @property
    def refused_to(self) -> int:
        """The sequence up to which refused events count."""
        return END_SEQ if self.request.after is None else self.request.after_seq

    def on_session(self, snapshot: WindowSnapshot) -> ContextReply | Stale | PlannedWindow | None:
        """Answer without reading messages, if possible: a known etag, a cached reply, or a wait."""
        if self.may_wait and not is_fresh(self.request, snapshot):
            return Stale()
        session, policy, _, etag = self._terms(snapshot)
        if session is None:
            return None if self.request.etag != etag else _not_modified(etag)
        # Even for a known etag: its budget may be due as a hint by now.
        reply = self.environment.replies.get((session.sid, etag))
        if self.request.etag == etag:
            reply = _not_modified(etag, None if reply is None else reply.budget)
        return None if reply is None else with_hint(reply, session, policy)

    def on_messages(
        self, snapshot: WindowSnapshot
    ) -> tuple[ContextReply | Stale | PlannedWindow, Sequence[int]]:
        """Plan the window, and return which texts it needs."""
        planned = self.planned(snapshot, is_of_now=self.request.as_of is None)
        plan = planned.plan
        if plan.shape is Shape.CHAT:
            return planned, plan.positions
        elements = plan.elements
        # A negated position requests the element as it was published.
        return planned, [
            -position if position in elements else position for position in plan.positions
        ]

    def planned(self, snapshot: WindowSnapshot, *, is_of_now: bool) -> PlannedWindow:
        """Plan the window of a snapshot.

        Raises:
            CannotFit: no window is that small.
        """
        session, policy, model_window, etag = self._terms(snapshot)
        stored = _window_input(snapshot)
        asked = self._window_request(snapshot, policy, model_window)
        earlier = None
        if session is not None and is_of_now:
            # By number, not by name: a session that starts again after its erasure has another
            # number. An earlier state must not take the builder, which it could not continue.
            earlier = self.environment.builders.pop((session.sid, asked))
        # Building changes `earlier`, which no other request can use: it was removed from the cache.
        builder = build_window(stored, asked, policy, earlier)
        return PlannedWindow(
            self.key,
            self.request,
            snapshot,
            policy,
            model_window,
            etag,
            stored,
            asked,
            builder,
            to_plan(builder, stored, asked),
        )

    def _terms(self, snapshot: WindowSnapshot) -> _Terms:
        """Return the terms under which a session is shown; both steps of a reading need them."""
        session, terms = snapshot.session, self._last_terms
        # The second step of a past reading gets the session as it was, which has other terms.
        if terms is not None and terms.session is session:
            return terms
        overrides = (
            (session.agent_wishes, session.wishes)
            if session
            else (snapshot.agent_wishes, NO_OVERRIDES)
        )
        policy = _for_windows(self.environment.policy(*overrides))
        model = self.request.model or (session.model if session else None)
        limit = session.limits.get(model) if session and model else None
        window = limited_window(self.environment.model_window(model, policy), limit, policy)
        etag = self._etag(snapshot, policy, window)
        self._last_terms = _Terms(session, policy, window, etag)
        return self._last_terms

    def _window_request(
        self, snapshot: WindowSnapshot, policy: Policy, model_window: int
    ) -> WindowRequest:
        request = self.request
        shape = SHAPE_OF_FORMAT[request.format]
        is_anthropic = shape is Shape.ANTHROPIC
        wish = RecallWish.of(request, policy) if self.environment.recall is not None else None
        return WindowRequest(
            budget_tokens=self._budget_tokens(policy, model_window),
            max_messages=request.max_messages,
            is_emergency=request.mode == "emergency",
            placement=Placement(request.placement),
            shape=shape,
            aside_tokens=ASIDE_TOKENS if is_anthropic else 0,
            aside_messages=ASIDE_MESSAGES if is_anthropic else 0,
            recall_share=0.0 if wish is None else policy.recall_share,
            is_asked=wish is not None and _is_asked(snapshot, wish),
        )

    def _budget_tokens(self, policy: Policy, model_window: int) -> int | None:
        """Return the budget; None if nothing limits it."""
        request = self.request
        if request.max_tokens is None and policy.mode is Mode.OFF:
            return None
        budget = budget_of(
            max_tokens=request.max_tokens,
            model_window=model_window,
            policy=policy,
            system_tokens=request.system_tokens,
            tools_tokens=request.tools_tokens,
            max_output_tokens=request.max_output_tokens,
        )
        characters = max_characters(request, policy)
        return min(budget, int(characters / self.chars_per_token)) if characters else budget

    def _etag(self, snapshot: WindowSnapshot, policy: Policy, window: int) -> str:
        """Hash everything that the window depends on, so that a repeated request builds nothing."""
        request = self.request
        asked = (
            request.max_tokens,
            request.system_tokens,
            request.tools_tokens,
            request.max_output_tokens,
            request.max_messages,
            request.mode,
            request.placement,
            window,
            request.format,
            request.as_of,
            request.query,
            request.recall,
            request.entries,
            request.bodies,
        )
        session = snapshot.session
        # An answer says whether it is fresh, so a stale one is a different answer.
        state = (
            # Not the number of its row, which would tell how many sessions other agents began. A
            # session that starts again after its erasure has newer events, or shows nothing.
            *self.key,
            *((session.last_event_at_ms, session.revision) if session else (0, 0)),
            # A dead letter does not raise the revision: no row of its session is written.
            snapshot.refused,
            is_fresh(request, snapshot),
        )
        text = f"{state} {asked} {fingerprint(policy)}"
        return blake2b(text.encode(), digest_size=12).hexdigest()


def _is_asked(snapshot: WindowSnapshot, wish: RecallWish) -> bool:
    """Return whether a query asks for something other than the newest request."""
    request = next((message for message in reversed(snapshot.messages) if message.is_request), None)
    if wish.query is None or request is None:
        return False
    body = request.short_body or snapshot.body_at(request.position)
    return not begins_with(text_of(json.loads(body)), wish.query)


def _not_modified(etag: str, budget: BudgetHint | None = None) -> ContextReply:
    body = json.dumps({"not_modified": True, "etag": etag}).encode()
    return ContextReply(body, etag, is_modified=False, budget=budget)


def _window_input(snapshot: WindowSnapshot) -> WindowInput:
    session, summary = snapshot.session, snapshot.summary
    if session is None:
        return WindowInput(messages=())
    return WindowInput(
        messages=snapshot.messages,
        pending=tuple(
            PendingDigest(row.compaction_id, row.digest_tokens, row.messages)
            for row in snapshot.pending
        ),
        summary=prepared_summary(summary).size if summary else None,
        covered=session.messages_total - len(snapshot.messages),
        total=session.messages_total,
        factor=session.factor,
        covered_calls=snapshot.covered_calls,
        covered_system=snapshot.covered_system,
    )


@lru_cache(maxsize=1_024)
def fingerprint(policy: Policy) -> str:
    """Return a hash of all numbers of a policy. Python would hash each of them at each use."""
    return blake2b(repr(policy).encode(), digest_size=8).hexdigest()
