"""The client library for agents: publish turns and request context windows.

It needs a connection to NATS. It needs neither a database nor a model.
"""

from turnfold.client.buffer import BufferOptions
from turnfold.client.client import Client, connect
from turnfold.client.events import (
    OutgoingEvent,
    Receipt,
    new_event_id,
    result_event,
    session_key,
    turn_event,
)
from turnfold.client.portal import PortalClient
from turnfold.client.replies import (
    Account,
    HistoryPage,
    SearchHits,
    StoredMessage,
    Summary,
    Window,
)
from turnfold.client.session import Session

__all__ = [
    "Account",
    "BufferOptions",
    "Client",
    "HistoryPage",
    "OutgoingEvent",
    "PortalClient",
    "Receipt",
    "SearchHits",
    "Session",
    "StoredMessage",
    "Summary",
    "Window",
    "connect",
    "new_event_id",
    "result_event",
    "session_key",
    "turn_event",
]
