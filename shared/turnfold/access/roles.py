"""The roles of the bus: what each key may publish and receive, as configuration of a NATS server.

The services share one account, in which the streams are. Every client identity has an account of its own: one per agent,
one per key of an auditor or an operator. A client account imports what its role may use and nothing else. A client names
the subject of its answers, and the server delivers an answer in the account of the client that asked: so an answer reaches
nothing that the client may not reach anyway, and nobody else.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple, get_args

from turnfold.access.identity import INBOX
from turnfold.contracts.notices import NOTICES
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
SYSTEM_ACCOUNT = "SYS"
USER_INFO = "$SYS.REQ.USER.INFO"
"""The request that answers with the account and the permissions of the connection that asks."""

_API = "$JS.API"
_CROSSING = "_R_.>"
"""The subjects by which the server brings an answer back to the account that asked."""
_INFO = (
    f"{_API}.STREAM.INFO.{EVENTS_STREAM}",
    f"{_API}.CONSUMER.INFO.{EVENTS_STREAM}.{EVENTS_CONSUMER}",
)
_NOTICE = f"{_API}.DIRECT.GET.{NOTICES_STREAM}"


CONNECTIONS = 256
"""Connections of one agent, auditor or operator: all of a server's would shut out everybody else."""
SUBSCRIPTIONS = 10_000
_LIMITS = f"limits {{ max_connections: {CONNECTIONS}, max_subscriptions: {SUBSCRIPTIONS} }}"


class Permissions(NamedTuple):
    """Subjects of one user in the server's form; a word behind a subject is a queue group, `>` in it stands for any ending."""

    publish: tuple[str, ...]
    subscribe: tuple[str, ...]


class Key(NamedTuple):
    """A key that signs in: the public half, the role, and for the role `agent` the agent's id."""

    key: str
    role: Role
    agent_id: str | None
    created_at: str


class Export(NamedTuple):
    """A subject of the services' account and the client roles that import it.

    An agent imports the part that names it. With `share` the server adds who asked to each request (`Nats-Request-Info`).
    """

    kind: Literal["service", "stream"]
    subject: str
    roles: tuple[Role, ...]
    share: bool = False

    def imported_by(self, key: Key) -> str:
        """The part of the subject that this key may use."""
        if key.agent_id is None:
            return self.subject
        token = token_of(key.agent_id)
        return (
            self.subject.replace(">", f"{token}.*")
            if self.kind == "stream"
            else self.subject.replace("*", token, 1)
        )


_ALL: tuple[Role, ...] = ("agent", "auditor", "operator")
_WRITERS: tuple[Role, ...] = ("agent", "operator")
EXPORTS: tuple[Export, ...] = (
    *(Export("service", f"{name}.*.*", _WRITERS) for name in EVENT_TYPES),
    *(Export("service", f"{name}.*.*", _ALL) for name in READS),
    *(Export("service", f"{name}.*.*", _WRITERS, share=True) for name in WRITES),
    *(Export("service", f"{name}.*", _WRITERS, share=True) for name in AGENT_WRITES),
    *(Export("service", name, ("operator",), share=True) for name in INSTALLATION_REQUESTS),
    Export("service", _NOTICE, ("auditor", "operator")),
    *(Export("service", f"{_NOTICE}.{name}.*.*", _ALL) for name in NOTICES),
    *(Export("stream", subject, _ALL) for subject in NOTICES_SUBJECTS),
)


def account_of(key: Key) -> str:
    """The account of a key: the services' account, or one that only this agent's keys or this one key is in."""
    if key.role in SERVICES:
        return SERVICES_ACCOUNT
    if key.agent_id is None:
        return f"{key.role}-{key.key}"
    # Ids have more characters, and more bytes, than the name of an account may have.
    return f"agent-{hashlib.sha256(key.agent_id.encode()).hexdigest()}"


def permissions_of(key: Key, *, query_keys: Sequence[str] = ()) -> Permissions:
    """The subjects that a key needs. Every key receives answers below an inbox of its own; a worker answers `query_keys`.

    A client may name a queue group only below its own name: queue groups reach across accounts, so one with the name of
    another client's group would take notices from it.
    """
    inbox = f"{INBOX}.{key.key}.>"
    if key.role == "worker":
        return Permissions(
            (*_WORKER.publish, *(f"{INBOX}.{asker}.>" for asker in query_keys)),
            (*_WORKER.subscribe, inbox),
        )
    if key.role in _SERVICES:
        publish, subscribe = _SERVICES[key.role]
        return Permissions(publish, (*subscribe, inbox))
    imported = [(export.kind, export.imported_by(key)) for export in _exports_to(key)]
    notices = [subject for kind, subject in imported if kind == "stream"]
    group = key.key if key.agent_id is None else token_of(key.agent_id)
    return Permissions(
        publish=tuple(subject for kind, subject in imported if kind == "service"),
        subscribe=(
            *notices,
            *(f"{notice} {queue}" for notice in notices for queue in (group, f"{group}.>")),
            inbox,
        ),
    )


def configuration(keys: Sequence[Key]) -> str:
    """The accounts of a NATS server, to be included in its configuration."""
    accounts: dict[str, list[Key]] = {SERVICES_ACCOUNT: []}
    for key in keys:
        accounts.setdefault(account_of(key), []).append(key)
    query_keys = [key.key for key in keys if key.role == "query"]
    users = {
        name: [_user(key, permissions_of(key, query_keys=query_keys)) for key in members]
        for name, members in accounts.items()
    }
    clients = {name: members[0] for name, members in accounts.items() if name != SERVICES_ACCOUNT}
    return "\n".join(
        [
            "# Written by `turnfold keys`: write it again instead of changing it, then `nats-server --signal reload`.",
            "accounts {",
            *_account(
                SERVICES_ACCOUNT,
                {"users": users[SERVICES_ACCOUNT], "exports": _exports(clients)},
                "jetstream: enabled",
            ),
            *(
                line
                for name, key in clients.items()
                for line in _account(
                    name, {"users": users[name], "imports": _imports(key)}, _LIMITS
                )
            ),
            f"  {SYSTEM_ACCOUNT} {{}}",
            "}",
            f"system_account: {SYSTEM_ACCOUNT}",
            "",
        ]
    )


def _exports_to(key: Key) -> list[Export]:
    return [export for export in EXPORTS if key.role in export.roles]


def _exports(clients: Mapping[str, Key]) -> list[str]:
    """Each export names its importers: one that named nobody would be open to every account."""
    importers = {
        role: [name for name, key in clients.items() if key.role == role] for role in ROLES
    }
    named = [
        (export, [name for role in export.roles for name in importers[role]]) for export in EXPORTS
    ]
    return [
        f'{{ {export.kind}: "{export.subject}", accounts: {json.dumps(names)} }}'
        for export, names in named
        if names
    ]


def _imports(key: Key) -> list[str]:
    return [
        f'{{ {export.kind}: {{ account: {SERVICES_ACCOUNT}, subject: "{export.imported_by(key)}" }}{", share: true" if export.share else ""} }}'
        for export in _exports_to(key)
    ]


def _account(name: str, lists: Mapping[str, Iterable[str]], *more: str) -> list[str]:
    return [
        f'  "{name}" {{',
        *(f"    {line}" for line in more),
        *(
            line
            for title, entries in lists.items()
            for line in (f"    {title}: [", *(f"      {one}" for one in entries), "    ]")
        ),
        "  }",
    ]


def _user(key: Key, permissions: Permissions) -> str:
    # A leaf node brings messages of whole accounts, and headers that say who asked: a key is for a client.
    allowed = f"publish: {json.dumps(permissions.publish)}, subscribe: {json.dumps(permissions.subscribe)}"
    comment = key.role if key.agent_id is None else f"{key.role} {token_of(key.agent_id)}"
    return f'{{ nkey: {key.key}, allowed_connection_types: ["STANDARD", "WEBSOCKET"], permissions: {{ {allowed} }} }} # {comment}'


_READS = tuple(f"{name}.*.*" for name in READS)
_WRITES = (
    *(f"{name}.*.*" for name in WRITES),
    *(f"{name}.*" for name in AGENT_WRITES),
    *INSTALLATION_REQUESTS,
)
_EVENTS = tuple(f"{name}.*.*" for name in EVENT_TYPES)
# It reads the stream and acknowledges (in both forms of the subject), deletes erased and old events from it, publishes dead
# letters again, and sends notices.
_WORKER = Permissions(
    publish=(
        *_INFO,
        f"{_API}.CONSUMER.MSG.NEXT.{EVENTS_STREAM}.{EVENTS_CONSUMER}",
        f"{_API}.STREAM.MSG.GET.{EVENTS_STREAM}",
        f"{_API}.STREAM.MSG.GET.{NOTICES_STREAM}",
        f"{_API}.STREAM.MSG.DELETE.{EVENTS_STREAM}",
        f"{_API}.STREAM.PURGE.{EVENTS_STREAM}",
        f"$JS.ACK.{EVENTS_STREAM}.{EVENTS_CONSUMER}.>",
        f"$JS.ACK.*.*.{EVENTS_STREAM}.{EVENTS_CONSUMER}.>",
        *EVENTS_SUBJECTS,
        *NOTICES_SUBJECTS,
        INGESTED,
        USER_INFO,
        _CROSSING,
    ),
    subscribe=tuple(f"{subject} {WORKER_QUEUE}" for subject in _WRITES),
)
_SERVICES: Mapping[Role, Permissions] = {
    "worker": _WORKER,
    # It publishes the events that arrive over HTTP, looks up those that it published before, and passes requests that write on to a worker.
    "query": Permissions(
        publish=(*_INFO, f"{_API}.STREAM.MSG.GET.{EVENTS_STREAM}", *_EVENTS, *_WRITES, _CROSSING),
        subscribe=(
            *(
                f"{subject} {QUERY_QUEUE}"
                for subject in (*_READS, "session.policy.*.*", "agent.policy.*")
            ),
            INGESTED,
        ),
    ),
    "provisioner": Permissions(publish=(f"{_API}.>",), subscribe=()),
}
