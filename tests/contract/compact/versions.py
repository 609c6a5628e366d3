"""Versions of one session, and what acts on them."""

from typing import Any

from tests.store_fixtures import KEY, NOON, Stores, summary, turns
from turnfold.contracts.requests import PolicyRequest
from turnfold.messages import AgentId, CompactionId, SessionId, SessionKey, State
from turnfold.ports.admin import ActiveVersion
from turnfold.ports.compact import Job, RegenerateOptions

OTHER = SessionKey(AgentId("ada"), SessionId("s-2"))
STRANGER = SessionKey(AgentId("bob"), SessionId("s-1"))


async def claimed(stores: Stores, now_ms: int = NOON + 1_000) -> Job:
    """The only job that is due."""
    (job,) = await stores.claim(now_ms)
    return job


async def write(
    stores: Stores,
    text: str = "They spoke.",
    *,
    at_ms: int = NOON + 1_000,
    kind: str = "llm",
    reason: str | None = None,
) -> int:
    """Have the one job that is due written."""
    job = await claimed(stores, at_ms)
    leaving = (await stores.jobs.load(job, now_ms=at_ms)).leaving
    return await stores.jobs.commit(
        job, summary(text, kind=kind), leaving=leaving, reason=reason, now_ms=at_ms
    )


async def three_versions(stores: Stores) -> None:
    """Seven turns thrice, and a version for each time: at 1,000, 2,000 and 3,000 ms after noon."""
    for number in (1, 2, 3):
        await stores.ingest(*turns(10 * number, 7))
        await write(stores, f"Version {number}.", at_ms=NOON + 1_000 * number)


async def promote(
    stores: Stores, version: int, *, over: int | None = None, now_ms: int = NOON + 9_000
) -> ActiveVersion:
    return await stores.versions.promote(
        KEY, version, over=over, installation=stores.installation, now_ms=now_ms
    )


async def restore(
    stores: Stores, compaction_id: str, *, now_ms: int = NOON + 9_000
) -> ActiveVersion:
    return await stores.versions.restore(
        KEY, CompactionId(compaction_id), installation=stores.installation, now_ms=now_ms
    )


async def regenerate(stores: Stores, *, now_ms: int = NOON + 9_000, **wanted: Any) -> CompactionId:
    return await stores.versions.regenerate(
        KEY, RegenerateOptions(**wanted), installation=stores.installation, now_ms=now_ms
    )


async def states(stores: Stores) -> dict[State, int]:
    found = [one.state for one in await stores.history.page(KEY, after_position=0, limit=1_000)]
    return {state: found.count(state) for state in State if state in found}


async def ids(stores: Stores, *wanted: State) -> list[str]:
    """The messages that are in one of these states, in order."""
    return [
        one.message_id
        for one in await stores.history.page(KEY, after_position=0, limit=1_000)
        if one.state in wanted
    ]


async def phases(stores: Stores, key: SessionKey = KEY) -> list[str]:
    return [row.phase for row in await stores.history.audit(key, after=0, limit=1_000)]


async def override(
    stores: Stores,
    key: SessionKey | AgentId = KEY,
    mode: Any = None,
    preset: Any = None,
    **numbers: Any,
) -> Any:
    """Set the policy of a session or an agent, and return it."""
    request = PolicyRequest(mode=mode, preset=preset, overrides=numbers or None)
    return await stores.changes.set_policy(
        key, request, installation=stores.installation, now_ms=NOON
    )


async def compaction_of(stores: Stores, version: int) -> str:
    """The compaction that a version was written for."""
    _, (found,) = await stores.history.versions(KEY, version)
    return found.compaction_id


async def read(stores: Stores, job: Job, *, by_model: bool = True) -> list[str]:
    given = await stores.jobs.load(job, now_ms=NOON + 9_000, by_model=by_model)
    return [str(one.message.message_id) for one in given.evicted]
