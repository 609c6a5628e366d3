"""The journeys: ingest, compact, query, and the questions about the past."""
