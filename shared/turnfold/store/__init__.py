"""Sessions in SQL, on SQLite and PostgreSQL: one folder per journey, above `database`."""
