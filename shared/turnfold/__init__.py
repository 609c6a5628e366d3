"""Turnfold keeps long conversations of LLM agents within the model's context window.

An agent publishes its turns and asks what its model should see next:

```python
import turnfold


async def answer(question: str) -> str:
    async with turnfold.connect() as client:
        session = client.session("support", "user-42")
        await session.turn_completed([{"role": "user", "content": question}])
        window = await session.context(max_tokens=8_000, placement="user")
        reply = await ask_the_model(window.messages)
        await session.turn_completed([{"role": "assistant", "content": reply}])
        return reply
```

`ContextRecovery` wraps a model call, so that the agent continues if its conversation becomes too
long or the service is unavailable. `LadderCompressor` and `assemble` make a list of messages fit
without any service.

Only the names in this module are public. Everything else may change between releases.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from turnfold.client import (
    Account,
    BufferOptions,
    Client,
    HistoryPage,
    OutgoingEvent,
    PortalClient,
    Receipt,
    SearchHits,
    Session,
    StoredMessage,
    Summary,
    Window,
    connect,
    new_event_id,
)
from turnfold.errors import (
    BadRequest,
    CannotFit,
    Conflict,
    ContextOverflow,
    NotAllowed,
    RequestError,
    StreamFull,
    TooLarge,
    TurnfoldError,
    Unavailable,
    UnknownSession,
)

if TYPE_CHECKING:
    from turnfold.client.mirror import MirrorReceipt, mirror
    from turnfold.client.notice_stream import StoredNotice
    from turnfold.client.provider import ContextBudget, History, Provider, SessionProvider
    from turnfold.client.recovery import ContextRecovery
    from turnfold.client.subagent import SubagentFailure, SubagentResult, run_subagent
    from turnfold.client.token_counter import counter
    from turnfold.contracts.notice_models import (
        CompactionFailed,
        ContextCompressed,
        SummaryUpdated,
    )
    from turnfold.contracts.notices import ReceivedNotice, notice_of
    from turnfold.core.policy.presets import Policy, preset_named
    from turnfold.core.recovery.assembler import Assembler, assemble
    from turnfold.core.recovery.compressor import Compressed, Compressor, LadderCompressor
    from turnfold.core.recovery.overflow import Overflow, overflow_in, overflow_reported

__all__ = [
    "Account",
    "Assembler",
    "BadRequest",
    "BufferOptions",
    "CannotFit",
    "Client",
    "CompactionFailed",
    "Compressed",
    "Compressor",
    "Conflict",
    "ContextBudget",
    "ContextCompressed",
    "ContextOverflow",
    "ContextRecovery",
    "History",
    "HistoryPage",
    "LadderCompressor",
    "MirrorReceipt",
    "NotAllowed",
    "OutgoingEvent",
    "Overflow",
    "Policy",
    "PortalClient",
    "Provider",
    "Receipt",
    "ReceivedNotice",
    "RequestError",
    "SearchHits",
    "Session",
    "SessionProvider",
    "StoredMessage",
    "StoredNotice",
    "StreamFull",
    "SubagentFailure",
    "SubagentResult",
    "Summary",
    "SummaryUpdated",
    "TooLarge",
    "TurnfoldError",
    "Unavailable",
    "UnknownSession",
    "Window",
    "assemble",
    "connect",
    "counter",
    "mirror",
    "new_event_id",
    "notice_of",
    "overflow_in",
    "overflow_reported",
    "preset_named",
    "run_subagent",
]

# Loaded when first used: the services import this package too and need none of them.
_LATER = {
    "counter": "turnfold.client.token_counter",
    "MirrorReceipt": "turnfold.client.mirror",
    "mirror": "turnfold.client.mirror",
    "History": "turnfold.client.provider",
    "Provider": "turnfold.client.provider",
    "ContextBudget": "turnfold.client.provider",
    "SessionProvider": "turnfold.client.provider",
    "ContextRecovery": "turnfold.client.recovery",
    "SubagentFailure": "turnfold.client.subagent",
    "SubagentResult": "turnfold.client.subagent",
    "run_subagent": "turnfold.client.subagent",
    "StoredNotice": "turnfold.client.notice_stream",
    "CompactionFailed": "turnfold.contracts.notice_models",
    "ContextCompressed": "turnfold.contracts.notice_models",
    "SummaryUpdated": "turnfold.contracts.notice_models",
    "ReceivedNotice": "turnfold.contracts.notices",
    "notice_of": "turnfold.contracts.notices",
    "Assembler": "turnfold.core.recovery.assembler",
    "assemble": "turnfold.core.recovery.assembler",
    "Compressed": "turnfold.core.recovery.compressor",
    "Compressor": "turnfold.core.recovery.compressor",
    "LadderCompressor": "turnfold.core.recovery.compressor",
    "Overflow": "turnfold.core.recovery.overflow",
    "overflow_in": "turnfold.core.recovery.overflow",
    "overflow_reported": "turnfold.core.recovery.overflow",
    "Policy": "turnfold.core.policy.presets",
    "preset_named": "turnfold.core.policy.presets",
}


def __getattr__(name: str) -> Any:
    """Import a name of `_LATER` when it is first used."""
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_LATER[name]), name)
    return value
