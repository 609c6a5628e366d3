"""Triggers: the append-only audit, the counts of sessions, and checks for whole statements."""

AUDIT_IS_APPEND_ONLY = {
    "sqlite": [
        """CREATE TRIGGER audit_no_update BEFORE UPDATE ON audit BEGIN
             SELECT RAISE(ABORT, 'the audit is append-only');
           END""",
        """CREATE TRIGGER audit_no_delete BEFORE DELETE ON audit BEGIN
             SELECT RAISE(ABORT, 'the audit is append-only');
           END""",
    ],
    "postgresql": [
        """CREATE FUNCTION audit_is_append_only() RETURNS trigger LANGUAGE plpgsql AS
           $$ BEGIN RAISE EXCEPTION 'the audit is append-only'; END $$""",
        """CREATE TRIGGER audit_no_change BEFORE UPDATE OR DELETE OR TRUNCATE ON audit
           FOR EACH STATEMENT EXECUTE FUNCTION audit_is_append_only()""",
    ],
}

COUNT_SESSIONS = {
    "sqlite": [
        """CREATE TRIGGER sessions_made AFTER INSERT ON sessions BEGIN
             INSERT INTO session_counts (agent_id, total) VALUES (NEW.agent_id, 1)
               ON CONFLICT (agent_id) DO UPDATE SET total = total + 1;
           END""",
        """CREATE TRIGGER sessions_gone AFTER DELETE ON sessions BEGIN
             UPDATE session_counts SET total = total - 1 WHERE agent_id = OLD.agent_id;
           END""",
    ],
    "postgresql": [
        """CREATE FUNCTION count_sessions_made() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
             INSERT INTO session_counts AS counted (agent_id, total)
               SELECT agent_id, count(*) FROM made GROUP BY agent_id ORDER BY agent_id
               ON CONFLICT (agent_id) DO UPDATE SET total = counted.total + excluded.total;
             RETURN NULL;
           END $$""",
        """CREATE FUNCTION count_sessions_gone() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
             UPDATE session_counts AS counted SET total = counted.total - less.sessions
               FROM (SELECT agent_id, count(*) AS sessions FROM gone GROUP BY agent_id) AS less
              WHERE less.agent_id = counted.agent_id;
             RETURN NULL;
           END $$""",
        """CREATE TRIGGER sessions_made AFTER INSERT ON sessions REFERENCING NEW TABLE AS made
             FOR EACH STATEMENT EXECUTE FUNCTION count_sessions_made()""",
        """CREATE TRIGGER sessions_gone AFTER DELETE ON sessions REFERENCING OLD TABLE AS gone
             FOR EACH STATEMENT EXECUTE FUNCTION count_sessions_gone()""",
    ],
}

BATCHED = ("events", "messages", "tool_calls")
"""The tables that ingest fills, many rows at once, in its order."""

_HAS_ROWS = " OR ".join(f"EXISTS (SELECT FROM gone JOIN {table} USING (sid))" for table in BATCHED)
SESSION_CHECKS = [
    # Checked for all rows of a statement: foreign keys, row by row, took a seventh of ingest's
    # time. Like a foreign key, the check keeps sessions from being deleted until the transaction
    # ends.
    """CREATE FUNCTION rows_need_sessions() RETURNS trigger LANGUAGE plpgsql AS $$
         DECLARE
           wanted bigint[] := (SELECT array_agg(DISTINCT sid) FROM added);
           there bigint;
         BEGIN
           PERFORM FROM sessions WHERE sid = ANY (wanted) FOR KEY SHARE;
           GET DIAGNOSTICS there = ROW_COUNT;
           IF there < cardinality(wanted) THEN
             RAISE foreign_key_violation
               USING MESSAGE = format('rows of %I have no session', TG_TABLE_NAME);
           END IF;
           RETURN NULL;
         END $$""",
    """CREATE FUNCTION rows_stay_in_sessions() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
         RAISE foreign_key_violation
           USING MESSAGE = format('rows of %I stay in their sessions', TG_TABLE_NAME);
       END $$""",
    f"""CREATE FUNCTION sessions_have_no_rows() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
         IF {_HAS_ROWS} THEN
           RAISE foreign_key_violation USING MESSAGE = 'a session has rows';
         END IF;
         RETURN NULL;
       END $$""",
    *(
        f"CREATE TRIGGER {table}_need_sessions AFTER INSERT ON {table}"
        " REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION rows_need_sessions()"
        for table in BATCHED
    ),
    *(
        f"CREATE TRIGGER {table}_stay_in_sessions AFTER UPDATE OF sid ON {table} FOR EACH ROW"
        " WHEN (OLD.sid IS DISTINCT FROM NEW.sid) EXECUTE FUNCTION rows_stay_in_sessions()"
        for table in BATCHED
    ),
    """CREATE TRIGGER sessions_have_no_rows AFTER DELETE ON sessions REFERENCING OLD TABLE AS gone
         FOR EACH STATEMENT EXECUTE FUNCTION sessions_have_no_rows()""",
    *(f"ALTER TABLE {table} DROP CONSTRAINT fk_{table}_sid" for table in BATCHED),
]
