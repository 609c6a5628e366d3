"""Restore evicted messages, and regenerate summaries."""

from typing import Any

from turnfold.contracts.requests import (
    CampaignRequest,
    ProgressRequest,
    RegenerateRequest,
    RestoreRequest,
)
from turnfold.core.history.audit_chain import LOCAL
from turnfold.core.policy.presets import is_model_name
from turnfold.core.summary.prompt import checked_task
from turnfold.errors import BadRequest
from turnfold.messages import AgentId, CompactionId, SessionKey
from turnfold.operations.query.installation import campaign_json
from turnfold.ports.admin import CampaignStore, VersionStore
from turnfold.ports.compact import RegenerateOptions
from turnfold.ports.ingest import Installation


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
    """Write a version beside the one in force; `compaction_id` identifies the job in `session.get`.

    Raises:
        BadRequest: the prompt has unknown fields, or the model's name is invalid or not
            allowed.
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
    """Regenerate the summaries of an agent or of all agents; return the progress.

    Raises:
        BadRequest: as in `regenerate`.
    """
    _check(request.model, request.prompt, installation)
    wanted = RegenerateOptions(model=request.model, style=request.style, prompt=request.prompt)
    return campaign_json(
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
    """Return the progress of a campaign."""
    campaign = await store.progress(request.campaign_id)
    if campaign is None:
        raise BadRequest("campaign_id: there is no campaign with that id")
    return campaign_json(campaign)


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
