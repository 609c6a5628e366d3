"""Ports for reading: snapshots of a session for its window, its history, and search."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol, TypeVar

from turnfold.core.eviction.budgets import Budgets, read_budgets
from turnfold.core.eviction.reported_limits import read_limits
from turnfold.core.history.as_of import AsOf
from turnfold.core.history.audit_chain import ChainEnd
from turnfold.core.policy.overrides import PolicyOverrides
from turnfold.messages import (
    MOST_INT64,
    AgentId,
    CompactionId,
    Message,
    MessageId,
    SessionKey,
    Shape,
    State,
)


@dataclass(slots=True)
class SessionSnapshot:
    """The row of a session. Times are milliseconds since 1970. Only a locked row is changed.

    `retracted_seq` rises with each retraction, and is about the sequence of the newest; 0 without
    one.
    """

    sid: int
    wishes: PolicyOverrides
    agent_wishes: PolicyOverrides
    model: str | None
    revision: int
    appends: int
    evicted_changes: int
    messages_total: int
    tokens_total: int
    live_messages: int
    live_tokens: int
    factor: float
    version: int | None
    versions: int
    compactions: int
    audit_rows: int
    audit_hash: str
    last_event_at_ms: int | None
    window_limits: str | None
    asked_budgets: str | None
    retracted_seq: int

    @property
    def changes(self) -> int:
        """The number of its changes that did more than append messages."""
        return self.revision - self.appends

    @property
    def limits(self) -> Mapping[str, int]:
        """The learned windows of models, in tokens."""
        return read_limits(self.window_limits)

    @property
    def budgets(self) -> Budgets:
        """The budgets that windows of the session were asked with."""
        return read_budgets(self.asked_budgets)


@dataclass(frozen=True, slots=True)
class StoredSummary:
    """A stored version; `sections` and `ledger` are JSON texts, `last_position` is covered, too."""

    version: int
    base_version: int | None
    kind: str
    style: str
    model: str | None
    text: str
    sections: str
    ledger: str
    tokens: int
    text_tokens: int
    cuts: str
    covers_first: str
    covers_last: str
    messages_covered: int
    compaction_id: CompactionId
    created_at_ms: int
    last_position: int


class PendingEviction(NamedTuple):
    """An eviction that no summary covers yet."""

    compaction_id: CompactionId
    messages: int
    tokens: int
    digest: str
    digest_tokens: int
    requested_at_ms: int


NO_OVERRIDES: Final = PolicyOverrides()


@dataclass(frozen=True, slots=True)
class WindowSnapshot:
    """The data that a window is decided from, read in one snapshot.

    `ingested_to` is the sequence up to which every event is ingested, and `refused` the number of
    dead letters of the session. `covered_calls` are messages whose turn began with a request that
    is not covered. `covered_system` is pinned if none of `messages` is. `agent_wishes` are
    those of a session without a row. `body_at` returns the JSON of one of `messages` by its
    position, while the snapshot is open.
    """

    ingested_to: int
    session: SessionSnapshot | None
    summary: StoredSummary | None = None
    pending: tuple[PendingEviction, ...] = ()
    messages: tuple[Message, ...] = ()
    refused: int = 0
    covered_calls: tuple[Message, ...] = ()
    covered_system: Message | None = None
    agent_wishes: PolicyOverrides = NO_OVERRIDES
    body_at: Callable[[int], str] = field(default=lambda _: "{}", compare=False)


END_POSITION: Final = MOST_INT64
"""A position after every message."""
END_SEQ: Final = MOST_INT64
"""A sequence after every event."""
Chosen = TypeVar("Chosen")


class TooLargeHere(Exception):
    """This process does not build windows of sessions this large; the heavy lane does."""


class WindowStore(Protocol):
    """Read sessions for windows. Each method reads one snapshot."""

    async def window(
        self,
        key: SessionKey,
        *,
        on_session: Callable[[WindowSnapshot], Chosen | None],
        on_messages: Callable[[WindowSnapshot], tuple[Chosen, Sequence[int]]],
        refused_to: int = END_SEQ,
    ) -> tuple[Chosen, Mapping[int, str]]:
        """Read a session; return the result of `on_messages`, and the JSON texts of its positions.

        A negated position asks for the element that was published there, not for its chat view.

        `on_session` receives the session before its messages are read. A result other than None
        ends the call. Refused events are counted up to the sequence `refused_to`.

        Raises:
            TooLargeHere: `on_session` returned None, and the session is too large for this process.
        """
        ...

    async def window_as_of(
        self,
        key: SessionKey,
        moment: AsOf,
        *,
        on_session: Callable[[WindowSnapshot], Chosen | None],
        on_messages: Callable[[WindowSnapshot], tuple[Chosen, Sequence[int]]],
        refused_to: int = END_SEQ,
    ) -> tuple[Chosen, Mapping[int, str]]:
        """Read a session as it was; `on_session` receives it as it is, `on_messages` as it was.

        Raises:
            BadRequest: the session has no such moment.
            TooLargeHere: as in `window`.
        """
        ...

    async def originals(
        self, sid: int, positions: Sequence[int]
    ) -> "Mapping[MessageId, OriginalMessage]":
        """Return the stored messages at these positions by id, also retracted ones.

        Raises:
            TooLarge: their events carry too much for an answer.
        """
        ...


class OriginalMessage(NamedTuple):
    """A stored message: the JSON text that windows show, and the content as published.

    `original_content` is None if both are the same. `is_meta` marks a user message that a program
    wrote, `is_error` the result of a tool that failed. `element` is what was published, if that has
    another `shape` than a chat message. `carry` is the JSON text that its event carries for it,
    where the reader gives it back.
    """

    message_id: str
    position: int
    state: State
    body: str
    original_content: str | None
    is_meta: bool = False
    shape: Shape = Shape.CHAT
    element: str | None = None
    carry: str | None = None
    is_error: bool = False


class StatesThen(NamedTuple):
    """The states of a session's messages at an earlier time, with its messages up to `until`.

    `in_window` has the live and the pending ones by position, `retracted_since` those that were
    retracted after that time.
    """

    until: int
    in_window: Mapping[int, State]
    retracted_since: frozenset[int]

    def state_of(self, message: OriginalMessage) -> State | None:
        """Return the state that a message had; None if it was published later."""
        if message.position > self.until:
            return None
        then = self.in_window.get(message.position)
        if then is not None:
            return then
        was_gone = message.position not in self.retracted_since
        is_retracted = message.state is State.RETRACTED and was_gone
        return State.RETRACTED if is_retracted else State.COVERED


ListPlace = tuple[int, str, str]
"""A place in a list by time: the time, the agent, and the session or an empty text.

No number of a session: it would tell one agent how many sessions the others begin.
"""


class SessionCounts(NamedTuple):
    """Counts of a session; `messages_covered` is what is neither live nor pending."""

    agent_id: str
    session_id: str
    model: str | None
    preset: str | None
    mode: str | None
    messages_total: int
    messages_live: int
    messages_pending: int
    tokens_total: int
    tokens_live: int
    factor: float
    summary_version: int | None
    summary_versions: int
    compactions: int
    audit_rows: int
    audit_hash: str
    last_event_at_ms: int | None
    reported_tokens: int = 0
    usage_evictions: int = 0
    failures: int = 0
    cooldown_until_ms: int = 0
    cooldown_reason: str | None = None
    sid: int = 0

    @property
    def place(self) -> ListPlace:
        """The place in the list of sessions by their newest events."""
        at_ms = -1 if self.last_event_at_ms is None else self.last_event_at_ms
        return at_ms, self.agent_id, self.session_id

    @property
    def messages_covered(self) -> int:
        """The number of messages that the summary in force covers."""
        return self.messages_total - self.messages_live - self.messages_pending


class AuditRow(NamedTuple):
    """One row of the audit chain; `ordinal` counts the rows of a session from 1."""

    ordinal: int
    at_ms: int
    agent_id: str
    session_id: str
    compaction_id: int | None
    phase: str
    reason: str | None
    tokens_before: int | None
    tokens_after: int | None
    details: str
    prev_hash: str
    hash: str
    actor: str | None


class DeadLetterRow(NamedTuple):
    """An event that could not be stored, without its bytes."""

    dead_letter_id: int
    at_ms: int
    subject: str
    stream_seq: int
    reason: str
    detail: str
    size_bytes: int
    replayed_at_ms: int | None


class HistoryStore(Protocol):
    """Read everything that is stored of sessions.

    Raises:
        UnknownSession: there is no such session.
        Unavailable: the database cannot be read now.
    """

    async def page(
        self,
        key: SessionKey,
        *,
        after_position: int = 0,
        before_position: int = END_POSITION,
        limit: int,
        newest_first: bool = False,
        with_retracted: bool = False,
    ) -> Sequence[OriginalMessage]: ...

    async def has_messages(
        self,
        key: SessionKey,
        *,
        after_position: int = 0,
        before_position: int = END_POSITION,
        with_retracted: bool = False,
    ) -> bool: ...

    async def by_ids(
        self,
        key: SessionKey,
        message_ids: Sequence[str],
        *,
        with_retracted: bool = False,
        is_cut: bool = False,
    ) -> Sequence[OriginalMessage]: ...

    async def states_as_of(self, key: SessionKey, moment: AsOf) -> StatesThen: ...

    async def counts(self, key: SessionKey) -> SessionCounts: ...

    async def wishes(
        self, key: SessionKey | AgentId
    ) -> tuple[PolicyOverrides, PolicyOverrides]: ...

    async def sessions(
        self, *, agent_ids: Collection[str] | None, limit: int, after: ListPlace | None = None
    ) -> Sequence[SessionCounts]: ...

    async def versions(
        self, key: SessionKey, version: int | None = None
    ) -> tuple[int | None, Sequence[StoredSummary]]: ...

    async def audit(self, key: SessionKey, *, after: int, limit: int) -> Sequence[AuditRow]: ...

    async def chain_end(self, key: SessionKey) -> ChainEnd | None: ...

    async def dead_letters(
        self, *, after: int, before: int | None = None, limit: int
    ) -> Sequence[DeadLetterRow]: ...
