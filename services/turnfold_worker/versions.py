"""Requests that have versions change places: promote, restore, regenerate."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from faststream.nats import NatsRouter

from turnfold.contracts.requests import (
    CampaignRequest,
    ProgressRequest,
    PromoteRequest,
    RegenerateRequest,
    RestoreRequest,
    SummaryRequest,
    read_request,
)
from turnfold.contracts.subjects import key_of_subject
from turnfold.messages import SessionKey
from turnfold.operations import history, versions
from turnfold.ports import Campaigns, HistoryStore, Rules, Versions
from turnfold_worker.handlers import Desk

PROMOTE, RESTORE, REGENERATE = "summary.promote", "compaction.restore", "summary.regenerate"
AGENT_REGENERATE, ALL_REGENERATE, PROGRESS = "agent.regenerate", "installation.regenerate", "campaign.get"


def make_versions_router(
    *,
    store: Versions,
    campaigns: Campaigns,
    histories: HistoryStore,
    rules: Rules,
    now_ms: Callable[[], int],
    on_change: Callable[[], object],
    desk: Desk,
) -> NatsRouter:
    """Who writes answers them: the compaction worker."""
    router = NatsRouter()

    def key_of(name: str, subject: str) -> SessionKey:
        key = key_of_subject(name, subject)
        assert isinstance(key, SessionKey)
        return key

    def changed(answer: Callable[[str, bytes], Awaitable[Mapping[str, Any]]]) -> Callable[[str, bytes], Awaitable[Mapping[str, Any]]]:
        async def answering(subject: str, body: bytes) -> Mapping[str, Any]:
            told = await answer(subject, body)
            on_change()
            return told

        return answering

    async def on_promote(subject: str, body: bytes) -> Mapping[str, Any]:
        key = key_of(PROMOTE, subject)
        await versions.promote(key, read_request(PromoteRequest, body), store=store, rules=rules, now_ms=now_ms())
        return await history.summary(key, read_request(SummaryRequest, body), store=histories)

    async def on_restore(subject: str, body: bytes) -> Mapping[str, Any]:
        request = read_request(RestoreRequest, body)
        return await versions.restore(key_of(RESTORE, subject), request, store=store, rules=rules, now_ms=now_ms())

    async def on_regenerate(subject: str, body: bytes) -> Mapping[str, Any]:
        request = read_request(RegenerateRequest, body)
        return await versions.regenerate(key_of(REGENERATE, subject), request, store=store, rules=rules, now_ms=now_ms())

    async def on_agent_regenerate(subject: str, body: bytes) -> Mapping[str, Any]:
        agent_id = key_of_subject(AGENT_REGENERATE, subject)
        assert not isinstance(agent_id, SessionKey)
        request = read_request(CampaignRequest, body)
        return await versions.begin_campaign(agent_id, request, store=campaigns, rules=rules, now_ms=now_ms())

    async def on_all_regenerate(_: str, body: bytes) -> Mapping[str, Any]:
        request = read_request(CampaignRequest, body)
        return await versions.begin_campaign(None, request, store=campaigns, rules=rules, now_ms=now_ms())

    async def on_progress(_: str, body: bytes) -> Mapping[str, Any]:
        return await versions.progress(read_request(ProgressRequest, body), store=campaigns)

    desk.listen(router, AGENT_REGENERATE, 1, changed(on_agent_regenerate))
    desk.listen(router, ALL_REGENERATE, 0, changed(on_all_regenerate))
    desk.listen(router, PROGRESS, 0, on_progress)
    for name, answer in ((PROMOTE, on_promote), (RESTORE, on_restore), (REGENERATE, on_regenerate)):
        desk.listen(router, name, 2, changed(answer))
    return router
