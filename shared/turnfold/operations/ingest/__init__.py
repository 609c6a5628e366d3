"""Decode published events and store them."""
