"""The process beside a query server that does what computes for long, so that nobody else's window waits for it."""

from turnfold_query.lane.parent import Lane

__all__ = ["Lane"]
