"""Names of constraints and types of columns, for the definitions of all tables."""

from sqlalchemy import BigInteger, Column, ForeignKey, Integer, MetaData

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

Big = BigInteger().with_variant(Integer, "sqlite")
"""A 64-bit integer; on SQLite the plain INTEGER, which alone can be a row id."""


def session_key(*, primary: bool = False) -> Column[int]:
    """Return the column with the session that a row belongs to."""
    return Column("sid", Big, ForeignKey("sessions.sid"), primary_key=primary, nullable=False)
