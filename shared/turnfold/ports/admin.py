"""Ports for requests that change sessions: policies, versions, campaigns, erasure, dead letters."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from turnfold.core.history.audit_chain import LOCAL
from turnfold.messages import AgentId, CompactionId, SessionKey
from turnfold.ports.compact import RegenerateOptions
from turnfold.ports.ingest import Installation
from turnfold.ports.query import (
    DeadLetterRow,
)


class StoredDeadLetter(NamedTuple):
    """A dead letter with the bytes that are kept."""

    row: DeadLetterRow
    payload: bytes

    @property
    def is_whole(self) -> bool:
        """Whether all published bytes are kept."""
        return len(self.payload) == self.row.size_bytes

    def is_of(self, published: bytes) -> bool:
        """Whether these are the published bytes."""
        return len(published) == self.row.size_bytes and published.startswith(self.payload)


class DeadLetterStore(Protocol):
    """Read dead letters, oldest first, and record their replay.

    `letters` leaves out unknown ids, and `unreplayed` returns those with ids in (after, until].
    `newest_id` is 0 without any. `replay_outcomes` has the ingested ones of the sequences, each
    with its new dead letter, or None if it was stored.
    """

    async def letters(self, ids: Sequence[int]) -> Sequence[StoredDeadLetter]: ...

    async def unreplayed(
        self, *, reason: str | None, after: int, until: int, limit: int
    ) -> Sequence[StoredDeadLetter]: ...

    async def newest_id(self) -> int: ...

    async def replayed(self, dead_letter_id: int, *, now_ms: int) -> None: ...

    async def replay_outcomes(
        self, sequences: Sequence[int]
    ) -> Mapping[int, DeadLetterRow | None]: ...


class EventStream(Protocol):
    """The part of the event stream that a replay needs.

    Raises:
        Unavailable: the stream does not answer.
    """

    async def publish_again(self, subject: str, payload: bytes, *, seq: int) -> int: ...

    async def payload_of(self, seq: int) -> bytes | None: ...


class NewestEvents(NamedTuple):
    """The sequences of a session's newest event and newest retraction in the stream; 0 without."""

    seq: int
    retraction_seq: int


class RetractionStream(Protocol):
    """The part of the event stream that retracts messages for one caller only.

    Raises:
        Unavailable: the stream does not answer.
    """

    async def newest(self, key: SessionKey) -> NewestEvents: ...

    async def retract(
        self, key: SessionKey, event: bytes, *, event_id: str, newest_seq: int, actor: str
    ) -> int | None: ...


class ActiveVersion(NamedTuple):
    """The version in force after a change, and the number of messages that it does not cover."""

    version: int | None
    messages_pending: int


class VersionStore(Protocol):
    """Change which version is in force.

    Raises:
        UnknownSession: there is no such session.
        BadRequest: the session never had such a version or compaction.
    """

    async def promote(
        self,
        key: SessionKey,
        version: int,
        *,
        over: int | None,
        installation: Installation,
        now_ms: int,
        actor: str = LOCAL,
    ) -> ActiveVersion: ...

    async def restore(
        self,
        key: SessionKey,
        compaction_id: CompactionId,
        *,
        installation: Installation,
        now_ms: int,
        actor: str = LOCAL,
    ) -> ActiveVersion: ...

    async def regenerate(
        self,
        key: SessionKey,
        wanted: RegenerateOptions,
        *,
        installation: Installation,
        now_ms: int,
        actor: str = LOCAL,
    ) -> CompactionId: ...


class CampaignProgress(NamedTuple):
    """Progress of a campaign, in sessions: total, opened, and of those written, failed and open.

    Times are milliseconds since 1970.
    """

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
    """Regenerate the summaries of many sessions."""

    async def begin(
        self,
        agent_id: AgentId | None,
        wanted: RegenerateOptions,
        *,
        at_once: int,
        installation: Installation,
        now_ms: int,
        actor: str = LOCAL,
    ) -> CampaignProgress: ...

    async def progress(self, campaign_id: str) -> CampaignProgress | None: ...
