"""Points in a session's past."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from turnfold.messages import EventId, Message


@dataclass(frozen=True, slots=True)
class AtVersion:
    """When this version of the summary was written."""

    version: int


@dataclass(frozen=True, slots=True)
class AtMessage:
    """When this message had arrived."""

    event_id: EventId
    index: int


@dataclass(frozen=True, slots=True)
class AtTime:
    """A time, in milliseconds since 1970."""

    at_ms: int


AsOf = AtVersion | AtMessage | AtTime


@dataclass(frozen=True, slots=True)
class VersionSpan:
    """A version, when it was created, and the compactions that it adds to those of its base."""

    version: int
    base_version: int | None
    created_at_ms: int
    last_position: int
    adds: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Activation:
    """The time from which a version was in force, or none was."""

    at_ms: int
    version: int | None


@dataclass(frozen=True, slots=True)
class EvictionSpan:
    """An eviction: its range of positions, its size, and its time and that of its restoration."""

    compaction_id: int
    first_position: int
    last_position: int
    messages: int
    evicted_at_ms: int
    restored_at_ms: int | None = None
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class StateAsOf:
    """A session at an earlier time, with its messages up to the position `until`.

    Messages of `pending` evictions had left the window, those of `later` evictions had not.
    `covered` counts the messages in the version in force. Evictions in `undone` were restored
    since: their messages are no longer marked, and `taken` holds them by compaction. `retracted`
    are messages that were retracted since.
    """

    version: int | None
    until: int
    covered: int
    pending: tuple[EvictionSpan, ...]
    later: tuple[EvictionSpan, ...]
    undone: tuple[EvictionSpan, ...] = ()
    at_ms: int = 0
    retracted: tuple[Message, ...] = ()
    taken: Mapping[int, Sequence[Message]] = field(default_factory=dict)

    @property
    def shown(self) -> tuple[EvictionSpan, ...]:
        """The evictions whose messages were live or pending; some occur twice."""
        return (*self.pending, *self.later, *self.undone)


@dataclass(frozen=True, slots=True)
class SessionTimeline:
    """The history of a session: versions, activations and evictions, oldest first."""

    versions: tuple[VersionSpan, ...]
    activations: tuple[Activation, ...]
    evictions: tuple[EvictionSpan, ...]

    def evicted_since(self, at_ms: int) -> tuple[EvictionSpan, ...]:
        """Return the evictions after a time, which have all newer messages that are not live."""
        return tuple([span for span in self.evictions if span.evicted_at_ms > at_ms])


def state_as_of(
    at_ms: int, until: int, past: SessionTimeline, *, in_force: int | None
) -> StateAsOf:
    """Return the state of a session at a time, with the messages up to a position.

    `in_force` chooses the version; if it is None, the version in force at that time counts.
    """
    known = {version.version: version for version in past.versions}
    if in_force is None:
        in_force = _active_version(at_ms, until, past.activations, known)
    covered_ids = _covered_by(in_force, known)
    covered = 0
    pending: list[EvictionSpan] = []
    later: list[EvictionSpan] = []
    undone: list[EvictionSpan] = []
    for eviction in past.evictions:
        was_restored = eviction.restored_at_ms is not None and eviction.restored_at_ms <= at_ms
        if eviction.compaction_id in covered_ids and not was_restored:
            covered += eviction.messages
        elif (
            eviction.evicted_at_ms <= at_ms and eviction.last_position <= until and not was_restored
        ):
            pending.append(eviction)
        else:
            # Its messages are still marked today, and were live then.
            if eviction.restored_at_ms is None and eviction.first_position <= until:
                later.append(eviction)
            continue
        # Restored since: nothing marks its messages today, so they are found by its positions.
        if eviction.restored_at_ms is not None:
            undone.append(eviction)
    return StateAsOf(in_force, until, covered, tuple(pending), tuple(later), tuple(undone), at_ms)


def _active_version(
    at_ms: int, until: int, activations: Iterable[Activation], known: Mapping[int, VersionSpan]
) -> int | None:
    """Return the version in force at a time.

    A version that covers messages after the position did not exist yet.
    """
    active: int | None = None
    for activation in activations:
        # The later of two activations wins: they are ordered, and the loop goes on.
        if activation.at_ms <= at_ms and (
            activation.version is None or known[activation.version].last_position <= until
        ):
            active = activation.version
    return active


def _covered_by(version: int | None, known: Mapping[int, VersionSpan]) -> set[int]:
    """Return the compactions that a version and its bases cover."""
    covered: set[int] = set()
    while version is not None and version in known:
        covered |= known[version].adds
        version = known[version].base_version
    return covered
