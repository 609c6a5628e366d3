"""The settings of an installation.

Each process reads them once at its start, with `read_settings`. An unknown name stops the start.
"""

from turnfold.settings.reading import read_settings, short_overrides
from turnfold.settings.urls import http_url, redacted
from turnfold.settings.values import Settings

__all__ = ["Settings", "http_url", "read_settings", "redacted", "short_overrides"]
