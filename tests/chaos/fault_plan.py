"""The faults of an episode, drawn from a seed: equal seeds give equal faults in equal order.

- kill (`kill -9`), restart after 0.3 s: any process, also receivers, summarizers, `turnfold up` and
  single PostgreSQL processes
- stop request, a violation after 40 s: any service
- freeze (`SIGSTOP`) beyond a lease, then resume: workers, receivers, query servers, nats-servers,
  PostgreSQL processes
- full disk (files stop at 64 KiB for a while): the SQLite worker, PostgreSQL processes,
  nats-servers
- slow disk (no writes for seconds): the database, by its own write lock

Every kind occurs; only the timing varies. A kill counts when the process is gone, a freeze when the
kernel reports it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from random import Random

LEASE_SECONDS = 2.0
"""How long a job is its worker's here."""
FROZEN_SECONDS = (1.5 * LEASE_SECONDS, 3 * LEASE_SECONDS)
"""Longer than the lease: somebody else has the job when its worker wakes up."""
SHORT_SECONDS = (0.5, 3.0)
PAUSE_SECONDS = (0.05, 1.0)
AFTER_EVENTS = (0, 0, 10, 40)
LONGEST_PAUSE_SECONDS = 8.0


class Topology(StrEnum):
    """What the parts of a system are."""

    SQLITE = "sqlite"
    POSTGRES = "postgres"
    CLUSTER = "cluster"


class Kind(StrEnum):
    """What is done to a part."""

    KILL = "kill"
    STOP = "stop"
    FREEZE = "freeze"
    FULL = "full disk"
    SLOW = "slow disk"


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is done: after a pause in which so many events came through, to one of the parts of this role, for so long.

    No pause is longer than `LONGEST_PAUSE_SECONDS`. `which` is between 0 and 1 and picks one of the parts that are there.
    """

    pause_seconds: float
    after_events: int
    kind: Kind
    role: str
    which: float
    seconds: float


_PARTS: Mapping[Topology, str] = {
    Topology.SQLITE: "worker*5 receiver*2 query*3 nats*4 up*2",
    Topology.POSTGRES: "worker*6 receiver*2 query*3 nats*3 postgres*2 backend*4",
    Topology.CLUSTER: "worker*5 receiver*2 query*3 nats*7 postgres*1 backend*3",
}
"""Who is killed, and how often of all times."""
_OTHERS: Mapping[Topology, str] = {
    Topology.SQLITE: "stop.up freeze.worker freeze.receiver freeze.query freeze.nats full.worker full.nats slow.database",
    Topology.POSTGRES: (
        "stop.worker stop.query stop.nats stop.postgres freeze.worker*2 freeze.receiver freeze.query freeze.nats freeze.backend freeze.checkpointer"
        " full.backend full.nats slow.database"
    ),
    Topology.CLUSTER: (
        "stop.worker stop.query stop.nats*2 stop.postgres freeze.worker*2 freeze.receiver freeze.query freeze.nats*2 freeze.backend full.backend full.nats"
        " slow.database"
    ),
}


def plan(seed: int, topology: Topology, *, has_model: bool = False) -> Iterator[Fault]:
    """Faults without end, dealt like cards: each kind comes once before any comes again."""
    random = Random(seed)
    cards = [(Kind.KILL, role) for role in _many(_PARTS[topology])]
    cards += [
        (Kind[kind.upper()], role)
        for kind, _, role in (card.partition(".") for card in _many(_OTHERS[topology]))
    ]
    cards += [(Kind.KILL, "model")] * 3 if has_model else []
    while True:
        random.shuffle(cards)
        for kind, role in cards:
            spans = FROZEN_SECONDS if kind is Kind.FREEZE else SHORT_SECONDS
            pause, events = random.uniform(*PAUSE_SECONDS), random.choice(AFTER_EVENTS)
            yield Fault(pause, events, kind, role, random.random(), random.uniform(*spans))


def _many(words: str) -> list[str]:
    """`a*2 b` is a, a, b."""
    parted = (word.partition("*") for word in words.split())
    return [word for word, _, times in parted for _ in range(int(times or 1))]
