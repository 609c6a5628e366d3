"""An agent's loop on a real system and a real model server: what becomes of it when the conversation is too long."""

import asyncio
import copy
import json
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from tests.histories import counter
from tests.model_server import ModelServer, running_model_server
from tests.nats_server import NatsServer
from tests.running_system import System, client_of, eventually, running_system
from turnfold import (
    BadRequest,
    BufferOptions,
    Client,
    Compressed,
    ContextBudget,
    ContextOverflow,
    ContextRecovery,
    History,
    LadderCompressor,
    Session,
    SubagentFailure,
    SubagentResult,
    assemble,
    connect,
    new_event_id,
    run_subagent,
)
from turnfold.core.history.validation import validation_errors
from turnfold.core.recovery.assembler import MessageInput

pytestmark = pytest.mark.asyncio(loop_scope="module")

Json = dict[str, Any]
SYSTEM = {"role": "system", "content": "You help customers of a parcel service."}
COUNTING = LadderCompressor(counter())
SETTINGS: Json = {
    "model": "gpt-4.1",
    "temperature": 0.25,
    "max_tokens": 77,
    "tools": [{"type": "function", "function": {"name": "find"}}],
}


class ProviderError(Exception):
    """What an HTTP status of a provider becomes in its client."""

    def __init__(self, status_code: int, text: str) -> None:
        super().__init__(text)
        self.status_code = status_code


class Model:
    """A model server, and a call of it in litellm's shape."""

    def __init__(self, server: ModelServer) -> None:
        self.server = server

    async def __call__(self, *, messages: list[Json], **rest: Any) -> Json:
        async with httpx.AsyncClient(trust_env=False) as http:
            answer = await http.post(
                f"{self.server.url}/chat/completions", json={"messages": messages, **rest}
            )
        if answer.status_code != 200:
            raise ProviderError(answer.status_code, answer.text)
        told: Json = answer.json()
        return told

    def sent(self) -> list[list[Json]]:
        """The messages of each request."""
        return [request["messages"] for request in self.server.requests]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def system(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[System]:
    async with running_system(tmp_path_factory.mktemp("recovery") / "data") as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def client(system: System) -> AsyncIterator[Client]:
    async with client_of(system) as connected:
        yield connected


@pytest_asyncio.fixture(loop_scope="module")
async def model() -> AsyncIterator[Model]:
    async with running_model_server() as server:
        server.fault = "prose"
        yield Model(server)


@pytest.fixture
def session(client: Client) -> Session:
    return client.session("support", new_event_id())


def turn(number: int) -> list[Json]:
    call = {
        "id": f"call_{number}",
        "type": "function",
        "function": {"name": "find", "arguments": f'{{"order": {number}}}'},
    }
    return [
        {"role": "user", "content": f"Where is order {number}?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {
            "role": "tool",
            "tool_call_id": call["id"],
            "content": f"order {number}: on its way. " * 60,
        },
        {"role": "assistant", "content": f"Order {number} is on its way."},
    ]


async def talked(session: Session | None, turns: int = 12) -> list[Json]:
    """An agent's list after so many turns and one more question; the turns are published."""
    messages: list[Json] = [SYSTEM]
    for number in range(turns):
        messages += turn(number)
        if session is not None:
            await session.turn_completed(turn(number), model="gpt-4.1")
    return [*messages, {"role": "user", "content": "And the newest one?"}]


async def summarised(session: Session) -> bool:
    """Whether a summary covers what was evicted."""
    window = await session.context(max_tokens=50_000)
    return (
        window.summary is not None
        and not window.account.pending_shown + window.account.pending_digested
    )


def patient(model: Model, session: Session, **options: Any) -> ContextRecovery:
    """Waits for the service as long as a loaded machine may take."""
    return ContextRecovery(model, session, patience_seconds=20, **options)


@pytest.mark.proves("R1", "L2")
async def test_a_long_answer_that_its_window_cuts_is_sent_once(
    model: Model, session: Session
) -> None:
    """R1: the agent's whole answer followed the cut one."""
    lines = "\n".join(f"line {number}, value {number * 37}" for number in range(3_000))
    published = [
        {"role": "user", "content": "Write a list."},
        {"role": "assistant", "content": f"The list.\n{lines}"},
    ]
    await session.turn_completed(published)
    window = await session.context(
        max_tokens=10_000, model="gpt-4.1", placement="user", wait_ms=5_000
    )

    question = {"role": "user", "content": "Shorter, please."}
    complete = ContextRecovery(model, session, budget_tokens=10_000, patience_seconds=20)
    await complete(messages=[*published, question], model="gpt-4.1")

    (sent,) = model.sent()
    assert window.messages != published
    assert sent == [*window.messages, question]


# --- overflow


@pytest.mark.proves("R1")
async def test_a_call_is_sent_the_window_and_what_was_not_published_yet(
    model: Model, session: Session
) -> None:
    messages = await talked(session, turns=30)
    before = copy.deepcopy(messages)
    await eventually(lambda: summarised(session))

    answer = await patient(model, session)(messages=messages, **SETTINGS)

    (sent,) = model.sent()
    assert answer["choices"][0]["message"]["content"]
    assert sent[0] == SYSTEM
    assert sent[-5:] == before[-5:]
    assert len(sent) < len(before)
    assert sent[1]["content"].startswith("# Conversation Summary")
    assert messages == before
    assert {
        name: value for name, value in model.server.requests[0].items() if name != "messages"
    } == SETTINGS


@pytest.mark.proves("R1", "C59", "W7")
async def test_an_overflow_is_answered_by_one_more_call_and_the_agents_list_is_the_shorter_one(
    model: Model, session: Session
) -> None:
    messages = await talked(session)
    model.server.script = ["overflow"]

    answer = await patient(model, session)(messages=messages, **SETTINGS)

    first, second = model.sent()
    assert answer["choices"][0]["message"]["content"]
    assert messages == second
    assert (second[0], second[-1]) == (SYSTEM, first[-1])
    assert COUNTING.tokens(second) * 5 <= COUNTING.tokens(first) * 3
    assert validation_errors(second) == []
    for request in model.server.requests:
        assert {name: value for name, value in request.items() if name != "messages"} == SETTINGS


@pytest.mark.proves("R1", "C59")
async def test_after_an_overflow_the_loop_goes_on_with_what_fits(
    model: Model, session: Session
) -> None:
    messages = await talked(session, turns=12)
    complete = patient(model, session, budget_tokens=100_000)
    model.server.script = ["413"]
    await complete(messages=messages, model="gpt-4.1")

    for number in range(100, 106):
        messages += turn(number)
        await session.turn_completed(turn(number))
        await complete(messages=messages, model="gpt-4.1")

    first, _, *later = model.sent()
    assert len(later) == 6
    assert all(COUNTING.tokens(sent) * 5 <= COUNTING.tokens(first) * 3 for sent in later)
    assert all(validation_errors(sent) == [] for sent in later)


@pytest.mark.proves("R1", "C59")
async def test_a_second_overflow_is_a_typed_error_that_a_person_can_read(
    model: Model, session: Session
) -> None:
    messages = await talked(session)
    before = copy.deepcopy(messages)
    model.server.script = ["overflow", "overflow"]

    with pytest.raises(
        ContextOverflow,
        match=r"too long for the model.* reads 8,192 tokens.* begin a new conversation",
    ) as caught:
        await patient(model, session)(messages=messages, model="gpt-4.1")

    assert (caught.value.limit_tokens, caught.value.tokens) == (8192, 9000)
    assert isinstance(caught.value.__cause__, ProviderError)
    assert len(model.sent()) == 2
    assert messages == before


@pytest.mark.proves("R1", "R2", "C59")
@pytest.mark.parametrize("fault", ["429", "quota", "500", "401", "404"])
async def test_every_other_error_rises_as_it_is_after_one_call(
    model: Model, session: Session, fault: str
) -> None:
    messages = await talked(session, turns=1)
    before = copy.deepcopy(messages)
    model.server.fault = fault

    with pytest.raises(ProviderError):
        await patient(model, session)(messages=messages, model="gpt-4.1")

    assert len(model.sent()) == 1
    assert messages == before


@pytest.mark.proves("R2", "C60")
async def test_an_answer_that_reports_more_input_than_the_model_reads_is_an_overflow(
    model: Model,
) -> None:
    messages = await talked(None)

    with pytest.raises(ContextOverflow) as caught:
        await ContextRecovery(model, context_window=320)(messages=messages, model="gpt-4.1")

    first, second = model.sent()
    assert (caught.value.limit_tokens, caught.value.tokens) == (320, 321)
    assert COUNTING.tokens(second) < COUNTING.tokens(first)


async def test_a_list_that_holds_no_messages_is_refused_before_the_call(model: Model) -> None:
    with pytest.raises(BadRequest, match="not str"):
        await ContextRecovery(model)(messages=["hello"])

    assert model.sent() == []


@pytest.mark.proves("W8", "R1")
async def test_each_of_the_three_parts_can_be_replaced(model: Model) -> None:
    class Remembering:
        """A provider that needs no service."""

        async def history(self, budget: ContextBudget) -> History:
            assert budget.budget_tokens < 500
            return History(
                [
                    {"role": "user", "content": "It was said before."},
                    {"role": "assistant", "content": "word " * 900},
                ],
                910,
            )

    class Newest:
        """A compressor that keeps the newest message."""

        def tokens(self, messages: Sequence[Mapping[str, Any]]) -> int:
            return COUNTING.tokens(messages)

        def compress(
            self,
            messages: Sequence[Mapping[str, Any]],
            budget_tokens: int,
            *,
            is_emergency: bool = False,
        ) -> Compressed:
            assert (budget_tokens, is_emergency) == (500, False)
            return Compressed([dict(messages[-1])], 10, is_whole=False, omitted=len(messages) - 1)

    def shouting(
        system: MessageInput, history: Sequence[Mapping[str, Any]], user: MessageInput
    ) -> list[Json]:
        return [
            body | {"content": str(body["content"]).upper()}
            for body in assemble(system, history, user)
        ]

    complete = ContextRecovery(
        model, Remembering(), budget_tokens=500, compressor=Newest(), assembler=shouting
    )
    await complete(messages=[SYSTEM, {"role": "user", "content": "and now?"}])

    assert model.sent() == [[{"role": "user", "content": "AND NOW?"}]]


class SmallModel:
    """Reads so many tokens, and says so when it is sent more."""

    def __init__(self, reads_tokens: int) -> None:
        self.reads_tokens = reads_tokens
        self.refused = 0
        self.sent: list[list[Json]] = []

    async def __call__(self, *, messages: list[Json], **_: Any) -> Json:
        tokens = COUNTING.tokens(messages)
        if tokens > self.reads_tokens:
            self.refused += 1
            raise ProviderError(
                400,
                f"This model's maximum context length is {self.reads_tokens} tokens. "
                f"However, your messages resulted in {tokens} tokens.",
            )
        self.sent.append(messages)
        return {"role": "assistant", "content": f"Noted, that was part {len(self.sent) * 7}."}


@pytest.mark.proves("R5", "C65", "E1")
async def test_after_an_overflow_a_small_model_is_sent_summary_and_recent_messages(
    session: Session,
) -> None:
    model = SmallModel(16_000)
    complete = ContextRecovery(model, session, patience_seconds=20)
    messages: list[Json] = [SYSTEM]
    report = "a long report with many details about a subsystem. " * 130

    for number in range(40):
        question = {"role": "user", "content": f"Step {number}: {report}"}
        messages.append(question)
        await session.turn_completed([question])
        answer = await complete(messages=messages, model="small-model", temperature=0.2)
        messages.append(answer)
        await session.turn_completed([answer])
        if model.refused and number % 3 == 0:
            await eventually(lambda: summarised(session))

    status = await session.status()
    later = model.sent[-10:]
    assert model.refused == 1
    assert status["model"] == "small-model"
    assert all(sent[1]["content"].startswith("# Conversation Summary") for sent in later)
    for number, sent in enumerate(later, start=30):
        assert len(sent) > 4
        assert f"Step {number - 1}: " in json.dumps(sent[2:])
    assert (await session.context(wait_ms=5_000)).raw["window"]["model_window"] == 16_000


# --- the service is away


@pytest.mark.proves("R3", "C62")
async def test_without_a_service_the_list_is_trimmed_here_and_the_agent_answers(
    model: Model, server: NatsServer
) -> None:
    messages = await talked(None, turns=60)
    async with connect(server.url, environ={}) as client:
        complete = ContextRecovery(model, client.session("support", "user-42"), budget_tokens=3_000)
        answer = await complete(messages=messages, model="gpt-4.1")

    (sent,) = model.sent()
    assert answer["choices"][0]["message"]["content"]
    assert COUNTING.tokens(sent) <= 3_000
    assert validation_errors(sent) == []
    assert (sent[0], sent[-1]) == (SYSTEM, messages[-1])


@pytest.mark.proves("R3", "C62")
async def test_an_overflow_is_recovered_without_a_service_too_and_logged_with_its_values(
    model: Model, caplog: pytest.LogCaptureFixture
) -> None:
    messages = await talked(None)
    model.server.script = ["overflow"]
    async with connect(
        "nats://127.0.0.1:1",
        environ={},
        timeout_seconds=0.2,
        buffering=BufferOptions(close_seconds=0.1),
    ) as client:
        answer = await ContextRecovery(model, client.session("support", "user-42"))(
            messages=messages, model="gpt-4.1"
        )

    first, second = model.sent()
    assert answer["choices"][0]["message"]["content"]
    assert messages == second
    assert COUNTING.tokens(second) * 5 <= COUNTING.tokens(first) * 3
    assert "the agent's own list is trimmed (Unavailable)" in caplog.text
    assert re.search(r"calling again with at most \d+ tokens", caplog.text)


@pytest.mark.proves("R3")
async def test_what_is_appended_to_the_list_during_a_repeated_call_stays(model: Model) -> None:
    """A person may go on writing while the model works."""
    messages = await talked(None)
    later = {"role": "user", "content": "And the one before it, please."}

    async def call(**arguments: Any) -> Json:
        answer = await model(**arguments)
        messages.append(later)
        return answer

    model.server.script = ["overflow"]
    await ContextRecovery(call)(messages=messages, model="gpt-4.1")

    _, second = model.sent()
    assert messages == [*second, later]


@pytest.mark.proves("R3", "C62")
async def test_a_summary_told_before_the_service_went_away_stands_for_what_is_left_out(
    model: Model, tmp_path: Path
) -> None:
    async with running_system(tmp_path / "data") as system, client_of(system) as client:
        session = client.session("support", "user-42")
        messages = await talked(session, turns=40)
        await eventually(lambda: summarised(session))
        complete = patient(model, session, budget_tokens=3_000)
        await complete(messages=messages, model="gpt-4.1")
        await system.stop()
        complete = patient_no_more(complete)
        await complete(messages=messages, model="gpt-4.1")

    told, alone = model.sent()
    assert told[1]["content"].startswith("# ")
    assert alone[1] == told[1]
    assert COUNTING.tokens(alone) <= 3_000
    assert alone[-1] == messages[-1]


def patient_no_more(complete: ContextRecovery) -> ContextRecovery:
    """Nobody is there any more, so nobody is waited for."""
    complete._patience_seconds = 0.2
    return complete


# --- sub-agents


@pytest.mark.proves("R4")
async def test_a_sub_agent_works_in_a_session_of_its_own(model: Model, session: Session) -> None:
    async def work(complete: ContextRecovery, own: Session) -> str:
        messages: list[Json] = [{"role": "user", "content": "Find the parcel."}]
        await own.turn_completed(messages)
        answer = await complete(messages=messages, model="gpt-4.1")
        return str(answer["choices"][0]["message"]["content"])

    await session.turn_completed(turn(0))
    done = await run_subagent(work, model, parent=session, name="finder", patience_seconds=20)

    assert isinstance(done, SubagentResult)
    assert done.session.key == (session.key.agent_id, f"{session.key.session_id}/finder")
    assert [stored.message["content"] async for stored in done.session.originals()] == [
        "Find the parcel."
    ]
    assert len([stored async for stored in session.originals()]) == 4


@pytest.mark.proves("R4", "C63")
@pytest.mark.parametrize(
    ("second", "told"),
    [("overflow", "even after it was shortened"), ("500", "the shorter attempt failed")],
)
@pytest.mark.parametrize("grouped", ["nothing", "work", "call"])
async def test_a_second_failure_ends_a_sub_agent_with_a_text_and_leaves_its_parent_alone(
    model: Model, session: Session, second: str, told: str, grouped: str
) -> None:
    async def call(**arguments: Any) -> Any:
        async with asyncio.TaskGroup() if grouped == "call" else nullcontext():
            return await model(**arguments)

    async def work(complete: ContextRecovery, own: Session) -> str:
        # A task group, as clients of MCP servers have one, raises the error in a group.
        async with asyncio.TaskGroup() if grouped == "work" else nullcontext():
            await complete(messages=await talked(own), model="gpt-4.1")
        raise AssertionError("it was answered")

    parents = await talked(session, turns=2)
    before = copy.deepcopy(parents)
    model.server.script = ["overflow", second]
    ended = await run_subagent(work, call, parent=session, patience_seconds=20)
    answer = await patient(model, session)(messages=parents, model="gpt-4.1")

    assert isinstance(ended, SubagentFailure)
    assert ended.text.startswith("The sub-task was ended")
    assert told in ended.text
    assert answer["choices"][0]["message"]["content"]
    assert model.sent()[-1] == before == parents
    assert len([stored async for stored in session.originals()]) == 8


@pytest.mark.proves("R4", "C63")
async def test_an_error_of_the_sub_agents_own_work_rises_as_it_is(
    model: Model, session: Session
) -> None:
    async def work(complete: ContextRecovery, own: Session) -> str:
        raise LookupError("no such tool")

    with pytest.raises(LookupError, match="no such tool"):
        await run_subagent(work, model, parent=session)


@pytest.mark.proves("R4")
async def test_the_id_of_a_long_sessions_sub_agent_is_still_an_id(client: Client) -> None:
    long = client.session("support", "x" * 250)

    assert long.subsession("a-name").key.session_id.endswith("/a-name")
    assert long.subsession("one").key != client.session("support", "y" * 250).subsession("one").key
    assert long.subsession().key != long.subsession().key


@pytest.mark.proves("R4", "X2")
@pytest.mark.parametrize("name", ["\ud800", "a\n", "x" * 250])
async def test_a_name_that_a_model_gives_and_no_id_can_have_is_refused(
    session: Session, name: str
) -> None:
    with pytest.raises(BadRequest):
        session.subsession(name)
