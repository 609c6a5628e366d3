"""Logs and traces, the same for all services."""
