"""Agents with their totals, what summaries took, and campaigns as a list, in every store."""

from dataclasses import replace

import pytest

from tests.store_fixtures import NOON, Stores, summary, turns
from turnfold.core.policy.retention import DAY_MS
from turnfold.messages import AgentId, SessionId, SessionKey
from turnfold.operations.query.installation import agents, campaigns, costs
from turnfold.ports.compact import RegenerateOptions

TODAY = NOON // DAY_MS


def key(agent: str, number: int = 0) -> SessionKey:
    return SessionKey(AgentId(agent), SessionId(f"s-{number}"))


async def summarised(stores: Stores) -> None:
    """Two agents with a version per session: the costs of one session are unknown."""
    for place, one in enumerate([key("ada"), key("ada", 1), key("bob")]):
        await stores.ingest(*turns(1 + 100 * place, 7, key=one))
    for job in await stores.claim():
        version = summary()
        if job.key != key("ada", 1):
            draft = replace(version.draft, prompt_tokens=100, completion_tokens=10, cost=0.25)
            version = replace(version, draft=draft)
        await stores.jobs.commit(job, version, reason=None, now_ms=NOON + 1_000)


@pytest.mark.proves("V1")
async def test_agents_are_listed_with_the_sums_of_their_sessions(stores: Stores) -> None:
    await summarised(stores)

    first = await agents(None, after=None, limit=1, store=stores.inspections)
    rest = await agents(None, after=first["next_after"], limit=2, store=stores.inspections)

    (ada,), (bob,) = first["agents"], rest["agents"]
    assert (ada["agent_id"], ada["sessions"], ada["summaries"]) == ("ada", 2, 2)
    assert (bob["agent_id"], bob["sessions"], rest["next_after"]) == ("bob", 1, None)
    assert (ada["messages"], bob["messages"]) == (28, 14)
    own = await agents({"bob"}, after=None, limit=9, store=stores.inspections)
    assert own["agents"] == [bob]


@pytest.mark.proves("V1")
async def test_costs_are_told_by_model_day_and_agent(stores: Stores) -> None:
    await summarised(stores)
    for agent, day, tokens in (("ada", TODAY, 7), ("bob", TODAY, 9), ("ada", TODAY - 2, 1)):
        await stores.jobs.spend(AgentId(agent), day, tokens)

    taken = await costs(None, days=2, now_ms=NOON, store=stores.inspections)
    own = await costs({"ada"}, days=3, now_ms=NOON, store=stores.inspections)

    assert taken["models"] == [
        {
            "model": "test/model",
            "versions": 3,
            "prompt_tokens": 200,
            "completion_tokens": 20,
            "cost": 0.5,
            "unpriced": 1,
        }
    ]
    assert [day["tokens"] for day in taken["days"]] == [0, 16]
    assert taken["agents"] == [{"agent_id": "bob", "tokens": 9}, {"agent_id": "ada", "tokens": 7}]
    assert (own["versions"], own["cost"]) == (2, 0.25)
    assert [day["tokens"] for day in own["days"]] == [1, 0, 7]
    assert own["agents"] == [{"agent_id": "ada", "tokens": 8}]


@pytest.mark.proves("V1")
async def test_an_agent_sees_its_own_campaigns_but_none_over_all_agents(stores: Stores) -> None:
    await summarised(stores)
    for place, agent in enumerate((None, "ada", "bob")):
        await stores.campaigns.begin(
            AgentId(agent) if agent else None,
            RegenerateOptions(style="narrative"),
            at_once=2,
            installation=stores.installation,
            now_ms=NOON + place,
            actor="token:operations",
        )

    listed = await campaigns(None, limit=9, store=stores.inspections)
    own = await campaigns({"ada"}, limit=9, store=stores.inspections)

    assert [(one["agent_id"], one["sessions"], one["actor"]) for one in listed["campaigns"]] == [
        ("bob", 1, "token:operations"),
        ("ada", 2, "token:operations"),
        (None, 3, "token:operations"),
    ]
    assert own["campaigns"] == listed["campaigns"][1:2]
