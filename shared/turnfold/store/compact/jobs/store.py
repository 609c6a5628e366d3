"""The job store in SQL; see `turnfold.ports.compact.JobStore`. Each method is one transaction."""

from collections.abc import Callable, Sequence
from functools import partial
from secrets import randbits

from sqlalchemy import Connection, update

from turnfold.core.eviction.batch import Eviction
from turnfold.core.summary.fair_share import JobSlots
from turnfold.messages import AgentId
from turnfold.ports.compact import FailureStatus, Job, JobInput, Version
from turnfold.ports.ingest import Installation
from turnfold.process.set_aside import SetAside
from turnfold.store.compact.chunks import SqlModelCallStore
from turnfold.store.compact.jobs.claim import DUE, NEXT_DUE, claim_session
from turnfold.store.compact.jobs.commit import commit_version
from turnfold.store.compact.jobs.fail import discard_result, fail_job, retry_job, return_job
from turnfold.store.compact.jobs.load import load_input
from turnfold.store.compact.jobs.rows import update_held
from turnfold.store.database.engine import Database
from turnfold.store.database.predicates import is_running
from turnfold.store.database.schema import compactions
from turnfold.store.database.session_rows import SessionChange, SessionJournal, lock_by_sid


class SqlJobStore(SqlModelCallStore):
    """Claim, load and end compaction jobs."""

    def __init__(
        self,
        database: Database,
        *,
        new_id: Callable[[], int] = lambda: randbits(62),
        aside: SetAside[int] | None = None,
    ) -> None:
        super().__init__(database, aside=aside)
        self._new_id = new_id

    async def claim(
        self, places: JobSlots, *, lease_ms: int, now_ms: int, installation: Installation
    ) -> Sequence[Job]:
        """Claim sessions with due compactions: all open rows of each, under one lease.

        The caller renews the lease before `lease_ms` has passed, and ends each job.
        """
        # Agents that hold slots already may have to yield to others: read enough for both.
        aside = self._aside.keys
        limit = places.free + sum(places.held.values()) + len(aside)
        waiting = await self._database.snapshot(
            lambda connection: DUE.rows(connection, now_ms, limit)
        )
        # Chosen from a snapshot, without a lock. `claim_session` checks again what it locks.
        sids = places.allocate(
            [(sid, AgentId(agent_id)) for sid, agent_id in waiting if sid not in aside]
        )

        def claim(connection: Connection, sids: Sequence[int]) -> list[Job]:
            by_sid = lock_by_sid(connection, sids)
            locked = [by_sid[sid] for sid in sids if sid in by_sid]
            journal = SessionJournal()
            jobs = [
                claim_session(
                    SessionChange(connection, session, journal, now_ms),
                    installation,
                    lease_ms=lease_ms,
                )
                for session in locked
            ]
            journal.write(connection, locked)
            return [job for job in jobs if job is not None]

        claimed = await self._aside.together(
            sids, lambda portion: self._database.write(partial(claim, sids=portion))
        )
        return [job for jobs in claimed for job in jobs]

    async def load(self, job: Job, *, now_ms: int, by_model: bool = True) -> JobInput:
        """Read what a claimed job summarizes.

        A model does not build on extractive versions: it reads the messages that they cover.

        Raises:
            LostLease: the session was erased.
        """
        return await self._database.snapshot(
            lambda connection: load_input(connection, job, now_ms=now_ms, by_model=by_model)
        )

    async def renew(self, job: Job, *, lease_ms: int, now_ms: int) -> None:
        """Extend the lease.

        Raises:
            LostLease: another worker holds the job.
        """

        def renew(connection: Connection) -> None:
            # Without it, the UPDATE would lock the rows of the job in any order.
            lock_by_sid(connection, [job.sid])
            update_held(connection, job, lease_until_ms=now_ms + lease_ms)

        await self._database.write(renew)

    async def commit(
        self,
        job: Job,
        version: Version,
        *,
        leaving: Eviction | None = None,
        reason: str | None,
        now_ms: int,
    ) -> int:
        """Store a new version, carry out its planned eviction (`leaving`), and return its number.

        Raises:
            LostLease: another worker holds the job, or another version is in force. Nothing was
                changed.
        """
        return await self._database.write(
            lambda connection: commit_version(
                connection, job, version, leaving=leaving, reason=reason, now_ms=now_ms,
                new_id=self._new_id
            )
        )  # fmt: skip

    async def fail(
        self,
        job: Job,
        *,
        ending: FailureStatus,
        reason: str | None,
        detail: str,
        now_ms: int,
        model: str | None = None,
    ) -> None:
        """End a job without a version; `model` is the one that should have written it.

        Raises:
            LostLease: another worker holds the job.
        """
        await self._database.write(
            lambda connection: fail_job(
                connection, job, ending, reason=reason, detail=detail, model=model, now_ms=now_ms,
                new_id=self._new_id
            )
        )  # fmt: skip

    async def retry_later(
        self,
        job: Job,
        *,
        reason: str,
        detail: str,
        retry_at_ms: int,
        now_ms: int,
        model: str | None = None,
        is_attempt: bool = True,
    ) -> None:
        """Return a job whose attempt failed, for another attempt at `retry_at_ms`.

        Raises:
            LostLease: another worker holds the job.
        """
        await self._database.write(
            lambda connection: retry_job(
                connection, job, reason=reason, detail=detail, model=model, retry_at_ms=retry_at_ms,
                now_ms=now_ms, is_attempt=is_attempt
            )
        )  # fmt: skip

    async def discard(self, job: Job, *, now_ms: int) -> None:
        """Record that a version was written too late, and release the rows of this worker."""
        await self._database.write(
            lambda connection: discard_result(connection, job, now_ms=now_ms)
        )

    async def give_back(self, job: Job, *, now_ms: int) -> None:
        """Return a job that was not attempted to the end, because this worker stops."""

        def give_back(connection: Connection) -> None:
            lock_by_sid(connection, [job.sid])
            return_job(connection, job, now_ms=now_ms)

        await self._database.write(give_back)

    async def end_leases(self) -> None:
        """End all leases. Only the holder of the writer lock of a SQLite file may do this."""
        await self._database.write(
            lambda connection: connection.execute(
                update(compactions).where(is_running).values(lease_until_ms=0)
            )
        )

    async def next_due_ms(self) -> int | None:
        """Return when the next job is due (ms since 1970); None if there is none.

        None as well while a session is set aside: its job is due, and may not be claimed yet.
        """
        if self._aside.keys:
            return None
        ((due_ms,),) = await self._database.snapshot(NEXT_DUE.rows)
        return None if due_ms is None else int(due_ms)
