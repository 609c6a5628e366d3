"""The requests that change which version is in force: promote, restore, regenerate."""

from collections.abc import Callable, Mapping
from typing import Any

from faststream.nats import NatsRouter

from turnfold.contracts.reading import (
    read_command,
)
from turnfold.contracts.requests import (
    CampaignRequest,
    ProgressRequest,
    PromoteRequest,
    RegenerateRequest,
    RestoreRequest,
    SummaryRequest,
)
from turnfold.contracts.subjects import key_of_subject
from turnfold.messages import SessionKey
from turnfold.operations.compact import versions
from turnfold.operations.query import history
from turnfold.ports.admin import CampaignStore, VersionStore
from turnfold.ports.ingest import Installation
from turnfold.ports.query import (
    HistoryStore,
)
from turnfold_worker.handlers import CommandServer, Handle, Reply

PROMOTE = "summary.promote"
RESTORE = "compaction.restore"
REGENERATE = "summary.regenerate"
AGENT_REGENERATE = "agent.regenerate"
ALL_REGENERATE = "installation.regenerate"
PROGRESS = "campaign.get"


def make_versions_router(
    *,
    store: VersionStore,
    histories: HistoryStore,
    installation: Installation,
    now_ms: Callable[[], int],
    on_change: Callable[[], object],
    server: CommandServer,
) -> NatsRouter:
    """Route the requests that promote, restore and regenerate versions of one session."""
    router = NatsRouter()

    async def on_promote(subject: str, body: bytes, actor: str) -> Mapping[str, Any]:
        key = _session_key(PROMOTE, subject)
        request = read_command(PromoteRequest, key, body)
        await versions.promote(
            key, request, store=store, installation=installation, now_ms=now_ms(), actor=actor
        )
        return await history.summary(key, SummaryRequest(version=request.version), store=histories)

    async def on_restore(subject: str, body: bytes, actor: str) -> Mapping[str, Any]:
        key = _session_key(RESTORE, subject)
        request = read_command(RestoreRequest, key, body)
        return await versions.restore(
            key, request, store=store, installation=installation, now_ms=now_ms(), actor=actor
        )

    async def on_regenerate(subject: str, body: bytes, actor: str) -> Mapping[str, Any]:
        key = _session_key(REGENERATE, subject)
        request = read_command(RegenerateRequest, key, body)
        return await versions.regenerate(
            key, request, store=store, installation=installation, now_ms=now_ms(), actor=actor
        )

    handlers = ((PROMOTE, on_promote), (RESTORE, on_restore), (REGENERATE, on_regenerate))
    for name, handle in handlers:
        server.listen(router, name, 2, _with_callback(handle, on_change))
    return router


def make_campaigns_router(
    *,
    store: CampaignStore,
    installation: Installation,
    now_ms: Callable[[], int],
    on_change: Callable[[], object],
    server: CommandServer,
) -> NatsRouter:
    """Route the requests that begin campaigns and read their progress."""
    router = NatsRouter()

    def begin_handler(name: str) -> Handle:
        async def on_begin(subject: str, body: bytes, actor: str) -> Mapping[str, Any]:
            agent_id = None if name == ALL_REGENERATE else key_of_subject(name, subject)
            assert not isinstance(agent_id, SessionKey)
            return await versions.begin_campaign(
                agent_id,
                read_command(CampaignRequest, agent_id, body),
                store=store,
                installation=installation,
                now_ms=now_ms(),
                actor=actor,
            )

        return on_begin

    async def on_progress(_: str, body: bytes, __: str) -> Mapping[str, Any]:
        return await versions.progress(read_command(ProgressRequest, None, body), store=store)

    for name, levels in ((AGENT_REGENERATE, 1), (ALL_REGENERATE, 0)):
        server.listen(router, name, levels, _with_callback(begin_handler(name), on_change))
    server.listen(router, PROGRESS, 0, on_progress)
    return router


def _session_key(name: str, subject: str) -> SessionKey:
    key = key_of_subject(name, subject)
    assert isinstance(key, SessionKey)
    return key


def _with_callback(handle: Handle, callback: Callable[[], object]) -> Handle:
    """Call `callback` after each request that has succeeded."""

    async def on_request(subject: str, body: bytes, actor: str) -> Reply:
        reply = await handle(subject, body, actor)
        # Not after an error, which changed nothing.
        callback()
        return reply

    return on_request
