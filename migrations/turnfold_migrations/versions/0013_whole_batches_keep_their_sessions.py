"""On PostgreSQL the rows of a batch are checked for their sessions together: one by one that was a seventh of storing it."""

from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

TABLES = ("events", "messages", "tool_calls")
"""What intake fills, many rows at once, in the order in which it does."""

FUNCTIONS = [
    # As a foreign key does, it keeps the sessions from being deleted until the transaction ends.
    """CREATE FUNCTION rows_need_sessions() RETURNS trigger LANGUAGE plpgsql AS $$
         DECLARE
           wanted bigint[] := (SELECT array_agg(DISTINCT sid) FROM added);
           there bigint;
         BEGIN
           PERFORM FROM sessions WHERE sid = ANY (wanted) FOR KEY SHARE;
           GET DIAGNOSTICS there = ROW_COUNT;
           IF there < cardinality(wanted) THEN
             RAISE foreign_key_violation USING MESSAGE = format('rows of %I have no session', TG_TABLE_NAME);
           END IF;
           RETURN NULL;
         END $$""",
    """CREATE FUNCTION rows_stay_in_sessions() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
         RAISE foreign_key_violation USING MESSAGE = format('rows of %I stay in their sessions', TG_TABLE_NAME);
       END $$""",
    f"""CREATE FUNCTION sessions_have_no_rows() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
         IF {" OR ".join(f"EXISTS (SELECT FROM gone JOIN {table} USING (sid))" for table in TABLES)} THEN
           RAISE foreign_key_violation USING MESSAGE = 'a session has rows';
         END IF;
         RETURN NULL;
       END $$""",
]


def upgrade() -> None:
    """Put triggers in the place of foreign keys. The tables are locked in the order in which intake does it."""
    if op.get_bind().dialect.name != "postgresql":
        return
    op.execute(f"LOCK TABLE sessions, {', '.join(TABLES)} IN ACCESS EXCLUSIVE MODE")
    for function in FUNCTIONS:
        op.execute(function)
    for table in TABLES:
        op.execute(
            f"CREATE TRIGGER {table}_need_sessions AFTER INSERT ON {table} REFERENCING NEW TABLE AS added "
            "FOR EACH STATEMENT EXECUTE FUNCTION rows_need_sessions()"
        )
        op.execute(
            f"CREATE TRIGGER {table}_stay_in_sessions AFTER UPDATE OF sid ON {table} "
            "FOR EACH ROW WHEN (OLD.sid IS DISTINCT FROM NEW.sid) EXECUTE FUNCTION rows_stay_in_sessions()"
        )
        op.execute(f"ALTER TABLE {table} DROP CONSTRAINT fk_{table}_sid")
    op.execute(
        "CREATE TRIGGER sessions_have_no_rows AFTER DELETE ON sessions REFERENCING OLD TABLE AS gone "
        "FOR EACH STATEMENT EXECUTE FUNCTION sessions_have_no_rows()"
    )


def downgrade() -> None:
    """Put the foreign keys back."""
    if op.get_bind().dialect.name != "postgresql":
        return
    op.execute("DROP TRIGGER sessions_have_no_rows ON sessions")
    for table in TABLES:
        op.execute(f"DROP TRIGGER {table}_stay_in_sessions ON {table}")
        op.execute(f"DROP TRIGGER {table}_need_sessions ON {table}")
        op.execute(
            f"ALTER TABLE {table} ADD CONSTRAINT fk_{table}_sid FOREIGN KEY (sid) REFERENCES sessions (sid)"
        )
    for function in ("sessions_have_no_rows", "rows_stay_in_sessions", "rows_need_sessions"):
        op.execute(f"DROP FUNCTION {function}()")
