"""Read the random secrets that migrations created for this installation."""

from sqlalchemy import select

from turnfold.errors import Unavailable
from turnfold.store.database.engine import Database
from turnfold.store.database.schema import installation_secrets

SIGNED_ACTORS = "actor"
"""The secret with which query servers sign the actor of an HTTP request."""


async def read_secret(database: Database, name: str) -> str:
    """Read a secret. It is read for each use, because a restored backup may contain another one.

    Raises:
        Unavailable: the database cannot be read, or has no such secret.
    """
    async with database.read() as connection:
        named = select(installation_secrets.c.value).where(installation_secrets.c.name == name)
        value: str | None = (await connection.execute(named)).scalar()
    if value is None:
        raise Unavailable(f"the database holds no secret {name!r}; run `turnfold migrate`")
    return value
