"""The settings of windows, and the caches of a query server."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from turnfold.cache import LRUCache
from turnfold.contracts.hints import BudgetHint
from turnfold.core.policy.presets import Policy
from turnfold.core.window.builder import WindowBuilder
from turnfold.core.window.window import WindowAccount, WindowRequest
from turnfold.operations.query.recall_decisions import Recall
from turnfold.ports.ingest import PolicyResolver

BUILDERS_BYTES = 16_000_000
MESSAGE_BYTES = 400
"""About how many bytes of a cached builder one message takes, beside the texts of its reply."""

REPLIES_BYTES = 16_000_000
"""The most bytes of cached replies."""


@dataclass(frozen=True, slots=True)
class ContextReply:
    """A window as JSON.

    `is_fresh` is false if the requested sequence is not ingested yet. `seconds` is the time that
    the window took to build, without waiting; None if it was cached. `hint` is what a worker has
    to learn about the window: its `budget`, if that is new.
    """

    body: bytes
    etag: str
    is_modified: bool = True
    is_fresh: bool = True
    account: WindowAccount | None = None
    seconds: float | None = field(default=None, compare=False)
    budget: BudgetHint | None = None
    hint: BudgetHint | None = None


@dataclass(frozen=True, slots=True)
class QueryEnvironment:
    """The settings of answers, and the caches.

    `builders` continues a window instead of building it from the first message. `replies` holds
    finished replies by session, etag and freshness. Without `recall`, windows have no recall block.
    """

    policy: PolicyResolver
    model_window: Callable[[str | None, Policy], int]
    recall: Recall | None = None
    builders: LRUCache[tuple[int, WindowRequest], WindowBuilder] = field(
        default_factory=lambda: LRUCache(BUILDERS_BYTES)
    )
    replies: LRUCache[tuple[int, str], ContextReply] = field(
        default_factory=lambda: LRUCache(REPLIES_BYTES)
    )

    @property
    def caches(self) -> tuple[LRUCache[Any, Any], ...]:
        """The caches of sessions, by their numbers."""
        decisions = () if self.recall is None else (self.recall.decisions,)
        return (self.builders, self.replies, *decisions)
