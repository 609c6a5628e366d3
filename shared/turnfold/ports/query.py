"""Reading: snapshots of a session for its window, its history, and search."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeVar

from turnfold.core.history.as_of import AsOf
from turnfold.core.policy.overrides import PolicyOverrides
from turnfold.core.text.search import Lookup
from turnfold.messages import AgentId, CompactionId, Message, SessionKey, State


@dataclass(frozen=True, slots=True)
class SessionSnapshot:
    """A session as its row has it. Times are milliseconds since 1970."""

    sid: int
    wishes: PolicyOverrides
    agent_wishes: PolicyOverrides
    model: str | None
    revision: int
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


@dataclass(frozen=True, slots=True)
class StoredSummary:
    """A version as it is stored; `sections` and `ledger` are JSON texts."""

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


class PendingEviction(NamedTuple):
    """A compaction that no summary speaks for yet."""

    compaction_id: CompactionId
    messages: int
    tokens: int
    digest: str
    digest_tokens: int
    requested_at_ms: int


@dataclass(frozen=True, slots=True)
class WindowSnapshot:
    """Everything a window is decided from, out of one snapshot. `ingested_to` is the sequence up to which nothing is missing."""

    ingested_to: int
    session: SessionSnapshot | None
    summary: StoredSummary | None = None
    pending: tuple[PendingEviction, ...] = ()
    messages: tuple[Message, ...] = ()


Chosen = TypeVar("Chosen")


class TooLargeHere(Exception):
    """The session is larger than windows are made of in this process; another one does it."""


class WindowStore(Protocol):
    """Where windows are read."""

    async def window(
        self,
        key: SessionKey,
        *,
        glance: Callable[[WindowSnapshot], Chosen | None],
        choose: Callable[[WindowSnapshot], tuple[Chosen, Sequence[int]]],
    ) -> tuple[Chosen, Mapping[int, str]]:
        """Read a session in one snapshot: what was chosen from its facts, and the JSON texts of the positions chosen.

        `glance` sees the session alone, before its messages are read; what it returns, unless None, is the answer.

        Raises:
            TooLargeHere: `glance` had no answer, and nothing more was read.
        """
        ...

    async def window_as_of(
        self,
        key: SessionKey,
        moment: AsOf,
        *,
        glance: Callable[[WindowSnapshot], Chosen | None],
        choose: Callable[[WindowSnapshot], tuple[Chosen, Sequence[int]]],
    ) -> tuple[Chosen, Mapping[int, str]]:
        """Read a session as it was; `glance` sees it as it is, `choose` as it was, with the counts of then.

        Raises:
            BadRequest: there was no such moment in it.
            TooLargeHere: as `window`.
        """
        ...


class OriginalMessage(NamedTuple):
    """A stored message: its JSON text as windows show it, and the content as published where that was another JSON."""

    message_id: str
    position: int
    state: State
    body: str
    original_content: str | None


class SessionCounts(NamedTuple):
    """What a session holds; `messages_covered` is the rest of the total."""

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
    def sort_key(self) -> tuple[int, int]:
        """Where it stands among all sessions, the one with the newest event first: when that came, and its number."""
        return (-1 if self.last_event_at_ms is None else self.last_event_at_ms, self.sid)

    @property
    def messages_covered(self) -> int:
        """Messages that the summary in force speaks for."""
        return self.messages_total - self.messages_live - self.messages_pending


class AuditRow(NamedTuple):
    """One sealed row; `ordinal` counts the rows of its session from 1."""

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
    """Where everything a session was is read. Each method may raise UnknownSession or Unavailable."""

    async def page(
        self, key: SessionKey, *, after_position: int, limit: int, newest_first: bool = False
    ) -> Sequence[OriginalMessage]: ...

    async def by_ids(
        self, key: SessionKey, message_ids: Sequence[str]
    ) -> Sequence[OriginalMessage]: ...

    async def counts(self, key: SessionKey) -> SessionCounts: ...

    async def wishes(
        self, key: SessionKey | AgentId
    ) -> tuple[PolicyOverrides, PolicyOverrides]: ...

    async def sessions(
        self, *, agent_ids: Collection[str] | None, limit: int, after: tuple[int, int] | None = None
    ) -> Sequence[SessionCounts]: ...

    async def versions(
        self, key: SessionKey, version: int | None = None
    ) -> tuple[int | None, Sequence[StoredSummary]]: ...

    async def audit(self, key: SessionKey, *, after: int, limit: int) -> Sequence[AuditRow]: ...

    async def dead_letters(self, *, after: int, limit: int) -> Sequence[DeadLetterRow]: ...

    async def dead_letter_counts(self) -> Mapping[str, int]: ...


@dataclass(frozen=True, slots=True)
class Scope:
    """Which messages of a session are searched; None is no condition. `version`: those that this version speaks for."""

    state: State | None = None
    role: str | None = None
    after_position: int | None = None
    before_position: int | None = None
    version: int | None = None


class Candidates(NamedTuple):
    """Messages worth reading; with `is_partial` there were so many under the terms that not all of them were looked at."""

    originals: Sequence[OriginalMessage]
    is_partial: bool = False


class SearchStore(Protocol):
    """Where messages are found by what they say. Each method may raise UnknownSession or Unavailable."""

    async def unindexed(
        self, key: SessionKey, *, scope: Scope, after_position: int
    ) -> Sequence[OriginalMessage]:
        """A page of the messages that the index may not have yet, in order; at the end none.

        Who reads these first and the index afterwards misses nothing, whatever is indexed meanwhile.
        """
        ...

    async def candidates(
        self, key: SessionKey, lookups: Sequence[Lookup], *, scope: Scope
    ) -> Candidates:
        """Messages that the index has under all terms of a lookup, bounded: of very many the newest and the oldest."""
        ...
