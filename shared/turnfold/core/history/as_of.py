"""Points in a session's past."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from turnfold.messages import EventId


@dataclass(frozen=True, slots=True)
class AtVersion:
    """When this version of the summary was written."""

    version: int


@dataclass(frozen=True, slots=True)
class AtMessage:
    """When this message had come."""

    event_id: EventId
    index: int


@dataclass(frozen=True, slots=True)
class AtTime:
    """A time, in milliseconds since 1970."""

    at_ms: int


AsOf = AtVersion | AtMessage | AtTime


@dataclass(frozen=True, slots=True)
class VersionSpan:
    """A version as far as its time goes, and the compactions that it speaks for besides those of its base."""

    version: int
    base_version: int | None
    created_at_ms: int
    last_position: int
    adds: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Activation:
    """From when on a version was in force, or none."""

    at_ms: int
    version: int | None


@dataclass(frozen=True, slots=True)
class EvictionSpan:
    """A compaction that evicted messages, all between two positions; when, and when it was undone."""

    compaction_id: int
    first_position: int
    last_position: int
    messages: int
    evicted_at_ms: int
    restored_at_ms: int | None = None


@dataclass(frozen=True, slots=True)
class StateAsOf:
    """A session at a moment: of all up to the position `until`, what was in no version yet.

    Messages of `pending` evictions had left the window, those of `later` ones had not. `covered` counts what the version
    in force spoke for. What left then and was `undone` since is found by its place, no longer by its mark.
    """

    version: int | None
    until: int
    covered: int
    pending: tuple[EvictionSpan, ...]
    later: tuple[EvictionSpan, ...]
    undone: tuple[EvictionSpan, ...] = ()
    at_ms: int = 0


@dataclass(frozen=True, slots=True)
class SessionTimeline:
    """All that was ever so in a session, oldest first."""

    versions: tuple[VersionSpan, ...]
    reigns: tuple[Activation, ...]
    evictions: tuple[EvictionSpan, ...]


def state_as_of(
    at_ms: int, until: int, past: SessionTimeline, *, in_force: int | None = None
) -> StateAsOf:
    """What was so at a time when all up to a position had come; `in_force` names the version, otherwise the one of that time was."""
    known = {one.version: one for one in past.versions}
    if in_force is None:
        in_force = _reigning(at_ms, until, past.reigns, known)
    spoken_for = _chain(in_force, known)
    covered = 0
    pending: list[EvictionSpan] = []
    later: list[EvictionSpan] = []
    undone: list[EvictionSpan] = []
    for one in past.evictions:
        was_restored = one.restored_at_ms is not None and one.restored_at_ms <= at_ms
        if one.compaction_id in spoken_for and not was_restored:
            covered += one.messages
        elif one.evicted_at_ms <= at_ms and one.last_position <= until and not was_restored:
            pending.append(one)
        else:
            if one.restored_at_ms is None and one.first_position <= until:
                later.append(one)
            continue
        if one.restored_at_ms is not None:
            undone.append(one)
    return StateAsOf(in_force, until, covered, tuple(pending), tuple(later), tuple(undone), at_ms)


def _reigning(
    at_ms: int, until: int, reigns: Iterable[Activation], known: Mapping[int, VersionSpan]
) -> int | None:
    """The version in force at a time; one that speaks for what came after the position was not there yet."""
    found: int | None = None
    for reign in reigns:
        if reign.at_ms <= at_ms and (
            reign.version is None or known[reign.version].last_position <= until
        ):
            found = reign.version
    return found


def _chain(version: int | None, known: Mapping[int, VersionSpan]) -> set[int]:
    """The compactions that a version speaks for, by itself and by those it was written on."""
    found: set[int] = set()
    while version is not None and version in known:
        found |= known[version].adds
        version = known[version].base_version
    return found
