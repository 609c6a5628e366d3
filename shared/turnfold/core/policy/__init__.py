"""Policies: presets, overrides per agent and session, limits of the installation, and retention."""
