"""Fill the index of words in the background, and remove what was erased or retracted."""
