"""Resolve and explain the policy of a session or an agent."""

from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import lru_cache
from typing import Any

from turnfold.core.policy.allowance import DEFAULT_ALLOWANCE, Allowance
from turnfold.core.policy.overrides import PolicyOverrides, effective_policy
from turnfold.core.policy.presets import SET_ASIDE, Policy
from turnfold.messages import AgentId, SessionKey
from turnfold.ports.ingest import PolicyResolver
from turnfold.ports.query import (
    HistoryStore,
)

Explain = Callable[[PolicyOverrides, PolicyOverrides], Mapping[str, Any]]


def policy_resolver(
    default_preset: str,
    policy_of: Callable[[str], Policy],
    allowance: Allowance = DEFAULT_ALLOWANCE,
) -> PolicyResolver:
    """Return the function that resolves the policy of a session in this installation.

    A session's overrides precede its agent's. The ceilings of `allowance` limit both.
    """

    # Never stale: the other inputs are settings, which do not change while a process runs.
    @lru_cache(maxsize=4_096)
    def resolve(agent: PolicyOverrides, session: PolicyOverrides) -> Policy:
        return allowance.bounded(
            effective_policy(agent, session, default_preset=default_preset, policy_of=policy_of)
        )

    return resolve


def explanation(
    default_preset: str,
    policy_of: Callable[[str], Policy],
    allowance: Allowance,
    *,
    origins: Mapping[str, str],
    short_names: frozenset[str],
) -> Explain:
    """Return the function that explains a policy: the value and the origin of each number.

    `origins` names the source of each configured number, preset and limit (`limit.<number>`).
    `short_names` are numbers that the environment sets only for the preset token-budget.
    """

    def explain(agent: PolicyOverrides, session: PolicyOverrides) -> Mapping[str, Any]:
        preset = session.preset or agent.preset or default_preset
        wished = effective_policy(
            agent, session, default_preset=default_preset, policy_of=policy_of
        )
        policy = allowance.bounded(wished)
        own, of_agent = session.numbers(), agent.numbers()

        def origin(name: str) -> str:
            if getattr(policy, name) != getattr(wished, name):
                return origins.get(f"limit.{name}", "preset")
            # Setting one of the others makes this number 0, so its origin is theirs.
            names = {name, *SET_ASIDE.get(name, ())}
            if names & own.keys() or (name == "mode" and session.mode):
                return "session"
            if names & of_agent.keys() or (name == "mode" and agent.mode):
                return "agent"
            is_short = (
                name in short_names
                and getattr(policy, name) != getattr(Policy(), name)
                and preset == "token-budget"
            )
            return origins.get(name, "environment" if is_short else "preset")

        def preset_origin() -> str:
            if session.preset:
                return "session"
            return "agent" if agent.preset else origins.get("preset", "preset")

        numbers = {
            field.name: {"value": getattr(policy, field.name), "from": origin(field.name)}
            for field in fields(policy)
            if field.name != "mode"
        }
        return {
            "mode": policy.mode,
            "mode_from": origin("mode"),
            "preset": preset,
            "preset_from": preset_origin(),
            "numbers": numbers,
        }

    return explain


async def policy_in_force(
    key: SessionKey | AgentId, *, store: HistoryStore, explain: Explain
) -> dict[str, Any]:
    """Return the policy of a session, or of new sessions of an agent; neither has to exist."""
    named = key._asdict() if isinstance(key, SessionKey) else {"agent_id": key}
    return {**named, **explain(*await store.wishes(key))}
