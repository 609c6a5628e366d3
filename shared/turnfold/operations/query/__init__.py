"""Answer requests: windows, history, search and dead letters."""
