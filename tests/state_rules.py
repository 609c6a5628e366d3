"""The calls of a random walk that the state model and all databases have; see `tests.state_walk`."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from tests.state_model.model import StateModel
from tests.state_walk import KEYS, Walk
from tests.store_fixtures import (
    LEASE_MS,
    NOON,
    Stores,
    assistant,
    places,
    result,
    summary,
    system,
    tool,
    turn,
    user,
)
from turnfold.contracts.requests import (
    PolicyRequest,
)
from turnfold.messages import SessionKey
from turnfold.ports.compact import (
    FailureStatus,
    Job,
    JobKind,
    JobStatus,
    RegenerateOptions,
    Version,
)
from turnfold.ports.ingest import DecodedEvent, IngestResult

EVENT_MS = 10

keys = st.sampled_from([KEYS[0], *KEYS])
call_ids = st.sampled_from(["a", "b", "c"])
texts = st.sampled_from(["ok", "42", "remember: port 8443", "x" * 300])
said = st.one_of(
    texts.map(user),
    texts.map(assistant),
    st.lists(call_ids, min_size=1, max_size=3).map(lambda ids: assistant(None, *ids)),
    st.builds(tool, call_ids, texts),
    st.just(system("be brief")),
    st.just(user("reflect on it") | {"is_meta": True}),
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


class StateRules(Walk):
    """Publish, deliver, change policies and versions, and let workers carry out jobs."""

    # --- what agents do

    def publish(self, make: Callable[[int, int], DecodedEvent]) -> None:
        seq = len(self.stream) + 1
        self.stream.append(make(seq, NOON + EVENT_MS * seq))

    @rule(
        key=keys,
        messages=st.lists(said, min_size=1, max_size=4),
        is_meta=st.booleans(),
        model=st.sampled_from([None, None, "m-1", "m-2"]),
    )
    def publish_turn(
        self,
        key: SessionKey,
        messages: list[Any],
        is_meta: bool = False,
        model: str | None = None,
        usage: Mapping[str, int] | None = None,
    ) -> None:
        fields: dict[str, Any] = {"is_meta": is_meta, "model": model, "usage": usage}
        self.publish(lambda seq, at_ms: turn(seq, *messages, key=key, at_ms=at_ms, **fields))

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
            self.publish_turn(KEYS[0], messages)
        self.deliver_what_is_new()

    @rule(messages=st.lists(said, min_size=1, max_size=3))
    def publish_twice_and_deliver_the_later_copy(self, messages: list[Any]) -> None:
        self.publish_turn(KEYS[0], messages)
        self.publish(lambda seq, at_ms: self.stream[-1]._replace(stream_seq=seq, at_ms=at_ms))
        self.deliver({len(self.stream)})

    @initialize(versions=st.integers(0, 2), is_pending=st.booleans())
    def begin_in_the_middle(self, versions: int, is_pending: bool) -> None:
        for _ in range(versions + is_pending):
            self.publish_a_long_turn()
            self.publish_and_deliver([[user("and then?"), assistant("more")]] * 3)
            if versions:
                self.claim(1, "They spoke.", is_quick=True)

    # --- what the stream does

    def deliver(self, seqs: set[int]) -> None:
        batch = [self.stream[seq - 1] for seq in sorted(seqs)]

        async def ingest(stores: Stores) -> IngestResult:
            return await stores.intake.ingest(batch, (), installation=stores.installation)

        self.both(ingest, lambda model: model.ingest(batch))
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
            ),
            lambda model: model.compact_now(key, self.now_ms),
        )

    @rule(
        key=keys,
        mode=st.sampled_from([None, None, None, "auto", "auto", "manual", "off"]),
        overrides=numbers,
    )
    def set_a_policy(self, key: SessionKey, mode: Any, overrides: dict[str, Any]) -> None:
        request = PolicyRequest(mode=mode, overrides=overrides)
        self.both(
            lambda stores: stores.changes.set_policy(
                key, request, installation=stores.installation, now_ms=self.now_ms
            ),
            lambda model: model.set_policy(key, request, self.now_ms),
        )

    @precondition(lambda self: self.keys_with_versions())
    @rule(data=st.data(), is_sure=st.booleans())
    def promote(self, data: st.DataObject, is_sure: bool) -> None:
        key = data.draw(st.sampled_from(self.keys_with_versions()))
        version = data.draw(st.sampled_from([*self.versions_of(key), 99]))
        over = None if is_sure else data.draw(st.sampled_from(self.versions_of(key)))
        self.both(
            lambda stores: stores.versions.promote(
                key, version, over=over, installation=stores.installation, now_ms=self.now_ms
            ),
            lambda model: model.promote(key, version, over, self.now_ms),
        )

    @precondition(lambda self: self.keys_with_versions())
    @rule(data=st.data(), model=st.sampled_from([None, "m-2"]))
    def regenerate(self, data: st.DataObject, model: str | None) -> None:
        key = data.draw(st.sampled_from(self.keys_with_versions()))
        from_version = data.draw(st.sampled_from([None, *self.versions_of(key)]))
        wanted = RegenerateOptions(model=model, from_version=from_version)
        self.both(
            lambda stores: stores.versions.regenerate(
                key, wanted, installation=stores.installation, now_ms=self.now_ms
            ),
            lambda model: model.regenerate(key, wanted, self.now_ms),
        )
        self.claim(3, "They spoke.", is_quick=False)

    @precondition(lambda self: any(session.rows for session in self.seen.sessions.values()))
    @rule(data=st.data(), is_newest=st.booleans())
    def restore(self, data: st.DataObject, is_newest: bool) -> None:
        keys = [key for key in KEYS if key in self.seen.sessions and self.seen.sessions[key].rows]
        key = data.draw(st.sampled_from(keys))
        session = self.seen.sessions[key]
        rows = [row for row in session.rows if row.messages_evicted and row.status != "restored"]
        if rows and is_newest:
            chosen = session.compaction_ids[rows[-1].ordinal - 1]
        else:
            chosen = data.draw(st.sampled_from(session.compaction_ids))
        self.both(
            lambda stores: stores.versions.restore(
                key, chosen, installation=stores.installation, now_ms=self.now_ms
            ),
            lambda model: model.restore(key, chosen, self.now_ms),
        )

    @precondition(lambda self: self.keys_with_versions())
    @rule(data=st.data(), is_restored=st.booleans())
    def promote_and_go_on(self, data: st.DataObject, is_restored: bool) -> None:
        """Let a worker write the next version on one that was promoted, perhaps after a restore."""
        if is_restored:
            self.restore(data, is_newest=True)
        self.promote(data, is_sure=True)
        self.let_time_pass(1_000)
        self.claim(3, "They spoke.", is_quick=True)

    def versions_of(self, key: SessionKey) -> list[int]:
        session = self.seen.sessions.get(key)
        return [version.version for version in session.versions] if session else []

    def keys_with_versions(self) -> list[SessionKey]:
        return [key for key in KEYS if self.versions_of(key)]

    # --- what workers do

    @rule(ms=st.sampled_from([1_000, LEASE_MS // 2, LEASE_MS, 3_600_000]))
    def let_time_pass(self, ms: int) -> None:
        self.now_ms += ms

    async def claimed(self, stores: Stores, limit: int) -> list[Job]:
        slots, installation = places(limit), stores.installation
        return list(
            await stores.jobs.claim(
                slots, lease_ms=LEASE_MS, now_ms=self.now_ms, installation=installation
            )
        )

    @rule(limit=st.integers(1, 3), text=texts, is_quick=st.booleans())
    def claim(self, limit: int, text: str, is_quick: bool) -> None:
        jobs = self.run(self.claimed(self.sqlite, limit))
        claimed = [*zip(jobs, self.claim_on_peer(jobs, limit), strict=True)]
        for job, peer_job in claimed:
            self.compare_input(job, peer_job)
        self.jobs += claimed
        if is_quick and claimed:
            self.carry_out(claimed[-1], summary(text, "port 8443"))

    @precondition(lambda self: self.jobs)
    @rule(text=texts)
    def let_another_worker_take_over_and_the_dead_one_come_back(self, text: str) -> None:
        dead = self.jobs[-1]
        self.let_time_pass(LEASE_MS)
        self.claim(3, text, is_quick=False)
        self.carry_out(dead, summary(text))

    def carry_out(self, jobs: tuple[Job, Job], version: Version, reason: str | None = None) -> None:
        """Commit a version, with what leaves; end the job if there is nothing to summarize."""
        stale: dict[str, Any] = {"ending": JobStatus.STALE, "reason": None}

        async def work(stores: Stores, job: Job) -> int | None:
            given = await stores.jobs.load(job, now_ms=self.now_ms)
            if not given.evicted:
                await stores.jobs.fail(job, **stale, detail="", now_ms=self.now_ms)
                return None
            return await stores.jobs.commit(
                job, version, leaving=given.leaving, reason=reason, now_ms=self.now_ms
            )

        def model_work(model: StateModel, job: Job) -> int | None:
            given = self.run(self.sqlite.jobs.load(job, now_ms=self.now_ms))
            if not given.evicted:
                model.fail(job, **stale, now_ms=self.now_ms)
                return None
            return model.commit(job, version, given.leaving, reason, self.now_ms)

        self.of_a_job(jobs, work, model_work)

    def of_a_job(
        self,
        jobs: tuple[Job, Job],
        work: Callable[[Stores, Job], Awaitable[Any]],
        model_work: Callable[[StateModel, Job], Any],
    ) -> None:
        """Let a worker act on a job that it holds, or believes to hold."""
        own, peer = jobs
        self.both(
            lambda stores: work(stores, own if stores is self.sqlite else peer),
            lambda model: model_work(model, own),
        )

    @precondition(lambda self: self.jobs)
    @rule(data=st.data())
    def renew(self, data: st.DataObject) -> None:
        self.of_a_job(
            data.draw(st.sampled_from(self.jobs)),
            lambda stores, job: stores.jobs.renew(job, lease_ms=LEASE_MS, now_ms=self.now_ms),
            lambda model, job: model.renew(job, LEASE_MS, self.now_ms),
        )

    @precondition(lambda self: self.jobs)
    @rule(data=st.data(), delay_ms=st.sampled_from([0, 1_000, LEASE_MS]))
    def give_back(self, data: st.DataObject, delay_ms: int) -> None:
        times: dict[str, Any] = {"retry_at_ms": self.now_ms + delay_ms, "now_ms": self.now_ms}
        self.of_a_job(
            data.draw(st.sampled_from(self.jobs)),
            lambda stores, job: stores.jobs.retry_later(job, reason="timeout", detail="", **times),
            lambda model, job: model.retry_later(job, times["retry_at_ms"]),
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
        self.carry_out(data.draw(st.sampled_from(self.jobs)), version, reason)

    @precondition(lambda self: self.jobs)
    @rule(data=st.data())
    def throw_away(self, data: st.DataObject) -> None:
        self.of_a_job(
            data.draw(st.sampled_from(self.jobs)),
            lambda stores, job: stores.jobs.discard(job, now_ms=self.now_ms),
            lambda model, job: model.discard(job, self.now_ms),
        )

    @precondition(lambda self: self.jobs)
    @rule(data=st.data())
    def stop_the_worker(self, data: st.DataObject) -> None:
        self.of_a_job(
            data.draw(st.sampled_from(self.jobs)),
            lambda stores, job: stores.jobs.give_back(job, now_ms=self.now_ms),
            lambda model, job: model.discard(job, self.now_ms),
        )

    @precondition(lambda self: any(evicts_nothing(job) for job, _ in self.jobs))
    @rule(data=st.data(), ending=st.sampled_from([JobStatus.REJECTED, JobStatus.FAILED]))
    def roll_back(self, data: st.DataObject, ending: FailureStatus) -> None:
        jobs = data.draw(st.sampled_from([jobs for jobs in self.jobs if evicts_nothing(jobs[0])]))
        failure: dict[str, Any] = {"ending": ending, "reason": "refused"}
        self.of_a_job(
            jobs,
            lambda stores, job: stores.jobs.fail(job, **failure, detail="", now_ms=self.now_ms),
            lambda model, job: model.fail(job, **failure, now_ms=self.now_ms),
        )

    @rule(times=st.integers(1, 3))
    def let_the_model_fail_and_come_back(self, times: int) -> None:
        """Commit stand-ins while the model fails; it replaces them later, or never."""
        for _ in range(times):
            self.publish_and_deliver([[user("and then?"), assistant("more")]] * 4)
            self.let_time_pass(1_000)
            self.claim(3, "They spoke.", is_quick=False)
            for jobs in self.jobs[-3:]:
                self.carry_out(jobs, summary("picked", kind="extractive"), "timeout")
        self.let_time_pass(LEASE_MS)
        self.claim(3, "They spoke.", is_quick=False)


def evicts_nothing(job: Job) -> bool:
    return job.planned is not None or job.writes is not JobKind.NEXT
