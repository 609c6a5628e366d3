"""Choose the exact values that code carries next to the summary text. Start with `build`."""
