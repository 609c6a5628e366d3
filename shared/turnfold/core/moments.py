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


Moment = AtVersion | AtMessage | AtTime


@dataclass(frozen=True, slots=True)
class VersionThen:
    """A version as far as its time goes. What was `regenerated` takes no force by itself."""

    version: int
    base_version: int | None
    created_at_ms: int
    last_position: int
    is_regenerated: bool = False


@dataclass(frozen=True, slots=True)
class EvictionThen:
    """A compaction that evicted messages, all between two positions, and when; `version` is the first that speaks for them."""

    compaction_id: int
    first_position: int
    last_position: int
    messages: int
    evicted_at_ms: int
    version: int | None


@dataclass(frozen=True, slots=True)
class Then:
    """A session at a moment: of all up to the position `until`, what was in no version yet.

    Messages of `pending` evictions had left the window, those of `later` ones had not. `covered` counts what the version
    in force spoke for.
    """

    version: int | None
    until: int
    covered: int
    pending: tuple[EvictionThen, ...]
    later: tuple[EvictionThen, ...]


def then(
    at_ms: int, until: int, versions: Iterable[VersionThen], evictions: Iterable[EvictionThen], *, in_force: int | None = None
) -> Then:
    """What was so at a time when all up to a position had come; `in_force` names the version, otherwise the newest of that time was."""
    known = {one.version: one for one in versions}
    if in_force is None:
        written = [one for one in known.values() if one.created_at_ms <= at_ms and one.last_position <= until and not one.is_regenerated]
        in_force = max((one.version for one in written), default=None)
    spoken_for = _chain(in_force, known)
    covered = 0
    pending: list[EvictionThen] = []
    later: list[EvictionThen] = []
    for one in evictions:
        if one.version in spoken_for:
            covered += one.messages
        elif one.evicted_at_ms <= at_ms and one.last_position <= until:
            pending.append(one)
        elif one.first_position <= until:
            later.append(one)
    return Then(in_force, until, covered, tuple(pending), tuple(later))


def _chain(version: int | None, known: Mapping[int, VersionThen]) -> set[int | None]:
    """A version and those it was written on."""
    found: set[int | None] = set()
    while version is not None and version in known:
        found.add(version)
        version = known[version].base_version
    return found
