"""The process beside a query server for long computations, so that they delay no other window."""

from turnfold_query.lane.parent import Lane, start_process

__all__ = ["Lane", "start_process"]
