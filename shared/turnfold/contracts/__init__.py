"""The public contract: events, requests, answers and notices, with their subjects and validation.

Its forms are versioned and do not change after publication.
"""
