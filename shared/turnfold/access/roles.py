"""The roles of the bus: who may publish and hear what, as configuration of a NATS server.

There are two accounts. The streams live in one with the services. Agents, and people who look, are in the other: they reach
the services by imports alone. So what an agent names as the place for an answer is a place of its own account, and no
answer, nor an acknowledgement of the stream, can be led to where it would be an event, a command or another's notice.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple, get_args

from turnfold.access.identity import INBOX
from turnfold.contracts.subjects import (
    AGENT_WRITES,
    EVENT_TYPES,
    EVENTS_CONSUMER,
    EVENTS_STREAM,
    EVENTS_SUBJECTS,
    INGESTED,
    INSTALLATION_REQUESTS,
    NOTICES_STREAM,
    NOTICES_SUBJECTS,
    QUERY_QUEUE,
    READS,
    WORKER_QUEUE,
    WRITES,
    token_of,
)

Role = Literal["agent", "worker", "query", "auditor", "operator", "provisioner"]
ROLES: tuple[Role, ...] = get_args(Role)
SERVICES: tuple[Role, ...] = ("worker", "query", "provisioner")

SERVICES_ACCOUNT = "TURNFOLD"
CLIENTS_ACCOUNT = "TURNFOLD_CLIENTS"
SYSTEM_ACCOUNT = "SYS"

_API = "$JS.API"
_ANSWERS = (f"{INBOX}.>", "_R_.>")
"""Where an answer may go: to an inbox of this account, or back to the account of agents, which the server calls `_R_`."""
_INFO = (f"{_API}.STREAM.INFO.{EVENTS_STREAM}", f"{_API}.CONSUMER.INFO.{EVENTS_STREAM}.{EVENTS_CONSUMER}")
_NOTICES_BY_NUMBER = f"{_API}.DIRECT.GET.{NOTICES_STREAM}"


class Permissions(NamedTuple):
    """Subjects of one user, as a server takes them; a word behind a subject is the queue group that has to be joined."""

    publish: tuple[str, ...]
    subscribe: tuple[str, ...]


class Key(NamedTuple):
    """Somebody who signs in with a key: the public half, the role, and for the role `agent` which one."""

    key: str
    role: Role
    agent_id: str | None
    created_at: str


def permissions_of(key: Key) -> Permissions:
    """What a role needs, and nothing else; everybody hears the answers to what they asked themselves."""
    publish, subscribe = _ROLES[key.role] if key.agent_id is None else _agent(token_of(key.agent_id))
    return Permissions(publish, (*subscribe, f"{INBOX}.{key.key}.>"))


def configuration(keys: Sequence[Key]) -> str:
    """The accounts of a NATS server, to be included in its configuration."""
    services = [key for key in keys if key.role in SERVICES]
    clients = [key for key in keys if key.role not in SERVICES]
    served = [*(f"{name}.*.*" for name in (*EVENT_TYPES, *READS, *WRITES)), *(f"{name}.*" for name in AGENT_WRITES)]
    served += [*INSTALLATION_REQUESTS, _NOTICES_BY_NUMBER]
    exports = [f'{{ service: "{one}", accounts: [{CLIENTS_ACCOUNT}] }}' for one in served]
    exports += [f'{{ stream: "{one}", accounts: [{CLIENTS_ACCOUNT}] }}' for one in NOTICES_SUBJECTS]
    imports = [f'{{ service: {{ account: {SERVICES_ACCOUNT}, subject: "{one}" }} }}' for one in served]
    imports += [f'{{ stream: {{ account: {SERVICES_ACCOUNT}, subject: "{one}" }} }}' for one in NOTICES_SUBJECTS]
    return "\n".join(
        [
            "# Written by `turnfold keys nats`: write it anew instead of changing it, then `nats-server --signal reload`.",
            "accounts {",
            *_account(SERVICES_ACCOUNT, services, {"exports": exports}, "jetstream: enabled"),
            *_account(CLIENTS_ACCOUNT, clients, {"imports": imports}),
            f"  {SYSTEM_ACCOUNT} {{}}",
            "}",
            f"system_account: {SYSTEM_ACCOUNT}",
            "",
        ]
    )


def _account(name: str, keys: Iterable[Key], shared: Mapping[str, Iterable[str]], *more: str) -> list[str]:
    lists = {"users": [_user(key) for key in keys], **shared}
    return [
        f"  {name} {{",
        *(f"    {line}" for line in more),
        *(line for title, entries in lists.items() for line in (f"    {title}: [", *(f"      {one}" for one in entries), "    ]")),
        "  }",
    ]


def _user(key: Key) -> str:
    publish, subscribe = permissions_of(key)
    return f"{{ nkey: {key.key}, permissions: {{ publish: {json.dumps(publish)}, subscribe: {json.dumps(subscribe)} }} }} # {key.role}"


def _agent(token: str) -> Permissions:
    """What an agent may: all that is its own."""
    return Permissions(
        publish=(
            *(f"{name}.{token}.*" for name in (*EVENT_TYPES, *READS, *WRITES)),
            *(f"{name}.{token}" for name in AGENT_WRITES),
        ),
        subscribe=tuple(notice.replace(">", f"{token}.*") for notice in NOTICES_SUBJECTS),
    )


_READS = tuple(f"{name}.*.*" for name in READS)
_WRITES = (*(f"{name}.*.*" for name in WRITES), *(f"{name}.*" for name in AGENT_WRITES), *INSTALLATION_REQUESTS)
_EVENTS = tuple(f"{name}.*.*" for name in EVENT_TYPES)
_ROLES: Mapping[Role, Permissions] = {
    # It reads the stream and acknowledges (in both forms of the subject), has erased and old events forgotten, publishes
    # dead letters again, and tells.
    "worker": Permissions(
        publish=(
            *_INFO,
            f"{_API}.CONSUMER.MSG.NEXT.{EVENTS_STREAM}.{EVENTS_CONSUMER}",
            f"{_API}.STREAM.MSG.GET.{EVENTS_STREAM}",
            f"{_API}.STREAM.MSG.DELETE.{EVENTS_STREAM}",
            f"{_API}.STREAM.PURGE.{EVENTS_STREAM}",
            f"$JS.ACK.{EVENTS_STREAM}.{EVENTS_CONSUMER}.>",
            f"$JS.ACK.*.*.{EVENTS_STREAM}.{EVENTS_CONSUMER}.>",
            *EVENTS_SUBJECTS,
            *NOTICES_SUBJECTS,
            INGESTED,
            *_ANSWERS,
        ),
        subscribe=tuple(f"{subject} {WORKER_QUEUE}" for subject in _WRITES),
    ),
    # What is posted over HTTP is published, and what is to be written is passed on.
    "query": Permissions(
        publish=(*_INFO, *_EVENTS, *_WRITES, *_ANSWERS),
        subscribe=(*(f"{subject} {QUERY_QUEUE}" for subject in _READS), INGESTED),
    ),
    "provisioner": Permissions(publish=(f"{_API}.>",), subscribe=()),
    "auditor": Permissions(publish=(*_READS, _NOTICES_BY_NUMBER), subscribe=NOTICES_SUBJECTS),
    "operator": Permissions(publish=(*_EVENTS, *_READS, *_WRITES, _NOTICES_BY_NUMBER), subscribe=NOTICES_SUBJECTS),
}
