"""One module a schema change, oldest first by number."""
