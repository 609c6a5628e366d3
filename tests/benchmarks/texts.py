"""Events and how they are published: varied text, the same on every run."""

import json
from collections.abc import Sequence
from random import Random
from typing import Any

from nats.js import JetStreamContext

from turnfold.contracts.subjects import TURN_COMPLETED, event_headers, session_subject
from turnfold.messages import AgentId, SessionId, SessionKey

AGENT = AgentId("bench")
WORDS = """
the a of to and in that it is was for on with as by at from this be not are but had his they she which you one we all there when up
said out if about who them some could more time would other into has look two like him see make people over down did get come made may
part deploy server ticket invoice customer region retry queue worker schema index migration latency budget token window summary release
branch commit review merge test failure timeout error stack trace request response header payload cache replica cluster shard snapshot
backup restore metric alert dashboard owner deadline decision constraint policy quarter contract price refund flight hotel booking
passenger seat gate luggage weather forecast temperature pressure valve sensor battery firmware update version rollback feature flag
because however therefore although before after during without within between against through nothing something everything already
usually probably exactly roughly carefully quickly please remember confirm explain compare describe list find check fix write read move
Monday Tuesday Berlin Lisbon Kyoto Toronto 17 42 108 2.5 99.9 4096 0x1f config.yaml main.py src/app.ts README.md v1.4.2 #1207 €85 12:30
""".split()
ENDS = ". ", ". ", ". ", "? ", ", ", ": "


def prose(random: Random, characters: int) -> str:
    """Words in sentences, exactly so many characters."""
    parts: list[str] = []
    length = 0
    while length < characters:
        sentence = " ".join(random.choices(WORDS, k=random.randint(5, 14)))
        parts.append(sentence[0].upper() + sentence[1:] + random.choice(ENDS))
        length += len(parts[-1])
    return "".join(parts)[:characters]


def turn(random: Random, number: int) -> list[dict[str, Any]]:
    """A request, a call, its result and an answer: four messages of about 2,300 characters."""
    call = {
        "id": f"call_{number}",
        "type": "function",
        "function": {"name": "search_tickets", "arguments": json.dumps({"q": prose(random, 40)})},
    }
    return [
        {"role": "user", "content": prose(random, 300)},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": call["id"], "content": prose(random, 1_200)},
        {"role": "assistant", "content": prose(random, 700)},
    ]


def event(event_id: str, session_id: str, messages: Sequence[dict[str, Any]]) -> bytes:
    """A `turn.completed` as it travels."""
    told = {"event_id": event_id, "agent_id": AGENT, "session_id": session_id, "messages": messages}
    return json.dumps(told).encode()


def subject(session_id: str) -> str:
    """Where the events of a session are published."""
    return session_subject(TURN_COMPLETED, SessionKey(AGENT, SessionId(session_id)))


def headers(event_id: str) -> dict[str, str]:
    """The headers of a publish that the broker may deduplicate."""
    return {"Nats-Msg-Id": event_headers(AGENT, event_id, b"figures")["Nats-Msg-Id"]}


async def publish(
    stream: JetStreamContext, session_id: str, event_id: str, messages: Sequence[dict[str, Any]]
) -> int:
    """Publish a turn; the sequence it got."""
    body = event(event_id, session_id, messages)
    return (await stream.publish(subject(session_id), body, headers=headers(event_id))).seq


def question(session_id: str) -> str:
    """Where the window of a session is asked for."""
    return session_subject("context.get", SessionKey(AGENT, SessionId(session_id)))
