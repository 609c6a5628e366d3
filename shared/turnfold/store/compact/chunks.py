"""Store the answers of model calls for parts of a long input, and tokens per agent and day."""

from typing import Any

from sqlalchemy import Connection, bindparam, delete, select, update

from turnfold.core.summary.sources import ChunkSummary
from turnfold.errors import LostLease
from turnfold.messages import AgentId
from turnfold.ports.compact import Job, JobProgress
from turnfold.store.compact.jobs.rows import compaction_ids, is_held
from turnfold.store.database.engine import SqlStore, insert_for
from turnfold.store.database.predicates import is_of_kept, is_open
from turnfold.store.database.schema import chunk_summaries, compactions, summary_token_usage
from turnfold.store.database.session_rows import lock_by_sid
from turnfold.store.database.statements import Bulk, Prepared, PreparedIn

_PARTS = PreparedIn(
    select(chunk_summaries.c.digest, chunk_summaries.c.answer).where(
        is_of_kept(chunk_summaries.c.sid)
    ),
    chunk_summaries.c.compaction_id,
)
_REASONS = PreparedIn(
    select(compactions.c.reason)
    .where(compactions.c.reason.is_not(None))
    .order_by(compactions.c.ordinal),
    compactions.c.compaction_id,
)
_SPENT = Prepared(
    select(summary_token_usage.c.tokens).where(
        summary_token_usage.c.agent_id == bindparam("of_agent"),
        summary_token_usage.c.day == bindparam("on_day"),
    ),
    ("of_agent", "on_day"),
)

_open = select(compactions.c.compaction_id).where(
    compactions.c.sid == bindparam("in_sid"),
    is_open,
)
_FORGET = Bulk(
    delete(chunk_summaries).where(
        chunk_summaries.c.sid == bindparam("of_sid"), chunk_summaries.c.compaction_id.not_in(_open)
    ),
    ("of_sid", "in_sid"),
)


class SqlModelCallStore(SqlStore):
    """Model calls in SQL; see `turnfold.ports.compact.ModelCallStore`."""

    async def begun(self, job: Job) -> JobProgress:
        """Return the results of earlier attempts at a job."""

        def begun(connection: Connection) -> JobProgress:
            ids = compaction_ids(job)
            # In a first attempt, a stored reason is the spent quota: no answer needs a correction.
            reasons = _REASONS.rows(connection, ids) if job.attempt > 1 else ()
            reason = reasons[-1][0] if reasons else None
            return JobProgress(
                {str(digest): str(answer) for digest, answer in _PARTS.rows(connection, ids)},
                reason,
            )

        return await self._database.snapshot(begun)

    async def keep(self, job: Job, part: ChunkSummary, *, now_ms: int) -> None:
        """Store an answer until the job ends.

        Raises:
            LostLease: another worker holds the job, or the session was erased.
        """
        ids = compaction_ids(job)

        def keep(connection: Connection) -> None:
            # The answer refers to the session, so PostgreSQL would lock it after the compaction.
            # A claim by another worker waits for this lock, or comes first.
            session = lock_by_sid(connection, [job.sid])
            ours = select(compactions.c.compaction_id).where(
                compactions.c.compaction_id == ids[0], is_held(job)
            )
            if not session or connection.execute(ours).first() is None:
                raise LostLease(job.compaction_ids[-1])
            # The oldest row belongs to the job whatever is evicted meanwhile.
            row = {
                "sid": job.sid,
                "compaction_id": ids[0],
                "digest": part.digest,
                "answer": part.answer,
                "at_ms": now_ms,
            }
            connection.execute(
                # Equal prompts have equal digests: the answer that was stored first is as good.
                insert_for(connection)(chunk_summaries).values(**row).on_conflict_do_nothing()
            )

        await self._database.write(keep)

    async def spent(self, agent_id: AgentId, day: int) -> int:
        """Return the tokens that an agent's summaries took on a day."""
        spent = await self._database.snapshot(
            lambda connection: _SPENT.rows(connection, agent_id, day)
        )
        return next((int(tokens) for (tokens,) in spent), 0)

    async def spend(self, agent_id: AgentId, day: int, tokens: int) -> int:
        """Add to the tokens of a day; return the sum."""

        def spend(connection: Connection) -> int:
            made = insert_for(connection)(summary_token_usage).values(
                agent_id=agent_id, day=day, tokens=tokens
            )
            added: Any = made.on_conflict_do_update(
                index_elements=["agent_id", "day"],
                set_={"tokens": summary_token_usage.c.tokens + made.excluded.tokens},
            ).returning(summary_token_usage.c.tokens)
            return int(connection.execute(added).scalar_one())

        return await self._database.write(spend)


def move_chunk_summaries(connection: Connection, job: Job, compaction_id: int) -> None:
    """Keep the answers of a job for the compaction that tries it again."""
    connection.execute(
        update(chunk_summaries)
        .where(chunk_summaries.c.compaction_id.in_(compaction_ids(job)))
        .values(compaction_id=compaction_id)
    )


def delete_chunk_summaries(connection: Connection, sid: int) -> None:
    """Delete the answers of a session's jobs that have ended."""
    _FORGET.run(connection, [(sid, sid)])
