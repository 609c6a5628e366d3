"""The allowance of an installation: the models that may be named, and ceilings of policy numbers.

Requests are checked when they are accepted. Stored overrides are checked again when they take
effect, because they may be older than the setting that forbids them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from turnfold.core.policy.presets import Policy, adjusted, is_model_name

SESSION_MODEL: Final = "session"
"""The name that means the model of the session's newest event."""

CEILINGS: Final[Mapping[str, int | None]] = {
    "summary_tokens_per_day": None,
    "retain_days": None,
    "summary_max_tokens": 16_000,
    "summary_max_words": 10_000,
    "ledger_max_tokens": 16_000,
    "rebuild_max_tokens": 1_000_000,
}
"""Policy numbers that may have a ceiling, and its default. None means no ceiling."""
UNLIMITED_AT_ZERO: Final = frozenset({"summary_tokens_per_day", "retain_days", "summary_max_words"})
"""Numbers for which 0 means no limit. Under a ceiling, 0 becomes the ceiling."""


def is_model_pattern(pattern: str) -> bool:
    """Return whether a text is the name of a model, or a prefix of names followed by `*`."""
    return pattern == "*" or is_model_name(pattern.removesuffix("*"))


def provider_of(name: str) -> str | None:
    """Return the provider at the start of a model's name, or None."""
    return name.partition("/")[0] if "/" in name else None


def is_named(name: str, patterns: Sequence[str]) -> bool:
    """Return whether one of these patterns matches the name of a model.

    A pattern that ends with `*` never matches a name with an address or a parent directory: some
    providers take the host or a part of the URL from the name.
    """
    # An operator wrote this name, with any address in it; no agent completed a prefix.
    if name in patterns:
        return True
    if not is_model_name(name) or "//" in name or ".." in name:
        return False
    return any(_begins(name, pattern) for pattern in patterns if pattern.endswith("*"))


def _begins(name: str, pattern: str) -> bool:
    if pattern == "*":
        return True
    # "gpt-*" must not allow "gpt-evil/x": the part before a slash names a provider.
    return name.startswith(pattern[:-1]) and ("/" in pattern or "/" not in name)


@dataclass(frozen=True, slots=True)
class Allowance:
    """The models that agents, events and requests may name, and the ceilings of policy numbers.

    `models` are names, or prefixes followed by `*`. `ceilings` override the default `CEILINGS`.
    """

    models: tuple[str, ...] = ()
    ceilings: tuple[tuple[str, int], ...] = ()

    def allows_model(self, name: str) -> bool:
        """Return whether a model of this name may be called."""
        return is_named(name, self.models)

    def check_model(self, name: str) -> None:
        """Reject the name of a model that is not allowed.

        `session` is checked later, when the model of the session is known.

        Raises:
            ValueError: the model is not allowed. The message names the setting.
        """
        if name != SESSION_MODEL and not self.allows_model(name):
            raise ValueError(
                "this installation does not allow that summary model; "
                "the operator allows models in TURNFOLD_SUMMARY_MODELS"
            )

    def check_overrides(self, overrides: Mapping[str, Any]) -> None:
        """Reject numbers above their ceiling, and a summary model that is not allowed.

        Null removes an override, and is always allowed.

        Raises:
            ValueError: a value is not allowed or has the wrong type. The message names the setting.
        """
        wished = {name: value for name, value in overrides.items() if value is not None}
        for name, ceiling in self._ceilings().items():
            if name in wished:
                # Read as the policy would read it, so that "1000000000" and 1000000000 meet the
                # same ceiling.
                value = getattr(adjusted(Policy(), {name: wished[name]}), name)
                if _bounded(name, value, ceiling) != value:
                    raise ValueError(
                        f"{name} is at most {ceiling} in this installation; "
                        f"the operator sets TURNFOLD_LIMIT__{name.upper()}"
                    )
        if isinstance(model := wished.get("summary_model"), str):
            self.check_model(model)

    def bounded(self, policy: Policy) -> Policy:
        """Return the policy with every number at most at its ceiling."""
        values = {
            name: _bounded(name, getattr(policy, name), ceiling)
            for name, ceiling in self._ceilings().items()
        }
        changed = {name: value for name, value in values.items() if value != getattr(policy, name)}
        return replace(policy, **changed) if changed else policy

    def _ceilings(self) -> dict[str, int]:
        return {
            name: value
            for name, value in {**CEILINGS, **dict(self.ceilings)}.items()
            if value is not None
        }


DEFAULT_ALLOWANCE: Final = Allowance()
"""No model may be named, and the default ceilings apply."""


def _bounded(name: str, value: Any, ceiling: int) -> Any:
    if name in UNLIMITED_AT_ZERO and value == 0:
        return ceiling
    return min(value, ceiling)
