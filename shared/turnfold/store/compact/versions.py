"""Change which version is in force: promote, restore, regenerate."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import (
    Connection,
    bindparam,
    func,
    literal_column,
    null,
    select,
    update,
)

from turnfold.core.eviction.triggers import load_of
from turnfold.core.history.audit_chain import LOCAL
from turnfold.errors import BadRequest, Conflict, UnknownSession
from turnfold.messages import CompactionId, Message, SessionKey
from turnfold.ports.admin import ActiveVersion
from turnfold.ports.compact import JobStatus, RegenerateOptions
from turnfold.ports.ingest import Installation
from turnfold.store.compact.coverage import (
    activate_version,
    any_restored,
    covered_by,
    notify_activation,
    valid_version,
)
from turnfold.store.compact.jobs.rows import number_of
from turnfold.store.compact.rewriting import (
    MOST_REGENERATIONS,
    end_plans,
    end_regenerations,
    end_rewriting,
    fence_off,
    open_fold,
    open_regeneration,
    open_rewriting,
)
from turnfold.store.database.engine import SqlStore
from turnfold.store.database.message_rows import EVICTED, message_of
from turnfold.store.database.predicates import (
    has_status,
    in_range,
    is_pending,
    is_version,
    of_compactions,
)
from turnfold.store.database.schema import (
    compactions,
    messages,
    restorations,
    retracted_messages,
    summaries,
)
from turnfold.store.database.sequence_ranges import stretches
from turnfold.store.database.session_rows import (
    SessionChange,
    SessionJournal,
    SessionRow,
    lock_by_key,
)
from turnfold.store.database.statements import Bulk, BulkInsert, Prepared
from turnfold.store.ingest.open_compactions import change_compactions

_VERSION = Prepared(
    select(summaries.c.compaction_id, summaries.c.base_version).where(is_version),
    ("of_sid", "number"),
)
_EVICTION = Prepared(
    select(
        *(
            compactions.c[name]
            for name in (
                "status",
                "ordinal",
                "version",
                "messages_evicted",
                "is_covered",
                "first_position",
                "last_position",
            )
        )
    ).where(of_compactions, compactions.c.compaction_id == bindparam("by")),
    ("of_sid", "by"),
)
_COMMITTED_LATER = Prepared(
    select(compactions.c.compaction_id)
    .where(
        of_compactions,
        compactions.c.messages_evicted > literal_column("0"),
        has_status(JobStatus.COMMITTED),
        (compactions.c.version > bindparam("number"))
        | (
            (compactions.c.version == bindparam("number"))
            & (compactions.c.ordinal > bindparam("place"))
        ),
    )
    .limit(literal_column("1")),
    ("of_sid", "number", "place"),
)
_AMONG = [
    Prepared(
        select(table.c.position, table.c.compaction_id).where(in_range(table)),
        ("of_sid", "first", "last"),
    )
    for table in (messages, retracted_messages)
]
_FREE = Bulk(
    update(messages)
    .where(in_range(messages), messages.c.compaction_id == bindparam("by"))
    .values(compaction_id=null()),
    ("of_sid", "first", "last", "by"),
)
# `as_of` finds them among the ranges of the restoration, like the others.
_FREE_RETRACTED = Bulk(
    update(retracted_messages)
    .where(
        retracted_messages.c.sid == bindparam("of_sid"),
        retracted_messages.c.compaction_id == bindparam("by"),
    )
    .values(compaction_id=null()),
    ("of_sid", "by"),
)
_RESTORE = BulkInsert(restorations, ("sid", "compaction_id", "first_position", "last_position"))
_PENDING = Prepared(
    select(func.coalesce(func.sum(compactions.c.messages_evicted), literal_column("0"))).where(
        of_compactions,
        is_pending,
    ),
    ("of_sid",),
)


class SqlVersionStore(SqlStore):
    """Versions in SQL; see `turnfold.ports.admin.VersionStore`."""

    async def promote(
        self,
        key: SessionKey,
        version: int,
        *,
        over: int | None,
        installation: Installation,
        now_ms: int,
        actor: str = LOCAL,
    ) -> ActiveVersion:
        """Put a version in force; evictions that it does not cover become pending.

        Raises:
            Conflict: another version than `over` is in force, or messages that it covers were
                restored.
        """

        def promote(connection: Connection) -> ActiveVersion:
            change = _locked(connection, key, now_ms, actor)
            _version(connection, change.session, version)
            in_force = change.session.version
            # Somebody decided by comparing two versions. A third one may have come since.
            if over is not None and in_force != over:
                raise Conflict(
                    f"version {in_force} is in force, not {over}: read again, then decide again"
                )
            if version != in_force:
                _promote(change, version, installation)
            return _done(change)

        return await self._database.write(promote)

    async def restore(
        self,
        key: SessionKey,
        compaction_id: CompactionId,
        *,
        installation: Installation,
        now_ms: int,
        actor: str = LOCAL,
    ) -> ActiveVersion:
        """Undo an eviction: its messages are live again, and no version covers them.

        Raises:
            Conflict: it evicted nothing, or a later one was committed.
        """

        def restore(connection: Connection) -> ActiveVersion:
            change = _locked(connection, key, now_ms, actor)
            _restore(change, compaction_id, installation)
            return _done(change)

        return await self._database.write(restore)

    async def regenerate(
        self,
        key: SessionKey,
        wanted: RegenerateOptions,
        *,
        installation: Installation,
        now_ms: int,
        actor: str = LOCAL,
    ) -> CompactionId:
        """Open a compaction that writes a new version beside the one in force; return its id.

        Raises:
            Conflict: there is no version yet.
        """

        def regenerate(connection: Connection) -> CompactionId:
            change = _locked(connection, key, now_ms, actor)
            if change.session.version is None:
                raise Conflict("no version is in force yet, so there is nothing to regenerate")
            if wanted.from_version is not None:
                _check_range(connection, change.session, wanted.from_version)
            opened = open_regeneration(change, wanted, installation)
            if opened is None:
                raise Conflict(
                    f"{MOST_REGENERATIONS} versions of this session wait to be written, as many "
                    "as may wait; request others when some are written"
                )
            _done(change)
            return CompactionId(str(opened))

        return await self._database.write(regenerate)


def _locked(connection: Connection, key: SessionKey, now_ms: int, actor: str) -> SessionChange:
    session = lock_by_key(connection, [key]).get(key)
    if session is None:
        raise UnknownSession
    return SessionChange(connection, session, SessionJournal(actor), now_ms)


def _done(change: SessionChange) -> ActiveVersion:
    change.journal.write(change.connection, [change.session])
    ((pending,),) = _PENDING.rows(change.connection, change.session.sid)
    return ActiveVersion(change.session.version, int(pending))


def _version(connection: Connection, session: SessionRow, version: int) -> Sequence[Any]:
    """Return the compaction and the base of a version.

    Raises:
        BadRequest: the session has no such version.
    """
    for row in _VERSION.rows(connection, session.sid, version):
        return row
    raise BadRequest(f"there is no version {version} in this session")


def _promote(change: SessionChange, version: int, installation: Installation) -> None:
    connection, session = change.connection, change.session
    compaction_id, _ = _version(connection, session, version)
    # The version would show messages twice: in its text, and live.
    if any_restored(connection, sorted(covered_by(connection, session.sid, version))):
        raise Conflict(
            f"version {version} covers messages that were restored since; they are live again"
        )
    _check_valid(connection, session, version)
    before, replaced = session.window_tokens, session.version
    # First: a running job builds on the version that is about to be replaced.
    fence_off(change)
    activate_version(change, version)
    change.add_audit_row(
        "promoted", compaction_id=compaction_id, tokens_before=before,
        tokens_after=session.window_tokens, version=version, replaced=replaced,
    )  # fmt: skip
    notify_activation(change, tokens_before=before)
    end_rewriting(change)
    open_fold(change, installation)


def _restore(
    change: SessionChange, compaction_id: CompactionId, installation: Installation
) -> None:
    connection, session = change.connection, change.session
    by = number_of(compaction_id)
    rows = _EVICTION.rows(connection, session.sid, by)
    if not rows:
        raise BadRequest(f"this session has no compaction {compaction_id!r}")
    ((status, ordinal, version, evicted, is_covered, first, last),) = rows
    # Idempotent: a client may repeat a request whose answer was lost.
    if status == JobStatus.RESTORED:
        return
    if not evicted:
        raise Conflict("this compaction evicted nothing, so there is nothing to restore")
    # Versions above would cover a hole: they were written with these messages folded in.
    if version is not None and _COMMITTED_LATER.rows(connection, session.sid, version, ordinal):
        raise Conflict("a later compaction was committed: restore the newest first")
    before = session.window_tokens
    fence_off(change, also_regenerations=True)
    taken = _make_live(connection, session.sid, by, first, last, change.now_ms)
    load = load_of(taken)
    session.live_messages += load.messages
    session.live_tokens += load.tokens
    session.rounds += load.rounds
    session.revision += 1
    # The version that takes effect may be that of an earlier window, with other evictions.
    session.evicted_changes += 1
    policy = session.policy(installation)
    # Otherwise the trigger that evicted these messages would fire again at once.
    session.held_to_tokens = session.tokens_total + policy.min_gain_tokens
    if is_covered and version is not None:
        # The base takes the place of the version. What the version covered besides is folded again
        # below.
        _, base_version = _version(connection, session, version)
        base_version = valid_version(connection, session.sid, base_version)
        activate_version(change, base_version)
    change.add_audit_row(
        "restored", compaction_id=by, tokens_before=before,
        tokens_after=session.window_tokens, messages=len(taken), version=session.version,
    )  # fmt: skip
    notify_activation(change, tokens_before=before)
    end_plans(change)
    end_regenerations(change)
    if is_covered:
        end_rewriting(change)
        open_rewriting(change, installation)


def _make_live(
    connection: Connection, sid: int, by: int, first: int, last: int, now_ms: int
) -> list[Message]:
    """Undo the eviction of a compaction, record which messages it had, and return them."""
    taken = [message_of(row) for row in EVICTED.rows(connection, sid, first, last, by)]
    # Retracted ones as well: `as_of` shows them among those that were evicted.
    among = [row for found in _AMONG for row in found.rows(connection, sid, first, last)]
    spans = stretches(sorted((position, evicted_by == by) for position, evicted_by in among))
    _RESTORE.run(connection, [(sid, by, *span) for span in spans])
    _FREE.run(connection, [(sid, first, last, by)])
    _FREE_RETRACTED.run(connection, [(sid, by)])
    change_compactions(
        connection, [by], status=JobStatus.RESTORED, is_covered=False, lease_until_ms=None,
        restored_at_ms=now_ms,
    )  # fmt: skip
    return taken


def _check_valid(connection: Connection, session: SessionRow, version: int) -> None:
    """Check that a version covers no retracted message.

    Raises:
        Conflict: it covers one.
    """
    if valid_version(connection, session.sid, version) != version:
        raise Conflict(f"version {version} covers messages that were retracted since")


def _check_range(connection: Connection, session: SessionRow, from_version: int) -> None:
    """Check that evictions lie between a version and the one in force.

    Raises:
        BadRequest: there are none, or the version covers some that the one in force does not.
    """
    _version(connection, session, from_version)
    _check_valid(connection, session, from_version)
    whole, begun = (
        covered_by(connection, session.sid, session.version),
        covered_by(connection, session.sid, from_version),
    )
    if not begun < whole:
        raise BadRequest(
            f"from_version: nothing lies between version {from_version} and version "
            f"{session.version}, which is in force"
        )
