"""Turnfold: the completed turns of an agent fold into a running summary, in the background, and no agent waits.

An agent publishes what was said and asks what its model should see next:

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

What stands here is the public interface; everything else may change between releases.
"""

from turnfold.client import Account, Client, HistoryPage, Receipt, Session, StoredMessage, Summary, Window, connect, new_event_id
from turnfold.errors import (
    BadRequest,
    CannotFit,
    Conflict,
    NotAllowed,
    RequestError,
    TooLarge,
    TurnfoldError,
    Unavailable,
    UnknownSession,
)

__all__ = [
    "Account",
    "BadRequest",
    "CannotFit",
    "Client",
    "Conflict",
    "HistoryPage",
    "NotAllowed",
    "Receipt",
    "RequestError",
    "Session",
    "StoredMessage",
    "Summary",
    "TooLarge",
    "TurnfoldError",
    "Unavailable",
    "UnknownSession",
    "Window",
    "connect",
    "new_event_id",
]
