"""Tokenizers and context windows. Works offline and without litellm."""
