"""SQL that answers requests: windows, history, search and dead letters."""
