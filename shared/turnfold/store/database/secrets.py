"""Read the random secrets that migrations created for this installation."""

from sqlalchemy import Connection, bindparam, select

from turnfold.errors import Unavailable
from turnfold.store.database.engine import Database
from turnfold.store.database.schema import installation_secrets

SIGNED_ACTORS = "actor"
"""The secret that signs the actor of an HTTP request, and of a retraction by `session.pop`."""


_SECRET = select(installation_secrets.c.value).where(
    installation_secrets.c.name == bindparam("secret")
)


def secret_in(connection: Connection, name: str) -> str | None:
    """Return a secret, read within a transaction; None if the database has no such secret."""
    value: str | None = connection.execute(_SECRET, {"secret": name}).scalar()
    return value


async def read_secret(database: Database, name: str) -> str:
    """Read a secret. It is read for each use, because a restored backup may contain another one.

    Raises:
        Unavailable: the database cannot be read, or has no such secret.
    """
    value = await database.snapshot(lambda connection: secret_in(connection, name))
    if value is None:
        raise Unavailable(f"the database has no secret {name!r}; run `turnfold migrate`")
    return value
