"""Fair scheduling of jobs: the agent with the fewest running jobs is next."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from turnfold.messages import AgentId

Entry = TypeVar("Entry")


@dataclass(frozen=True, slots=True)
class JobSlots:
    """Slots for jobs: those that are free, those that agents hold, and the maximum per agent."""

    free: int
    held: Mapping[AgentId, int]
    share: int

    @staticmethod
    def of(slots: int, held: Mapping[AgentId, int]) -> "JobSlots":
        """Return the slots that are left of `slots`.

        The last slot is kept for an agent that holds none. Otherwise an agent whose model hangs
        could hold all of them.
        """
        return JobSlots(slots - sum(held.values()), held, max(1, slots - 1))

    def allocate(self, waiting: Sequence[tuple[Entry, AgentId]]) -> list[Entry]:
        """Return the jobs to start now, out of those that wait in this order."""
        held, remaining, chosen = Counter(self.held), list(waiting), list[Entry]()
        while len(chosen) < self.free:
            remaining = [item for item in remaining if held[item[1]] < self.share]
            if not remaining:
                break
            # `min` returns the first of equal agents, so their jobs keep their order.
            job, agent_id = min(remaining, key=lambda item: held[item[1]])
            remaining.remove((job, agent_id))
            held[agent_id] += 1
            chosen.append(job)
        return chosen
