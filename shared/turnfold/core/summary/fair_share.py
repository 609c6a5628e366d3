"""Places for jobs, shared between agents: who holds the fewest is next."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from turnfold.messages import AgentId

Waiting = TypeVar("Waiting")


@dataclass(frozen=True, slots=True)
class JobSlots:
    """So many places are free; what agents hold by now, and at most so many for each of them."""

    free: int
    held: Mapping[AgentId, int]
    share: int

    @staticmethod
    def of(places: int, held: Mapping[AgentId, int]) -> "JobSlots":
        """What is left of some places: the last is kept for an agent that holds none, or one whose model hangs could hold them all."""
        return JobSlots(places - sum(held.values()), held, max(1, places - 1))

    def allocate(self, waiting: Sequence[tuple[Waiting, AgentId]]) -> list[Waiting]:
        """Which of those that wait, in the order of their turn, are next."""
        holds, left, chosen = Counter(self.held), list(waiting), list[Waiting]()
        while len(chosen) < self.free and (
            left := [one for one in left if holds[one[1]] < self.share]
        ):
            one, agent_id = min(left, key=lambda one: holds[one[1]])
            left.remove((one, agent_id))
            holds[agent_id] += 1
            chosen.append(one)
        return chosen
