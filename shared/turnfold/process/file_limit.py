"""The limit of open files, which also limits the connections of a server."""

import contextlib
import resource
from typing import Final

import structlog

OTHER_FILES: Final = 128
"""File descriptors reserved for other uses: databases, the bus, logs."""

log = structlog.get_logger()


def within_file_limit(connections: int) -> int:
    """Return the connection limit that the file limit allows, after raising the latter."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Many systems start services with 1,024 files, and let them raise this.
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or connections <= soft - OTHER_FILES:
        return connections
    allowed = max(1, soft - OTHER_FILES)
    advice = "raise the limit of open files (ulimit -n)"
    log.warning("http.few_connections", connections=allowed, wanted=connections, advice=advice)
    return allowed
