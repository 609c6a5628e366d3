"""Write one batch of events in a transaction. Start with `writer`."""
