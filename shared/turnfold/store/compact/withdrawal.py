"""Take versions that cover retracted messages out of force, and open jobs that replace them."""

from collections.abc import Collection
from typing import Any

from sqlalchemy import bindparam, false, literal_column, select, update

from turnfold.core.history.audit_chain import WORKER
from turnfold.ports.ingest import Installation
from turnfold.store.compact.coverage import activate_version, notify_activation, valid_version
from turnfold.store.compact.rewriting import (
    end_regenerations,
    end_rewriting,
    end_stale,
    fence_off,
    open_rewriting,
    write_digests,
)
from turnfold.store.database.predicates import is_open
from turnfold.store.database.schema import compactions
from turnfold.store.database.session_rows import SessionChange
from turnfold.store.database.statements import Bulk, PreparedIn
from turnfold.store.ingest.retraction import RetractedCounts

_is_empty = compactions.c.messages_evicted == literal_column("0")
_EMPTIED = PreparedIn(
    select(compactions.c.compaction_id).where(_is_empty, is_open), compactions.c.compaction_id
)
# One at a time: a long session has more evictions than a statement may have parameters.
_UNCOVER_EMPTIED = Bulk(
    update(compactions)
    .where(compactions.c.compaction_id == bindparam("by"), _is_empty)
    .values(is_covered=false()),
    ("by",),
)


def withdraw(change: SessionChange, installation: Installation, counts: RetractedCounts) -> None:
    """Withdraw the versions that cover retracted messages, and append the audit row.

    The newest version below them that covers none takes effect at once. Until a worker has written
    the next one, digests represent the other messages that lost their version.
    """
    connection, session = change.connection, change.session
    replaced = session.version
    if counts.compaction_ids:
        # Running jobs have read the retracted messages, also those that write beside the version.
        fence_off(change, also_regenerations=True)
        version = valid_version(connection, session.sid, session.version)
        if version != replaced:
            activate_version(change, version)
    # The next audit row after the activation must be this one: it has the activation's ordinal.
    if counts.is_new or counts.messages:
        _journal(change, counts, replaced)
    if counts.compaction_ids:
        _end_emptied(change, counts.compaction_ids)
    write_digests(connection, session.sid, sorted(counts.undigested), installation)
    if not counts.compaction_ids:
        return
    end_regenerations(change)
    if session.version != replaced:
        end_rewriting(change)
        open_rewriting(change, installation)


def _journal(change: SessionChange, counts: RetractedCounts, replaced: int | None) -> None:
    session, source = change.session, counts.source
    changes: dict[str, Any] = {"version": session.version, "replaced": replaced}
    change.add_audit_row(
        "retracted",
        # Some messages, or a result of a retracted call, were stored later than the retraction.
        reason=None if counts.is_new else "late",
        tokens_before=counts.tokens_before,
        tokens_after=session.window_tokens,
        actor=source.actor if counts.is_new else WORKER,
        messages=counts.messages,
        seq=source.seq or None,
        **(changes if session.version != replaced else {}),
    )
    if session.version != replaced:
        notify_activation(change, tokens_before=counts.tokens_before)


def _end_emptied(change: SessionChange, compaction_ids: Collection[int]) -> None:
    """End the evictions that have no message left: there is nothing to summarize or to cover."""
    chosen = sorted(compaction_ids)
    for (compaction_id,) in _EMPTIED.rows(change.connection, chosen):
        end_stale(change, compaction_id, "all its messages were retracted")
    _UNCOVER_EMPTIED.run(change.connection, [(compaction_id,) for compaction_id in chosen])
