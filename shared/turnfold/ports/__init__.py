"""What the operations need from outside, as Protocols, and the values that cross. Start with `ingest`."""
