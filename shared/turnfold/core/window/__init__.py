"""Build the window: the summary and messages that the model receives next, within a token budget."""
