"""Protocols for what the operations need from outside, and the values that cross them.

Each module serves one journey; start with `ingest`.
"""
