"""Requests that have versions change places: promote, restore, regenerate."""

from collections.abc import Callable, Mapping
from typing import Any

from faststream.nats import NatsRouter

from turnfold.contracts.requests import (
    CampaignRequest,
    ProgressRequest,
    PromoteRequest,
    RegenerateRequest,
    RestoreRequest,
    SummaryRequest,
    read_command,
)
from turnfold.contracts.subjects import key_of_subject
from turnfold.messages import SessionKey
from turnfold.operations.compact import versions
from turnfold.operations.query import history
from turnfold.ports.admin import CampaignStore, VersionStore
from turnfold.ports.ingest import Installation
from turnfold.ports.query import HistoryStore
from turnfold_worker.handlers import CommandServer, Handle

PROMOTE, RESTORE, REGENERATE = "summary.promote", "compaction.restore", "summary.regenerate"
AGENT_REGENERATE, ALL_REGENERATE, PROGRESS = (
    "agent.regenerate",
    "installation.regenerate",
    "campaign.get",
)


def make_versions_router(
    *,
    store: VersionStore,
    campaigns: CampaignStore,
    histories: HistoryStore,
    installation: Installation,
    now_ms: Callable[[], int],
    on_change: Callable[[], object],
    desk: CommandServer,
) -> NatsRouter:
    """Who writes answers them: the compaction worker."""
    router = NatsRouter()

    def key_of(name: str, subject: str) -> SessionKey:
        key = key_of_subject(name, subject)
        assert isinstance(key, SessionKey)
        return key

    def changed(answer: Handle) -> Handle:
        async def answering(subject: str, body: bytes, actor: str) -> Mapping[str, Any]:
            told = await answer(subject, body, actor)
            on_change()
            return told

        return answering

    async def on_promote(subject: str, body: bytes, actor: str) -> Mapping[str, Any]:
        key = key_of(PROMOTE, subject)
        request = read_command(PromoteRequest, key, body)
        await versions.promote(
            key, request, store=store, installation=installation, now_ms=now_ms(), actor=actor
        )
        return await history.summary(key, SummaryRequest(version=request.version), store=histories)

    async def on_restore(subject: str, body: bytes, actor: str) -> Mapping[str, Any]:
        key = key_of(RESTORE, subject)
        request = read_command(RestoreRequest, key, body)
        return await versions.restore(
            key, request, store=store, installation=installation, now_ms=now_ms(), actor=actor
        )

    async def on_regenerate(subject: str, body: bytes, actor: str) -> Mapping[str, Any]:
        key = key_of(REGENERATE, subject)
        request = read_command(RegenerateRequest, key, body)
        return await versions.regenerate(
            key, request, store=store, installation=installation, now_ms=now_ms(), actor=actor
        )

    async def on_agent_regenerate(subject: str, body: bytes, actor: str) -> Mapping[str, Any]:
        agent_id = key_of_subject(AGENT_REGENERATE, subject)
        assert not isinstance(agent_id, SessionKey)
        request = read_command(CampaignRequest, agent_id, body)
        return await versions.begin_campaign(
            agent_id,
            request,
            store=campaigns,
            installation=installation,
            now_ms=now_ms(),
            actor=actor,
        )

    async def on_all_regenerate(_: str, body: bytes, actor: str) -> Mapping[str, Any]:
        request = read_command(CampaignRequest, None, body)
        return await versions.begin_campaign(
            None, request, store=campaigns, installation=installation, now_ms=now_ms(), actor=actor
        )

    async def on_progress(_: str, body: bytes, __: str) -> Mapping[str, Any]:
        return await versions.progress(read_command(ProgressRequest, None, body), store=campaigns)

    desk.listen(router, AGENT_REGENERATE, 1, changed(on_agent_regenerate))
    desk.listen(router, ALL_REGENERATE, 0, changed(on_all_regenerate))
    desk.listen(router, PROGRESS, 0, on_progress)
    for name, answer in ((PROMOTE, on_promote), (RESTORE, on_restore), (REGENERATE, on_regenerate)):
        desk.listen(router, name, 2, changed(answer))
    return router
