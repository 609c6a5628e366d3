"""Convert between chat messages, items of the Responses API and messages of the Anthropic API."""
