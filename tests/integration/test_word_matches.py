"""The messages that a lookup of recall matches in the index, beside those that the texts name (F2)."""

from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from random import Random

import pytest
from sqlalchemy import Connection, text

from tests.store_fixtures import Stores, new_sqlite, retracted, sql_stores, turn, user
from turnfold.cache import LRUCache
from turnfold.core.recall.mask_ranking import MOST_MASKED
from turnfold.core.recall.ranking import MOST_PLACES
from turnfold.core.text.search import Lookup, Term
from turnfold.messages import AgentId, SessionId, SessionKey, position_of
from turnfold.store.database.engine import Database
from turnfold.store.database.inline_reader import WouldBlock
from turnfold.store.database.word_segments import SegmentCaches
from turnfold.store.query.word_matches import MOST_FORMS, WordMatches

OTHER = SessionKey(AgentId("ada"), SessionId("s-2"))
MESSAGES = 90
GONE = range(1, 2 * MESSAGES, 14)
"""The sequences of retracted messages."""
LONG = MOST_MASKED + 1
WORDS = ["amber", "ambers", "ambergris", "amb", "coral", "élan", "élans", "42", "琥珀", "zebra"]
MANY = [f"many{number:02}" for number in range(MOST_FORMS + 5)]
MANY_FORMS = (Term("xmany", is_prefix=True),)
LOOKUPS: list[Lookup] = [
    (Term("xamber", is_prefix=True),),
    (Term("xamb"), Term("xcoral")),
    (Term("xcoral"), Term("xamber", is_prefix=True)),
    (Term("xélan", is_prefix=True),),
    MANY_FORMS,
    (Term("x琥珀"),),
    (Term("x42"), Term("xzebra")),
    (Term("xnothing", is_prefix=True),),
    (Term("xnothing"),),
]


async def filled(stores: Stores) -> list[set[str]]:
    """Store messages of random words, and return those that each has if it is not retracted."""
    random = Random(5)
    said: list[set[str]] = []
    for seq in range(MESSAGES):
        words = {word for word in WORDS if random.random() < 1 / (1 + WORDS.index(word))}
        words |= set(MANY[seq : seq + 1])
        said.append(words)
        await stores.ingest(
            turn(2 * seq + 1, user(" ".join(["so", *sorted(words)]))),
            turn(2 * seq + 2, user("amber coral zebra many77"), key=OTHER),
        )
    while await stores.index.index_some():
        pass
    # Still in the index: what is retracted leaves it later.
    await stores.ingest(retracted(2 * MESSAGES + 1, *[f"e{seq}#0" for seq in GONE]))
    return [words if 2 * seq + 1 not in GONE else set() for seq, words in enumerate(said)]


def matching(said: Sequence[set[str]], lookup: Lookup, until: int) -> list[int]:
    """The falling positions of the messages with any of the terms, by their words."""
    return [
        position_of(2 * seq + 1, 0)
        for seq in range(len(said) - 1, -1, -1)
        if position_of(2 * seq + 1, 0) < until
        and any(term.matches(f"x{word}") for term in lookup for word in said[seq])
    ]


@pytest.mark.proves("F2", "X6")
@pytest.mark.parametrize("is_long", [False, True])
async def test_lookups_of_few_messages_find_all_of_them_and_others_none_or_the_newest(
    url: str, is_long: bool
) -> None:
    async with sql_stores(url) as stores:
        said = await filled(stores)
    database = Database(url, writes=False)
    untils = [position_of(2 * MESSAGES + 1, 0), position_of(61, 0), position_of(2, 0), 0]

    caches = SegmentCaches(LRUCache(1_000_000), LRUCache(1_000_000))
    for until in untils:
        expected = [matching(said, lookup, until) for lookup in LOOKUPS]

        def check(
            connection: Connection, until: int = until, expected: list[list[int]] = expected
        ) -> None:
            length = LONG if is_long else MESSAGES
            words = WordMatches(connection, 1, until, messages=length, caches=caches)
            for most in (0, 1, 7, 30, MESSAGES):
                rare = words.rare(LOOKUPS, most)
                assert rare == [found if len(found) <= most else None for found in expected]
                newest = words.newest(LOOKUPS, most)
                assert newest == [found[:most] for found in expected]

            # In the event loop's thread, not the places of a beginning that many words have.
            words = WordMatches(
                connection, 1, until, messages=length, caches=caches, is_inline=True
            )
            is_refused = is_long and connection.dialect.name == "sqlite"
            with pytest.raises(WouldBlock) if is_refused else nullcontext():
                words.newest([MANY_FORMS], MESSAGES)

        await database.snapshot(check)
    await database.close()


@pytest.mark.proves("F2")
@pytest.mark.parametrize("is_prefix", [False, True])
@pytest.mark.parametrize(
    ("many", "removed", "found"),
    [(LONG, 0, None), (9, 0, [9, 8, 7, 6, 5, 4, 3, 2, 1]), (9, 7, [9, 8, 6, 5, 4, 3, 2, 1])],
)
async def test_a_word_of_a_long_session_is_found_unless_nearly_all_messages_have_it(
    tmp_path: Path, is_prefix: bool, many: int, removed: int, found: object
) -> None:
    """One whose words wait for their removal from the index is not found."""
    url = new_sqlite(tmp_path)
    database = Database(url, writes=True)
    for fill in (
        """WITH RECURSIVE n (at) AS (VALUES (1) UNION ALL SELECT at + 1 FROM n WHERE at < :many)
        INSERT INTO word_index (rowid, terms) SELECT at, '1xerror' FROM n""",
        "INSERT INTO index_removals (position, sid, body) SELECT :removed, 1, '' WHERE :removed",
    ):
        places = {"many": many, "removed": removed}
        await database.write(partial(Connection.execute, statement=text(fill), parameters=places))
    await database.close()
    reader = Database(url, writes=False)

    caches = SegmentCaches(LRUCache(1), LRUCache(1))

    def look_up(connection: Connection) -> object:
        words = WordMatches(connection, 1, LONG + 1, messages=LONG, caches=caches)
        return words.rare([(Term("xerror", is_prefix=is_prefix),)], MOST_PLACES)

    assert await reader.snapshot(look_up) == [found]
    await reader.close()
