"""Read what tool calls did from their names and arguments. Start with `actions`."""
