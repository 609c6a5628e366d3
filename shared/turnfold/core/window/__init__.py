"""Build the window: the summary and messages the model receives next, within a budget."""
