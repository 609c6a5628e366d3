"""The compaction worker: ingest, evict, and have summaries written."""
