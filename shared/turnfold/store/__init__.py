"""Sessions in SQL: one module a journey, the same on SQLite and PostgreSQL."""
