"""A session whose few messages are large is not recalled in the event loop's thread (X6)."""

from pathlib import Path
from threading import current_thread, main_thread

import pytest

from tests.store_fixtures import KEY, Stores, new_sqlite, sql_stores, turn, user
from turnfold.core.recall.question import question_of
from turnfold.core.recall.quotes import MarkedLine, read_marks
from turnfold.ports.recall import Choice, SearchedSession
from turnfold.store.database import inline_reader
from turnfold.store.database.inline_reader import INLINE_CHARACTERS
from turnfold.store.query import recall
from turnfold.store.query.recall import MOST_LINES_INLINE, MOST_TOKENS_INLINE

ALL = 1 << 60


async def asked(stores: Stores, *, reads: str) -> list[bool]:
    """Ask twice, and return of each choice that was made whether it was made in this thread."""
    facts = await stores.facts(KEY)
    assert facts.session is not None
    here: list[bool] = []

    def choose(session: SearchedSession) -> Choice:
        messages = range(len(session.positions))
        if reads == "texts":
            assert all(session.texts(messages))
        if reads == "lines":
            assert session.marked_lines(len(messages), ())
        here.append(current_thread() is main_thread())
        return Choice(messages if reads == "messages" else ())

    for _ in range(2):
        recollection = await stores.recall.recall(
            facts.session.sid, until=ALL, question=lambda _: question_of("amber"), choose=choose
        )
        assert bool(recollection.material.messages) == (reads == "messages")
    return here


@pytest.mark.proves("X6", "F2")
@pytest.mark.parametrize("reads", ["texts", "lines", "messages", "words"])
async def test_large_messages_are_recalled_in_a_thread_and_small_ones_are_not(
    reads: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # On a busy machine small reads are slow, too, and would be left to a thread.
    monkeypatch.setattr(inline_reader, "SLOW_SECONDS", 600.0)
    async with sql_stores(new_sqlite(tmp_path)) as stores:
        for seq in range(1, 11):
            await stores.ingest(turn(seq, user(f"value_{seq} = amber")))
        assert await asked(stores, reads=reads) == [True, True]

        large = {
            "lines": "\n".join(f"amber_{at} = value_{at}" for at in range(MOST_LINES_INLINE)),
            # Nothing of these is read but the index.
            "words": "amber " * (MOST_TOKENS_INLINE // 5),
        }.get(reads, "amber " * (INLINE_CHARACTERS // 20))
        for seq in range(11, 16):
            await stores.ingest(turn(seq, user(large)))
        while await stores.index.index_some():
            pass
        found = await asked(stores, reads=reads)

    # A choice of messages is only known to be large once it was made.
    assert found == ([True, False, True, False] if reads == "messages" else [False, False])


@pytest.mark.proves("X6", "F2")
async def test_many_lines_of_older_messages_are_read_in_a_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inline_reader, "SLOW_SECONDS", 600.0)
    here: list[bool] = []

    def read(lines: bytes) -> list[MarkedLine]:
        here.append(current_thread() is main_thread())
        return read_marks(lines)

    monkeypatch.setattr(recall, "read_marks", read)
    async with sql_stores(new_sqlite(tmp_path)) as stores:
        for seq in range(1, 9):
            lines = "\n".join(f"amber_shelf of_{seq}_{at}" for at in range(MOST_LINES_INLINE // 5))
            await stores.ingest(turn(seq, user(lines)))
        await stores.ingest(turn(9, *[user("Go on.")] * 10))
        while await stores.index.index_some():
            pass
        facts = await stores.facts(KEY)
        assert facts.session is not None

        def choose(session: SearchedSession) -> Choice:
            assert len(session.marked_lines(10, session.question.name_lookups)) == 8
            return Choice(())

        for _ in range(2):
            await stores.recall.recall(
                facts.session.sid,
                until=ALL,
                question=lambda _: question_of("amber_shelf"),
                choose=choose,
            )

    assert here == [False] * 16


@pytest.mark.proves("X6", "F2", "L8")
async def test_a_session_of_many_small_messages_is_recalled_in_this_thread_once_its_order_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inline_reader, "SLOW_SECONDS", 600.0)
    # As much in proportion as there is for a million messages.
    monkeypatch.setattr(recall, "ORDERS_BYTES", recall.ORDERS_BYTES * 13 // 1_000)
    async with sql_stores(new_sqlite(tmp_path)) as stores:
        for seq in range(1, 14):
            await stores.ingest(turn(seq, *[user("amber")] * 1_000))
        while await stores.index.index_some():
            pass

        found = [await asked(stores, reads="index")]
        # The last message stands before the one that came before it, which makes the order void.
        for seq in (16, 15):
            await stores.ingest(turn(seq, user("amber")))
            found.append(await asked(stores, reads="index"))

    assert found == [[False, True], [True, True], [False, True]]
