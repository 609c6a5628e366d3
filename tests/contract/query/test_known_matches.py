"""Remembered matches of a session are those that its index and its new messages have (F2)."""

import asyncio
from collections.abc import Sequence
from random import Random
from threading import Thread

import pytest

from tests.contract.query.test_search import indexed
from tests.store_fixtures import KEY, Stores, retracted, sql_stores, turn, user
from turnfold.cache import SessionCaches
from turnfold.core.recall.question import question_of
from turnfold.core.text.words import terms
from turnfold.messages import position_of
from turnfold.operations.query.recall_decisions import ranked
from turnfold.ports.recall import Choice, RecallStore, SearchedSession
from turnfold.store.query import recall as recall_in_sql
from turnfold.store.query import session_order, word_matches
from turnfold.store.query.recall import SqlRecallStore

WORDS = (
    "amber ambers coral corals went gone gust gusts 42 /srv/app/main.py zebra élan 琥珀 ox".split()
)
STEPS = 20
END = 2**60


async def found(recall: SqlRecallStore, sid: int, asked: str, until: int) -> Sequence[object]:
    """The results of a question before a position of a session, and of some lookups later."""
    seen: list[object] = []

    def choose(session: SearchedSession) -> Choice:
        masks = session.masks
        if masks is None:
            ordinals = {position: number for number, position in enumerate(session.positions)}
            masks = [
                sum(1 << ordinals[position] for position in places) for places in session.matches
            ]
        lookups = question_of(" ".join(WORDS)).lookups
        seen.extend([list(session.positions), list(masks), session.look_up(lookups, 4)])
        return Choice(())

    question = question_of(asked)
    await recall.recall(sid, until=until, question=lambda _: question, choose=choose)
    return seen


def said(random: Random) -> str:
    """Some words, the first ones often."""
    filler = " filler" * 1_000 if random.random() < 0.1 else ""
    words = [word for word in WORDS if random.random() < 2 / (3 + WORDS.index(word))]
    return " ".join(words) + filler


@pytest.mark.proves("F2", "G1")
@pytest.mark.parametrize("seed", [0, 1, 2, 3, 34, 70])
async def test_what_a_server_remembers_finds_the_same_as_one_that_remembers_nothing(
    stores: Stores, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages arrive in order or late, are retracted, and indexed sooner or later."""
    monkeypatch.setattr(word_matches, "MOST_PLACES", 12)
    monkeypatch.setattr(word_matches, "NEWEST_PLACES", 5)
    if seed % 2:
        # Words of the newest messages are forgotten again and again.
        monkeypatch.setattr(session_order, "MOST_NEWEST", 4)
        monkeypatch.setattr(session_order, "UNINDEXED_MESSAGES", 6)
    random = Random(seed)
    assert isinstance(stores.recall, SqlRecallStore)
    other, of_long = (SqlRecallStore(stores.recall._database) for _ in range(2))
    await stores.ingest(turn(1_000, user(said(random))))
    sid = (await stores.history.counts(KEY)).sid
    seqs = [1_000]
    for step in range(STEPS):
        seq = random.randint(1, 999) if random.random() < 0.1 else 1_001 + step
        if seq not in seqs:
            await stores.ingest(turn(seq, user(said(random)), user(said(random))))
            seqs.append(seq)
        if random.random() < 0.1:
            await stores.ingest(retracted(2_000 + step, f"e{random.choice(seqs)}#0"))
        if random.random() < 0.6:
            await indexed(stores)
        until = END if random.random() < 0.8 else position_of(random.choice(seqs), 0)
        asked = said(random) or "amber"

        remembered = await found(stores.recall, sid, asked, until)
        SessionCaches(*other.caches).clear()
        anew = await found(other, sid, asked, until)
        with monkeypatch.context() as patch:
            patch.setattr(recall_in_sql, "MOST_MASKED", 0)
            by_positions = await found(of_long, sid, asked, until)

        assert remembered == anew
        assert remembered[:2] == by_positions[:2]


@pytest.mark.proves("F2")
async def test_messages_that_the_index_lacks_are_found_by_the_same_words_and_values(
    stores: Stores,
) -> None:
    """Otherwise a block would differ from that of a server which decides it a moment later."""
    assert isinstance(stores.recall, SqlRecallStore)
    random = Random(7)
    texts = [" ".join(random.choices(WORDS, k=3)) for _ in range(12)]
    await stores.ingest(*[turn(seq, user(text)) for seq, text in enumerate(texts, start=1)])
    sid = (await stores.history.counts(KEY)).sid

    waiting = await found(stores.recall, sid, " ".join(WORDS), END)
    await indexed(stores)
    SessionCaches(*stores.recall.caches).clear()

    assert await found(stores.recall, sid, " ".join(WORDS), END) == waiting


@pytest.mark.proves("F2", "L11", "W6")
@pytest.mark.parametrize("most_masked", [5_000, 0])
async def test_who_speaks_directly_after_a_moment_changes_no_ranking_of_it(
    stores: Stores, most_masked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages near those of a named speaker rank higher, but near earlier ones only."""
    monkeypatch.setattr(recall_in_sql, "MOST_MASKED", most_masked)
    assert isinstance(stores.recall, SqlRecallStore)
    await stores.ingest(turn(1, user("Good morning.", name="Otto")))
    sheds = [turn(seq, user(f"The shed, day {seq}.")) for seq in range(2, 16)]
    await stores.ingest(*sheds, turn(16, user("What of Otto and the shed?")))
    await indexed(stores)
    sid = (await stores.history.counts(KEY)).sid
    question, until = question_of("Otto and the shed"), position_of(17, 0)
    seen: list[list[int]] = []

    def choose(session: SearchedSession) -> Choice:
        seen.append(list(ranked(session, 1_000)))
        return Choice(())

    await stores.recall.recall(sid, until=until, question=lambda _: question, choose=choose)
    await stores.ingest(turn(20, user("Here I am.", name="Otto")))
    await stores.recall.recall(sid, until=until, question=lambda _: question, choose=choose)

    assert seen[0] == seen[-1]


@pytest.mark.proves("F2", "X6")
async def test_each_message_is_split_into_words_once_however_many_windows_follow(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Agents ask for windows faster than their messages are indexed."""
    assert isinstance(stores.recall, SqlRecallStore)
    texts: list[str] = []

    def counted(text: str) -> frozenset[str] | None:
        texts.append(text)
        return terms(text)

    monkeypatch.setattr(session_order, "terms", counted)
    await stores.ingest(turn(1, user("coral")))
    sid = (await stores.history.counts(KEY)).sid
    for seq in range(2, 10):
        await stores.ingest(turn(seq, user(f"amber {seq}")))
        await found(stores.recall, sid, "amber", END)
        if seq == 5:
            await indexed(stores)

    assert texts == ["coral", *(f"amber {seq}" for seq in range(2, 10))]


@pytest.mark.proves("F2", "G1", "L2")
async def test_what_is_recalled_is_of_one_state_though_its_message_is_retracted_meanwhile(
    stores: Stores, store_url: str
) -> None:
    assert isinstance(stores.recall, SqlRecallStore)
    await stores.ingest(turn(1, user("amber")), turn(2, user("amber again")))
    await indexed(stores)
    sid = (await stores.history.counts(KEY)).sid
    other = SqlRecallStore(stores.recall._database)
    waiting = [retracted(3, "e2#0")]

    async def retract() -> None:
        async with sql_stores(store_url) as others:
            await others.ingest(waiting.pop())

    async def recalled(recall: RecallStore, *, meanwhile: bool = False) -> list[str]:
        def choose(session: SearchedSession) -> Choice:
            assert session.masks is not None
            if meanwhile and waiting:
                # In a thread: this function holds the event loop while the session is read.
                (elsewhere := Thread(target=asyncio.run, args=(retract(),))).start()
                elsewhere.join()
            return Choice([max(session.masks).bit_length() - 1])

        question = question_of("amber")
        found = await recall.recall(sid, until=END, question=lambda _: question, choose=choose)
        return [one.message.event_id for one in found.material.messages]

    before = await recalled(stores.recall)
    meanwhile = await recalled(stores.recall, meanwhile=True)

    assert meanwhile in (before, await recalled(other))


@pytest.mark.proves("A6", "X9")
async def test_an_erasure_removes_the_words_that_are_remembered(stores: Stores) -> None:
    assert isinstance(stores.recall, SqlRecallStore)
    await stores.ingest(turn(1, user("amber coral")))
    await indexed(stores)
    sid = (await stores.history.counts(KEY)).sid
    await found(stores.recall, sid, "amber", END)
    order = stores.recall._orders.pop(sid)
    assert order is not None
    assert order.known
    stores.recall._orders.put(sid, order, order.weight)

    SessionCaches(*stores.recall.caches).remove({sid})

    assert stores.recall._orders.pop(sid) is None
