"""The database itself: schema, engine, locks, shared rows, outbox and statistics."""
