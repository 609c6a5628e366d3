"""Execute the requests that write: call an operation, and wake the loops that it concerns."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypedDict
from weakref import WeakValueDictionary

from turnfold.bus.events import BusEvents
from turnfold.contracts.erasures import ErasedSessions
from turnfold.contracts.history_requests import PopRequest
from turnfold.contracts.requests import (
    AgentEraseRequest,
    CampaignRequest,
    CompactionRequest,
    EraseRequest,
    PolicyRequest,
    ProgressRequest,
    PromoteRequest,
    RegenerateRequest,
    ReplayRequest,
    RestoreRequest,
    SummaryRequest,
)
from turnfold.errors import Unavailable
from turnfold.messages import AgentId, SessionKey
from turnfold.operations.compact import versions
from turnfold.operations.query import dead_letters, history
from turnfold.operations.query.pop import pop, stored_in_time
from turnfold.ports.admin import CampaignStore, DeadLetterStore, VersionStore
from turnfold.ports.ingest import Installation
from turnfold.ports.query import HistoryStore
from turnfold.store.compact.requests import SqlSessionCommands
from turnfold_worker.handlers import Handle, Reply

INGEST_SECONDS = 3.0


class Circumstances(TypedDict):
    """The arguments that every change of a session takes: where, when and by whom it is made."""

    installation: Installation
    now_ms: int
    actor: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Commands:
    """The operations of the requests that write, with all that they need.

    `on_change` is called after each request that may have opened jobs or written notices, and
    `on_erased` before an erasure is answered. `last_seq` returns the newest sequence of the stream,
    `ingested_to` the sequence up to which all events are stored, and `most_answer_bytes` the size
    of the largest answer.
    """

    sessions: SqlSessionCommands
    versions: VersionStore
    campaigns: CampaignStore
    histories: HistoryStore
    letters: DeadLetterStore
    stream: BusEvents
    installation: Installation
    now_ms: Callable[[], int]
    last_seq: Callable[[], Awaitable[int]]
    ingested_to: Callable[[], Awaitable[int]]
    most_answer_bytes: Callable[[], int]
    on_change: Callable[[], object]
    on_erased: Callable[[ErasedSessions], Awaitable[None]]
    # Weak: a lock lives while a request holds or awaits it, so that their number stays bounded.
    _locks: WeakValueDictionary[SessionKey, asyncio.Lock] = field(
        default_factory=WeakValueDictionary
    )

    def handlers(self) -> Mapping[str, Handle]:
        """Return the handler of each request."""
        change = self.on_change
        return {
            "session.policy": _followed(self._set_policy, change),
            "agent.policy": _followed(self._set_policy, change),
            "session.erase": self._erase,
            "agent.erase": self._erase,
            "session.pop": self._pop,
            "compaction.request": _followed(self._compact, change),
            "compaction.restore": _followed(self._restore, change),
            "summary.promote": _followed(self._promote, change),
            "summary.regenerate": _followed(self._regenerate, change),
            "agent.regenerate": _followed(self._begin_campaign, change),
            "installation.regenerate": _followed(self._begin_campaign, change),
            "campaign.get": self._progress,
            "deadletters.replay": self._replay,
        }

    def _made_by(self, actor: str) -> Circumstances:
        """Return the circumstances of a change that `actor` makes now."""
        return {"installation": self.installation, "now_ms": self.now_ms(), "actor": actor}

    async def _set_policy(
        self, key: SessionKey | AgentId, request: PolicyRequest, actor: str
    ) -> Reply:
        return await self.sessions.set_policy(key, request, **self._made_by(actor))

    async def _erase(self, key: SessionKey | AgentId, request: EraseRequest, actor: str) -> Reply:
        # Events up to this sequence are erased even if no worker has stored them yet.
        until = await self.last_seq()
        prefix = request.prefix if isinstance(request, AgentEraseRequest) else None
        if prefix is not None:
            # Only stored sessions can be found by a prefix.
            ends = time.monotonic() + INGEST_SECONDS
            if not await stored_in_time(until, self.ingested_to, ends):
                raise Unavailable(
                    "events that were published before are not stored yet; try again later"
                )
        erased = await self.sessions.erase(
            key, last_seq=until, now_ms=self.now_ms(), actor=actor, prefix=prefix
        )
        await self.on_erased(ErasedSessions.of(key, prefix))
        ids = key._asdict() if isinstance(key, SessionKey) else {"agent_id": key}
        return {**ids, **erased._asdict()}

    async def _pop(self, key: SessionKey, request: PopRequest, actor: str) -> Reply:
        asked_at = time.monotonic()
        # Requests of one session take turns here, so that they need not try again.
        async with self._locks.setdefault(key, asyncio.Lock()):
            return await pop(
                key,
                request,
                store=self.histories,
                stream=self.stream,
                ingested_to=self.ingested_to,
                most_bytes=self.most_answer_bytes(),
                asked_at=asked_at,
                actor=actor,
            )

    async def _compact(self, key: SessionKey, _: CompactionRequest, actor: str) -> Reply:
        opened = await self.sessions.compact_now(key, **self._made_by(actor))
        return {"compaction_id": opened}

    async def _promote(self, key: SessionKey, request: PromoteRequest, actor: str) -> Reply:
        await self.versions.promote(key, request.version, over=request.over, **self._made_by(actor))
        asked = SummaryRequest(version=request.version)
        return await history.summary(key, asked, store=self.histories)

    async def _restore(self, key: SessionKey, request: RestoreRequest, actor: str) -> Reply:
        return await versions.restore(key, request, store=self.versions, **self._made_by(actor))

    async def _regenerate(self, key: SessionKey, request: RegenerateRequest, actor: str) -> Reply:
        return await versions.regenerate(key, request, store=self.versions, **self._made_by(actor))

    async def _begin_campaign(
        self, agent_id: AgentId | None, request: CampaignRequest, actor: str
    ) -> Reply:
        return await versions.begin_campaign(
            agent_id, request, store=self.campaigns, **self._made_by(actor)
        )

    async def _progress(self, _: None, request: ProgressRequest, __: str) -> Reply:
        return await versions.progress(request, store=self.campaigns)

    async def _replay(self, _: None, request: ReplayRequest, __: str) -> Reply:
        return await dead_letters.replay(
            request, store=self.letters, stream=self.stream, now_ms=self.now_ms
        )


def _followed(handle: Handle, callback: Callable[[], object]) -> Handle:
    """Call `callback` after each request that has succeeded."""

    async def on_request(key: Any, request: Any, actor: str) -> Reply:
        reply = await handle(key, request, actor)
        # Not after an error, which changed nothing.
        callback()
        return reply

    return on_request
