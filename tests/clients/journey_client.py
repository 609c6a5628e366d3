"""The journey of the README with the generated client: `python journey_client.py URL` prints what it saw.

It runs beside the client in an environment of its own; `test_generated_clients.py` starts it.
"""

import json
import sys

from turnfold_http_client import Client
from turnfold_http_client.api.compactions import post_compaction
from turnfold_http_client.api.events import post_event
from turnfold_http_client.api.history import get_audit, get_history, get_search
from turnfold_http_client.api.sessions import delete_session, get_session, get_sessions
from turnfold_http_client.api.window import get_context
from turnfold_http_client.models import (
    CompactionRequest,
    ErrorAnswer,
    GetContextPlacement,
    TurnCompletedBody,
)

AGENT, SESSION = "support", "python/user 42%"
MESSAGES = [
    {"role": "user", "content": "Where is order 7341?"},
    {"role": "assistant", "content": "It left Ghent this morning."},
]


def main(url: str) -> None:
    client = Client(base_url=url)
    names = {"agent_id": AGENT, "session_id": SESSION}
    event = {"type": "turn.completed", "event_id": "python-1", "messages": MESSAGES, **names}
    published = post_event.sync(
        AGENT, SESSION, client=client, body=TurnCompletedBody.from_dict(event)
    )
    window = get_context.sync(
        AGENT,
        SESSION,
        client=client,
        max_tokens=8_000,
        after=published.seq,
        wait_ms=5_000,
        placement=GetContextPlacement.USER,
    )
    too_small = get_context.sync(AGENT, SESSION, client=client, max_tokens=1)
    assert isinstance(too_small, ErrorAnswer)
    found = get_search.sync(AGENT, SESSION, client=client, q="ghent")
    stored = get_history.sync(AGENT, SESSION, client=client)
    session = get_session.sync(AGENT, SESSION, client=client)
    compaction = post_compaction.sync(AGENT, SESSION, client=client, body=CompactionRequest())
    trail = get_audit.sync(AGENT, SESSION, client=client)
    sessions = get_sessions.sync(client=client)
    seen = {
        "fresh": window.fresh,
        "messages": [message.to_dict() for message in window.messages],
        "total": window.account.total,
        "error": too_small.error.code,
        "needed_tokens": isinstance(too_small.error.needed_tokens, int),
        "found": [hit.message.to_dict()["content"] for hit in found.hits],
        "stored": [entry.message.to_dict() for entry in stored.messages],
        "messages_total": session.messages_total,
        "compaction_id": compaction.compaction_id,
        "audit": len(trail.audit),
        "sessions": [
            entry.session_id for entry in sessions.sessions if entry.session_id == SESSION
        ],
    }
    delete_session.sync(AGENT, SESSION, client=client)
    print(json.dumps(seen))  # noqa: T201  # read by the test


if __name__ == "__main__":
    main(sys.argv[1])
