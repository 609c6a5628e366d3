"""The loop around a model that reads little: how often it is asked in vain, and what it is sent."""

import asyncio
from typing import Any

import pytest

from tests.histories import counter, words
from turnfold import ContextBudget, ContextOverflow, ContextRecovery, History, LadderCompressor
from turnfold.client.provider import WindowReport
from turnfold.core.history.validation import validation_errors
from turnfold.core.window.framing import DIGEST_TITLE, HEADING
from turnfold.errors import Unavailable

Json = dict[str, Any]
COUNTING = LadderCompressor(counter())
NOTE: Json = {"role": "user", "content": f"{HEADING}\nThey met."}


class TooLong(Exception):
    status_code = 400


class SmallModel:
    """Reads so many tokens, of which it counts a fifth more than we do, and refuses more in the words of a provider."""

    def __init__(self, reads_tokens: int, *, tells_sizes: bool) -> None:
        self.reads_tokens = reads_tokens
        self.tells_sizes = tells_sizes
        self.refused = 0
        self.sent: list[list[Json]] = []

    async def __call__(self, *, messages: list[Json], **_: Any) -> str:
        self.sent.append(messages)
        tokens = COUNTING.tokens(messages) * 6 // 5
        if tokens <= self.reads_tokens:
            return "ok"
        self.refused += 1
        sizes = f"prompt is too long: {tokens} tokens > {self.reads_tokens} maximum"
        raise TooLong(sizes if self.tells_sizes else "Input is too long for requested model.")


def step(number: int) -> list[Json]:
    """A call and its result, of very different sizes."""
    function = {"name": "run", "arguments": f'{{"command": "make step-{number}"}}'}
    call = {"id": "call", "type": "function", "function": function}
    return [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {
            "role": "tool",
            "tool_call_id": "call",
            "content": words([20, 900, 150, 3_000][number % 4]),
        },
    ]


@pytest.mark.proves("R1", "C59", "L5")
@pytest.mark.parametrize("tells_sizes", [True, False])
async def test_a_long_tool_loop_overflows_once_and_never_again(tells_sizes: bool) -> None:
    model = SmallModel(8_000, tells_sizes=tells_sizes)
    complete = ContextRecovery(model)
    request = {"role": "user", "content": "Build it all."}
    messages: list[Json] = [{"role": "system", "content": "You are careful."}, request]

    for number in range(60):
        await complete(messages=messages, model="unknown-model")
        messages += step(number)

    assert model.refused == 1
    assert len(model.sent) == 61
    assert all(validation_errors(sent) == [] and request in sent for sent in model.sent)


@pytest.mark.proves("R1", "C59")
@pytest.mark.parametrize(("settings", "answer"), [({"max_tokens": 4_000}, 4_000), ({}, 7_000)])
async def test_a_limit_that_counts_the_answer_leaves_the_messages_all_the_rest(
    settings: Json, answer: int
) -> None:
    """R1: messages were compared with messages and answer, and got half of what fits."""
    sent: list[int] = []
    refused = 0

    async def call(*, messages: list[Json], **_: Any) -> str:
        nonlocal refused
        sent.append(COUNTING.tokens(messages))
        if sent[-1] + answer <= 12_000:
            return "ok"
        refused += 1
        raise TooLong(
            "This model's maximum context length is 12000 tokens. However, you requested"
            f" {sent[-1] + answer} tokens ({sent[-1]} in the messages, {answer} in the completion)."
        )

    complete = ContextRecovery(call, context_window=20_000)
    messages: list[Json] = []
    for _ in range(60):
        messages.append({"role": "user", "content": words(300)})
        await complete(messages=messages, model="m", **settings)

    assert refused == 1
    # Both leave the least budget, 4,096 tokens, of which a window takes at least 85%.
    assert max(sent[-20:]) > 3_300


@pytest.mark.proves("R1", "C59")
@pytest.mark.parametrize("names_answer", [True, False])
@pytest.mark.parametrize(("window", "answer"), [(2_048, 1_000), (4_096, 2_000), (6_000, 4_000)])
async def test_a_small_window_that_the_answer_shares_overflows_once(
    window: int, answer: int, names_answer: bool
) -> None:
    """R1: such a limit leaves less than 4,096 tokens, the least budget of a policy."""
    refused = 0

    async def call(*, messages: list[Json], **_: Any) -> str:
        nonlocal refused
        tokens = COUNTING.tokens(messages)
        if tokens + answer <= window:
            return "ok"
        refused += 1
        limit = f"This model's maximum context length is {window} tokens"
        raise TooLong(
            f"{limit}. However, you requested {tokens + answer} tokens ({tokens} in the messages,"
            f" {answer} in the completion)."
            if names_answer
            else f"'max_tokens' is too large: {answer}. {limit} and your request has {tokens} input"
            f" tokens ({answer} > {window} - {tokens})."
        )

    complete = ContextRecovery(call)
    messages: list[Json] = []
    for _ in range(40):
        messages.append({"role": "user", "content": words(150)})
        await complete(messages=messages, model="unknown-model", max_tokens=answer)

    assert refused == 1


@pytest.mark.proves("R1", "L6")
async def test_what_no_model_could_be_sent_is_refused_before_the_call() -> None:
    model = SmallModel(8_000, tells_sizes=True)

    with pytest.raises(ContextOverflow):
        await ContextRecovery(model, budget_tokens=100)(
            messages=[{"role": "system", "content": words(900)}, {"role": "user", "content": "?"}]
        )

    assert model.sent == []


@pytest.mark.proves("R3", "C62")
async def test_a_provider_that_does_not_answer_is_waited_for_once_and_then_left_alone() -> None:
    class Hanging:
        asked = 0

        async def history(self, budget: ContextBudget) -> History:
            self.asked += 1
            await asyncio.Event().wait()
            raise AssertionError(budget)

    model, hanging = SmallModel(8_000, tells_sizes=True), Hanging()
    complete = ContextRecovery(model, hanging, patience_seconds=0.05, away_seconds=3_600)
    messages: list[Json] = [{"role": "user", "content": "Hello"}]

    answers = [await complete(messages=messages), await complete(messages=messages)]

    assert answers == ["ok", "ok"]
    assert model.sent == [messages, messages]
    assert hanging.asked == 1


@pytest.mark.proves("R1")
async def test_answers_that_are_models_of_a_library_may_stand_in_the_list() -> None:
    class Answer:
        """As litellm's answers are: no dictionary, but it can be made one."""

        def model_dump(self, *, exclude_none: bool) -> Json:
            assert exclude_none
            return {"role": "assistant", "content": "Hi."}

    model = SmallModel(8_000, tells_sizes=True)

    await ContextRecovery(model)(messages=[{"role": "user", "content": "Hello"}, Answer()])

    assert model.sent == [
        [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi."}]
    ]


@pytest.mark.proves("W12", "C68", "R1")
@pytest.mark.parametrize("is_published", [False, True])
async def test_the_request_of_a_person_stays_where_a_program_writes_after_each_step(
    is_published: bool,
) -> None:
    class Service:
        """Has all but the newest step, without marks, as a window has it."""

        async def history(self, budget: ContextBudget) -> History:  # noqa: ARG002
            known = [
                {name: value for name, value in body.items() if name != "is_meta"}
                for body in messages[1:-3]
            ]
            return History(known, COUNTING.tokens(known))

    request = {"role": "user", "content": "Build it all."}
    reminder = {"role": "user", "content": "Reflect on the results."}
    messages: list[Json] = [{"role": "system", "content": "You are careful."}]
    for number in range(6):
        messages += [{"role": "user", "content": f"{number}: {words(300)}"}, *step(number)]
    messages.append(request)
    model = SmallModel(8_000, tells_sizes=True)
    complete = ContextRecovery(model, Service() if is_published else None)

    for number in range(12):
        messages += [*step(number), reminder | {"is_meta": True}]
        await complete(messages=messages, model="unknown-model")

    assert all(request in sent for sent in model.sent)
    assert not any("is_meta" in body for sent in model.sent for body in sent)
    marks = [body.get("is_meta") for body in messages if body["content"] == reminder["content"]]
    assert marks == [True] * len(marks) != []


class Reporting:
    """A source of history that is told what calls teach, and knows what others learned."""

    def __init__(self, known: list[Json], model_window: int | None = None) -> None:
        self.known = known
        self.model_window = model_window
        self.reports: list[tuple[str, WindowReport]] = []
        self.asked: list[ContextBudget] = []

    async def history(self, budget: ContextBudget) -> History:
        self.asked.append(budget)
        return History(self.known, COUNTING.tokens(self.known), model_window=self.model_window)

    async def report(self, model: str, report: WindowReport) -> None:
        self.reports.append((model, report))


@pytest.mark.proves("R5")
@pytest.mark.parametrize("tells_sizes", [True, False])
async def test_what_an_overflow_taught_is_reported_once(tells_sizes: bool) -> None:
    model, provider = SmallModel(8_000, tells_sizes=tells_sizes), Reporting([])
    messages: list[Json] = [{"role": "user", "content": words(300)} for _ in range(60)]
    complete = ContextRecovery(model, provider)

    for _ in range(3):
        await complete(messages=messages, model="unknown-model")
        messages.append({"role": "user", "content": "Go on."})

    ((name, report),) = provider.reports
    sent = COUNTING.tokens(model.sent[0]) * 6 // 5
    assert (name, report) == (
        "unknown-model",
        WindowReport(
            limit_tokens=8_000 if tells_sizes else None,
            prompt_tokens=sent if tells_sizes else None,
            is_overflow=True,
        ),
    )


@pytest.mark.proves("R5")
async def test_after_an_overflow_larger_calls_that_succeed_are_reported() -> None:
    calls = iter([None, 900, 950, 1_200, 1_250])

    async def call(**_: Any) -> Json:
        tokens = next(calls)
        if tokens is None:
            raise TooLong("Input is too long for requested model.")
        return {"usage": {"prompt_tokens": tokens}}

    provider = Reporting([])
    complete = ContextRecovery(call, provider)

    for _ in range(4):
        messages: list[Json] = [{"role": "user", "content": words(50)} for _ in range(9)]
        await complete(messages=messages, model="unknown-model")
    await asyncio.sleep(0)

    assert [report.prompt_tokens for _, report in provider.reports] == [None, 900, 1_200]
    assert [report.is_overflow for _, report in provider.reports] == [True, False, False]


@pytest.mark.proves("R5")
async def test_the_window_that_a_session_has_learned_counts_from_the_first_call_on() -> None:
    known: list[Json] = [{"role": "user", "content": words(300)} for _ in range(60)]
    model, provider = SmallModel(8_000, tells_sizes=True), Reporting(known, model_window=8_000)
    complete = ContextRecovery(model, provider)

    await complete(messages=[{"role": "user", "content": "So?"}], model="unknown-model")

    assert (model.refused, len(model.sent)) == (0, 1)
    assert [budget.budget_tokens > 8_000 for budget in provider.asked] == [True, False]


@pytest.mark.proves("R5", "R3")
async def test_a_service_that_takes_no_report_delays_and_fails_no_call() -> None:
    class Away(Reporting):
        async def report(self, model: str, report: WindowReport) -> None:
            await super().report(model, report)
            raise Unavailable("nobody answers")

    provider = Away([])
    messages: list[Json] = [{"role": "user", "content": words(300)} for _ in range(60)]

    answer = await ContextRecovery(SmallModel(8_000, tells_sizes=True), provider)(
        messages=messages, model="unknown-model"
    )

    assert (answer, len(provider.reports)) == ("ok", 1)


@pytest.mark.proves("R6", "R1")
async def test_an_overflow_that_a_host_answers_as_text_is_recovered() -> None:
    async def call(*, messages: list[Json], **_: Any) -> Json:
        tokens = COUNTING.tokens(messages)
        if tokens <= 8_000:
            return {"content": "ok", "finish_reason": "stop"}
        text = f"Error: prompt is too long: {tokens} tokens > 8000 maximum"
        return {"content": text, "finish_reason": "error"}

    messages: list[Json] = [{"role": "user", "content": words(300)} for _ in range(60)]

    answer = await ContextRecovery(call)(messages=messages, model="unknown-model")

    assert answer["content"] == "ok"
    assert COUNTING.tokens(messages) <= 8_000


@pytest.mark.proves("R1", "L1")
@pytest.mark.parametrize("provider", [None, Reporting([NOTE])], ids=["alone", "summary only"])
async def test_a_list_that_has_to_be_trimmed_keeps_a_request_that_begins_like_a_note(
    provider: Reporting | None,
) -> None:
    sent: list[list[Json]] = []

    async def call(*, messages: list[Json], **_: Any) -> str:
        sent.append(messages)
        return "ok"

    request = {"role": "user", "content": f"{DIGEST_TITLE}So says your page. Why?"}
    messages = [NOTE, *step(1), *step(3), *step(7), request]
    await ContextRecovery(call, provider, budget_tokens=1_000)(messages=messages)

    assert len(sent[0]) < len(messages) or COUNTING.tokens(sent[0]) < COUNTING.tokens(messages)
    assert (sent[0][0], sent[0][-1]) == (NOTE, request)
    assert sent[0].count(request) == 1


@pytest.mark.proves("R1", "R3")
async def test_without_any_request_the_summary_in_the_list_is_sent_once() -> None:
    class Leaving:
        is_away = False

        async def history(self, _: ContextBudget) -> History:
            if self.is_away:
                raise Unavailable("away")
            return History([NOTE, *step(20)], COUNTING.tokens([NOTE, *step(20)]))

    provider, model = Leaving(), SmallModel(1_500, tells_sizes=True)
    complete = ContextRecovery(model, provider, budget_tokens=1_500)
    messages: list[Json] = [{"role": "system", "content": "Watch."}]
    for number in range(30):
        messages += step(number)
    await complete(messages=messages)
    provider.is_away = True
    for number in range(30, 60):
        messages += step(number)

    await complete(messages=messages)

    assert [model.sent[0].count(NOTE), model.sent[-1].count(NOTE)] == [1, 1]
