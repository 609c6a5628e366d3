"""A random walk through the states of sessions, which applies each call to two sides.

One side is an SQLite database. The other is the state model (`tests/property/test_states.py`) or a
PostgreSQL database (`tests/property/test_two_databases.py`). Both sides must give the same answers
and hold the same state after each step.
"""

import asyncio
import json
import shutil
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, TypeVar

from hypothesis.stateful import RuleBasedStateMachine, invariant

from tests.invariants import SessionSeen, StoreSnapshot, faults
from tests.state_model.model import StateModel
from tests.store_fixtures import (
    NOON,
    RAM,
    SMALL,
    Stores,
    new_sqlite,
    sql_stores,
)
from turnfold.contracts.requests import (
    ContextRequest,
)
from turnfold.core.history import validation as sendable
from turnfold.errors import BadRequest, CannotFit, Conflict, LostLease, UnknownSession
from turnfold.messages import AgentId, SessionId, SessionKey
from turnfold.operations.query.context import context
from turnfold.operations.query.environment import QueryEnvironment
from turnfold.ports.compact import Job
from turnfold.ports.ingest import DecodedEvent

KEYS = [
    SessionKey(AgentId("ada"), SessionId("s-1")),
    SessionKey(AgentId("ada"), SessionId("s-2")),
    SessionKey(AgentId("bob"), SessionId("s-1")),
]
TIGHT = replace(SMALL, max_live_messages=6, keep_messages=2)

Answer = TypeVar("Answer")
Outcome = tuple[Any, str | None]
"""The answer of a call, or the name of its error."""

REFUSALS = (LostLease, Conflict, BadRequest, UnknownSession)
NOTHING = StoreSnapshot(sessions={}, counted={}, ingested=(), dead_letters=())


class Walk(RuleBasedStateMachine):
    """A stream, two sides that are fed from it in any order, and workers that may be slow or dead.

    `jobs` holds each claimed job as the two sides know it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now_ms = NOON + 100_000
        self.stream: list[DecodedEvent] = []
        self.delivered: set[int] = set()
        self.jobs: list[tuple[Job, Job]] = []
        self.shown: dict[SessionKey, tuple[str, int]] = {}
        self.erased_to = dict.fromkeys(KEYS, 0)
        self.seen = NOTHING
        self.steps = 0
        self.folder = Path(mkdtemp(prefix="turnfold-walk-", dir=RAM))
        self.loop = asyncio.new_event_loop()
        self.open = AsyncExitStack()
        self.sqlite = self.run(self.open.enter_async_context(sql_stores(self.new_file(), TIGHT)))
        # Caches as in a query server; the windows are compared with those of an empty cache.
        self.caching = QueryEnvironment(self.sqlite.policy, self.sqlite.installation.model_window)

    def new_file(self) -> str:
        return new_sqlite(Path(mkdtemp(dir=self.folder)))

    def teardown(self) -> None:
        try:
            if self.delivered:
                self.rebuild()
        finally:
            self.run(self.open.aclose())
            self.loop.close()
            shutil.rmtree(self.folder, ignore_errors=True)

    def run(self, work: Coroutine[Any, Any, Answer]) -> Answer:
        return self.loop.run_until_complete(work)

    # --- the other side

    @abstractmethod
    def call_peer(
        self,
        work: Callable[[Stores], Awaitable[Any]],
        model_work: Callable[[StateModel], Any],
    ) -> Outcome | None:
        """Make the same call on the other side; None if it does not decide the answer."""

    @abstractmethod
    def claim_on_peer(self, jobs: list[Job], limit: int) -> list[Job]:
        """Claim on the other side, compare with the jobs of this side, and return its jobs."""

    @abstractmethod
    def compare_input(self, job: Job, peer_job: Job) -> None:
        """Compare what the two sides read for a job."""

    @abstractmethod
    def compare_states(self) -> None:
        """Compare `seen`, the state of this side, with that of the other side."""

    @abstractmethod
    def peer_stores(self) -> Stores:
        """Return the database whose windows must be the same, read without caches."""

    def both(
        self,
        work: Callable[[Stores], Awaitable[Answer]],
        model_work: Callable[[StateModel], Any],
    ) -> None:
        """Make a call on both sides; both answer the same, or refuse for the same reason."""
        # The other side is first: the model may have to read what this side has before the call.
        expected = self.call_peer(work, model_work)
        answer = self.run(outcome(work(self.sqlite)))
        assert expected is None or answer == expected

    # --- what holds after every step

    @invariant()
    def both_hold_the_same(self) -> None:
        self.seen = self.run(self.sqlite.seen())
        assert faults(self.seen) == []
        assert self.seen.ingested == tuple(ranges(self.delivered))
        for session in self.seen.sessions.values():
            for event_id, seq in session.events.items():
                assert stored(session, event_id) == decoded(self.stream[seq - 1])
        self.compare_states()

    @invariant()
    def windows_are_valid_and_caches_do_not_show(self) -> None:
        self.steps += 1
        max_tokens = 120 if self.steps % 3 == 0 else None
        peer = self.peer_stores()
        for key in KEYS:
            empty = QueryEnvironment(peer.policy, peer.installation.model_window)
            window = self.run(window_of(key, max_tokens, self.sqlite, self.caching))
            assert window == self.run(window_of(key, max_tokens, peer, empty))
            assert sendable.validation_errors(window.get("messages", [])) == []
            etag = window.pop("etag", None)
            if max_tokens is None and etag is not None:
                # An etag stands for one window: an agent that holds it need not ask again.
                text = json.dumps({name: part for name, part in window.items() if name != "fresh"})
                before = self.shown.get(key)
                assert before is None or before[0] == text or before[1] != etag
                self.shown[key] = (text, etag)

    def rebuild(self) -> None:
        """Check that the same events, in one batch and in order, make the same messages."""
        seen = self.run(self.sqlite.seen())
        owners = {
            (key.agent_id, event_id): (key, self.stream[seq - 1])
            for key, session in seen.sessions.items()
            for event_id, seq in session.events.items()
        }
        copies = [
            event
            for event in self.stream
            if event.stream_seq in self.delivered
            and event.stream_seq > self.erased_to[event.key]
            and (owner := owners.get((event.key.agent_id, event.event_id))) is not None
            and owner[0] == event.key
            and bodies(owner[1]) == bodies(event)
        ]

        async def rebuilt() -> StoreSnapshot:
            async with sql_stores(self.new_file(), replace(TIGHT, max_live_messages=0)) as fresh:
                await fresh.ingest(*copies)
                return await fresh.seen()

        sessions = {key: session for key, session in seen.sessions.items() if session.events}
        again = self.run(rebuilt()).sessions
        assert {key: history(session) for key, session in sessions.items()} == {
            key: history(session) for key, session in again.items()
        }


async def outcome(work: Awaitable[Any]) -> Outcome:
    try:
        return await work, None
    except REFUSALS as error:
        return None, type(error).__name__


async def window_of(
    key: SessionKey, max_tokens: int | None, stores: Stores, environment: QueryEnvironment
) -> dict[str, Any]:
    request = ContextRequest(max_tokens=max_tokens, wait_ms=0)
    try:
        answer = await context(
            key, request, store=stores.windows, environment=environment, ingest_signal=no_arrivals
        )
    except CannotFit as error:
        return error.as_json()
    window: dict[str, Any] = json.loads(answer.body)
    return window


async def no_arrivals(seq: int, seconds: float) -> None:
    """Nothing arrives, and nobody may wait for it."""
    raise AssertionError(f"a request waits {seconds} s for {seq}, which does not come")


def ranges(seqs: set[int]) -> list[tuple[int, int]]:
    """Return the ranges of consecutive numbers."""
    firsts = sorted(seq for seq in seqs if seq - 1 not in seqs)
    lasts = sorted(seq for seq in seqs if seq + 1 not in seqs)
    return [*zip(firsts, lasts, strict=True)]


NUMBERS = ("tokens", "content_tokens", "reasoning_tokens", "characters", "lines", "calls", "cuts")


def stored(session: SessionSeen, event_id: str) -> list[tuple[Any, ...]]:
    """Return the messages of an event as a store holds them."""
    return [
        (one.body, one.original, one.message.role, *numbers_of(one.message))
        for one in session.messages
        if one.message.event_id == event_id
    ]


def decoded(event: DecodedEvent) -> list[tuple[Any, ...]]:
    """Return the messages of an event as the receiver decoded them."""
    return [
        (message.body, message.original, message.role, *numbers_of(message))
        for message in event.messages
    ]


def numbers_of(message: Any) -> list[Any]:
    return [getattr(message, name) for name in NUMBERS]


def history(session: SessionSeen) -> list[tuple[Any, ...]]:
    """Return the messages without their compactions: a function of the stream alone."""
    return [
        (replace(one.message, compaction_id=None), one.body, one.original, one.is_error)
        for one in session.messages
    ]


def bodies(event: DecodedEvent) -> list[Any]:
    return [json.loads(message.body) for message in event.messages]
