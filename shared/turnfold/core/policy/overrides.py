"""Policy overrides. A session overrides its agent, which overrides the installation."""

import json
from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import Any, Final, NamedTuple

from turnfold.core.policy.presets import FOR_ALL, Mode, Policy, adjusted

TEXT: Final = "meta_prefixes"
"""The override that is free text."""


class PolicyOverrides(NamedTuple):
    """The settings of an agent or a session. None inherits the value of the level above.

    `overrides` is a JSON text.
    """

    preset: str | None = None
    mode: str | None = None
    overrides: str | None = None

    def changed(
        self, *, preset: str | None, mode: str | None, overrides: Mapping[str, Any] | None
    ) -> "PolicyOverrides":
        """Return these settings with changes. New overrides are merged; null removes one."""
        merged = {**self.numbers(), **(overrides or {})}
        kept = {name: value for name, value in merged.items() if value is not None}
        return PolicyOverrides(
            preset or self.preset, mode or self.mode, json.dumps(kept) if kept else None
        )

    def differences(self, before: "PolicyOverrides") -> dict[str, Any]:
        """Return what changed, for the audit: `preset`, `mode`, and `overrides`.

        A removed override is null. A text appears as its hash, because no erasure reaches it.
        """
        old, new = before.numbers(), self.numbers()
        overrides = {
            name: new.get(name) for name in sorted({*old, *new}) if old.get(name) != new.get(name)
        }
        if text := overrides.get(TEXT):
            digest = sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
            overrides[TEXT] = f"sha256:{digest[:12]}"
        changes = {"preset": self.preset, "mode": self.mode, "overrides": overrides}
        same: dict[str, Any] = {"preset": before.preset, "mode": before.mode, "overrides": {}}
        return {name: value for name, value in changes.items() if value != same[name]}

    def numbers(self) -> dict[str, Any]:
        """Return the overrides as a mapping."""
        numbers: dict[str, Any] = json.loads(self.overrides) if self.overrides else {}
        return numbers


def effective_policy(
    agent: PolicyOverrides,
    session: PolicyOverrides,
    *,
    default_preset: str,
    policy_of: Callable[[str], Policy],
) -> Policy:
    """Return the policy of a session. `policy_of` returns a preset with the installation's numbers.

    Raises:
        ValueError: a preset or a number does not exist. The message names it.
    """
    policy = policy_of(session.preset or agent.preset or default_preset)
    wished = {**agent.numbers(), **session.numbers()}
    if set_for_all := sorted(FOR_ALL & set(wished)):
        raise ValueError(
            f"{set_for_all[0]} holds for a whole installation: "
            f"set TURNFOLD_POLICY__{set_for_all[0].upper()} there"
        )
    policy = adjusted(policy, wished)
    mode = session.mode or agent.mode
    return adjusted(policy, {"mode": Mode(mode)}) if mode else policy
