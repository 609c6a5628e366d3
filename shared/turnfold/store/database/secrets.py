"""The random secrets that the services of one installation share, as migrations made them."""

from sqlalchemy import select

from turnfold.errors import Unavailable
from turnfold.store.database.engine import Database
from turnfold.store.database.schema import installation_secrets

SIGNED_ACTORS = "actor"
"""The query servers sign with it who asked over HTTP."""


async def read_secret(database: Database, name: str) -> str:
    """A secret by its name. It is read for each use: a database that is restored from a backup may hold another one.

    Raises:
        Unavailable: the database cannot be read, or holds none of this name.
    """
    async with database.read() as connection:
        named = select(installation_secrets.c.value).where(installation_secrets.c.name == name)
        value: str | None = (await connection.execute(named)).scalar()
    if value is None:
        raise Unavailable(f"the database holds no secret {name!r}; run `turnfold migrate`")
    return value
