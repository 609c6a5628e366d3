"""The process beside a query server for long computations, so that they delay no other window."""
