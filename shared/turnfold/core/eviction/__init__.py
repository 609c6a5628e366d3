"""Decide when a session evicts messages, and which ones. Start with `decide_eviction`."""
