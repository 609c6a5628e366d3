"""The operations of the services, as functions over ports: `ingest`, `compact` and `query`."""
