"""Erase dead letters: found by their key, by their subject, or by what their payload names."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Integer,
    bindparam,
    delete,
    func,
    literal_column,
    or_,
    select,
    tuple_,
)

from turnfold.contracts.events import claimed_key
from turnfold.contracts.subjects import (
    EVENT_TYPES,
    agent_of_event_subject,
    key_of_event_subject,
    session_subject,
    token_of,
)
from turnfold.core.policy.overrides import PolicyOverrides
from turnfold.core.policy.retention import is_over
from turnfold.errors import EventFault
from turnfold.messages import AgentId, SessionId, SessionKey
from turnfold.ports.ingest import CLAIMS, Installation
from turnfold.process.set_aside import SetAside
from turnfold.store.database.engine import Database
from turnfold.store.database.schema import agents, dead_letters, sessions
from turnfold.store.database.session_rows import OVERRIDES
from turnfold.store.database.statements import PAIRS, Prepared, PreparedPairs
from turnfold.store.ingest.tombstones import claim_of, in_portions, purge_from_stream

SUBJECT_MISMATCH = str(EventFault.SUBJECT_MISMATCH)
EXAMINED_AT_ONCE = 1_000
"""Dead letters that are examined at once, without their bytes."""

_NEWEST = Prepared(select(func.coalesce(func.max(dead_letters.c.dead_letter_id), 0)), ())
_MISMATCHED = Prepared(
    select(
        dead_letters.c.dead_letter_id,
        dead_letters.c.detail,
    )
    .where(
        # Letters of earlier workers have no claim in their detail.
        (dead_letters.c.reason == bindparam("why"))
        | dead_letters.c.detail.like(literal_column(f"'%{CLAIMS}%'")),
        dead_letters.c.dead_letter_id > bindparam("after"),
    )
    .order_by(dead_letters.c.dead_letter_id)
    .limit(bindparam("most", type_=Integer)),
    ("why", "after", "most"),
)
_PAYLOAD = Prepared(
    select(dead_letters.c.payload).where(dead_letters.c.dead_letter_id == bindparam("by")), ("by",)
)
_key = (dead_letters.c.agent_id, dead_letters.c.session_id)
# First only the letters of a page of sessions, which the index has in order.
_named = (
    select(
        *_key,
        func.min(dead_letters.c.dead_letter_id).label("first"),
        func.max(dead_letters.c.at_ms).label("newest_at_ms"),
    )
    .where(
        dead_letters.c.session_id.is_not(None),
        tuple_(*_key) > tuple_(bindparam("after_agent"), bindparam("after_session")),
    )
    .group_by(*_key)
    .order_by(*_key)
    .limit(bindparam("most", type_=Integer))
    .subquery("named")
)
_NAMED = Prepared(
    select(_named, sessions.c.last_event_at_ms, *OVERRIDES)
    .outerjoin(
        sessions,
        (sessions.c.agent_id == _named.c.agent_id) & (sessions.c.session_id == _named.c.session_id),
    )
    .outerjoin(agents, agents.c.agent_id == _named.c.agent_id)
    .order_by(_named.c.agent_id, _named.c.session_id),
    ("after_agent", "after_session", "most"),
)
_WITHOUT_SESSION = Prepared(
    select(
        dead_letters.c.dead_letter_id,
        dead_letters.c.at_ms,
        dead_letters.c.subject,
    )
    .where(
        dead_letters.c.agent_id.is_(None),
        # With both columns, the index has the letters in order.
        dead_letters.c.session_id.is_(None),
        dead_letters.c.dead_letter_id > bindparam("after"),
    )
    .order_by(dead_letters.c.dead_letter_id)
    .limit(bindparam("most", type_=Integer)),
    ("after", "most"),
)
_Letter = tuple[int, int, PolicyOverrides, PolicyOverrides]
"""The id of a dead letter, its time, and the wishes of its agent and of its session."""
_OF_AGENTS = select(agents.c.agent_id, *(agents.c[name] for name in PolicyOverrides._fields))
_OF_KEYS = PreparedPairs(
    select(
        dead_letters.c.dead_letter_id,
        dead_letters.c.at_ms,
        PAIRS.c.a,
        PAIRS.c.b,
    ).where(dead_letters.c.agent_id == PAIRS.c.a, dead_letters.c.session_id == PAIRS.c.b),
    (dead_letters.c.agent_id.type, dead_letters.c.session_id.type),
)


@dataclass(frozen=True, slots=True)
class ErasureScope:
    """The sessions that an erasure concerns: one, or all of an agent, or those with a prefix."""

    agent_id: AgentId
    session_id: SessionId | None = None
    prefix: str | None = None

    @classmethod
    def of(cls, key: SessionKey | AgentId, prefix: str | None = None) -> "ErasureScope":
        """Return the scope of a request."""
        return cls(*key) if isinstance(key, SessionKey) else cls(key, prefix=prefix)

    @property
    def is_agent(self) -> bool:
        """Whether the agent is erased with all that it has."""
        return self.session_id is None and self.prefix is None

    @property
    def reason(self) -> str:
        """The reason that the audit states."""
        if self.session_id is not None:
            return "request"
        return "agent" if self.prefix is None else "prefix"

    def includes(self, key: SessionKey | None) -> bool:
        """Return whether a session is erased."""
        return (
            key is not None
            and key.agent_id == self.agent_id
            and self.session_id in (None, key.session_id)
            and key.session_id.startswith(self.prefix or "")
        )


async def erase_letters(database: Database, scope: ErasureScope) -> tuple[int, int]:
    """Erase the dead letters of these sessions in portions.

    Return the newest id examined, and how many were erased.
    """

    def read(connection: Connection) -> tuple[int, list[int]]:
        # In one snapshot: letters above this id are left to `erase_letters_after`.
        ((newest,),) = _NEWEST.rows(connection)
        return int(newest), _letters_of(connection, scope, after=0)

    newest, letters = await database.snapshot(read)
    for portion in in_portions(letters):
        await database.write(partial(_delete, letters=portion))
    return newest, len(letters)


async def expire_letters(
    database: Database, installation: Installation, aside: SetAside[int], *, now_ms: int
) -> int:
    """Erase the dead letters of sessions without events once the newest is older than retained.

    Each that names no session counts by itself. Return how many were erased.
    """
    erased = await _expire_without_session(database, installation, aside, now_ms=now_ms)
    after = ("", "")
    # In pages: an agent may have had events refused under as many names as it likes.
    while found := await database.snapshot(partial(_named_after, after=after)):
        after = found[-1][0], found[-1][1]
        erased += await _expire_named(database, found, installation, aside, now_ms=now_ms)
    return erased


def _named_after(connection: Connection, *, after: tuple[str, str]) -> Sequence[Sequence[Any]]:
    return _NAMED.rows(connection, *after, EXAMINED_AT_ONCE)


async def _expire_named(
    database: Database,
    found: Sequence[Sequence[Any]],
    installation: Installation,
    aside: SetAside[int],
    *,
    now_ms: int,
) -> int:
    """Erase the expired dead letters of these sessions, of those without events; count them."""
    unseen = [
        (row[2], row[3], PolicyOverrides(*row[8:]), PolicyOverrides(*row[5:8]))
        for row in found
        if row[4] is None
    ]
    chosen = set(await _over(unseen, installation, aside, now_ms=now_ms))
    over = {(row[0], row[1]): row[3] for row in found if row[2] in chosen}
    erased = 0
    for keys in in_portions(sorted(over)):
        rows = await database.snapshot(partial(_OF_KEYS.rows, values=keys))
        # If another event was refused meanwhile, its letter is the newest, and keeps the others.
        renewed = {tuple(key) for _, at_ms, *key in rows if at_ms > over[*key]}
        letters = [row[0] for row in rows if row[2:] not in renewed]
        for portion in in_portions(letters):
            await database.write(partial(_delete, letters=portion))
        erased += len(letters)
    return erased


async def _expire_without_session(
    database: Database, installation: Installation, aside: SetAside[int], *, now_ms: int
) -> int:
    """Erase expired dead letters that name no session, by the policy of the agent, if any."""
    erased = after = 0
    # In pages: a publisher may have any number of such events refused.
    while found := await database.snapshot(partial(_without_session, after=after)):
        over = await _over(found, installation, aside, now_ms=now_ms)
        for portion in in_portions(over):
            await database.write(partial(_delete, letters=portion))
        erased += len(over)
        after = found[-1][0]
    return erased


def _without_session(connection: Connection, *, after: int) -> Sequence[_Letter]:
    """Return the next dead letters that name no session, each with the wishes of its agent."""
    found = _WITHOUT_SESSION.rows(connection, after, EXAMINED_AT_ONCE)
    agent_of = {subject: agent_of_event_subject(subject) or "" for *_, subject in found}
    wishes = {
        agent_id: PolicyOverrides(*rest)
        for portion in in_portions(sorted({*agent_of.values()}))
        for agent_id, *rest in connection.execute(_OF_AGENTS.where(agents.c.agent_id.in_(portion)))
    }
    return [
        (letter_id, at_ms, wishes.get(agent_of[subject], PolicyOverrides()), PolicyOverrides())
        for letter_id, at_ms, subject in found
    ]


async def _over(
    found: Sequence[_Letter], installation: Installation, aside: SetAside[int], *, now_ms: int
) -> list[int]:
    """Return the ids of the letters that are older than the policy of their session retains."""
    # Not numbers of sessions, which are set aside as well.
    by_number = {-letter[0]: letter for letter in found}
    over: list[int] = []

    async def examine(number: int) -> None:
        _, at_ms, of_agent, own = by_number[number]
        if is_over(at_ms, installation.policy(of_agent, own), now_ms=now_ms):
            over.append(-number)

    await aside.each(by_number, examine)
    return over


def erase_letters_after(connection: Connection, scope: ErasureScope, after: int) -> int:
    """Erase the dead letters of these sessions above an id, in the open transaction; count them."""
    letters = _letters_of(connection, scope, after=after)
    for portion in in_portions(letters):
        _delete(connection, portion)
    return len(letters)


def _delete(connection: Connection, letters: Sequence[int]) -> None:
    are_chosen = dead_letters.c.dead_letter_id.in_(letters)
    deleted = delete(dead_letters).where(are_chosen)
    places = deleted.returning(dead_letters.c.stream_seq, dead_letters.c.at_ms)
    purge_from_stream(connection, [(seq, at_ms) for seq, at_ms in connection.execute(places)])


def _letters_of(connection: Connection, scope: ErasureScope, *, after: int) -> list[int]:
    """Return the dead letters of these sessions above an id."""
    names = ("dead_letter_id", "agent_id", "session_id", "subject")
    named = select(*(dead_letters.c[name] for name in names)).where(
        dead_letters.c.dead_letter_id > after
    )
    # In pages, or asyncpg would hold all rows at once: an agent may have a million.
    paged = named.execution_options(yield_per=EXAMINED_AT_ONCE)
    found = {
        row.dead_letter_id
        for is_named in (_is_of_key(scope), _is_of_subject(scope))
        for row in connection.execute(paged.where(is_named))
        if scope.prefix is None
        or (row.session_id and scope.includes(SessionKey(row.agent_id, row.session_id)))
        or scope.includes(key_of_event_subject(row.subject))
    }
    found.update(_claiming(connection, scope, after))
    return sorted(found)


def _is_of_key(scope: ErasureScope) -> ColumnElement[bool]:
    """Return the condition for letters of the session, or of the agent; an index answers it."""
    is_of_agent = dead_letters.c.agent_id == scope.agent_id
    if scope.session_id is None:
        return is_of_agent
    return is_of_agent & (dead_letters.c.session_id == scope.session_id)


def _is_of_subject(scope: ErasureScope) -> ColumnElement[bool]:
    """Return the condition for letters whose subject names the session, or the agent.

    An event that could not be read has no session that could be compared. Asked apart from the
    session: SQLite reads past the payload of each letter to find the columns behind it.
    """
    if scope.session_id is not None:
        key = SessionKey(scope.agent_id, scope.session_id)
        return dead_letters.c.subject.in_([session_subject(kind, key) for kind in EVENT_TYPES])
    # Not by LIKE, which ignores case on SQLite. The added dot is for a subject that ends with the
    # agent.
    subject = dead_letters.c.subject + "."
    begins = [f"{kind}.{token_of(scope.agent_id)}." for kind in EVENT_TYPES]
    return or_(*(func.substr(subject, 1, len(begin)) == begin for begin in begins))


def _claiming(connection: Connection, scope: ErasureScope, after: int) -> Iterable[int]:
    """Yield dead letters that name a session only in their payload, read page by page."""
    while rows := _MISMATCHED.rows(connection, SUBJECT_MISMATCH, after, EXAMINED_AT_ONCE):
        after = rows[-1][0]
        for letter_id, detail in rows:
            if scope.includes(claim_of(detail) or _claim_in_payload(connection, letter_id)):
                yield letter_id


def _claim_in_payload(connection: Connection, letter_id: int) -> SessionKey | None:
    # Only of a letter without a claim: an agent may have had gigabytes refused. Another worker may
    # have deleted it since its page was read.
    rows = _PAYLOAD.rows(connection, letter_id)
    return claimed_key(bytes(rows[0][0])) if rows else None
