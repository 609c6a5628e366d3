"""Look up the sessions and the events of one agent by their ids."""

from collections.abc import Collection, Sequence

from sqlalchemy import ColumnElement, Connection, func, select

from turnfold.messages import AgentId
from turnfold.ports.agent_lists import KnownEvents, ListedSession
from turnfold.store.database.engine import SqlStore
from turnfold.store.database.predicates import is_of_kept
from turnfold.store.database.schema import erased_events, events, sessions
from turnfold.store.ingest.tombstones import digest_of

LAST_CHARACTERS = "\U0010ffff" * 64
"""After a prefix, this sorts behind every id that begins with it: ids have at most 256 bytes."""


class SqlAgentLists(SqlStore):
    """Lists in SQL; see `turnfold.ports.agent_lists.AgentLists`."""

    async def sessions(
        self, agent_id: AgentId, *, prefix: str, after: str | None, limit: int
    ) -> Sequence[ListedSession]:
        """Return sessions in the order of their ids."""

        def read(connection: Connection) -> list[ListedSession]:
            chosen = (
                select(*(sessions.c[name] for name in ListedSession._fields))
                .where(sessions.c.agent_id == agent_id, begins_with(connection, prefix))
                .order_by(sessions.c.session_id)
                .limit(limit)
            )
            if after is not None:
                chosen = chosen.where(sessions.c.session_id > after)
            return [ListedSession(*row) for row in connection.execute(chosen)]

        return await self._database.snapshot(read)

    async def known_events(self, agent_id: AgentId, event_ids: Collection[str]) -> KnownEvents:
        """Return which of these event ids are stored, and which were erased."""
        # An erasure keeps the digests of event ids, and not the ids.
        digests = {digest_of(agent_id, event_id): event_id for event_id in event_ids}
        of_agent = select(events.c.event_id, is_of_kept(events.c.sid)).where(
            events.c.agent_id == agent_id, events.c.event_id.in_(event_ids)
        )
        forgotten = select(erased_events.c.digest).where(erased_events.c.digest.in_(digests))

        def read(connection: Connection) -> KnownEvents:
            kept = {name: bool(is_kept) for name, is_kept in connection.execute(of_agent)}
            erased = {digests[bytes(digest)] for digest in connection.execute(forgotten).scalars()}
            stored = frozenset(name for name, is_kept in kept.items() if is_kept)
            # An erased session keeps its rows for a while, and its events get no digest before.
            return KnownEvents(stored, frozenset(erased | kept.keys()) - stored)

        return await self._database.snapshot(read)


def begins_with(connection: Connection, prefix: str) -> ColumnElement[bool]:
    """Return the condition that a session's id begins with a prefix."""
    name = sessions.c.session_id
    is_prefix = func.substr(name, 1, len(prefix)) == prefix
    if connection.dialect.name == "sqlite":
        # Its order is that of the bytes, so the index finds the range.
        return is_prefix & name.between(prefix, prefix + LAST_CHARACTERS)
    # PostgreSQL sorts by its collation, which may scatter the ids that begin alike.
    return is_prefix
