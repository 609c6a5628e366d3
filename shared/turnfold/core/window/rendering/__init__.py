"""Add the texts to a planned window, and write it in the format of a provider."""
