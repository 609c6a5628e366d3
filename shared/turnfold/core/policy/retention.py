"""How long a session is kept after its newest event."""

from turnfold.core.policy.presets import Policy

DAY_MS = 86_400_000


def is_over(last_event_at_ms: int | None, policy: Policy, *, now_ms: int) -> bool:
    """Return whether the retention time of a session is over. 0 days retain it forever."""
    return (
        bool(policy.retain_days)
        and last_event_at_ms is not None
        and last_event_at_ms + policy.retain_days * DAY_MS < now_ms
    )
