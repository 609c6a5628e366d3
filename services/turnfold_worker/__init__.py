"""The compaction worker: it stores events, evicts messages and writes summaries."""
