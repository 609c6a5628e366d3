"""Turn evicted messages into a summary in force."""
