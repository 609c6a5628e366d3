"""Compactions that evict nothing: they rewrite a version, or cover evictions that lost theirs."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any, Final

from sqlalchemy import Connection, bindparam, func, literal_column, select, update

from turnfold.core.eviction.triggers import SUMMARY_DELAY_MS, Trigger
from turnfold.core.summary.eviction_digest import digest_eviction, digest_messages
from turnfold.core.summary.prompt import prompt_version
from turnfold.ports.compact import JobStatus, RegenerateOptions
from turnfold.ports.ingest import Installation
from turnfold.store.compact.coverage import may_be_extended, uncovered
from turnfold.store.database.message_rows import EVICTED, message_of
from turnfold.store.database.predicates import (
    is_open,
    is_planned,
    is_version,
    of_compactions,
)
from turnfold.store.database.schema import compactions, summaries
from turnfold.store.database.session_rows import SessionChange
from turnfold.store.database.statements import Bulk, Prepared, PreparedIn
from turnfold.store.ingest.open_compactions import (
    change_compactions,
    delay_after_failure,
    quoted_texts,
)

MOST_REGENERATIONS: Final = 100
"""The most open regenerations of a session: each request and each job reads them all."""

_evicts_nothing = compactions.c.messages_evicted == literal_column("0")
# A fold names the span of what it folds, a stand-in what is wanted of it; a plan has neither.
_SUPERSEDED = Prepared(
    select(compactions.c.compaction_id)
    .where(
        of_compactions,
        is_open,
        _evicts_nothing,
        (compactions.c.trigger == literal_column(f"'{Trigger.STAND_IN}'"))
        | compactions.c.first_position.is_not(None),
    )
    .order_by(compactions.c.ordinal),
    ("of_sid",),
)
_REGENERATIONS = Prepared(
    select(compactions.c.compaction_id, compactions.c.wanted)
    .where(of_compactions, is_open, compactions.c.trigger == literal_column("'regenerate'"))
    .order_by(compactions.c.ordinal),
    ("of_sid",),
)
_TAKE_OVER = Bulk(
    update(compactions)
    .where(compactions.c.compaction_id == bindparam("taken"), compactions.c.campaign_id.is_(None))
    .values(campaign_id=bindparam("by")),
    ("by", "taken"),
)
_PLANS = Prepared(
    select(compactions.c.compaction_id)
    .where(of_compactions, is_planned, compactions.c.trigger != literal_column("'request'"))
    .order_by(compactions.c.ordinal),
    ("of_sid",),
)
# Where no model is to write, versions are extractive as well, but without a reason.
_STAND_IN = Prepared(
    select(summaries.c.version)
    .join(compactions, compactions.c.compaction_id == summaries.c.compaction_id)
    .where(
        is_version,
        summaries.c.kind == literal_column("'extractive'"),
        compactions.c.reason.is_not(None),
    ),
    ("of_sid", "number"),
)
_SPAN = PreparedIn(
    select(func.min(compactions.c.first_position), func.max(compactions.c.last_position)),
    compactions.c.compaction_id,
)
_WITHOUT_DIGEST = PreparedIn(
    select(
        compactions.c.compaction_id, compactions.c.first_position, compactions.c.last_position
    ).where(compactions.c.digest == literal_column("''")),
    compactions.c.compaction_id,
)


def wanted_of(stored: str | None) -> RegenerateOptions:
    """Read the options of a regeneration from JSON text."""
    return RegenerateOptions(**json.loads(stored)) if stored else RegenerateOptions()


def stated_options(wanted: RegenerateOptions) -> dict[str, Any]:
    """Return the options that differ from the policy, by name."""
    return {name: value for name, value in asdict(wanted).items() if value is not None}


def open_stand_in(change: SessionChange, compaction_id: int) -> None:
    """Plan to replace an extractive version by one of the model, after its cooldown."""
    begins_ms = max(change.session.cooldown_until_ms, change.now_ms)
    _open(change, compaction_id, Trigger.STAND_IN, begins_ms, wanted=RegenerateOptions())


def open_regeneration(
    change: SessionChange,
    wanted: RegenerateOptions,
    installation: Installation,
    *,
    campaign_id: int | None = None,
) -> int | None:
    """Open a compaction that writes a version beside the one in force; reuse an open one.

    A campaign takes over one that belongs to no campaign. None if too many are open.
    """
    opened = _REGENERATIONS.rows(change.connection, change.session.sid)
    # A client that repeats its request after a lost answer gets the same compaction.
    for known, stored in opened:
        if wanted_of(stored) == wanted:
            if campaign_id is not None:
                _TAKE_OVER.run(change.connection, [(campaign_id, known)])
            return int(known)
    if len(opened) >= MOST_REGENERATIONS:
        return None
    compaction_id = installation.new_id()
    _open(
        change, compaction_id, Trigger.REGENERATE, change.now_ms, wanted=wanted,
        campaign_id=campaign_id,
    )  # fmt: skip
    return compaction_id


def open_fold(change: SessionChange, installation: Installation) -> int | None:
    """Open a compaction for evictions that lost their version, if there are any."""
    connection, sid = change.connection, change.session.sid
    lost = [eviction.compaction_id for eviction in uncovered(connection, sid)]
    # Windows show digests until the fold is committed, and these evictions never needed one.
    write_digests(connection, sid, lost, installation)
    return continue_fold(change, installation.new_id)


def open_rewriting(change: SessionChange, installation: Installation) -> None:
    """Have the model write what an older version, now in force, lacks.

    That is evictions that lost their version. If there are none, and the version is a stand-in,
    nothing else would replace it.
    """
    if open_fold(change, installation) is not None:
        return
    sid, version = change.session.sid, change.session.version
    if version is not None and _STAND_IN.rows(change.connection, sid, version):
        open_stand_in(change, installation.new_id())


def continue_fold(change: SessionChange, new_id: Callable[[], int]) -> int | None:
    """Open a compaction for the evictions that a fold left, because one job has a limit."""
    connection, session = change.connection, change.session
    lost = [eviction.compaction_id for eviction in uncovered(connection, session.sid)]
    if not lost:
        return None
    ((first, last),) = _SPAN.rows(connection, lost)
    # Stand-ins for all parts would stay, because one rewrite replaces only the newest of them.
    begins_ms = max(change.now_ms + SUMMARY_DELAY_MS, session.cooldown_until_ms)
    compaction_id = new_id()
    _open(change, compaction_id, Trigger.REQUEST, begins_ms, span=(first, last))
    # After the fold was stored, so that it also waits if an eviction of the session failed.
    delay_after_failure(connection, [session.sid])
    return compaction_id


def end_rewriting(change: SessionChange) -> None:
    """End the rewriting of a version that is no longer in force."""
    for (compaction_id,) in _SUPERSEDED.rows(change.connection, change.session.sid):
        end_stale(change, compaction_id, "another version took effect")


def end_plans(change: SessionChange) -> None:
    """End planned evictions that no request asked for: they would evict restored messages again."""
    for (compaction_id,) in _PLANS.rows(change.connection, change.session.sid):
        end_stale(change, compaction_id, "messages were restored")


def end_stale(change: SessionChange, compaction_id: int, detail: str) -> None:
    """End a compaction whose work is not needed any more."""
    change_compactions(
        change.connection, [compaction_id], status=JobStatus.STALE, lease_until_ms=None,
        finished_at_ms=change.now_ms,
    )  # fmt: skip
    change.add_audit_row("stale", compaction_id=compaction_id, detail=detail)


def end_regenerations(change: SessionChange) -> None:
    """End regenerations that have nothing to write, or were to extend what was taken back.

    Messages that lost their version are folded first, and then written again.
    """
    connection, session = change.connection, change.session
    is_void = session.version is None and not uncovered(connection, session.sid)
    for compaction_id, stored in _REGENERATIONS.rows(connection, session.sid):
        base = wanted_of(stored).from_version
        if is_void or not (base is None or may_be_extended(connection, session.sid, base)):
            end_stale(change, compaction_id, "messages were retracted or restored")


def fence_off(change: SessionChange, *, also_regenerations: bool = False) -> None:
    """Make running jobs of a session start again, because the version they build on is replaced.

    A regeneration names its base itself and does not depend on the version in force.
    """
    is_running_job = (compactions.c.sid == change.session.sid) & (
        compactions.c.status == JobStatus.RUNNING
    )
    if not also_regenerations:
        is_running_job &= compactions.c.trigger != str(Trigger.REGENERATE)
    # The status fences off the worker: it holds only running rows, and a claim raises the fence.
    change.connection.execute(
        update(compactions)
        .where(is_running_job)
        .values(
            status=JobStatus.PENDING,
            lease_until_ms=None,
            next_attempt_at_ms=change.now_ms,
            # A stopped attempt has not failed.
            attempts=compactions.c.attempts - 1,
        )
    )


def _open(
    change: SessionChange,
    compaction_id: int,
    trigger: Trigger,
    begins_ms: int,
    *,
    wanted: RegenerateOptions | None = None,
    span: tuple[int | None, int | None] = (None, None),
    campaign_id: int | None = None,
) -> None:
    """Open a compaction that evicts nothing."""
    session = change.session
    session.compactions += 1
    asked = stated_options(wanted) if wanted else {}
    row = {
        "compaction_id": compaction_id, "sid": session.sid, "ordinal": session.compactions,
        "trigger": str(trigger), "status": JobStatus.PENDING, "first_position": span[0],
        "last_position": span[1], "messages_evicted": 0, "tokens_evicted": 0,
        "tokens_before": session.window_tokens, "digest": "", "digest_tokens": 0,
        "next_attempt_at_ms": begins_ms, "requested_at_ms": change.now_ms,
        "wanted": json.dumps(asked) if wanted else None, "campaign_id": campaign_id,
        "actor": change.journal.asked_by,
    }  # fmt: skip
    change.connection.execute(compactions.insert(), row)
    if "prompt" in asked:
        # No erasure reaches the audit, and a prompt may say anything.
        asked["prompt_version"] = prompt_version(asked.pop("prompt"))
    change.add_audit_row(
        "opened", compaction_id=compaction_id, tokens_before=session.window_tokens,
        trigger=str(trigger), version=session.version, **asked,
    )  # fmt: skip


def write_digests(
    connection: Connection, sid: int, compaction_ids: Sequence[int], installation: Installation
) -> None:
    """Write the digests of evictions that have none."""
    for compaction_id, first, last in _WITHOUT_DIGEST.rows(connection, compaction_ids):
        rows = EVICTED.rows(connection, sid, first, last, compaction_id)
        evicted = [message_of(row) for row in rows]
        # Only the few that it quotes: the texts of an eviction may take hundreds of megabytes.
        places = [(sid, message.position) for message in digest_messages(evicted)]
        texts = quoted_texts(connection, places)
        digest, tokens = digest_eviction(evicted, texts, count=installation.count)
        change_compactions(connection, [compaction_id], digest=digest, digest_tokens=tokens)
