"""A random walk through the states of sessions, in SQLite and in PostgreSQL.

Beside the calls that the state model has, this walk reports usage, sets overrides of agents, looks
for idle sessions, erases, runs campaigns, searches and sends notices.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from operator import itemgetter
from typing import Any, ClassVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule, run_state_machine_as_test

from tests.invariants import SessionSeen, StoreSnapshot, faults
from tests.postgres import Postgres
from tests.state_model.model import StateModel
from tests.state_rules import StateRules, keys, numbers, said
from tests.state_walk import KEYS, TIGHT, Outcome, outcome
from tests.store_fixtures import (
    LEASE_MS,
    Stores,
    assistant,
    empty_postgres,
    new_postgres,
    stores_on,
    turn,
    user,
)
from turnfold.contracts.requests import (
    PolicyRequest,
)
from turnfold.core.eviction.usage import (
    COMPACTIONS_LOOKED_AT,
    REPORTS_LOOKED_AT,
    ReportDelta,
    calibration_factor,
)
from turnfold.core.text.search import SearchQuery
from turnfold.messages import Message, Role, SessionKey, position_of
from turnfold.operations.query.search import found
from turnfold.ports.admin import CampaignProgress
from turnfold.ports.compact import Job, RegenerateOptions, Version
from turnfold.ports.ingest import DecodedEvent
from turnfold.ports.search import Scope
from turnfold.store.database.engine import Database
from turnfold.store.database.outbox import Notice

usages = st.builds(
    lambda prompt: {"prompt_tokens": prompt, "completion_tokens": 9}, st.integers(1, 500)
)
NO_TRIGGERS = {
    "max_live_messages": 0,
    "trigger_tokens": 0,
    "every_rounds": 0,
    "reserve_tokens": 0,
    "commit": "immediate",
}
FULL_WINDOWS = NO_TRIGGERS | {"context_window": 400, "reserve_tokens": 100}


class DatabaseWalk(StateRules):
    """The other side is a PostgreSQL database."""

    url: ClassVar[str]

    def __init__(self) -> None:
        super().__init__()
        database = Database(self.url, writes=True)
        self.open.push_async_callback(database.close)
        self.run(empty_postgres(database))
        self.postgres = stores_on(database, TIGHT)

    def call_peer(
        self,
        work: Callable[[Stores], Awaitable[Any]],
        model_work: Callable[[StateModel], Any],  # noqa: ARG002 - for the model
    ) -> Outcome | None:
        return self.run(outcome(work(self.postgres)))

    def in_databases(self, work: Callable[[Stores], Awaitable[Any]]) -> None:
        """Make a call that the model does not have."""
        self.both(work, lambda _: None)

    def claim_on_peer(self, jobs: list[Job], limit: int) -> list[Job]:
        peer_jobs = self.run(self.claimed(self.postgres, limit))
        assert [replace(job, sid=0) for job in jobs] == [replace(job, sid=0) for job in peer_jobs]
        return peer_jobs

    def compare_input(self, job: Job, peer_job: Job) -> None:
        given = self.run(self.sqlite.jobs.load(job, now_ms=self.now_ms))
        assert given == self.run(self.postgres.jobs.load(peer_job, now_ms=self.now_ms))

    def carry_out(self, jobs: tuple[Job, Job], version: Version, reason: str | None = None) -> None:
        super().carry_out(jobs, version, reason)
        seen, key = self.run(self.sqlite.seen()), jobs[0].key
        before = self.seen.sessions.get(key)
        if key in seen.sessions and before and before.activations < seen.sessions[key].activations:
            assert seen.sessions[key].gauge.factor == learned_factor(seen, key, self.stream)

    def compare_states(self) -> None:
        for key, session in self.seen.sessions.items():
            assert all(seq > self.erased_to[key] for seq in session.events.values())
        peer = self.run(self.postgres.seen())
        assert faults(peer) == []
        assert by_session(self.seen) == by_session(peer)
        assert self.run(due_times(self.sqlite)) == self.run(due_times(self.postgres))

    def peer_stores(self) -> Stores:
        return self.postgres

    # --- usage

    @rule(key=keys, messages=st.lists(said, min_size=1, max_size=4), usage=usages)
    def publish_a_turn_with_usage(
        self, key: SessionKey, messages: list[Any], usage: dict[str, int]
    ) -> None:
        self.publish_turn(key, messages, model="m-1", usage=usage)

    @rule(
        prompts=st.lists(st.integers(1, 120), min_size=3, max_size=6),
        is_compacted=st.booleans(),
    )
    def publish_reports_that_teach(self, prompts: list[int], is_compacted: bool) -> None:
        """Report growing windows with no eviction between them; commit a version afterwards."""
        self.set_a_policy(KEYS[0], mode="auto", overrides=NO_TRIGGERS)
        reported = 20
        for grown in [0, *prompts]:
            reported += grown
            usage = {"prompt_tokens": reported, "completion_tokens": 5}
            messages = [user("and then?"), assistant("x" * 60)]
            self.publish_turn(KEYS[0], messages, model="m-1", usage=usage)
        self.deliver_what_is_new()
        if is_compacted:
            self.let_time_pass(LEASE_MS)
            self.request_a_compaction(KEYS[0])
            self.let_time_pass(1_000)
            self.claim(3, "They spoke.", is_quick=True)

    @rule(times=st.integers(1, 4), prompt=st.sampled_from([100, 390, 390, 390]))
    def report_full_windows(self, times: int, prompt: int) -> None:
        self.set_a_policy(KEYS[0], mode="auto", overrides=FULL_WINDOWS)
        messages = [user("and then?"), assistant("x" * 60)] * 2
        fields: dict[str, Any] = {"key": KEYS[0], "usage": {"prompt_tokens": prompt}}
        for _ in range(times):
            self.let_time_pass(1_000)
            self.publish(lambda seq, _: turn(seq, *messages, at_ms=self.now_ms, **fields))
            self.deliver_what_is_new()
            self.let_time_pass(1_000)
            self.claim(3, "They spoke.", is_quick=True)

    # --- agents, idle sessions, erasure

    @rule(key=keys, mode=st.sampled_from([None, "auto", "manual", "off"]), overrides=numbers)
    def set_a_policy_of_an_agent(
        self, key: SessionKey, mode: Any, overrides: dict[str, Any]
    ) -> None:
        request = PolicyRequest(mode=mode, overrides=overrides)
        self.in_databases(
            lambda stores: stores.changes.set_policy(
                key.agent_id, request, installation=stores.installation, now_ms=self.now_ms
            )
        )

    @rule()
    def look_for_idle_sessions(self) -> None:
        self.in_databases(
            lambda stores: stores.idle.evict_idle(
                limit=5, installation=stores.installation, now_ms=self.now_ms
            )
        )

    @precondition(lambda self: self.steps > 8)
    @rule(key=keys, is_agent=st.sampled_from([False, False, True]), is_behind=st.booleans())
    def erase(self, key: SessionKey, is_agent: bool, is_behind: bool) -> None:
        """Erase up to the end of the stream, sometimes before all of it was delivered."""
        if not is_behind:
            self.deliver_what_is_new()
        target = key.agent_id if is_agent else key
        last_seq = len(self.stream)
        self.in_databases(
            lambda stores: stores.changes.erase(target, last_seq=last_seq, now_ms=self.now_ms)
        )
        for erased in KEYS:
            if target in (erased, erased.agent_id):
                self.erased_to[erased] = last_seq

    @rule(times=st.integers(1, 8))
    def delete_rows_of_erased_sessions(self, times: int) -> None:
        """Delete some. How many portions it takes differs, because PostgreSQL has more tables."""

        async def work(stores: Stores) -> None:
            for _ in range(times):
                await stores.erasures.delete_rows()

        self.in_databases(work)

    # --- campaigns, search, notices

    @rule(is_agent=st.booleans(), model=st.sampled_from([None, "m-2"]), at_once=st.integers(1, 2))
    def run_a_campaign(self, is_agent: bool, model: str | None, at_once: int) -> None:
        agent_id = KEYS[0].agent_id if is_agent else None
        wanted = RegenerateOptions(model=model)

        async def work(stores: Stores) -> tuple[int, CampaignProgress | None]:
            campaign = await stores.campaigns.begin(
                agent_id,
                wanted,
                at_once=at_once,
                installation=stores.installation,
                now_ms=self.now_ms,
            )
            opened = await stores.campaigns.advance(
                installation=stores.installation, now_ms=self.now_ms
            )
            return opened, await stores.campaigns.progress(campaign.campaign_id)

        self.in_databases(work)

    @rule(
        key=keys,
        query=st.sampled_from(["and then", "remember 8443", "ok", "port", "42 more"]),
        is_indexed=st.booleans(),
    )
    def search(self, key: SessionKey, query: str, is_indexed: bool) -> None:
        async def work(stores: Stores) -> list[tuple[str, float]]:
            while is_indexed and await stores.index.index_some():
                pass
            question = SearchQuery.of(query)
            hits = await found(key, question, scope=Scope(), limit=5, store=stores.search)
            return [(original.message_id, score) for original, score in hits]

        self.in_databases(work)

    @rule(limit=st.integers(1, 4))
    def send_notices(self, limit: int) -> None:
        async def send(stores: Stores) -> list[Notice]:
            notices = [*await stores.outbox.unsent(limit)]
            await stores.outbox.sent(notices)
            return notices

        self.in_databases(send)


def by_session(seen: StoreSnapshot) -> Any:
    """Return everything that two databases must agree on."""
    return dict(sorted(seen.sessions.items())), seen.counted, seen.ingested, seen.dead_letters


def learned_factor(seen: StoreSnapshot, key: SessionKey, stream: list[DecodedEvent]) -> float:
    """Calculate the calibration factor of a session from all events, as if nothing were cached."""
    sessions = [session for other, session in seen.sessions.items() if other[0] == key[0]]
    events = [stream[seq - 1] for seq in sorted(seen.sessions[key].events.values())]
    model = next((event.model for event in reversed(events) if event.model), None)
    deltas = [
        delta
        for number, session in enumerate(sessions)
        for delta in report_deltas(number, session, stream, model)
    ]
    deltas.sort(key=itemgetter(0), reverse=True)
    usable = [delta for _, delta in deltas[:REPORTS_LOOKED_AT] if delta is not None]
    moments = {
        number: [
            moment
            for row in session.rows[-COMPACTIONS_LOOKED_AT:]
            for moment in (row.requested_at_ms, row.finished_at_ms, row.restored_at_ms)
            if moment is not None
        ]
        for number, session in enumerate(sessions)
    }
    return calibration_factor(usable, moments)


def report_deltas(
    number: int, session: SessionSeen, stream: list[DecodedEvent], model: str | None
) -> Iterator[tuple[int, ReportDelta | None]]:
    """Yield the reports of a model by sequence, and the growth since the report before."""
    messages = [stored.message for stored in session.messages]
    events = [stream[seq - 1] for seq in sorted(session.events.values())]
    reports = [
        event for event in events if event.report and event.model and event.answer is not None
    ]
    if reports and reports[0].model == model:
        yield reports[0].stream_seq, None
    for earlier, later in pairwise(reports):
        if later.model == model:
            yield later.stream_seq, growth(number, messages, earlier, later)


def growth(
    number: int, messages: list[Message], earlier: DecodedEvent, later: DecodedEvent
) -> ReportDelta | None:
    """Return the growth between two reports; None if they cannot be compared."""
    assert earlier.report
    assert later.report
    first, last = (position_of(event.stream_seq, event.answer or 0) for event in (earlier, later))
    between = [message for message in messages if first <= message.position < last]
    if earlier.model != later.model or any(
        message.role.is_system or message.reasoning_tokens for message in between
    ):
        return None
    start = position_of(earlier.stream_seq, 0)
    before = [message.created_at_ms for message in messages if message.position < start]
    shown = [message for message in between if message.role is not Role.TOOL or message.answers]
    return ReportDelta(
        number,
        later.stream_seq,
        before[-1] if before else 0,
        later.at_ms,
        later.report.prompt_tokens - earlier.report.prompt_tokens,
        sum(message.tokens for message in shown),
    )


async def due_times(stores: Stores) -> tuple[int | None, int | None]:
    return await stores.jobs.next_due_ms(), await stores.idle.next_idle_ms()


@pytest.mark.proves(
    "L1", "L2", "L3", "L5", "L7", "L10", "L12", "I1", "E2", "S1", "S8", "A1", "A3",
    "C28", "C47", "C48", "C50", "C51", "C52",
)  # fmt: skip
def test_sqlite_and_postgresql_walk_alike(postgres: Postgres) -> None:
    class WalkOnServer(DatabaseWalk):
        url = asyncio.run(new_postgres(postgres))

    run_state_machine_as_test(
        WalkOnServer,
        settings=settings(max_examples=settings().max_examples // 10, stateful_step_count=30),
    )
