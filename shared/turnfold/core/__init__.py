"""Decisions as pure functions of values: no I/O, no clock, no randomness."""
