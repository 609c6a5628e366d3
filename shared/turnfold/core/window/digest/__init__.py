"""Describe the messages that a window leaves out, within a share of its budget."""
