"""Recall: find earlier messages that matter for the newest request, and write them as one block."""
