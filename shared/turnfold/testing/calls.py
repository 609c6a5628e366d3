"""What calls of models left behind, in memory."""

from turnfold.core.summary.sources import ChunkSummary
from turnfold.errors import LostLease
from turnfold.messages import AgentId
from turnfold.ports.compact import Job, JobProgress
from turnfold.testing.kept import Memory


class MemoryCalls:
    """See `turnfold.ports.compact.ModelCallStore`."""

    _memory: Memory

    async def begun(self, job: Job) -> JobProgress:
        """What came of a job before."""
        parts = {
            part.digest: part.answer
            for one in job.compaction_ids
            for part in self._memory.chunks.get(one, ())
        }
        session = self._memory.sessions.get(job.key)
        rows = (
            [
                row
                for row in session.compactions
                if row.compaction_id in job.compaction_ids and row.reason
            ]
            if session
            else []
        )
        return JobProgress(parts, rows[-1].reason if rows and job.attempt > 1 else None)

    async def keep(self, job: Job, part: ChunkSummary, *, now_ms: int) -> None:  # noqa: ARG002 - nobody asks when
        """Keep an answer until the job ends."""
        oldest = job.compaction_ids[0]
        session = self._memory.sessions.get(job.key)
        rows = session.compactions if session else []
        if not any(
            row.compaction_id == oldest and row.status == "running" and row.fence == job.fence
            for row in rows
        ):
            raise LostLease(oldest)
        self._memory.chunks.setdefault(oldest, []).append(part)

    async def spent(self, agent_id: AgentId, day: int) -> int:
        """The tokens that an agent's summaries took on a day."""
        return self._memory.spending.get((agent_id, day), 0)

    async def spend(self, agent_id: AgentId, day: int, tokens: int) -> int:
        """Add to the tokens of a day; their number now."""
        self._memory.spending[agent_id, day] = tokens + await self.spent(agent_id, day)
        return self._memory.spending[agent_id, day]

    def _forget_chunks(self, job: Job) -> None:
        for one in job.compaction_ids:
            self._memory.chunks.pop(one, None)
