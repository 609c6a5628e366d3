"""What people do with versions: put one in force, undo a compaction, have a summary written again."""

from typing import Any

from turnfold.contracts.requests import PromoteRequest, RegenerateRequest, RestoreRequest
from turnfold.messages import CompactionId, SessionKey
from turnfold.ports import Rules, Versions, Wanted


async def promote(key: SessionKey, request: PromoteRequest, *, store: Versions, rules: Rules, now_ms: int) -> None:
    """Put a version in force; what it does not speak for is pending until the next one does."""
    await store.promote(key, request.version, over=request.over, rules=rules, now_ms=now_ms)


async def restore(key: SessionKey, request: RestoreRequest, *, store: Versions, rules: Rules, now_ms: int) -> dict[str, Any]:
    """Undo a compaction: its messages are live again, and the version before it is in force."""
    compaction_id = CompactionId(str(request.compaction_id))
    now = await store.restore(key, compaction_id, rules=rules, now_ms=now_ms)
    return {"compaction_id": compaction_id, "status": "restored", "version": now.version, "messages_pending": now.messages_pending}


async def regenerate(key: SessionKey, request: RegenerateRequest, *, store: Versions, rules: Rules, now_ms: int) -> dict[str, Any]:
    """Have a version written beside the one in force; `compaction_id` is the work, whose row tells how it goes."""
    wanted = Wanted(model=request.model, style=request.style, prompt=request.prompt, from_version=request.from_version)
    return {"compaction_id": await store.regenerate(key, wanted, rules=rules, now_ms=now_ms)}
