"""How messages are found, in every store: by words, characters and exact values, indexed or not."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
import pytest_asyncio

from tests.store_fixtures import (
    KEY,
    NOON,
    Stores,
    assistant,
    picture,
    summary,
    tool,
    turn,
    turns,
    user,
)
from turnfold.contracts.history_requests import SearchRequest
from turnfold.core.text.search import MOST_WORDS, Lookup
from turnfold.errors import BadRequest, UnknownSession
from turnfold.messages import AgentId, SessionId, SessionKey, State, position_of
from turnfold.operations.query.search import ANSWER_CHARACTERS, found, question_of, search
from turnfold.ports.query import (
    OriginalMessage,
)
from turnfold.ports.search import Candidates, Scope, SearchStore
from turnfold.store.query.search import CHARACTERS_READ

OTHER = SessionKey(AgentId("bob"), KEY.session_id)


async def indexed(stores: Stores) -> None:
    """Index everything there is."""
    while await stores.index.index_some():
        pass


async def ids(
    stores: Stores, q: str, *, key: SessionKey = KEY, limit: int = 20, scope: Scope | None = None
) -> list[str]:
    """The messages that answer, best first."""
    hits = await found(
        key, question_of(q), scope=scope or Scope(), limit=limit, store=stores.search
    )
    assert [score for _, score in hits] == sorted((score for _, score in hits), reverse=True)
    return [original.message_id for original, _ in hits]


@pytest.mark.proves("X6")
@pytest.mark.parametrize("is_indexed", [False, True])
async def test_pictures_count_in_what_a_search_reads_and_answers(
    stores: Stores, *, is_indexed: bool
) -> None:
    await stores.ingest(*[turn(seq, user(["screen", picture(300_000)])) for seq in range(1, 16)])
    if is_indexed:
        await indexed(stores)

    answer = json.loads(await search(KEY, SearchRequest(q="screen", limit=15), store=stores.search))
    lookups = question_of("screen").lookups()
    read = await stores.search.candidates(KEY, lookups, scope=Scope())

    assert len(answer["hits"]) == ANSWER_CHARACTERS // 300_000
    assert answer["is_partial"]
    assert read.is_partial is is_indexed
    most = CHARACTERS_READ // 300_000
    assert [one.message_id for one in read.originals] == (
        [f"e{seq}#0" for seq in range(16 - most, 16)] if is_indexed else []
    )


@pytest_asyncio.fixture(params=["indexed", "new", "half"], loop_scope="session")
async def garden(request: pytest.FixtureRequest, stores: Stores) -> Stores:
    """A session whose first messages are worth finding: in the index, not yet, or only the first ones."""
    await stores.ingest(
        turn(1, user("Please remember: the garden is planted in a Quincunx."), assistant("Noted.")),
        turn(
            2,
            user("我把琥珀色的吊坠放在书房的抽屉里。"),
            user("昨日、海岸で蜃気楼を見ました。"),
            user("서울에서 만나요"),
        ),
        turn(
            3,
            user("Settings are in /srv/zephyr-7719/config.toml on the second host."),
            assistant("It weighs 17.5 kg (v2.4.1)."),
        ),
    )
    if request.param == "half":
        await indexed(stores)
    await stores.ingest(
        turn(
            4,
            assistant(None, "c1"),
            tool("c1", "commit 8b8a5eb0c4d2e8f1a3b5c7d9e0f1a2b3c4d5e6f7 by ada"),
        ),
        turn(5, user("See https://example.org/wiki/Garden_paths?page=2, and ticket TF-118.")),
    )
    if request.param == "indexed":
        await indexed(stores)
    return stores


FOUND = {
    "quincunx": "e1#0",
    "QUINCUNX garden": "e1#0",
    "吊坠": "e2#0",
    "坠": "e2#0",
    "里": "e2#0",
    "蜃気楼": "e2#1",
    "서울": "e2#2",
    "/srv/zephyr-7719/config.toml": "e3#0",
    "config.toml": "e3#0",
    "zephyr": "e3#0",
    "zeph": "e3#0",
    "17.5 kg": "e3#1",
    "v2.4.1": "e3#1",
    "8b8a5eb0c4d2e8f1a3b5c7d9e0f1a2b3c4d5e6f7": "e4#1",
    "8b8a5eb": "e4#1",
    "https://example.org/wiki/Garden_paths?page=2": "e5#0",
    "wiki/Garden_paths": "e5#0",
    "TF-118": "e5#0",
    "look_up": "e4#0",
}
"""What is asked for in the garden, and the message that answers best."""


@pytest.mark.proves("F1")
async def test_words_characters_and_values_are_found_whole_and_in_part(garden: Stores) -> None:
    assert {q: (await ids(garden, q))[:1] for q in FOUND} == {
        q: [first] for q, first in FOUND.items()
    }


SCRIPTS = {
    "दिल्ली": "मैं दिल्ली में रहती हूँ",
    "தமிழ்": "எனக்கு தமிழ் தெரியும்",
    "ọ̀rẹ́": "ọ̀rẹ́ mi ni",
    "อาหาร": "ฉันแพ้อาหารทะเล",
    "ທະເລ": "ຂ້ອຍແພ້ອາຫານທະເລ",
    "អាហារ": "ខ្ញុំចូលចិត្តអាហារ",
    "အစား": "ကျွန်တော်အစားစား",
    "istanbul": "İstanbul'a gittim",
    "ığdır": "IĞDIR soğuk",
}
"""Words whose marks, missing spaces or capital letters hid them, and the texts that have them."""


@pytest.mark.proves("F1")
@pytest.mark.parametrize("is_indexed", [True, False])
async def test_a_word_is_found_in_every_script_and_no_other_one_of_its_letters(
    stores: Stores, is_indexed: bool
) -> None:
    texts = [*SCRIPTS.values(), "दाल और लाल दाल", "ทะอาเล", "மழை தோழி", "ọrẹ", "ı̇ dır"]
    await stores.ingest(turn(1, *map(user, texts)))
    if is_indexed:
        await indexed(stores)

    found_by = {q: await ids(stores, q) for q in SCRIPTS}

    assert found_by == {q: [f"e1#{place}"] for place, q in enumerate(SCRIPTS)}


@pytest.mark.proves("F1")
@pytest.mark.parametrize("is_indexed", [True, False])
async def test_refusals_and_transcripts_of_speech_are_found(
    stores: Stores, is_indexed: bool
) -> None:
    spoken = {"role": "assistant", "content": None, "audio": {"id": "a", "transcript": "In Ghent."}}
    refused = {"role": "assistant", "content": None, "refusal": "I cannot open the pavilion."}
    part = {"role": "assistant", "content": [{"type": "refusal", "refusal": "Nor the orangery."}]}
    await stores.ingest(turn(1, user("Where is it?"), spoken, refused, part))
    if is_indexed:
        await indexed(stores)

    assert [await ids(stores, q) for q in ("ghent", "pavilion", "orangery")] == [
        ["e1#1"],
        ["e1#2"],
        ["e1#3"],
    ]


@pytest.mark.proves("F1", "X2")
async def test_what_looks_like_the_syntax_of_an_index_is_only_text(garden: Stores) -> None:
    for q in (
        "a AND",
        "NEAR(garden",
        "terms:garden",
        "garden*",
        "' OR 1=1 --",
        "garden OR",
        "(garden",
        "^garden",
        "x' & 'y",
    ):
        assert set(await ids(garden, q)) <= {"e1#0", "e5#0", "e4#1", "e3#1"}, q


@pytest.mark.proves("F1", "X2")
@pytest.mark.parametrize("q", ['"', "*", "%", "( -", "\0", "\ud800"])
async def test_a_query_without_a_word_is_refused(q: str) -> None:
    with pytest.raises(BadRequest, match="no word"):
        question_of(q)


@pytest.mark.proves("F1", "L12")
async def test_what_another_agent_wrote_is_never_found(stores: Stores) -> None:
    await stores.ingest(
        turn(1, user("the amber pendant")), turn(2, user("an amber lamp"), key=OTHER)
    )
    await indexed(stores)

    assert await ids(stores, "amber") == ["e1#0"]
    assert await ids(stores, "amber", key=OTHER) == ["e2#0"]
    with pytest.raises(UnknownSession):
        await ids(stores, "amber", key=SessionKey(AgentId("bob"), SessionId("nothing")))


@pytest.mark.proves("F1")
async def test_a_session_whose_number_begins_like_another_s_stays_apart(stores: Stores) -> None:
    keys = [SessionKey(AgentId("ada"), SessionId(f"s-{number}")) for number in range(30)]
    await stores.ingest(
        *[turn(seq, user("amber"), key=key) for seq, key in enumerate(keys, start=1)]
    )
    await indexed(stores)

    assert [await ids(stores, "ambe", key=key) for key in keys] == [
        [f"e{seq}#0"] for seq in range(1, 31)
    ]


@pytest.mark.proves("F1")
async def test_the_message_that_named_a_value_stands_before_those_that_repeat_it(
    stores: Stores,
) -> None:
    await stores.ingest(turn(1, user("It runs on port 8443, says the note about the old host.")))
    await stores.ingest(*[turn(seq, user("8443"), assistant("8443 8443")) for seq in range(2, 40)])
    await indexed(stores)

    hits = await ids(stores, "8443", limit=5)

    assert hits[0] == "e1#0"
    assert hits[1:] == ["e39#1", "e38#1", "e37#1", "e36#1"]


@pytest.mark.proves("F1")
async def test_a_whole_value_goes_before_all_words_and_those_before_words_that_begin_so(
    stores: Stores,
) -> None:
    texts = [
        "deployment plans",
        "we plan to deploy",
        "a deploy plan, then",
        "nothing",
        "the deploy plan-b",
    ]
    await stores.ingest(*[turn(seq, user(text)) for seq, text in enumerate(texts, start=1)])
    await indexed(stores)

    assert await ids(stores, "deploy plan") == ["e3#0", "e5#0", "e2#0", "e1#0"]


@pytest.mark.proves("F1")
async def test_where_no_message_has_all_words_those_with_the_rarest_come_first(
    stores: Stores,
) -> None:
    await stores.ingest(
        *[turn(seq, user("the garden is green")) for seq in range(1, 9)],
        turn(9, user("a quincunx is green")),
    )
    await indexed(stores)

    hits = await ids(stores, "quincunx green submarine")

    assert hits[0] == "e9#0"
    assert set(hits[1:]) == {f"e{seq}#0" for seq in range(1, 9)}


@pytest.mark.proves("F1", "L7")
async def test_a_search_keeps_to_a_state_a_role_and_a_stretch(stores: Stores) -> None:
    await stores.ingest(*turns(1, 7))
    (job,) = await stores.claim(NOON + 10_000)
    await stores.jobs.commit(job, summary(), reason=None, now_ms=NOON + 11_000)
    await stores.ingest(*turns(8, 5))
    await indexed(stores)

    async def seqs(**scope: Any) -> list[int]:
        hits = await found(
            KEY,
            question_of("question answer"),
            scope=Scope(**scope),
            limit=100,
            store=stores.search,
        )
        return sorted({original.position // 1024 for original, _ in hits})

    by_state = [await seqs(state=state) for state in (State.COVERED, State.PENDING, State.LIVE)]

    assert by_state == [[1, 2, 3, 4, 5], [6, 7, 8, 9, 10], [11, 12]]
    assert await seqs(after_position=position_of(3, 1), before_position=position_of(6, 0)) == [4, 5]
    assert await ids(stores, "question", scope=Scope(role="assistant")) == []
    assert (await ids(stores, "answer 4", scope=Scope(role="assistant")))[0] == "e4#1"


@pytest.mark.proves("F1", "L3")
async def test_an_event_that_comes_late_is_found_at_once_and_indexed_after_the_others(
    stores: Stores,
) -> None:
    await stores.ingest(*turns(10, 3))
    await indexed(stores)

    await stores.ingest(turn(5, user("the amber pendant")))
    at_once = await ids(stores, "amber")
    await indexed(stores)

    assert at_once == await ids(stores, "amber") == ["e5#0"]
    assert await ids(stores, "question 12") != []


@pytest.mark.proves("F1", "L2")
async def test_an_event_that_moves_to_an_earlier_place_is_found_there_and_only_there(
    stores: Stores,
) -> None:
    event = turn(10, user("the amber pendant"), event_id="e")
    await stores.ingest(event, turn(11, user("other")))
    await indexed(stores)

    await stores.ingest(event._replace(stream_seq=4))
    new = await found(KEY, question_of("amber"), scope=Scope(), limit=9, store=stores.search)
    await indexed(stores)
    old = await found(KEY, question_of("amber"), scope=Scope(), limit=9, store=stores.search)

    assert (
        [original.position for original, _ in new]
        == [original.position for original, _ in old]
        == [position_of(4, 0)]
    )


@pytest.mark.proves("F1", "A6")
async def test_what_was_erased_is_not_found_and_what_comes_after_it_is(stores: Stores) -> None:
    await stores.ingest(
        turn(1, user("the amber pendant")), turn(2, user("an amber lamp"), key=OTHER)
    )
    await indexed(stores)

    await stores.changes.erase(KEY, last_seq=2, now_ms=NOON)
    await stores.ingest(turn(5, user("another amber pendant"), event_id="new"))
    new = await ids(stores, "amber")
    await indexed(stores)

    assert new == await ids(stores, "amber") == ["new#0"]
    assert await ids(stores, "amber", key=OTHER) == ["e2#0"]


@pytest.mark.proves("F1")
async def test_texts_with_very_many_terms_and_very_long_words_are_found_too(stores: Stores) -> None:
    many = " ".join(f"{number:x}{'q' * (number % 60)}" for number in range(100_000, 128_000))
    await stores.ingest(
        turn(1, user(f"{many} amberstone")),
        turn(2, user("b" * 70 + "c" * 70)),
        turn(3, user("b" * 70 + "d" * 70)),
    )
    await indexed(stores)

    assert await ids(stores, "amberstone") == ["e1#0"]
    assert await ids(stores, "b" * 70 + "d" * 70) == ["e3#0"]
    assert await ids(stores, "b" * 70) == ["e3#0", "e2#0"]


@pytest.mark.proves("F1", "C58")
async def test_a_question_of_a_thousand_characters_and_a_word_that_is_everywhere_read_bounded(
    stores: Stores,
) -> None:
    await stores.ingest(
        *[
            turn(seq, *[user(f"common word {seq} {index}") for index in range(50)])
            for seq in range(1, 21)
        ]
    )
    await indexed(stores)

    everywhere = await ids(stores, "common", limit=100)
    long = question_of(" ".join(f"w{number}" for number in range(200))[:1_000])

    assert len(everywhere) == 100
    assert len(long.words) == MOST_WORDS
    assert await found(KEY, long, scope=Scope(), limit=5, store=stores.search) == []
    candidates = await stores.search.candidates(KEY, question_of("common").lookups(), scope=Scope())
    assert len(candidates.originals) == 260


@pytest.mark.proves("F1")
async def test_a_stretch_of_a_session_is_searched_whole_beyond_the_newest_matches(
    stores: Stores,
) -> None:
    await stores.ingest(
        *[turn(seq, *[user(f"common {seq} {index}") for index in range(50)]) for seq in range(1, 6)]
    )
    await indexed(stores)
    after, before = position_of(1, 4), position_of(5, 45)

    for scope, matches in (
        (Scope(), 250),
        (Scope(after_position=after), 245),
        (Scope(before_position=before), 245),
        (Scope(after_position=after, before_position=before), 240),
    ):
        found_in = await stores.search.candidates(KEY, question_of("common").lookups(), scope=scope)
        assert (len(found_in.originals), found_in.is_partial) == (matches, False)


class CountingStore:
    """A store that counts how often its index is asked."""

    def __init__(self, store: SearchStore) -> None:
        self._store = store
        self.lookups = 0

    async def unindexed(
        self, key: SessionKey, *, scope: Scope, after_position: int
    ) -> Sequence[OriginalMessage]:
        return await self._store.unindexed(key, scope=scope, after_position=after_position)

    async def candidates(
        self, key: SessionKey, lookups: Sequence[Lookup], *, scope: Scope
    ) -> Candidates:
        self.lookups += 1
        return await self._store.candidates(key, lookups, scope=scope)


@pytest.mark.proves("F1", "L8", "O10")
@pytest.mark.parametrize(
    ("limit", "hits", "lookups"), [(2, 2, 1), (3, 3, 1), (4, 4, 2), (5, 5, 2), (6, 5, 2)]
)
async def test_beginnings_of_words_are_looked_for_only_if_whole_words_fill_less_than_the_limit(
    stores: Stores, limit: int, hits: int, lookups: int
) -> None:
    texts = ["amber", "ambers", "an amber lamp", "ambergris", "the amber"]
    await stores.ingest(*[turn(seq, user(text)) for seq, text in enumerate(texts, start=1)])
    await indexed(stores)
    counting = CountingStore(stores.search)

    answer = await found(KEY, question_of("amber"), scope=Scope(), limit=limit, store=counting)

    assert ([original.message_id for original, _ in answer], counting.lookups) == (
        ["e1#0", "e5#0", "e3#0", "e2#0", "e4#0"][:hits],
        lookups,
    )
