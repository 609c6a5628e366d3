"""The roles of the bus: the permissions of each key, as configuration of a NATS server.

The services share one account, which holds the streams. Each client identity has its own account:
one per agent, and one per key of an auditor or operator. A client account imports only the subjects
of its role. The server delivers replies in the account of the client that asked, so a client cannot
choose a reply subject outside its own account.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple, get_args

from turnfold.access.identity import INBOX
from turnfold.contracts.notices import NOTICE_NAMES
from turnfold.contracts.subjects import (
    AGENT_READS,
    AGENT_WRITES,
    ASKED,
    ERASURES,
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
"""The request for the account and the permissions of the own connection."""

_API = "$JS.API"
_CROSSING = "_R_.>"
"""The subjects by which the server returns a reply to the account that asked."""
_INFO = (
    f"{_API}.STREAM.INFO.{EVENTS_STREAM}",
    f"{_API}.CONSUMER.INFO.{EVENTS_STREAM}.{EVENTS_CONSUMER}",
)
_NOTICE = f"{_API}.DIRECT.GET.{NOTICES_STREAM}"


CONNECTIONS = 256
"""The connection limit of one client account, so that it cannot use up the server's."""
SUBSCRIPTIONS = 10_000
_LIMITS = f"limits {{ max_connections: {CONNECTIONS}, max_subscriptions: {SUBSCRIPTIONS} }}"


class Permissions(NamedTuple):
    """The subjects of a user in the server's syntax: a subject may be followed by a queue group."""

    publish: tuple[str, ...]
    subscribe: tuple[str, ...]


class Key(NamedTuple):
    """A public key, its role and, for the role `agent`, the id of the agent."""

    key: str
    role: Role
    agent_id: str | None
    created_at: str


class Export(NamedTuple):
    """A subject of the services' account, and the client roles that import it.

    An agent imports only the part that names it. With `share`, the server adds the identity of the
    client to each request (`Nats-Request-Info`).
    """

    kind: Literal["service", "stream"]
    subject: str
    roles: tuple[Role, ...]
    share: bool = False

    def imported_by(self, key: Key) -> str:
        """Return the part of the subject that a key may use."""
        if key.agent_id is None:
            return self.subject
        token = token_of(key.agent_id)
        # A token contains neither wildcard, so the second replacement leaves the first alone.
        return self.subject.replace("*", token, 1).replace(">", f"{token}.*")


_ALL: tuple[Role, ...] = ("agent", "auditor", "operator")
_WRITERS: tuple[Role, ...] = ("agent", "operator")
_EVENTS = tuple(f"{name}.*.*" for name in EVENT_TYPES)
_READS = (*(f"{name}.*.*" for name in READS), *(f"{name}.*" for name in AGENT_READS))
_WRITES = (*(f"{name}.*.*" for name in WRITES), *(f"{name}.*" for name in AGENT_WRITES))
EXPORTS: tuple[Export, ...] = (
    *(Export("service", subject, _WRITERS) for subject in _EVENTS),
    *(Export("service", subject, _ALL) for subject in _READS),
    *(Export("service", subject, _WRITERS, share=True) for subject in _WRITES),
    *(Export("service", name, ("operator",), share=True) for name in INSTALLATION_REQUESTS),
    Export("service", _NOTICE, ("auditor", "operator")),
    *(Export("service", f"{_NOTICE}.{name}.*.*", _ALL) for name in NOTICE_NAMES),
    *(Export("stream", subject, _ALL) for subject in NOTICES_SUBJECTS),
    Export("stream", f"{ERASURES}.*", ("agent",)),
)


def account_of(key: Key) -> str:
    """Return the account of a key: the services' account, or one of the agent or of the key."""
    if key.role in SERVICES:
        return SERVICES_ACCOUNT
    if key.agent_id is None:
        return f"{key.role}-{key.key}"
    # An id may be longer, and have other characters, than the name of an account.
    return f"agent-{hashlib.sha256(key.agent_id.encode()).hexdigest()}"


def permissions_of(key: Key, *, query_keys: Sequence[str] = ()) -> Permissions:
    """Return the subjects that a key needs. A worker may also reply to `query_keys`.

    Each key receives replies below its own inbox. A client may only name queue groups below its own
    name: queue groups span accounts, so a group of another client would take its notices.
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
    """Return the accounts of a NATS server, for its configuration."""
    # Even while no service has a key: the imports of every client name this account.
    accounts: dict[str, list[Key]] = {SERVICES_ACCOUNT: []}
    for key in keys:
        accounts.setdefault(account_of(key), []).append(key)
    # Inboxes lie below public keys, so a worker may reply to these and to nobody else.
    query_keys = [key.key for key in keys if key.role == "query"]
    users = {
        name: [_user(key, permissions_of(key, query_keys=query_keys)) for key in members]
        for name, members in accounts.items()
    }
    # All keys of an account have the same role and agent, so any of them yields its imports.
    clients = {name: members[0] for name, members in accounts.items() if name != SERVICES_ACCOUNT}
    return "\n".join(
        [
            "# Written by `turnfold keys`; do not edit. After a change, reload the server twice.",
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
    """Return the exports. Each must name its importers, or it would be open to all accounts."""
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
        f"{{ {export.kind}: {{ account: {SERVICES_ACCOUNT}, "
        f'subject: "{export.imported_by(key)}" }}{", share: true" if export.share else ""} }}'
        for export in _exports_to(key)
    ]


def _account(name: str, lists: Mapping[str, Iterable[str]], *more: str) -> list[str]:
    return [
        f'  "{name}" {{',
        *(f"    {line}" for line in more),
        *(
            line
            for title, entries in lists.items()
            for line in (f"    {title}: [", *(f"      {entry}" for entry in entries), "    ]")
        ),
        "  }",
    ]


def _user(key: Key, permissions: Permissions) -> str:
    # Keys are for clients: a leaf node could send headers with any identity.
    publish, subscribe = json.dumps(permissions.publish), json.dumps(permissions.subscribe)
    comment = key.role if key.agent_id is None else f"{key.role} {token_of(key.agent_id)}"
    return (
        f'{{ nkey: {key.key}, allowed_connection_types: ["STANDARD", "WEBSOCKET"], '
        f"permissions: {{ publish: {publish}, subscribe: {subscribe} }} }} # {comment}"
    )


# Hints are not exported: an agent must not be able to send one.
_ASKED = f"{ASKED}.*.*"
# A worker reads the stream, acknowledges events (two forms of the subject), deletes erased and
# old events, publishes dead letters again, and publishes notices and signals.
_WORKER = Permissions(
    publish=(
        *_INFO,
        f"{_API}.CONSUMER.MSG.NEXT.{EVENTS_STREAM}.{EVENTS_CONSUMER}",
        f"{_API}.STREAM.MSG.GET.{EVENTS_STREAM}",
        f"{_API}.DIRECT.GET.{EVENTS_STREAM}",
        f"{_API}.STREAM.MSG.GET.{NOTICES_STREAM}",
        f"{_API}.STREAM.MSG.DELETE.{EVENTS_STREAM}",
        f"{_API}.STREAM.PURGE.{EVENTS_STREAM}",
        f"$JS.ACK.{EVENTS_STREAM}.{EVENTS_CONSUMER}.>",
        f"$JS.ACK.*.*.{EVENTS_STREAM}.{EVENTS_CONSUMER}.>",
        *EVENTS_SUBJECTS,
        *NOTICES_SUBJECTS,
        INGESTED,
        f"{ERASURES}.*",
        USER_INFO,
        _CROSSING,
    ),
    subscribe=tuple(
        f"{subject} {WORKER_QUEUE}" for subject in (*_WRITES, *INSTALLATION_REQUESTS, _ASKED)
    ),
)
_SERVICES: Mapping[Role, Permissions] = {
    "worker": _WORKER,
    # A query server publishes events from HTTP, looks up earlier ones, forwards requests that
    # write to a worker, and sends hints of budgets.
    "query": Permissions(
        publish=(
            *_INFO,
            f"{_API}.STREAM.MSG.GET.{EVENTS_STREAM}",
            *_EVENTS,
            *_WRITES,
            *INSTALLATION_REQUESTS,
            _ASKED,
            _CROSSING,
        ),
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
