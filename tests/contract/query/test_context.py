"""What `context.get` answers from any store: its shapes, its past, and its budgets."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from sqlalchemy import update

from tests.anthropic_faults import anthropic_faults
from tests.store_fixtures import (
    KEY,
    NOON,
    Stores,
    assistant,
    installation_of,
    result,
    summary,
    system,
    tightened,
    tool,
    turn,
    turns,
    user,
)
from turnfold.cache import SessionCaches
from turnfold.contracts.requests import (
    ContextRequest,
)
from turnfold.core.history.validation import validation_errors
from turnfold.core.policy.overrides import PolicyOverrides
from turnfold.core.policy.presets import Mode, Policy, preset_named
from turnfold.core.window.rendering.character_limit import next_chars_per_token
from turnfold.errors import BadRequest, CannotFit
from turnfold.messages import SessionKey
from turnfold.operations.query.as_of import parse_as_of
from turnfold.operations.query.context import context
from turnfold.operations.query.environment import ContextReply, QueryEnvironment
from turnfold.store.database.engine import Database
from turnfold.store.database.schema import messages

Json = dict[str, Any]
ANTHROPIC = {"format": "anthropic"}
NO_WISHES = (PolicyOverrides(), PolicyOverrides())


async def no_arrivals(seq: int, seconds: float) -> None:
    """Nothing comes."""
    raise AssertionError(f"nobody asked to wait {seconds} s for {seq}")


class Asker:
    """Asks a store as a query service does, remembering what it remembers."""

    def __init__(self, stores: Stores, policy: Policy | None = None, key: SessionKey = KEY) -> None:
        self._stores = stores
        self._key = key
        policy_of = installation_of(policy)[1] if policy else stores.policy
        self._environment = QueryEnvironment(
            policy_of, model_window=lambda _, numbers: numbers.context_window or 128_000
        )

    async def answer(self, **fields: Any) -> ContextReply:
        request = ContextRequest(**fields)
        return await context(
            self._key,
            request,
            store=self._stores.windows,
            environment=self._environment,
            ingest_signal=no_arrivals,
        )

    def forget(self) -> None:
        SessionCaches(*self._environment.caches).clear()

    @property
    def windows_kept(self) -> int:
        return len(self._environment.builders._entries)

    async def told(self, **fields: Any) -> Json:
        found: Json = json.loads((await self.answer(**fields)).body)
        return found


def total_of(told: Json) -> int:
    """What the account adds up to."""
    account: dict[str, int] = told["account"]
    return sum(
        account[name]
        for name in ("shown", "folded", "covered", "pending_shown", "pending_digested")
    )


@pytest.mark.proves("W1", "L5")
@pytest.mark.parametrize("placement", ["separate", "system", "message", "user"])
async def test_both_shapes_tell_the_same_window(stores: Stores, placement: str) -> None:
    await stores.ingest(
        *turns(1, 9), turn(10, user("look"), assistant(None, "a"), tool("a"), user("so?"))
    )
    (job,) = await stores.claim()
    await stores.jobs.commit(job, summary("They chose port 8443."), reason=None, now_ms=NOON)
    asker = Asker(stores)

    plain = await asker.told(placement=placement)
    shaped = await asker.told(placement=placement, format="anthropic")

    assert validation_errors(plain["messages"]) == []
    assert anthropic_faults(shaped["messages"]) == []
    assert "system" not in plain
    assert ("8443" in (shaped["system"] or "")) is (placement in ("system", "message"))
    assert ("8443" in json.dumps(shaped["messages"])) is (placement == "user")
    assert shaped["window"]["messages"] == len(shaped["messages"]) == len(shaped["message_ids"])
    flat = [
        one
        for entry in shaped["message_ids"]
        for one in (entry if isinstance(entry, list) else [entry])
    ]
    assert [one for one in flat if one] == [one for one in plain["message_ids"] if one]
    assert shaped["account"] == plain["account"]


@pytest.mark.proves("W1", "I1")
async def test_a_result_published_as_an_error_is_one_in_the_anthropic_shape(stores: Stores) -> None:
    await stores.ingest(
        turn(1, user("go"), assistant(None, "a")), result(2, "a", "no such file", is_error=True)
    )

    (*_, last) = (await Asker(stores).told(**ANTHROPIC))["messages"]

    assert last["content"][0]["is_error"] is True


@pytest.mark.proves("L6", "W1")
async def test_what_the_anthropic_shape_needs_is_said_and_is_enough(stores: Stores) -> None:
    await stores.ingest(turn(1, user("a question of some length, which must be shown")))
    asker = Asker(stores)
    with pytest.raises(CannotFit) as refused:
        await asker.answer(max_tokens=5, **ANTHROPIC)
    assert refused.value.needed_tokens is not None

    told = await asker.told(max_tokens=refused.value.needed_tokens, **ANTHROPIC)

    assert told["window"]["tokens"] <= refused.value.needed_tokens


@pytest.mark.proves("W6", "L7")
async def test_an_answer_of_the_past_adds_up_and_disturbs_no_other(stores: Stores) -> None:
    asker, undisturbed = Asker(stores), Asker(stores)
    await stores.ingest(*turns(1, 9))
    first = await asker.answer(max_tokens=5_000)
    then = await asker.told(max_tokens=5_000, as_of="e3#1")
    await stores.ingest(*turns(10, 9))

    now = await asker.answer(max_tokens=5_000)

    assert (then["account"]["total"], total_of(then)) == (6, 6)
    assert then["message_ids"] == ["e1#0", "e1#1", "e2#0", "e2#1", "e3#0", "e3#1"]
    assert now == await undisturbed.answer(max_tokens=5_000)
    assert await asker.told(max_tokens=5_000, as_of="e3#1") == {
        **then,
        "etag": (await asker.answer(max_tokens=5_000, as_of="e3#1")).etag,
    }
    assert (
        json.loads(first.body)["messages"]
        == (await asker.told(max_tokens=5_000, as_of="e9#1"))["messages"]
    )


@pytest.mark.proves("W6")
async def test_an_answer_is_given_again_while_nothing_has_changed_and_only_then(
    stores: Stores,
) -> None:
    await stores.ingest(*turns(1, 3))
    asker = Asker(stores)

    first = await asker.answer(max_tokens=5_000)
    again = await asker.answer(max_tokens=5_000)
    late = await asker.answer(max_tokens=5_000, after=999, wait_ms=0)
    other = await asker.answer(max_tokens=4_999)
    await stores.ingest(turn(9, user("more")))
    next_one = await asker.answer(max_tokens=5_000)

    assert (first.seconds is None, again.seconds, again) == (False, None, first)
    assert (late.is_fresh, json.loads(late.body)) == (
        False,
        json.loads(first.body) | {"fresh": False, "etag": late.etag},
    )
    assert late.etag != first.etag
    assert other.etag != first.etag
    assert b"more" in next_one.body
    asker.forget()
    assert (await asker.answer(max_tokens=5_000)).seconds is not None


@pytest.mark.proves("W6")
async def test_answers_of_other_moments_and_shapes_have_etags_of_their_own(stores: Stores) -> None:
    await stores.ingest(*turns(1, 5))
    asker = Asker(stores)
    asked: Sequence[Json] = [
        {},
        {"as_of": "e1#0"},
        {"as_of": "e1#1"},
        {"as_of": "2999-01-01T00:00:00Z"},
        ANTHROPIC,
        {**ANTHROPIC, "as_of": "e1#0"},
    ]

    tags = [(await asker.answer(**fields)).etag for fields in asked]
    again = [
        await asker.answer(**fields, etag=tag) for fields, tag in zip(asked, tags, strict=True)
    ]
    crossed = [await asker.answer(**fields, etag=tags[0]) for fields in asked[1:]]

    assert len(set(tags)) == len(tags)
    assert not any(answer.is_modified for answer in again)
    assert [json.loads(answer.body) for answer in again] == [
        {"not_modified": True, "etag": tag} for tag in tags
    ]
    assert all(answer.is_modified for answer in crossed)


@pytest.mark.proves("W6")
@pytest.mark.parametrize(
    "as_of",
    [
        "",
        "yesterday",
        "2026-11-20",
        "e9#0",
        "x#",
        "7",
        "2026-13-01T00:00:00Z",
        "\0#1",
        "9" * 200,
        "2026-11-20T10:00:00",
    ],
)
async def test_what_is_no_moment_of_the_session_is_a_bad_request(
    stores: Stores, as_of: str
) -> None:
    await stores.ingest(*turns(1, 2))

    with pytest.raises(BadRequest, match="as_of"):
        await Asker(stores).answer(as_of=as_of)


@pytest.mark.proves("W6")
def test_a_time_may_be_written_in_every_way_of_rfc_3339() -> None:
    written = [
        "2026-11-20T10:00:00.250Z",
        "2026-11-20t10:00:00.2509z",
        "2026-11-20 11:00:00.25+01:00",
        "2026-11-20T11:00:00.25 01:00",
    ]

    assert {parse_as_of(text) for text in written} == {parse_as_of("2026-11-20T04:30:00.250-05:30")}
    assert parse_as_of("2026-12-31T23:59:60Z") == parse_as_of("2027-01-01T00:00:00Z")
    assert parse_as_of("7") == parse_as_of(7)


@pytest.mark.proves("W2")
@pytest.mark.parametrize("max_chars", [900, 2_500, 6_000, 1_000_000])
@pytest.mark.parametrize("placement", ["separate", "user"])
@pytest.mark.parametrize("shape", ["openai", "anthropic"])
async def test_a_budget_in_characters_is_never_exceeded(
    stores: Stores, max_chars: int, placement: str, shape: str
) -> None:
    roomy = tightened(stores.policy(*NO_WISHES), max_chars=max_chars, max_live_messages=0)
    text = "some words, and 漢字の長い文 " * 12
    calls = [
        turn(seq, user(text), assistant(text, f"c{seq}"), tool(f"c{seq}", " " * 300 + "{}" * 90))
        for seq in range(1, 20)
    ]
    await stores.ingest(*calls)

    told = await Asker(stores, roomy).told(placement=placement, format=shape)

    assert sum(map(characters, told["messages"])) + len(told.get("system") or "") <= max_chars
    assert total_of(told) == 57
    if max_chars == 1_000_000:
        assert told["account"]["shown"] - told["account"]["trimmed"] > 0


@pytest.mark.proves("W2")
@pytest.mark.parametrize(
    "addition",
    [
        system("be brief"),
        user([{"type": "thought", "text": "a text in a part of no known type " * 3}]),
    ],
)
@pytest.mark.parametrize("shape", ["openai", "anthropic"])
async def test_texts_that_a_format_adds_count_into_a_budget_in_characters(
    stores: Stores, addition: Json, shape: str
) -> None:
    tight = tightened(stores.policy(*NO_WISHES), max_chars=1_500, max_live_messages=0)
    await stores.ingest(*[turn(seq, user("q"), addition, assistant("ok")) for seq in range(1, 41)])

    told = await Asker(stores, tight).told(format=shape)

    shown = sum(map(characters, told["messages"])) + len(told.get("system") or "")
    assert shown <= 1_500


TEXTS = ("content", "text", "arguments", "input", "name", "function", "tool_calls")


def characters(value: Any) -> int:
    """All texts in a message, whatever holds them."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        return sum(characters(one) for key, one in value.items() if key in TEXTS)
    return sum(map(characters, value)) if isinstance(value, list) else 0


@pytest.mark.proves("W2", "L6")
async def test_a_budget_in_characters_that_is_too_small_says_what_it_takes_in_tokens(
    stores: Stores,
) -> None:
    await stores.ingest(turn(1, user("a question")))
    asker = Asker(stores, tightened(stores.policy(*NO_WISHES), max_chars=3))
    with pytest.raises(CannotFit) as refused:
        await asker.answer()

    told = await asker.told(max_tokens=refused.value.needed_tokens)

    assert told["account"]["shown"] == 1


@pytest.mark.proves("W1", "W6", "O10")
async def test_an_answer_names_its_budget_its_account_and_what_waits_for_a_summary(
    stores: Stores,
) -> None:
    await stores.ingest(*turns(1, 9))
    (job,) = await stores.claim()
    await stores.jobs.commit(
        job, summary("They chose port 8443.", "id KX-1"), reason=None, now_ms=NOON + 5
    )
    await stores.ingest(*turns(10, 5))

    told = await Asker(stores).told(max_tokens=5_000)

    ids = [f"e{turn}#{place}" for turn in range(6, 15) for place in (0, 1)]
    assert {name: told[name] for name in told if name not in ("etag", "messages")} == {
        "agent_id": "ada",
        "session_id": "s-1",
        "fresh": True,
        "refused": 0,
        "summary": {
            "version": 1,
            "kind": "llm",
            "style": "structured",
            "model": "test/model",
            "text": "They chose port 8443.",
            "sections": {"context": "They chose port 8443."},
            "ledger": ["id KX-1"],
            "tokens": 8,
            "covers": {"first": "e1#0", "last": "e5#1", "messages": 10},
            "created_at": "2027-01-15T08:00:00.005Z",
        },
        "message_ids": ids,
        "window": {"tokens": 130, "budget_tokens": 5_000, "messages": 18, "model_window": 128_000},
        "account": {
            "total": 28,
            "shown": 8,
            "trimmed": 0,
            "folded": 0,
            "covered": 10,
            "pending_shown": 10,
            "pending_digested": 0,
            "recalled": 0,
            "synthesised": 0,
            "folded_told": 0,
            "untold": 0,
        },
        "recall": None,
        "pending": {"messages": 10, "tokens": 66, "since": "2027-01-15T08:00:00.012Z"},
    }


@pytest.mark.proves("W6", "L6", "O10")
async def test_a_window_grows_on_for_the_next_request_and_that_of_an_emergency_does_not(
    stores: Stores,
) -> None:
    await stores.ingest(*turns(1, 3))
    asker = Asker(stores)

    await asker.answer(max_tokens=5_000, mode="emergency")
    after_emergency = asker.windows_kept
    await asker.answer(max_tokens=5_000)

    assert (after_emergency, asker.windows_kept) == (0, 1)


@pytest.mark.proves("W2", "O10")
@pytest.mark.parametrize(
    ("numbers", "asked", "budget"),
    [
        ({}, {"max_tokens": 5_000}, 5_000),
        ({"max_chars": 900}, {}, 900),
        ({"max_chars": 900}, {"max_tokens": 5_000}, 5_000),
        ({"max_chars": 1_000_000, "margin_tokens": 500}, {"max_output_tokens": 1_000}, 126_500),
        ({"mode": "off"}, {}, None),
        ({"mode": "off", "max_chars": 900}, {}, None),
        ({"mode": "off", "max_chars": 900}, {"max_tokens": 5_000}, 5_000),
    ],
)
async def test_the_budget_is_what_was_asked_for_else_the_smaller_of_window_and_characters(
    stores: Stores, numbers: Json, asked: Json, budget: int | None
) -> None:
    await stores.ingest(turn(1, user("short")))

    told = await Asker(stores, tightened(stores.policy(*NO_WISHES), **numbers)).told(**asked)

    assert told["window"]["budget_tokens"] == budget


@pytest.mark.proves("W2", "O10")
@pytest.mark.parametrize(
    ("spread", "characters", "max_characters", "expected"),
    [
        (1.0, 7_000, 6_000, 1.25),
        (1.0, 7_500, 6_000, 1.25),
        (1.0, 7_501, 6_000, 1.5625),
        (1.25, 7_000, 6_000, 1.5625),
        (1.0, 3, 0, 3.0517578125),
    ],
)
def test_the_next_ratio_of_characters_to_tokens_is_the_first_step_that_may_fit(
    spread: float, characters: int, max_characters: int, expected: float
) -> None:
    assert next_chars_per_token(spread, characters, max_characters) == expected


@pytest.mark.proves("W12", "C68")
@pytest.mark.parametrize("mark", [{"is_meta": True}, {}])
@pytest.mark.parametrize("max_tokens", [300, 600, 1_200])
async def test_a_message_that_a_program_wrote_is_not_the_request(
    stores: Stores, max_tokens: int, mark: Json
) -> None:
    reminder = user("Reflect on the results and decide next steps.")
    work = [user("Fix the bug in the parser.")]
    for number in range(4):
        work += [
            assistant(None, f"c{number}"),
            tool(f"c{number}", "x" * 1_000),
            reminder | mark,
        ]
    await stores.ingest(*turns(1, 3), turn(4, *work))

    window = await Asker(stores, Policy(mode=Mode.MANUAL)).told(max_tokens=max_tokens)

    assert work[0] in window["messages"]
    assert not any("is_meta" in body for body in window["messages"])


@pytest.mark.proves("W1", "W8")
async def test_what_is_shown_as_stored_may_be_left_out_and_nothing_else(stores: Stores) -> None:
    await stores.ingest(
        turn(1, user("look"), assistant(None, "a"), tool("a", "a line of a log\n" * 800)),
        turn(2, user("so?")),
    )
    asker = Asker(stores)

    told = await asker.told(max_tokens=1_000, entries=True)
    brief = await asker.told(max_tokens=1_000, entries=True, bodies="changed")

    forms = [entry["form"] for entry in told["entries"]]
    assert forms[0] == forms[-1] == "whole"
    assert set(forms) > {"whole"}
    assert brief["messages"] == [
        None if form == "whole" else message
        for form, message in zip(forms, told["messages"], strict=True)
    ]
    assert brief["entries"] == told["entries"]


@pytest.mark.proves("E6")
@pytest.mark.parametrize("preset", ["static-buffer", "adaptive", "balanced"])
async def test_a_session_that_is_switched_off_shows_all_that_is_in_no_summary(
    stores: Stores, preset: str
) -> None:
    await stores.ingest(*turns(1, 30))
    numbers = preset_named(preset)

    window = await Asker(stores, tightened(numbers, mode="off")).told()

    assert (await stores.facts()).pending
    assert [body["content"] for body in window["messages"]] == [
        text for seq in range(1, 31) for text in (f"question {seq}", f"answer {seq}")
    ]


@pytest.mark.proves("C54", "W9")
@pytest.mark.parametrize(
    "gist",
    [
        '[[["f(/etc/hosts)",5],["g(x)",4]],[["/etc/hosts",3,9]]]',
        '[[["f(/etc/hosts)",5],["g(x)",4]],[["/etc/hosts",3,9]],null]',
        "3/3 Look.",
    ],
)
async def test_a_window_tells_of_messages_with_gists_in_another_form(
    stores: Stores, database: Database, gist: str
) -> None:
    """C54: the first code of revision 1003 wrote two other forms than that of today."""
    await stores.ingest(
        turn(1, user("Look."), assistant(None, "a"), tool("a", "nothing " * 90)),
        turn(2, user("Again."), assistant(None, "b"), tool("b", "nothing " * 90)),
        turn(3, user("Thanks."), assistant("You are welcome.")),
    )
    changed = update(messages).values(gist=gist)
    await database.write(lambda connection: connection.execute(changed))

    told = await Asker(stores).told(max_tokens=90)

    assert (told["account"]["folded_told"], told["account"]["untold"]) == (7, 0)
    assert "7 messages with 2 tool calls are left out" in json.dumps(told["messages"])
