"""What the services do, as functions over ports: `ingest`, `compact` and `query`."""
