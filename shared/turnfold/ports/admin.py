"""Requests that change a session or many: policies, versions, campaigns, erasure, dead letters and notices."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from turnfold.core.history.audit_chain import LOCAL
from turnfold.messages import AgentId, CompactionId, SessionKey

if TYPE_CHECKING:
    from turnfold.contracts.requests import PolicyRequest
from turnfold.ports.compact import RegenerateOptions
from turnfold.ports.ingest import Installation
from turnfold.ports.query import DeadLetterRow


class StoredDeadLetter(NamedTuple):
    """A dead letter with what is kept of its bytes."""

    row: DeadLetterRow
    payload: bytes

    @property
    def is_whole(self) -> bool:
        """Whether that is all that was published."""
        return len(self.payload) == self.row.size_bytes


class DeadLetterStore(Protocol):
    """Where dead letters are read in full, and replays are noted."""

    async def letters(self, ids: Sequence[int]) -> Sequence[StoredDeadLetter]:
        """The letters of these ids, oldest first; ids that name none are left out."""
        ...

    async def unreplayed(
        self, *, reason: str | None, after: int, until: int, limit: int
    ) -> Sequence[StoredDeadLetter]:
        """Letters behind an id and up to another one that were not replayed yet, oldest first."""
        ...

    async def newest_id(self) -> int:
        """The greatest id so far; 0 where there is no letter."""
        ...

    async def replayed(self, dead_letter_id: int, *, now_ms: int) -> None:
        """Note that a letter was published again."""
        ...

    async def replay_outcomes(self, sequences: Sequence[int]) -> Mapping[int, DeadLetterRow | None]:
        """Of these sequences those that are ingested, each with the dead letter that it became; None where it was stored."""
        ...


class EventStream(Protocol):
    """The stream of events, as far as a replay needs it. Each method may raise Unavailable."""

    async def publish(self, subject: str, payload: bytes, *, message_id: str) -> int:
        """Publish an event; its sequence. The same `message_id` again within minutes is the same publication."""
        ...

    async def payload_of(self, seq: int) -> bytes | None:
        """What was published at a sequence; None where the stream holds it no more."""
        ...


class EraseResult(NamedTuple):
    """What an erasure took away."""

    sessions: int = 0
    messages: int = 0


class SessionCommands(Protocol):
    """Where requests that write are done."""

    async def set_policy(
        self,
        key: SessionKey | AgentId,
        request: "PolicyRequest",
        *,
        installation: Installation,
        now_ms: int,
        actor: str = LOCAL,
    ) -> Mapping[str, Any]:
        """Set what a session or an agent wants; the wishes as they stand now."""
        ...

    async def compact_now(
        self, key: SessionKey, *, installation: Installation, now_ms: int, actor: str = LOCAL
    ) -> CompactionId | None:
        """Evict what the policy would let go; None when there is nothing."""
        ...

    async def erase(
        self, key: SessionKey | AgentId, *, last_seq: int, now_ms: int, actor: str = LOCAL
    ) -> EraseResult:
        """Erase a session or all of an agent: nothing at or below this sequence, and no event that was stored, comes back."""
        ...


class ErasureStore(Protocol):
    """What is left to do after an erasure, and whose time is over."""

    async def erase_expired(
        self, *, after: int, limit: int, installation: Installation, now_ms: int
    ) -> int | None:
        """Look at some sessions behind this one by number, and erase those that their policy retains no longer.

        The last one looked at; None when there was none.
        """
        ...

    async def to_purge(self, limit: int) -> Sequence[int]:
        """The lowest sequences that the stream has still to forget."""
        ...

    async def purged(self, sequences: Sequence[int]) -> None:
        """The stream holds these no more."""
        ...

    async def tidy(self) -> bool:
        """Leave nothing of what was erased in files beside the database; False when somebody who reads keeps it from that now."""
        ...


class ActiveVersion(NamedTuple):
    """Which version speaks for a session after a change, and how many of its messages wait for one that speaks for them."""

    version: int | None
    messages_pending: int


class VersionStore(Protocol):
    """Where versions change places. Each method may raise UnknownSession, or BadRequest for what the session never had."""

    async def promote(
        self,
        key: SessionKey,
        version: int,
        *,
        over: int | None,
        installation: Installation,
        now_ms: int,
        actor: str = LOCAL,
    ) -> ActiveVersion:
        """Put a version in force; with `over`, only in the place of that one.

        Raises:
            Conflict: another version is in force than `over`, or what it speaks for was restored since.
        """
        ...

    async def restore(
        self,
        key: SessionKey,
        compaction_id: CompactionId,
        *,
        installation: Installation,
        now_ms: int,
        actor: str = LOCAL,
    ) -> ActiveVersion:
        """Undo an eviction: its messages are live again.

        Raises:
            Conflict: it evicted nothing, or a later one was committed.
        """
        ...

    async def regenerate(
        self,
        key: SessionKey,
        wanted: RegenerateOptions,
        *,
        installation: Installation,
        now_ms: int,
        actor: str = LOCAL,
    ) -> CompactionId:
        """Have a version written anew beside the one in force; the compaction that stands for the work.

        Raises:
            Conflict: there is no version yet.
        """
        ...


class CampaignProgress(NamedTuple):
    """How far a campaign is: sessions it began with, opened so far, and of those written, failed and open. Times are ms since 1970."""

    campaign_id: str
    agent_id: str | None
    sessions: int
    opened: int
    written: int
    failed: int
    open: int
    requested_at_ms: int
    finished_at_ms: int | None


class CampaignStore(Protocol):
    """Regenerations of many sessions."""

    async def begin(
        self,
        agent_id: AgentId | None,
        wanted: RegenerateOptions,
        *,
        at_once: int,
        installation: Installation,
        now_ms: int,
        actor: str = LOCAL,
    ) -> CampaignProgress:
        """Begin one for an agent or for all; the one that is under way where the same was asked before."""
        ...

    async def advance(self, *, installation: Installation, now_ms: int) -> int:
        """Open the next sessions of each campaign as far as it may have open at once; how many that were."""
        ...

    async def progress(self, campaign_id: str) -> CampaignProgress | None:
        """How far one is; None where there is none of that id."""
        ...


class Notice(NamedTuple):
    """Something that happened and has to be told."""

    outbox_id: int
    subject: str
    payload: str


class OutboxStore(Protocol):
    """Notices that wait to be sent."""

    async def unsent(self, limit: int) -> Sequence[Notice]: ...

    async def sent(self, notices: Sequence[Notice]) -> None: ...
