"""What requests are answered with, from any store: histories, versions, audits, dead letters and campaigns, as they travel."""

import json
from typing import Any

import pytest

from tests.store_fixtures import KEY, NOON, Stores, assistant, result, summary, turn, turns, user
from turnfold.contracts.history_requests import AuditRequest, HistoryRequest, SearchRequest
from turnfold.contracts.requests import (
    CampaignRequest,
    ProgressRequest,
    RegenerateRequest,
    ReplayRequest,
    RestoreRequest,
    SessionRequest,
    SummaryRequest,
)
from turnfold.errors import BadRequest, UnknownSession
from turnfold.messages import AgentId, SessionId, SessionKey, position_of
from turnfold.operations.compact import versions
from turnfold.operations.ingest.decode import Delivery, decode_batch
from turnfold.operations.ingest.ingest import ingest
from turnfold.operations.query import dead_letters as letters
from turnfold.operations.query import history
from turnfold.operations.query.search import search

Json = dict[str, Any]
NOBODY = SessionKey(AgentId("ada"), SessionId("never"))
NOON_TEXT = "2027-01-15T08:00:00"


async def two_versions(stores: Stores) -> None:
    """Seven turns twice, and a version for each time."""
    for number in (1, 2):
        await stores.ingest(*turns(10 * number, 7))
        (job,) = await stores.claim(NOON + 1_000 * number)
        await stores.jobs.commit(
            job,
            summary(f"Version {number}.", f"id KX-{number}"),
            reason=None,
            now_ms=NOON + 1_000 * number,
        )


async def page(stores: Stores, **fields: Any) -> Json:
    found: Json = json.loads(
        await history.history(KEY, HistoryRequest(**fields), store=stores.history)
    )
    return found


# --- originals


@pytest.mark.proves("O10")
async def test_a_history_comes_in_pages_that_name_the_next_and_then_none(stores: Stores) -> None:
    await stores.ingest(
        turn(1, user("look"), assistant(None, "a")),
        result(2, "a", [{"type": "text", "text": "42"}]),
    )

    first = await page(stores, limit=2)
    last = await page(stores, limit=2, after_position=first["next_position"])
    behind = await page(stores, after_position=position_of(9, 0))

    assert [(one["message_id"], one["position"], one["state"]) for one in first["messages"]] == [
        ("e1#0", position_of(1, 0), "live"),
        ("e1#1", position_of(1, 1), "live"),
    ]
    assert first["messages"][0]["message"] == user("look")
    assert first["next_position"] == position_of(1, 1)
    assert [one["message_id"] for one in last["messages"]] == ["e2#0"]
    assert last["next_position"] is None
    assert behind == {"messages": [], "next_position": None}


@pytest.mark.proves("O10")
async def test_a_page_that_ends_with_the_session_names_no_next_one(stores: Stores) -> None:
    await stores.ingest(*turns(1, 2))

    assert (await page(stores, limit=4))["next_position"] is None
    assert (await page(stores, limit=3))["next_position"] == position_of(2, 0)


@pytest.mark.proves("O10")
async def test_messages_are_named_in_any_order_and_each_is_answered(stores: Stores) -> None:
    await stores.ingest(*turns(1, 3))

    named = await page(stores, message_ids=["e3#0", "e1#1", "none#0"])

    assert {one["message_id"] for one in named["messages"]} == {"e3#0", "e1#1"}
    assert named["next_position"] is None


@pytest.mark.proves("F1", "O10")
async def test_hits_travel_with_their_score_and_as_they_were_stored(stores: Stores) -> None:
    await stores.ingest(
        turn(1, user("amber")), turn(2, assistant("an amber lamp")), turn(3, user("amber again"))
    )

    async def hits(**fields: Any) -> list[Json]:
        answer = json.loads(
            await search(KEY, SearchRequest(q="amber", **fields), store=stores.search)
        )
        assert answer["is_partial"] is False
        found: list[Json] = answer["hits"]
        return found

    every = await hits()

    assert [set(one) for one in every] == [
        {"message_id", "position", "state", "score", "message"}
    ] * 3
    assert [one["score"] for one in every] == sorted((one["score"] for one in every), reverse=True)
    assert {one["message"]["content"] for one in every} == {"amber", "an amber lamp", "amber again"}
    assert [one["message_id"] for one in await hits(role="assistant")] == ["e2#0"]
    assert [one["message_id"] for one in await hits(state="covered")] == []
    assert {one["message_id"] for one in await hits(state="live")} == {"e1#0", "e2#0", "e3#0"}
    assert [one["message_id"] for one in await hits(after_position=position_of(2, 0))] == ["e3#0"]
    assert [one["message_id"] for one in await hits(before_position=position_of(2, 0))] == ["e1#0"]
    assert len(await hits(limit=2)) == 2


# --- sessions


@pytest.mark.proves("A2", "O10")
async def test_sessions_come_in_pages_with_their_counters(stores: Stores) -> None:
    keys = [SessionKey(AgentId(agent), SessionId(f"s-{agent}")) for agent in ("ada", "bob", "eve")]
    await stores.ingest(*[turn(seq, user("hi"), key=key) for seq, key in enumerate(keys, start=1)])

    async def listed(
        after: str | None = None, agents: list[str] | None = None, limit: int = 2
    ) -> tuple[list[str], str | None]:
        found = await history.sessions(
            agent_ids=agents, after=after, limit=limit, store=stores.history
        )
        return [one["agent_id"] for one in found["sessions"]], found["next_after"]

    first, next_after = await listed()
    rest, end = await listed(next_after)

    assert (first, rest, end) == (["eve", "bob"], ["ada"], None)
    assert await listed(agents=["bob"]) == (["bob"], None)
    for wrong in ("yesterday", "1", "1.", "1.2", "1.a.b.c", "-2.a.b", "1.%.b"):
        with pytest.raises(BadRequest, match="after"):
            await listed(wrong)


@pytest.mark.proves("A2", "O10")
async def test_a_session_tells_its_counters(stores: Stores) -> None:
    await two_versions(stores)

    told = await history.session(KEY, SessionRequest(), store=stores.history)

    assert (told["agent_id"], told["session_id"], told["cooldown"]) == ("ada", "s-1", None)
    assert told["last_event_at"] == f"{NOON_TEXT}.026Z"
    assert told["usage"] == {"state": "calm", "reported_tokens": 0}
    assert set(told["audit"]) == {"rows", "hash"}
    assert (
        told["messages_covered"]
        == told["messages_total"] - told["messages_live"] - told["messages_pending"]
        > 0
    )
    assert "sid" not in told


# --- versions


@pytest.mark.proves("A3", "O10")
async def test_versions_are_listed_without_their_texts_and_told_whole_one_by_one(
    stores: Stores,
) -> None:
    await two_versions(stores)

    listed = (await history.summaries(KEY, SessionRequest(), store=stores.history))["summaries"]
    first = await history.summary(KEY, SummaryRequest(version=1), store=stores.history)

    assert [(one["version"], one["base_version"], one["in_force"]) for one in listed] == [
        (1, None, False),
        (2, 1, True),
    ]
    assert all(not {"text", "sections", "ledger"} & set(one) for one in listed)
    assert {name: first[name] for name in listed[0]} == listed[0]
    assert (first["text"], first["ledger"], first["created_at"]) == (
        "Version 1.",
        ["id KX-1"],
        "2027-01-15T08:00:01.000Z",
    )
    assert (first["kind"], first["model"], first["covers"]["first"]) == (
        "llm",
        "test/model",
        "e10#0",
    )
    with pytest.raises(BadRequest, match=r"^there is no version 7"):
        await history.summary(KEY, SummaryRequest(version=7), store=stores.history)


@pytest.mark.proves("A4", "L10", "O10")
async def test_a_version_is_promoted_and_a_compaction_undone_by_request(stores: Stores) -> None:
    await two_versions(stores)
    second = await history.summary(KEY, SummaryRequest(version=2), store=stores.history)

    await stores.versions.promote(
        KEY, 1, over=None, installation=stores.installation, now_ms=NOON + 9_000
    )
    in_force = [
        one["in_force"]
        for one in (await history.summaries(KEY, SessionRequest(), store=stores.history))[
            "summaries"
        ]
    ]
    await stores.versions.promote(
        KEY, 2, over=1, installation=stores.installation, now_ms=NOON + 9_050
    )
    undone = await versions.restore(
        KEY,
        RestoreRequest(compaction_id=second["compaction_id"]),
        store=stores.versions,
        installation=stores.installation,
        now_ms=NOON + 9_100,
    )

    assert in_force == [True, False]
    assert undone == {
        "compaction_id": second["compaction_id"],
        "status": "restored",
        "version": 1,
        "messages_pending": 0,
    }
    assert (await stores.history.counts(KEY)).messages_live == 18


@pytest.mark.proves("A6", "O10")
async def test_a_version_is_written_again_as_the_request_wants(stores: Stores) -> None:
    await two_versions(stores)
    request = RegenerateRequest(
        style="narrative", prompt="Say it in {words} words.", from_version=1
    )

    begun = await versions.regenerate(
        KEY, request, store=stores.versions, installation=stores.installation, now_ms=NOON + 9_000
    )
    (job,) = await stores.claim(NOON + 60_000)

    assert begun == {"compaction_id": job.compaction_ids[0]}
    assert (job.wanted.style, job.wanted.prompt, job.wanted.from_version) == (
        "narrative",
        "Say it in {words} words.",
        1,
    )
    for wrong, name in (
        (RegenerateRequest(model="two words"), "model"),
        (RegenerateRequest(prompt="{nobody}"), "prompt"),
    ):
        with pytest.raises(BadRequest, match=name):
            await versions.regenerate(
                KEY, wrong, store=stores.versions, installation=stores.installation, now_ms=NOON
            )


@pytest.mark.proves("A6", "O10")
async def test_a_campaign_tells_how_far_it_is_and_when_it_began(stores: Stores) -> None:
    await two_versions(stores)
    request = CampaignRequest(style="narrative", at_once=3)

    begun = await versions.begin_campaign(
        AgentId("ada"),
        request,
        store=stores.campaigns,
        installation=stores.installation,
        now_ms=NOON + 9_000,
    )
    told = await versions.progress(
        ProgressRequest(campaign_id=begun["campaign_id"]), store=stores.campaigns
    )

    assert begun == told
    assert (told["requested_at"], told["finished_at"]) == ("2027-01-15T08:00:09.000Z", None)
    nothing = await versions.begin_campaign(
        AgentId("bob"),
        request,
        store=stores.campaigns,
        installation=stores.installation,
        now_ms=NOON + 9_500,
    )
    assert nothing["finished_at"] == "2027-01-15T08:00:09.500Z"
    with pytest.raises(BadRequest, match="campaign_id"):
        await versions.progress(ProgressRequest(campaign_id="none"), store=stores.campaigns)


# --- the audit


@pytest.mark.proves("A1", "O10")
async def test_audit_rows_are_counted_per_session_and_asked_for_from_any_of_them(
    stores: Stores,
) -> None:
    await two_versions(stores)

    async def rows(after: int = 0, limit: int = 100) -> list[Json]:
        found: list[Json] = (
            await history.audit(KEY, AuditRequest(after=after, limit=limit), store=stores.history)
        )["audit"]
        return found

    every = await rows()

    assert [one["audit_id"] for one in every] == list(range(1, len(every) + 1))
    assert [one["audit_id"] for one in await rows(after=2, limit=2)] == [3, 4]
    assert await rows(after=len(every)) == []
    assert all(
        one["compaction_id"] is None or isinstance(one["compaction_id"], str) for one in every
    )
    committed = next(one for one in every if one["phase"] == "summary_done")
    assert committed["at"] == "2027-01-15T08:00:01.000Z"
    with pytest.raises(UnknownSession):
        await history.audit(NOBODY, AuditRequest(), store=stores.history)
    assert await history.audit(NOBODY, AuditRequest(after=1), store=stores.history) == {
        "audit": [],
        "end": {"rows": 0, "hash": ""},
    }


# --- dead letters


class Stream:
    """A stream that takes events, and has the payloads of some."""

    def __init__(self, payloads: dict[int, bytes]) -> None:
        self._payloads = payloads
        self.published: list[tuple[str, bytes, int]] = []

    async def payload_of(self, seq: int) -> bytes | None:
        return self._payloads.get(seq)

    async def publish_again(self, subject: str, payload: bytes, *, seq: int) -> int:
        self.published.append((subject, payload, seq))
        return 100 + len(self.published)


async def buried(stores: Stores, *payloads: bytes) -> None:
    deliveries = [
        Delivery("turn.completed", payload, seq, NOON + seq)
        for seq, payload in enumerate(payloads, start=1)
    ]
    await ingest(
        decode_batch(deliveries, count=len), store=stores.intake, installation=stores.installation
    )


@pytest.mark.proves("I5", "O10")
async def test_a_dead_letter_is_told_without_its_bytes_and_shown_with_them(stores: Stores) -> None:
    await buried(stores, b"{", b"\xff{")
    await stores.letters.replayed(2, now_ms=NOON + 9_000)

    listed = (await history.dead_letters(after=0, limit=9, store=stores.history))["dead_letters"]
    text, binary = [await letters.show(number, store=stores.letters) for number in (1, 2)]

    assert [(one["dead_letter_id"], one["at"], one["replayed_at"]) for one in listed] == [
        (1, f"{NOON_TEXT}.001Z", None),
        (2, f"{NOON_TEXT}.002Z", "2027-01-15T08:00:09.000Z"),
    ]
    assert "at_ms" not in listed[0]
    assert text == listed[0] | {"is_whole": True, "payload": "{"}
    assert binary == listed[1] | {"is_whole": True, "payload_base64": "/3s="}
    assert (await history.dead_letters(after=1, limit=9, store=stores.history))[
        "dead_letters"
    ] == listed[1:]
    with pytest.raises(BadRequest, match="there is no dead letter 7"):
        await letters.show(7, store=stores.letters)


@pytest.mark.proves("I5", "O10")
async def test_replayed_letters_are_told_with_what_came_of_them(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(letters, "SETTLE_SECONDS", 0.0)
    await buried(stores, b"{", b"[]", b"{")
    await stores.letters.replayed(2, now_ms=NOON)
    stream = Stream({})
    # What is published as 101 was stored, what is published as 102 was bad again.
    await stores.intake.ingest(
        [turn(101, user("hi"))],
        decode_batch([Delivery("turn.completed", b"{", 102, NOON)], count=len).dead,
        installation=stores.installation,
    )

    told = await letters.replay(
        ReplayRequest(dead_letter_ids=[1, 2, 3, 77]),
        store=stores.letters,
        stream=stream,
        now_ms=lambda: NOON + 9_000,
    )

    assert stream.published == [
        ("turn.completed", b"{", 1),
        ("turn.completed", b"{", 3),
    ]
    assert told == {
        "dead_letters": [
            {"dead_letter_id": 1, "subject": "turn.completed", "outcome": "stored", "seq": 101},
            {
                "dead_letter_id": 2,
                "subject": "turn.completed",
                "outcome": "replayed_before",
                "seq": None,
            },
            {
                "dead_letter_id": 3,
                "subject": "turn.completed",
                "outcome": "dead",
                "seq": 102,
                "reason": "not_json",
                "became": 4,
            },
            {"dead_letter_id": 77, "outcome": "unknown"},
        ],
        "after": 3,
        "until": 4,
        "is_done": True,
    }
    listed = (await history.dead_letters(after=0, limit=9, store=stores.history))["dead_letters"]
    assert [one["replayed_at"] is not None for one in listed] == [True, True, True, False]


@pytest.mark.proves("I5", "O10")
async def test_all_letters_or_those_of_a_reason_are_replayed_up_to_a_bound(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(letters, "SETTLE_SECONDS", 0.0)
    await buried(stores, b"{", b"[]", b"{", b"{")

    async def replayed(**fields: Any) -> list[tuple[int, str, int]]:
        told = await letters.replay(
            ReplayRequest(**fields), store=stores.letters, stream=Stream({}), now_ms=lambda: NOON
        )
        assert told["is_done"] is True
        return [(one["dead_letter_id"], one["outcome"], one["seq"]) for one in told["dead_letters"]]

    assert await replayed(reason="not_json", until=3) == [
        (1, "published", 101),
        (3, "published", 102),
    ]
    assert await replayed(all=True, after=2) == [(4, "published", 101)]
    assert await replayed(all=True) == [(2, "published", 101)]
    for wrong in ({}, {"all": True, "reason": "not_json"}, {"dead_letter_ids": [1], "all": True}):
        with pytest.raises(BadRequest, match="name dead_letter_ids"):
            await replayed(**wrong)


@pytest.mark.proves("I5", "O10")
async def test_a_letter_that_was_cut_is_replayed_from_the_stream_or_is_gone(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(letters, "SETTLE_SECONDS", 0.0)
    whole = b"x" * 2_000_000
    await buried(stores, whole, whole, whole)
    # Under the number of the third, a stream that was restored has another event.
    stream = Stream({2: whole, 3: b"y" + whole[1:]})

    told = await letters.replay(
        ReplayRequest(all=True), store=stores.letters, stream=stream, now_ms=lambda: NOON
    )

    assert [(one["outcome"], one["seq"]) for one in told["dead_letters"]] == [
        ("gone", None),
        ("published", 101),
        ("gone", None),
    ]
    assert stream.published == [("turn.completed", whole, 2)]
