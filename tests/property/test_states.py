"""A random walk through the states of sessions, in a database and in the state model."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from tests.invariants import Row, SessionSeen
from tests.state_model.model import Claim, StateModel
from tests.state_model.state import SessionState
from tests.state_rules import StateRules
from tests.state_walk import KEYS, REFUSALS, TIGHT, Outcome
from tests.store_fixtures import LEASE_MS, Stores, installation_of, places
from turnfold.messages import SessionKey
from turnfold.ports.compact import Job, JobKind

OMITTED = ("digest", "digest_tokens", "reason", "tokens_evicted")
ROW = [name for name in Row._fields if name not in OMITTED]
"""The columns of a compaction that the model has."""


class ModelWalk(StateRules):
    """The other side is the state model."""

    def __init__(self) -> None:
        self.model = StateModel(installation_of(TIGHT)[0])
        super().__init__()

    def call_peer(
        self,
        work: Callable[[Stores], Awaitable[Any]],  # noqa: ARG002 - for databases
        model_work: Callable[[StateModel], Any],
    ) -> Outcome | None:
        try:
            answer = model_work(self.model)
        except REFUSALS as error:
            return None, type(error).__name__
        return None if answer is None else (answer, None)

    def claim_on_peer(self, jobs: list[Job], limit: int) -> list[Job]:
        assert self.model.claim(places(limit), LEASE_MS, self.now_ms) == [
            Claim(job.key, job.compaction_ids, job.writes, job.base_version, job.cooling)
            for job in jobs
        ]
        return jobs

    def compare_input(self, job: Job, peer_job: Job) -> None:  # noqa: ARG002 - for databases
        """Check that a version and the messages to summarize are what the new version covers."""
        session = self.model.sessions[job.key]
        given = self.run(self.sqlite.jobs.load(job, now_ms=self.now_ms))
        leaving = {message.position for message in given.leaving.evicted} if given.leaving else ()
        read = [entry.message.position for entry in given.evicted]
        evictions = frozenset(
            entry.message.compaction_id
            for entry in given.evicted
            if entry.message.compaction_id is not None
        )
        assert read == [
            message.position
            for message in session.messages
            if message.position in leaving or message.compaction_id in evictions
        ]
        whole = session.covers(job.base_version)
        if job.writes is JobKind.NEXT:
            whole |= session.added_by(job)
        if given.previous is None:
            assert (evictions, given.depth) == (whole, 1)
            return
        assert (given.previous.text, given.depth) in [
            (version.content.draft.text, version.content.depth + 1)
            for version in session.versions
            if version.covers == whole - evictions
        ]

    def compare_states(self) -> None:
        model_sessions = {key: of_model(state) for key, state in self.model.sessions.items()}
        sessions = {key: of_database(session) for key, session in self.seen.sessions.items()}
        assert sessions == model_sessions
        for key in KEYS:
            self.compare_facts(key)

    def compare_facts(self, key: SessionKey) -> None:
        """Check that a window is built from the summary, the pending and the live messages."""
        facts, state = self.run(self.sqlite.facts(key)), self.model.sessions.get(key)
        if state is None:
            assert facts.session is None
            return
        pending = [row.compaction_id for row in state.pending]
        assert (facts.summary.version if facts.summary else None) == state.version
        assert [row.compaction_id for row in facts.pending] == pending
        assert [message.position for message in facts.messages] == [
            message.position
            for message in state.messages
            if message.compaction_id is None or message.compaction_id in pending
        ]

    def peer_stores(self) -> Stores:
        return self.sqlite


def of_database(session: SessionSeen) -> dict[str, Any]:
    """Return what the model has of a session, as the database holds it."""
    ids = session.compaction_ids
    return {
        "wishes": session.counters.wishes,
        "messages": [
            (one.message.position, one.message.message_id, one.message.tokens, one.message.answers,
             one.message.is_copy, one.message.compaction_id)
            for one in session.messages
        ],
        "compactions": [[getattr(row, name) for name in ROW] for row in session.rows],
        "compaction_ids": list(ids),
        "versions": [
            (one.version, one.base_version, ids[one.newest_row - 1], one.kind, one.text, one.tokens)
            for one in session.versions
        ],
        "covers": {
            version: {ids[ordinal - 1] for ordinal in ordinals}
            for version, ordinals in session.speaks_for.items()
        },
        "activations": list(session.activations),
        "cooldown": session.model_rests,
        "held_to_tokens": session.held_to_tokens,
        "rounds": session.rounds,
    }  # fmt: skip


def of_model(state: SessionState) -> dict[str, Any]:
    """Return the same of a session in the model."""
    ordinals = {row.compaction_id: str(row.ordinal) for row in state.compactions}
    compactions = [
        [len(row.evicted) if name == "messages_evicted" else getattr(row, name) for name in ROW]
        for row in state.compactions
    ]
    return {
        "wishes": (state.wishes.preset, state.wishes.mode, state.wishes.overrides),
        "messages": [
            (one.position, one.message_id, one.tokens, one.answers, one.is_copy,
             ordinals[one.compaction_id] if one.compaction_id else None)
            for one in state.messages
        ],
        "compactions": compactions,
        "compaction_ids": [row.compaction_id for row in state.compactions],
        "versions": [
            (one.number, one.base, one.compaction_id, one.content.draft.kind,
             one.content.draft.text, one.content.tokens)
            for one in state.versions
        ],
        "covers": {version.number: set(version.covers) for version in state.versions},
        "activations": state.activations,
        "cooldown": (state.failures, state.cooldown_until_ms, state.cooldown_reason),
        "held_to_tokens": state.held_to_tokens,
        "rounds": state.rounds,
    }  # fmt: skip


@pytest.mark.proves(
    "L1", "L2", "L3", "L5", "L7", "L10", "L12", "I1", "E2", "S1", "S8", "A1", "A3",
    "C28", "C47", "C48", "C50", "C51", "C52",
)  # fmt: skip
def test_a_database_follows_the_state_model() -> None:
    run_state_machine_as_test(
        ModelWalk,
        settings=settings(max_examples=settings().max_examples * 2 // 10, stateful_step_count=30),
    )
