"""Versions that change places, in memory."""

from turnfold.core.eviction.eviction import SUMMARY_DELAY_MS, Trigger, load_of
from turnfold.core.history.audit_chain import LOCAL
from turnfold.core.summary.digest import digest_eviction
from turnfold.errors import BadRequest, Conflict, UnknownSession
from turnfold.messages import CompactionId, SessionKey
from turnfold.ports.admin import ActiveVersion
from turnfold.ports.compact import RegenerateOptions
from turnfold.ports.ingest import Installation
from turnfold.ports.query import StoredSummary
from turnfold.testing.jobs import end_rewriting, open_work
from turnfold.testing.kept import Memory, Session
from turnfold.testing.usage import MemoryCalibrator


class MemoryVersions:
    """See `turnfold.ports.admin.VersionStore`."""

    _memory: Memory

    async def promote(
        self,
        key: SessionKey,
        version: int,
        *,
        over: int | None,
        installation: Installation,
        now_ms: int,
        actor: str = LOCAL,  # noqa: ARG002
    ) -> ActiveVersion:
        """Put a version in force; what it does not speak for is pending, and will be folded onto it."""
        session = self._found(key)
        named = _named(session, version)
        if over is not None and session.version != over:
            raise Conflict(f"version {session.version} is in force, not {over}")
        if version == session.version:
            return _in_force(session)
        gone = {row.compaction_id for row in session.compactions if row.status == "restored"}
        if session.speaks_for[version] & gone:
            raise Conflict("it speaks for messages that were restored since")
        before = session.window_tokens
        _fence_off(session, now_ms)
        self._reign(session, version, now_ms)
        self._tell(session, "promoted", CompactionId(named.compaction_id), before, now_ms)
        end_rewriting(self._memory, session, now_ms)
        self._fold(session, installation, now_ms)
        return _in_force(session)

    async def restore(
        self,
        key: SessionKey,
        compaction_id: CompactionId,
        *,
        installation: Installation,
        now_ms: int,
        actor: str = LOCAL,  # noqa: ARG002
    ) -> ActiveVersion:
        """Undo an eviction: its messages are live again."""
        session = self._found(key)
        row = next((one for one in session.compactions if one.compaction_id == compaction_id), None)
        if row is None:
            raise BadRequest("compaction_id: this session has no compaction of that id")
        if row.status == "restored":
            return _in_force(session)
        if not row.evicted:
            raise Conflict("it evicted nothing")
        later = [one for one in session.compactions if one.evicted and one.status == "committed"]
        if row.version and any(
            (one.version or 0, one.ordinal) > (row.version, row.ordinal) for one in later
        ):
            raise Conflict("a later compaction was committed")
        before, was_covered = session.window_tokens, row.is_covered
        _fence_off(session, now_ms)
        taken = [one.message for one in session.kept if one.message.message_id in row.evicted]
        row.status, row.is_covered, row.lease_until_ms, row.restored_at_ms = (
            "restored",
            False,
            None,
            now_ms,
        )
        session.rounds += load_of(taken).rounds
        session.revision += 1
        policy = installation.policy(self._memory.wishes_of(key.agent_id), session.wishes)
        session.held_to_tokens = session.tokens_total + policy.min_gain_tokens
        if was_covered and row.version is not None:
            self._reign(session, _named(session, row.version).base_version, now_ms)
        self._tell(session, "restored", row.compaction_id, before, now_ms)
        if was_covered:
            end_rewriting(self._memory, session, now_ms)
        self._fold(session, installation, now_ms)
        return _in_force(session)

    async def regenerate(
        self,
        key: SessionKey,
        wanted: RegenerateOptions,
        *,
        installation: Installation,  # noqa: ARG002
        now_ms: int,
        actor: str = LOCAL,  # noqa: ARG002
    ) -> CompactionId:
        """Have a version written anew beside the one in force."""
        session = self._found(key)
        if session.version is None:
            raise Conflict("no version is in force yet")
        if wanted.from_version is not None:
            _named(session, wanted.from_version)
            if not session.speaks_for[wanted.from_version] < session.speaks_for[session.version]:
                raise BadRequest("from_version: nothing lies between")
        return open_work(self._memory, session, Trigger.REGENERATE, now_ms, now_ms, wanted=wanted)

    def _found(self, key: SessionKey) -> Session:
        if key not in self._memory.sessions:
            raise UnknownSession("nothing was published in this session yet")
        return self._memory.sessions[key]

    def _reign(self, session: Session, version: int | None, now_ms: int) -> None:
        session.reign(version, at_ms=now_ms)
        session.gauge = session.gauge._replace(
            factor=MemoryCalibrator(self._memory).factor(session)
        )
        session.revision += 1

    def _tell(
        self, session: Session, phase: str, compaction_id: CompactionId, before: int, now_ms: int
    ) -> None:
        after = session.window_tokens
        self._memory.seal(
            session,
            phase,
            at_ms=now_ms,
            compaction_id=compaction_id,
            tokens_before=before,
            tokens_after=after,
        )
        kind = session.summary.kind if session.summary else None
        told = {
            "version": session.version,
            "kind": kind,
            "tokens_before": before,
            "tokens_after": after,
        }
        self._memory.tell(session, "summary.updated", **told)

    def _fold(self, session: Session, installation: Installation, now_ms: int) -> None:
        lost = [row for row in session.pending if row.status == "committed"]
        for row in lost:
            if not row.digest:
                kept = [one for one in session.kept if one.message.message_id in row.evicted]
                bodies = {one.message.position: one.body for one in kept}
                row.digest, row.digest_tokens = digest_eviction(
                    [one.message for one in kept], bodies, count=installation.count
                )
        if lost:
            open_work(self._memory, session, Trigger.REQUEST, now_ms + SUMMARY_DELAY_MS, now_ms)


def _named(session: Session, version: int) -> StoredSummary:
    named = session.version_of(version)
    if named is None:
        raise BadRequest(f"version: there is no version {version} in this session")
    return named


def _in_force(session: Session) -> ActiveVersion:
    return ActiveVersion(session.version, sum(row.messages_evicted for row in session.pending))


def _fence_off(session: Session, now_ms: int) -> None:
    for row in session.compactions:
        if row.status == "running" and row.trigger != Trigger.REGENERATE:
            row.status, row.lease_until_ms, row.next_attempt_at_ms = "pending", None, now_ms
