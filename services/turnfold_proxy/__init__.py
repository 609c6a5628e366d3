"""The proxy: records the turns of agents that only change their base URL, and trims requests."""
