"""A walk along the arrows of a session's states, at random, in a database and in the double side by side."""

import asyncio
import json
import shutil
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.invariants import SessionSeen, StoreSnapshot, faults
from tests.store_fixtures import (
    LEASE_MS,
    NOON,
    SMALL,
    Stores,
    assistant,
    memory_stores,
    new_sqlite,
    places,
    result,
    sql_stores,
    summary,
    system,
    tool,
    turn,
    user,
)
from turnfold.contracts.requests import ContextRequest, PolicyRequest
from turnfold.core.history import validity as sendable
from turnfold.errors import BadRequest, CannotFit, Conflict, LostLease, UnknownSession
from turnfold.messages import AgentId, SessionId, SessionKey
from turnfold.operations.query.context import QueryEnvironment, context
from turnfold.ports.admin import Notice
from turnfold.ports.compact import FailureStatus, Job, JobInput, JobKind, RegenerateOptions, Version
from turnfold.ports.ingest import DecodedEvent
from turnfold.testing.kept import Compaction
from turnfold.testing.memory import MemoryStore

KEYS = [
    SessionKey(AgentId("ada"), SessionId("s-1")),
    SessionKey(AgentId("ada"), SessionId("s-2")),
    SessionKey(AgentId("bob"), SessionId("s-1")),
]
EVENT_MS = 10
TIGHT = replace(SMALL, max_live_messages=6, keep_messages=2)

keys = st.sampled_from([KEYS[0], *KEYS])
call_ids = st.sampled_from(["a", "b", "c"])
texts = st.sampled_from(["ok", "42", "remember: port 8443", "x" * 300])
said = st.one_of(
    texts.map(user),
    texts.map(assistant),
    st.lists(call_ids, min_size=1, max_size=3).map(lambda ids: assistant(None, *ids)),
    st.builds(tool, call_ids, texts),
    st.just(system("be brief")),
)
numbers = st.fixed_dictionaries(
    {},
    optional={
        "max_live_messages": st.sampled_from([0, 3, 6, 12]),
        "keep_messages": st.sampled_from([1, 3, 5]),
        "trigger_tokens": st.sampled_from([0, 60, 200]),
        "open_call_timeout_seconds": st.sampled_from([0, 3_600]),
        "min_gain_messages": st.sampled_from([1, 4]),
        "every_rounds": st.sampled_from([0, 2, 5]),
        "idle_seconds": st.sampled_from([0, 60]),
        "max_live_tool_blocks": st.sampled_from([0, 1]),
        "commit": st.sampled_from(["immediate", "on_summary"]),
        "context_window": st.sampled_from([0, 400]),
        "reserve_tokens": st.sampled_from([0, 100]),
    },
)
usages = st.one_of(
    st.none(),
    st.builds(
        lambda prompt: {"prompt_tokens": prompt, "completion_tokens": 9}, st.integers(1, 500)
    ),
)
Done = TypeVar("Done")


class Walk(RuleBasedStateMachine):
    """A stream, two stores that are fed from it in any order, and the workers of each, who may be slow, dead or undead."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ms = NOON + 100_000
        self.stream: list[DecodedEvent] = []
        self.delivered: set[int] = set()
        self.jobs: list[tuple[Job, Job]] = []
        self.shown: dict[tuple[str, SessionKey], tuple[str, int]] = {}
        self.has_moved = False
        self.erased_to = dict.fromkeys(KEYS, 0)
        fast = Path("/dev/shm")
        self.folder = Path(mkdtemp(prefix="turnfold-walk-", dir=fast if fast.is_dir() else None))
        self.loop = asyncio.new_event_loop()
        self.steps = 0
        self.open = AsyncExitStack()
        self.memory = memory_stores(TIGHT)
        self.sqlite = self.run(
            self.open.enter_async_context(sql_stores(new_sqlite(self.folder), TIGHT))
        )
        # One of them remembers what a query server does, the other begins afresh: what is remembered shows in no answer.
        self.remembering = QueryEnvironment(
            self.sqlite.policy, self.sqlite.installation.model_window
        )

    def teardown(self) -> None:
        try:
            if self.delivered:
                self.rebuild()
        finally:
            self.run(self.open.aclose())
            self.loop.close()
            shutil.rmtree(self.folder, ignore_errors=True)

    def run(self, work: Coroutine[Any, Any, Done]) -> Done:
        return self.loop.run_until_complete(work)

    def both(self, work: Callable[[Stores], Awaitable[Done]]) -> Done:
        """Do it in both stores; they answer the same, be it a refusal."""

        async def one(stores: Stores) -> tuple[Any, str | None]:
            try:
                return await work(stores), None
            except (LostLease, Conflict, BadRequest, UnknownSession) as error:
                return None, type(error).__name__

        real, double = self.run(one(self.sqlite)), self.run(one(self.memory))
        assert real == double
        return real[0]  # type: ignore[no-any-return]

    # --- what agents do

    def publish(self, make: Callable[[int, int], DecodedEvent]) -> None:
        seq = len(self.stream) + 1
        self.stream.append(make(seq, NOON + EVENT_MS * seq))

    @rule(
        key=keys,
        messages=st.lists(said, min_size=1, max_size=4),
        is_meta=st.booleans(),
        model=st.sampled_from([None, None, "m-1", "m-2"]),
        usage=usages,
    )
    def publish_turn(
        self,
        key: SessionKey,
        messages: list[Any],
        is_meta: bool,
        model: str | None,
        usage: Any = None,
    ) -> None:
        self.publish(
            lambda seq, at_ms: turn(
                seq, *messages, key=key, at_ms=at_ms, is_meta=is_meta, model=model, usage=usage
            )
        )

    @rule(prompts=st.lists(st.integers(1, 120), min_size=3, max_size=6), is_delivered=st.booleans())
    def publish_reports_that_teach(self, prompts: list[int], is_delivered: bool) -> None:
        reported = 20
        for grown in prompts:
            reported += grown
            usage = {"prompt_tokens": reported, "completion_tokens": 5}
            self.publish_turn(
                KEYS[0],
                [user("and then?"), assistant("x" * 60)],
                is_meta=False,
                model="m-1",
                usage=usage,
            )
        if is_delivered:
            self.deliver_what_is_new()

    @rule(key=keys, call_id=call_ids, content=texts)
    def publish_result(self, key: SessionKey, call_id: str, content: str) -> None:
        self.publish(lambda seq, at_ms: result(seq, call_id, content, key=key, at_ms=at_ms))

    @precondition(lambda self: any(one.model is None for one in self.stream))
    @rule(data=st.data())
    def publish_again(self, data: st.DataObject) -> None:
        first = data.draw(st.sampled_from([one for one in self.stream if one.model is None][-4:]))
        self.publish(lambda seq, at_ms: first._replace(stream_seq=seq, at_ms=at_ms))

    @precondition(lambda self: self.stream)
    @rule(data=st.data(), key=keys)
    def publish_something_else_under_a_known_id(self, data: st.DataObject, key: SessionKey) -> None:
        event_id = data.draw(st.sampled_from(self.stream)).event_id
        self.publish(
            lambda seq, at_ms: turn(
                seq, user("something else"), event_id=event_id, key=key, at_ms=at_ms
            )
        )

    @rule()
    def publish_a_long_turn(self) -> None:
        messages = [
            user("go on"),
            *(
                one
                for number in range(4)
                for one in (assistant(None, f"n{number}"), tool(f"n{number}"))
            ),
        ]
        self.publish(lambda seq, at_ms: turn(seq, *messages, key=KEYS[0], at_ms=at_ms))

    @rule(turns=st.lists(st.lists(said, min_size=2, max_size=4), min_size=1, max_size=3))
    def publish_and_deliver(self, turns: list[list[Any]]) -> None:
        for messages in turns:
            self.publish_turn(KEYS[0], messages, is_meta=False, model=None)
        self.deliver_what_is_new()

    @rule(messages=st.lists(said, min_size=1, max_size=3))
    def publish_twice_and_deliver_the_later_copy(self, messages: list[Any]) -> None:
        self.publish_turn(KEYS[0], messages, is_meta=False, model=None)
        self.publish(lambda seq, at_ms: self.stream[-1]._replace(stream_seq=seq, at_ms=at_ms))
        self.deliver({len(self.stream)})

    @initialize(versions=st.integers(0, 2), is_pending=st.booleans())
    def begin_in_the_middle(self, versions: int, is_pending: bool) -> None:
        for _ in range(versions + is_pending):
            self.publish_a_long_turn()
            self.publish_and_deliver([[user("and then?"), assistant("more")]] * 3)
            if versions:
                self.claim(1, "They spoke.", is_quick=True)

    @rule(times=st.integers(1, 4), prompt=st.sampled_from([100, 390, 390, 390]))
    def report_full_windows(self, times: int, prompt: int) -> None:
        numbers = {
            "max_live_messages": 0,
            "trigger_tokens": 0,
            "every_rounds": 0,
            "context_window": 400,
            "reserve_tokens": 100,
        }
        self.set_a_policy(KEYS[0], is_agent=False, mode="auto", overrides=numbers)
        said = [user("and then?"), assistant("x" * 60)] * 2
        for _ in range(times):
            self.let_time_pass(1_000)
            self.publish(
                lambda seq, _: turn(
                    seq, *said, key=KEYS[0], at_ms=self.now_ms, usage={"prompt_tokens": prompt}
                )
            )
            self.deliver_what_is_new()
            self.let_time_pass(1_000)
            self.claim(3, "They spoke.", is_quick=True)

    # --- what the stream does

    def deliver(self, seqs: set[int]) -> None:
        batch = [self.stream[seq - 1] for seq in sorted(seqs)]
        for arrival in batch:
            known = [
                one for one in self.delivered if self.stream[one - 1].event_id == arrival.event_id
            ]
            self.has_moved |= bool(known) and arrival.stream_seq < min(known)
        self.both(lambda stores: stores.intake.ingest(batch, (), installation=stores.installation))
        self.delivered |= seqs

    @rule()
    def deliver_what_is_new(self) -> None:
        self.deliver(set(range(1, len(self.stream) + 1)) - self.delivered)

    @precondition(lambda self: len(self.delivered) < len(self.stream))
    @rule()
    def deliver_the_newest_before_the_others(self) -> None:
        self.deliver({max(set(range(1, len(self.stream) + 1)) - self.delivered)})

    @precondition(lambda self: self.stream)
    @rule(data=st.data())
    def deliver_some(self, data: st.DataObject) -> None:
        self.deliver(data.draw(st.sets(st.integers(1, len(self.stream)), min_size=1, max_size=5)))

    # --- what people do

    @rule(key=keys)
    def request_a_compaction(self, key: SessionKey) -> None:
        self.both(
            lambda stores: stores.changes.compact_now(
                key, installation=stores.installation, now_ms=self.now_ms
            )
        )

    @rule(
        key=keys,
        is_agent=st.booleans(),
        mode=st.sampled_from([None, None, None, "auto", "auto", "manual", "off"]),
        overrides=numbers,
    )
    def set_a_policy(
        self, key: SessionKey, is_agent: bool, mode: Any, overrides: dict[str, Any]
    ) -> None:
        request = PolicyRequest(mode=mode, overrides=overrides)
        target = key.agent_id if is_agent else key
        self.both(
            lambda stores: stores.changes.set_policy(
                target, request, installation=stores.installation, now_ms=self.now_ms
            )
        )

    @precondition(lambda self: self.steps > 8)
    @rule(key=keys, is_agent=st.sampled_from([False, False, True]), is_behind=st.booleans())
    def erase(self, key: SessionKey, is_agent: bool, is_behind: bool) -> None:
        """What the stream holds by now never comes back; sometimes not all of it has been delivered yet."""
        if not is_behind:
            self.deliver_what_is_new()
        target = key.agent_id if is_agent else key
        last_seq = len(self.stream)
        self.both(
            lambda stores: stores.changes.erase(target, last_seq=last_seq, now_ms=self.now_ms)
        )
        for one in KEYS:
            if target in (one, one.agent_id):
                self.erased_to[one] = last_seq

    # --- what workers do

    @rule(ms=st.sampled_from([1_000, LEASE_MS // 2, LEASE_MS, 3_600_000]))
    def let_time_pass(self, ms: int) -> None:
        self.now_ms += ms

    @rule(limit=st.integers(1, 3), text=texts, is_quick=st.booleans())
    def claim(self, limit: int, text: str, is_quick: bool) -> None:
        async def claimed(stores: Stores) -> list[Job]:
            return list(
                await stores.jobs.claim(
                    places(limit), lease_ms=LEASE_MS, now_ms=self.now_ms, policy=stores.policy
                )
            )

        real, double = self.run(claimed(self.sqlite)), self.run(claimed(self.memory))
        assert [replace(job, sid=0) for job in real] == [replace(job, sid=0) for job in double]
        for job in real:
            given = self.run(self.sqlite.jobs.load(job, now_ms=self.now_ms))
            other = self.run(
                self.memory.jobs.load(
                    next(one for one in double if one.key == job.key), now_ms=self.now_ms
                )
            )
            # A database reads of what is about to leave only what evictions look at.
            assert replace(given, leaving=None) == replace(other, leaving=None)
            assert about_to_leave(given) == about_to_leave(other)
        self.jobs += zip(real, double, strict=True)
        if is_quick and real:
            version = summary(text, "port 8443")
            self.of_a_job(self.jobs[-1], lambda stores, job: self.carry_out(stores, job, version))

    @precondition(lambda self: self.jobs)
    @rule(text=texts)
    def let_another_worker_take_over_and_the_dead_one_come_back(self, text: str) -> None:
        dead, version = self.jobs[-1], summary(text)
        self.let_time_pass(LEASE_MS)
        self.claim(3, text, is_quick=False)
        self.of_a_job(dead, lambda stores, job: self.carry_out(stores, job, version))

    async def carry_out(
        self, stores: Stores, job: Job, version: Version, reason: str | None = None
    ) -> int | None:
        """Commit a version; what was only planned leaves with it, and where there is nothing to write the job ends."""
        given = await stores.jobs.load(job, now_ms=self.now_ms)
        if not given.evicted:
            await stores.jobs.fail(
                job, ending=FailureStatus.STALE, reason=None, detail="", now_ms=self.now_ms
            )
            return None
        return await stores.jobs.commit(
            job, version, leaving=given.leaving, reason=reason, now_ms=self.now_ms
        )

    def of_a_job(
        self, jobs: tuple[Job, Job], work: Callable[[Stores, Job], Awaitable[Any]]
    ) -> None:
        """What some worker does with a job that it holds, or believes to hold."""
        real, double = jobs
        self.both(lambda stores: work(stores, real if stores is self.sqlite else double))

    @precondition(lambda self: self.jobs)
    @rule(data=st.data())
    def renew(self, data: st.DataObject) -> None:
        job = data.draw(st.sampled_from(self.jobs))
        self.of_a_job(
            job, lambda stores, job: stores.jobs.renew(job, lease_ms=LEASE_MS, now_ms=self.now_ms)
        )

    @precondition(lambda self: self.jobs)
    @rule(data=st.data(), delay_ms=st.sampled_from([0, 1_000, LEASE_MS]))
    def give_back(self, data: st.DataObject, delay_ms: int) -> None:
        times: dict[str, Any] = {"retry_at_ms": self.now_ms + delay_ms, "now_ms": self.now_ms}
        job = data.draw(st.sampled_from(self.jobs))
        self.of_a_job(
            job,
            lambda stores, job: stores.jobs.retry_later(job, reason="timeout", detail="", **times),
        )

    @precondition(lambda self: self.jobs)
    @rule(
        data=st.data(),
        text=texts,
        kind=st.sampled_from(["llm", "extractive"]),
        is_stand_in=st.booleans(),
    )
    def commit(self, data: st.DataObject, text: str, kind: str, is_stand_in: bool) -> None:
        version = summary(text, "port 8443", kind=kind)
        reason = "timeout" if is_stand_in and kind == "extractive" else None
        job = data.draw(st.sampled_from(self.jobs))
        self.of_a_job(job, lambda stores, job: self.carry_out(stores, job, version, reason))

    @precondition(lambda self: self.jobs)
    @rule(data=st.data())
    def throw_away(self, data: st.DataObject) -> None:
        job = data.draw(st.sampled_from(self.jobs))
        self.of_a_job(job, lambda stores, job: stores.jobs.discard(job, now_ms=self.now_ms))

    @rule(times=st.integers(1, 3))
    def let_the_model_fail_and_come_back(self, times: int) -> None:
        """Stand-ins are written, and what the model had to say later, or never."""
        for _ in range(times):
            self.publish_and_deliver([[user("and then?"), assistant("more")]] * 4)
            self.let_time_pass(1_000)
            self.claim(3, "They spoke.", is_quick=False)
            for job in self.jobs[-3:]:
                self.of_a_job(
                    job,
                    lambda stores, job: self.carry_out(
                        stores, job, summary("picked", kind="extractive"), "timeout"
                    ),
                )
        self.let_time_pass(LEASE_MS)
        self.claim(3, "They spoke.", is_quick=False)

    # --- what people do with versions

    def numbers_of(self, key: SessionKey) -> list[int]:
        session = self.run(self.memory.seen()).sessions.get(key)
        return [one.version for one in session.versions] if session else []

    @precondition(lambda self: any(self.numbers_of(key) for key in KEYS))
    @rule(data=st.data(), is_sure=st.booleans())
    def promote(self, data: st.DataObject, is_sure: bool) -> None:
        key = data.draw(st.sampled_from([key for key in KEYS if self.numbers_of(key)]))
        version = data.draw(st.sampled_from([*self.numbers_of(key), 99]))
        over = None if is_sure else data.draw(st.sampled_from(self.numbers_of(key)))
        self.both(
            lambda stores: stores.versions.promote(
                key, version, over=over, installation=stores.installation, now_ms=self.now_ms
            )
        )

    @precondition(lambda self: any(self.numbers_of(key) for key in KEYS))
    @rule(data=st.data(), model=st.sampled_from([None, "m-2"]))
    def regenerate(self, data: st.DataObject, model: str | None) -> None:
        key = data.draw(st.sampled_from([key for key in KEYS if self.numbers_of(key)]))
        wanted = RegenerateOptions(
            model=model, from_version=data.draw(st.sampled_from([None, *self.numbers_of(key)]))
        )
        self.both(
            lambda stores: stores.versions.regenerate(
                key, wanted, installation=stores.installation, now_ms=self.now_ms
            )
        )
        self.claim(3, "They spoke.", is_quick=False)

    @precondition(lambda self: any(self.compactions_of(key) for key in KEYS))
    @rule(data=st.data(), is_newest=st.booleans())
    def restore(self, data: st.DataObject, is_newest: bool) -> None:
        key = data.draw(st.sampled_from([key for key in KEYS if self.compactions_of(key)]))
        rows = self.compactions_of(key)
        ids = [row.compaction_id for row in rows if row.evicted and row.status != "restored"]
        chosen = (
            ids[-1]
            if ids and is_newest
            else data.draw(st.sampled_from([row.compaction_id for row in rows]))
        )
        self.both(
            lambda stores: stores.versions.restore(
                key, chosen, installation=stores.installation, now_ms=self.now_ms
            )
        )

    def compactions_of(self, key: SessionKey) -> list[Compaction]:
        assert isinstance(self.memory.versions, MemoryStore)
        session = self.memory.versions.memory.sessions.get(key)
        return session.compactions if session else []

    @precondition(lambda self: any(evicts_nothing(one) for one, _ in self.jobs))
    @rule(data=st.data(), ending=st.sampled_from([FailureStatus.REJECTED, FailureStatus.FAILED]))
    def roll_back(self, data: st.DataObject, ending: FailureStatus) -> None:
        job = data.draw(st.sampled_from([jobs for jobs in self.jobs if evicts_nothing(jobs[0])]))
        self.of_a_job(
            job,
            lambda stores, job: stores.jobs.fail(
                job, ending=ending, reason="refused", detail="", now_ms=self.now_ms
            ),
        )

    @rule()
    def look_for_idle_sessions(self) -> None:
        self.both(
            lambda stores: stores.idle.evict_idle(
                limit=5, installation=stores.installation, now_ms=self.now_ms
            )
        )

    @rule(limit=st.integers(1, 4))
    def send_notices(self, limit: int) -> None:
        async def send(stores: Stores) -> list[tuple[int, str, Any]]:
            notices = await stores.outbox.unsent(limit)
            await stores.outbox.sent(notices)
            return [told(one) for one in notices]

        self.both(send)

    # --- what holds after every step

    @invariant()
    def both_hold_the_same(self) -> None:
        real, double = self.run(self.sqlite.seen()), self.run(self.memory.seen())
        assert faults(real) == []
        assert comparable(real) == comparable(double)
        assert self.run(self.sqlite.jobs.next_due_ms()) == self.run(self.memory.jobs.next_due_ms())
        assert self.run(self.sqlite.idle.next_idle_ms()) == self.run(
            self.memory.idle.next_idle_ms()
        )

    @invariant()
    def both_show_the_same_windows(self) -> None:
        self.steps += 1
        max_tokens = 120 if self.steps % 3 == 0 else None

        async def windows(stores: Stores) -> list[dict[str, Any]]:
            return [await self.window(stores, key, max_tokens) for key in KEYS]

        real, double = self.run(windows(self.sqlite)), self.run(windows(self.memory))
        assert real == double
        assert [sendable.validation_errors(one.get("messages", [])) for one in real] == [[], [], []]

    async def window(
        self, stores: Stores, key: SessionKey, max_tokens: int | None
    ) -> dict[str, Any]:
        answering = (
            self.remembering
            if stores is self.sqlite
            else QueryEnvironment(stores.policy, stores.installation.model_window)
        )
        request = ContextRequest(max_tokens=max_tokens, wait_ms=0)
        try:
            answer = await context(
                key, request, store=stores.windows, answering=answering, arrivals=Silence()
            )
        except CannotFit as error:
            return error.as_json()
        found: dict[str, Any] = json.loads(answer.body)
        etag = found.pop("etag")
        if max_tokens is None:
            # What an agent holds by an etag is what it would be told now.
            text = json.dumps({name: value for name, value in found.items() if name != "fresh"})
            before = self.shown.get((stores.name, key))
            assert before is None or before[0] == text or before[1] != etag
            self.shown[stores.name, key] = (text, etag)
        if self.has_moved and found["summary"]:
            # A database names what its first and last rows were when they left.
            found["summary"]["covers"] = found["summary"]["covers"]["messages"]
        return found

    def rebuild(self) -> None:
        """The same events in one batch, in order, make the same history: pairing and order are functions of the stream."""
        seen = self.run(self.sqlite.seen())
        stored = {
            (key.agent_id, event_id): key
            for key, session in seen.sessions.items()
            for event_id in session.events
        }
        first: dict[tuple[str, str], DecodedEvent] = {}
        for key, session in seen.sessions.items():
            for event_id, seq in session.events.items():
                first[key.agent_id, event_id] = self.stream[seq - 1]
        copies = [
            arrival
            for arrival in self.stream
            if arrival.stream_seq in self.delivered
            and arrival.stream_seq > self.erased_to[arrival.key]
            and stored.get(name := (arrival.key.agent_id, arrival.event_id)) == arrival.key
            and bodies(arrival) == bodies(first[name])
        ]
        fresh = memory_stores(replace(TIGHT, max_live_messages=0))
        self.run(fresh.ingest(*copies))
        again = self.run(fresh.seen())
        assert {
            key: history(session) for key, session in seen.sessions.items() if session.events
        } == {key: history(session) for key, session in again.sessions.items()}


def evicts_nothing(job: Job) -> bool:
    return job.planned is not None or job.writes is not JobKind.NEXT


class Silence:
    """Nothing ever arrives."""

    async def reached(self, seq: int, seconds: float) -> None:
        raise AssertionError(f"somebody waits {seconds} s for {seq}, which does not come")


def about_to_leave(given: JobInput) -> Any:
    """What a planned compaction comes to."""
    leaving = given.leaving
    return leaving and (
        leaving.due,
        [message.message_id for message in leaving.evicted],
        leaving.live,
        leaving.load,
        leaving.at_ms,
    )


def history(session: SessionSeen) -> list[tuple[Any, ...]]:
    """The messages as a function of the stream alone: everything but who evicted them."""
    return [
        (replace(one.message, compaction_id=None), one.body, one.original, one.is_error)
        for one in session.messages
    ]


def comparable(seen: StoreSnapshot) -> Any:
    """What two stores have to agree on: all but how audit rows are worded, and therefore sealed."""
    return [
        (
            key,
            replace(session.counters, audit_hash=""),
            session.messages,
            session.rows,
            session.versions,
            [
                (
                    row.ordinal,
                    row.at_ms,
                    row.phase,
                    row.reason,
                    row.compaction_id,
                    row.tokens_before,
                    row.tokens_after,
                )
                for row in session.audit
            ],
            session.events,
            session.gauge,
            session.speaks_for,
            session.reigns,
            session.model_rests,
            session.held_to_tokens,
        )
        for key, session in sorted(seen.sessions.items())
    ], (seen.ingested, seen.dead_letters)


def bodies(arrival: DecodedEvent) -> list[Any]:
    return [json.loads(message.body) for message in arrival.messages]


def told(notice: Notice) -> tuple[int, str, Any]:
    payload = json.loads(notice.payload)
    payload["audit"] = payload["audit"]["rows"]
    return notice.outbox_id, notice.subject, payload


@pytest.mark.proves(
    "L1",
    "L2",
    "L3",
    "L5",
    "L7",
    "L10",
    "L12",
    "I1",
    "E2",
    "S1",
    "S8",
    "A1",
    "A3",
    "C28",
    "C47",
    "C48",
    "C50",
    "C51",
    "C52",
)
def test_a_database_and_the_double_walk_alike() -> None:
    run_state_machine_as_test(
        Walk,
        settings=settings(max_examples=settings().max_examples * 3 // 10, stateful_step_count=30),
    )
