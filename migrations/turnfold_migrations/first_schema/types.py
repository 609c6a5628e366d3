"""The column type that SQLite and PostgreSQL spell differently."""

import sqlalchemy as sa

BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
"""A 64-bit integer. On SQLite only the plain INTEGER can be a row id."""
