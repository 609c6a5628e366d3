"""What people do with versions: put one in force, undo a compaction, have a summary written again."""

from typing import Any

from turnfold.contracts.requests import (
    CampaignRequest,
    ProgressRequest,
    PromoteRequest,
    RegenerateRequest,
    RestoreRequest,
)
from turnfold.core.history.audit_chain import LOCAL
from turnfold.core.policy.presets import is_model_name
from turnfold.core.summary.prompt import checked_task
from turnfold.errors import BadRequest
from turnfold.messages import AgentId, CompactionId, SessionKey
from turnfold.operations.query.context import rfc3339
from turnfold.ports.admin import CampaignProgress, CampaignStore, VersionStore
from turnfold.ports.compact import RegenerateOptions
from turnfold.ports.ingest import Installation


async def promote(
    key: SessionKey,
    request: PromoteRequest,
    *,
    store: VersionStore,
    installation: Installation,
    now_ms: int,
    actor: str = LOCAL,
) -> None:
    """Put a version in force; what it does not speak for is pending until the next one does."""
    await store.promote(
        key,
        request.version,
        over=request.over,
        installation=installation,
        now_ms=now_ms,
        actor=actor,
    )


async def restore(
    key: SessionKey,
    request: RestoreRequest,
    *,
    store: VersionStore,
    installation: Installation,
    now_ms: int,
    actor: str = LOCAL,
) -> dict[str, Any]:
    """Undo a compaction: its messages are live again, and the version before it is in force."""
    compaction_id = CompactionId(str(request.compaction_id))
    now = await store.restore(
        key, compaction_id, installation=installation, now_ms=now_ms, actor=actor
    )
    return {
        "compaction_id": compaction_id,
        "status": "restored",
        "version": now.version,
        "messages_pending": now.messages_pending,
    }


async def regenerate(
    key: SessionKey,
    request: RegenerateRequest,
    *,
    store: VersionStore,
    installation: Installation,
    now_ms: int,
    actor: str = LOCAL,
) -> dict[str, Any]:
    """Have a version written beside the one in force; `compaction_id` is the work, whose row tells how it goes.

    Raises:
        BadRequest: its prompt cannot be filled in, or its model has no name that could be one or is not allowed here.
    """
    _check(request.model, request.prompt, installation)
    wanted = RegenerateOptions(
        model=request.model,
        style=request.style,
        prompt=request.prompt,
        from_version=request.from_version,
    )
    return {
        "compaction_id": await store.regenerate(
            key, wanted, installation=installation, now_ms=now_ms, actor=actor
        )
    }


async def begin_campaign(
    agent_id: AgentId | None,
    request: CampaignRequest,
    *,
    store: CampaignStore,
    installation: Installation,
    now_ms: int,
    actor: str = LOCAL,
) -> dict[str, Any]:
    """Have the summaries of an agent, or of all, written anew; asked again while it is under way, it tells how far that is.

    Raises:
        BadRequest: see `regenerate`.
    """
    _check(request.model, request.prompt, installation)
    wanted = RegenerateOptions(model=request.model, style=request.style, prompt=request.prompt)
    return _progress_json(
        await store.begin(
            agent_id,
            wanted,
            at_once=request.at_once,
            installation=installation,
            now_ms=now_ms,
            actor=actor,
        )
    )


async def progress(request: ProgressRequest, *, store: CampaignStore) -> dict[str, Any]:
    """How far a campaign is."""
    found = await store.progress(request.campaign_id)
    if found is None:
        raise BadRequest("campaign_id: there is no campaign of that id")
    return _progress_json(found)


def _check(model: str | None, prompt: str | None, installation: Installation) -> None:
    if model is not None and not is_model_name(model):
        raise BadRequest(
            "model: it is a word without spaces, such as openai/gpt-4.1-mini, or session"
        )
    try:
        if model is not None:
            installation.allowance.check_model(model)
    except ValueError as error:
        raise BadRequest(f"model: {error}") from None
    try:
        if prompt is not None:
            checked_task(prompt)
    except ValueError as error:
        raise BadRequest(f"prompt: {error}") from None


def _progress_json(found: CampaignProgress) -> dict[str, Any]:
    told = found._asdict()
    requested, finished = told.pop("requested_at_ms"), told.pop("finished_at_ms")
    return told | {
        "requested_at": rfc3339(requested),
        "finished_at": rfc3339(finished) if finished is not None else None,
    }
