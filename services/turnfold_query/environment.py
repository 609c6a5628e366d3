"""The settings and caches with which the query server and its lane build windows."""

from turnfold.cache import LRUCache
from turnfold.model_info.context_windows import ModelWindows
from turnfold.operations.policy import policy_resolver
from turnfold.operations.query.environment import REPLIES_BYTES, QueryEnvironment
from turnfold.operations.query.recall_decisions import Recall
from turnfold.ports.recall import RecallStore
from turnfold.settings import Settings


def query_environment(
    settings: Settings,
    recall: RecallStore,
    windows: ModelWindows,
    *,
    replies_bytes: int = REPLIES_BYTES,
) -> QueryEnvironment:
    """Return the environment of an installation. Recall searches `recall`."""
    return QueryEnvironment(
        policy=policy_resolver(settings.preset, settings.policy_of, settings.allowance),
        model_window=lambda model, policy: windows(model, override=policy.context_window),
        recall=Recall(recall),
        replies=LRUCache(replies_bytes),
    )
