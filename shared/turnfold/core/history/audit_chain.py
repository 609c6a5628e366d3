"""The seal of the audit: each row of a session holds the hash of the row before it."""

import json
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any

SEALED_FIELDS = (
    "agent_id", "session_id", "ordinal", "at_ms", "compaction_id", "phase", "reason",
    "tokens_before", "tokens_after", "details",
)  # fmt: skip


WORKER = "worker"
"""The actor of what a worker does by itself: rows that nobody asked for."""
LOCAL = "local"
"""The actor of a request without an authenticated sender: no roles, and no HTTP tokens."""


def row_hash(prev_hash: str, row: Mapping[str, Any]) -> str:
    """Return the hash of an audit row, given by its columns; see `seal`."""
    return seal(prev_hash, [row[name] for name in SEALED_FIELDS], row["actor"])


def seal(prev_hash: str, values: Sequence[Any], actor: str) -> str:
    """Return the SHA-256 of the previous hash and the sealed values, in order, as canonical JSON.

    `compaction_id` is an integer or null and `details` a JSON text, as in the table.
    """
    # Fixed separators and ASCII: an auditor must get the same bytes from any JSON library.
    sealed = json.dumps([prev_hash, *values, actor], ensure_ascii=True, separators=(",", ":"))
    return sha256(sealed.encode()).hexdigest()
