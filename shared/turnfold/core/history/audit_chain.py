"""The seal of the audit: each row of a session holds the hash of the row before it."""

import json
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Any, NamedTuple

# Each hash depends on this order: with another one, no stored chain would verify.
SEALED_FIELDS = (
    "agent_id", "session_id", "ordinal", "at_ms", "compaction_id", "phase", "reason",
    "tokens_before", "tokens_after", "details",
)  # fmt: skip


WORKER = "worker"
"""The actor of what a worker does by itself: rows that nobody requested."""
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


class ChainEnd(NamedTuple):
    """The end of a session's chain, as the session's own row or its erasure names it."""

    rows: int
    hash: str


NO_ROWS = ChainEnd(0, "")
"""The end of an empty chain."""


def chain_fault(rows: Iterable[Mapping[str, Any]], hashes: list[str]) -> str | None:
    """Check rows against the chain so far, to which their hashes are added; name the first fault.

    `hashes` begins with the empty hash before the first row.
    """
    for row in rows:
        ordinal = len(hashes)
        if row["ordinal"] != ordinal or row["prev_hash"] != hashes[-1]:
            return f"row {ordinal} is missing"
        if row_hash(hashes[-1], row) != row["hash"]:
            return f"row {ordinal} was changed"
        hashes.append(row["hash"])
    return None


def end_fault(hashes: Sequence[str], end: ChainEnd, later: ChainEnd | None) -> str | None:
    """Check a whole chain against its end, as it was before and after its rows were read.

    A row that was written meanwhile is valid; one that the session does not count is a fault.
    `later` is None if it was not read again.
    """
    rows = len(hashes) - 1
    if end.rows > rows:
        return f"the end is cut off: {end.rows} rows were written, {rows} are there"
    if later is not None and rows > later.rows:
        return f"row {later.rows + 1} was added: {later.rows} rows were written, {rows} are there"
    # The list begins with the empty hash, so the hash of row n has index n.
    if hashes[end.rows] != end.hash:
        return f"row {end.rows} differs from the hash in the session row"
    return None
