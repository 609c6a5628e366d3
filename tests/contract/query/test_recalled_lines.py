"""Recall blocks that quote single lines, whose names an agent uses."""

import pytest

from tests.contract.query.test_recall import Asker, block_of, place_of
from tests.contract.query.test_search import indexed
from tests.store_fixtures import KEY, NOON, Stores, assistant, retracted, summary, tool, turn, user
from turnfold.core.recall.question import question_of
from turnfold.core.recall.quotes import MarkedLine
from turnfold.messages import SessionId, SessionKey
from turnfold.ports.recall import Choice, RecallStore, SearchedSession
from turnfold.store.query.recall import SqlRecallStore

LINE = "def lantern_shelf(store_number: int) -> Shelf:  # shelves are counted from 1"


async def working(
    stores: Stores,
    *,
    request: str = "Mend the shelves.",
    is_named_to: int = 31,
    later: str = "",
    summarized: str = "It mends.",
) -> None:
    """A long turn of an agent: what it read first is covered, and it goes on to use its name."""
    await stores.ingest(
        turn(1, user(request), assistant(None, "c1"), tool("c1", f"# shelves\n{LINE}\n"))
    )
    for step in range(2, 32):
        use = f"still lantern_shelf(store_{step}) " if step <= is_named_to else later
        words = f"step {step}: {use}" + "and more words " * 20
        await stores.ingest(turn(step, assistant(None, f"c{step}"), tool(f"c{step}", words)))
        while jobs := await stores.claim():
            for job in jobs:
                version = summary(summarized)
                await stores.jobs.commit(job, version, reason=None, now_ms=NOON + step)
    await indexed(stores)


@pytest.mark.proves("W14", "W13")
async def test_a_line_returns_whose_name_the_agent_keeps_using(stores: Stores) -> None:
    await working(stores)

    told = await Asker(stores).told(max_tokens=1_500)

    assert "tool, in part: " in block_of(told) or "returned, in part: " in block_of(told)
    assert "lantern_shelf" in block_of(told)
    recalled = told["recall"]["message_ids"]
    assert recalled == sorted(recalled, key=place_of)
    assert not set(recalled) & set(told["message_ids"])
    assert told["window"]["tokens"] <= 1_500


@pytest.mark.proves("W14")
@pytest.mark.parametrize(
    ("summarized", "is_quoted"),
    [
        ("The lantern shelf takes a store number.", True),
        ("The lantern_shelf takes a store_number.", False),
    ],
)
async def test_a_line_is_quoted_unless_the_summary_of_the_window_has_its_names(
    stores: Stores, summarized: str, *, is_quoted: bool
) -> None:
    await working(stores, request="Go on.", is_named_to=20, summarized=summarized)

    told = await Asker(stores).told(max_tokens=1_500)

    assert told["summary"]["text"] == summarized
    assert (f", in part: {LINE}" in block_of(told)) is is_quoted


@pytest.mark.proves("W14")
@pytest.mark.parametrize(
    ("later", "is_quoted"),
    [("lantern shelf, store number: ", True), ("lantern_shelf(store_number): ", False)],
)
async def test_a_line_is_quoted_unless_a_message_that_the_window_shows_has_its_names(
    stores: Stores, later: str, *, is_quoted: bool
) -> None:
    await working(stores, request="Go on.", is_named_to=20, later=later)

    told = await Asker(stores).told(max_tokens=1_500)

    assert f"step 31: {later}" in told["messages"][-1]["content"]
    assert (f", in part: {LINE}" in block_of(told)) is is_quoted


@pytest.mark.proves("W14", "W13")
async def test_lines_that_a_window_cuts_out_of_a_message_are_quoted(stores: Stores) -> None:
    words = ", and more words" * 10
    lines = [f"set part_{number}_name to {number}{words}" for number in range(100)]
    await stores.ingest(
        turn(1, user("Go on."), assistant(None, "c1"), tool("c1", "\n".join(lines))),
        turn(2, assistant(None, "c2"), tool("c2", "short")),
    )
    await indexed(stores)

    told = await Asker(stores).told(max_tokens=1_500)

    account, block = told["account"], block_of(told)
    assert account["shown"] == account["total"], "nothing is left out"
    assert "tool, in part: set part_" in block
    beside = "\n".join(str(one["content"]) for one in told["messages"] if one["content"] != block)
    assert not [line for line in lines if f"{line}\n" in block and f"{line}\n" in beside]
    assert told["recall"]["message_ids"] == []
    assert account["recalled"] == 0


async def marked(recall: RecallStore, sid: int, most: int = 128) -> dict[int, list[MarkedLine]]:
    """The marked lines of the newest messages, by their ordinals."""
    found: dict[int, list[MarkedLine]] = {}

    def choose(session: SearchedSession) -> Choice:
        found.update({at: list(lines) for at, lines in session.marked_lines(most, ()).items()})
        return Choice(())

    asked = question_of("shelf")
    await recall.recall(sid, until=2**60, question=lambda _: asked, choose=choose)
    return found


@pytest.mark.proves("W14")
async def test_lines_of_messages_that_are_not_indexed_yet_are_marked_too(stores: Stores) -> None:
    await stores.ingest(turn(1, user("See lantern_shelf."), assistant("In store_number.")))
    sid = (await stores.history.counts(KEY)).sid

    before = await marked(stores.recall, sid)
    await indexed(stores)
    after = await marked(stores.recall, sid)

    assert len(before) == 2
    names = [[line.names for line in lines] for lines in before.values()]
    assert names == [[line.names for line in lines] for lines in after.values()]


@pytest.mark.proves("W14")
async def test_kept_lines_are_those_read_anew_whether_a_window_shows_more_or_less(
    stores: Stores,
) -> None:
    await stores.ingest(
        *(
            turn(step, user(f"See shelf_{step}."), assistant(f"In store_{step}."))
            for step in range(1, 60)
        )
    )
    await indexed(stores)
    sid = (await stores.history.counts(KEY)).sid
    assert isinstance(stores.recall, SqlRecallStore)

    for step, most in enumerate((20, 20, 40, 70, 30, 118, 4, 60)):
        kept = await marked(stores.recall, sid, most)
        assert kept == await marked(SqlRecallStore(stores.recall._database), sid, most)
        assert len(kept) == most
        assert list(kept) == sorted(kept)
        await stores.ingest(turn(100 + step, user(f"Now shelf_{step}."), assistant("In store_1.")))
        await indexed(stores)


@pytest.mark.proves("L8", "F2")
async def test_a_session_is_remembered_however_many_lines_its_messages_have(stores: Stores) -> None:
    """Each window read the positions of all its messages again."""
    text = "\n".join(f"part_{number}_name = {number}" for number in range(256))
    await stores.ingest(*[turn(seq, user(text)) for seq in range(1, 101)])
    await indexed(stores)
    sid = (await stores.history.counts(KEY)).sid
    assert isinstance(stores.recall, SqlRecallStore)

    lines = await marked(stores.recall, sid)

    order = stores.recall._orders.get(sid)
    assert order is not None
    assert (len(order.positions), sum(map(len, lines.values()))) == (100, 25_600)
    assert await marked(stores.recall, sid) == lines


@pytest.mark.proves("W14", "L11")
async def test_every_server_quotes_the_same_lines(stores: Stores) -> None:
    await working(stores)
    asker = Asker(stores)
    first = block_of(await asker.told(max_tokens=1_500))
    assert ", in part: " in first

    await stores.ingest(turn(90, assistant(None, "c90"), tool("c90", "short")))

    assert block_of(await Asker(stores).told(max_tokens=1_500)) == block_of(
        await asker.told(max_tokens=1_500)
    )


@pytest.mark.proves("W14")
async def test_a_server_that_keeps_marked_lines_quotes_those_that_another_reads(
    stores: Stores,
) -> None:
    await working(stores)
    asker, quoted = Asker(stores), 0

    for step in range(40, 52):
        asked = user(f"Now mend shelf {step}.")
        marked = tool(f"c{step}", f"lantern_shelf(part_{step}) of cellar_{step}.py " + "more " * 99)
        await stores.ingest(turn(step, asked, assistant(None, f"c{step}"), marked))
        if step % 3:  # what is not indexed is not marked yet
            await indexed(stores)
        told = await asker.told(max_tokens=1_500)
        quoted += ", in part: " in block_of(told)
        assert block_of(told) == block_of(await Asker(stores).told(max_tokens=1_500))

    assert quoted


@pytest.mark.proves("G1", "W14")
async def test_a_line_of_a_retracted_message_is_not_quoted(stores: Stores) -> None:
    await working(stores)
    asker = Asker(stores)
    quoted = (await asker.told(max_tokens=1_500))["recall"]["message_ids"]

    await stores.ingest(retracted(90, *quoted))

    told = await asker.told(max_tokens=1_500)
    assert not set((told["recall"] or {"message_ids": []})["message_ids"]) & set(quoted)


@pytest.mark.proves("G1", "W14")
async def test_lines_of_other_messages_stay_when_one_is_retracted(stores: Stores) -> None:
    other = SessionKey(KEY.agent_id, SessionId("other"))
    for number, key in enumerate((KEY, other)):
        said = (user("See lantern_shelf."), assistant("In store_number."))
        await stores.ingest(turn(1 + number, *said, key=key), turn(11 + number, *said, key=key))
    await indexed(stores)
    sids = [(await stores.history.counts(key)).sid for key in (KEY, other)]

    await stores.ingest(retracted(20, "e1#0"))

    assert isinstance(stores.recall, SqlRecallStore)
    kept = [await marked(SqlRecallStore(stores.recall._database), sid) for sid in sids]
    assert [len(lines) for lines in kept] == [3, 4]


@pytest.mark.proves("F2", "W14")
async def test_a_query_of_its_own_is_what_the_block_is_for(stores: Stores) -> None:
    """Within a turn, lines that the turn may need took all of the block, whatever was asked."""
    told = "The lantern_shelf takes a store_number."
    await working(stores, request="Go on.", is_named_to=2, summarized=told)
    asker = Asker(stores)

    async def block(**query: str) -> str:
        return block_of(await asker.told(max_tokens=1_500, recall={"tokens": 120, **query}))

    plain = await block()

    assert LINE not in plain
    assert await block(query="Go  on.") == plain
    assert LINE in await block(query="Where is lantern_shelf?")


@pytest.mark.proves("F2", "W14")
@pytest.mark.parametrize("asked", ["schema.json", "/elsewhere/theme/schema.json"])
async def test_a_file_that_is_asked_for_returns_whatever_the_folder(
    stores: Stores, asked: str
) -> None:
    moved = "renamed parts/old/schema.json without a change"
    long = "\n".join(["nothing is named on this line"] * 400)
    await stores.ingest(turn(1, user("Go on."), assistant(None, "c1"), tool("c1", long + moved)))
    for step in range(2, 32):
        read = tool(f"c{step}", f"part_{step}_name of cellar_{step} " + "and more words " * 20)
        await stores.ingest(turn(step, assistant(None, f"c{step}"), read))
    await indexed(stores)

    told = await Asker(stores).told(
        max_tokens=1_500, recall={"tokens": 160, "query": f"Where is {asked} now?"}
    )

    assert moved in block_of(told)


@pytest.mark.proves("F2", "W14")
@pytest.mark.parametrize("query", [None, "Where is lantern_shelf?"])
async def test_a_line_with_a_name_that_is_asked_for_returns_from_any_earlier_message(
    stores: Stores, query: str | None
) -> None:
    """Only lines of the newest 128 messages returned, and of a request by its words alone."""
    long = "\n".join(["nothing is named on this line"] * 400)
    await stores.ingest(turn(1, user("Go on."), assistant(None, "c1"), tool("c1", long + LINE)))
    for step in range(2, 102):
        read = tool(f"c{step}", f"part_{step}_name of cellar_{step} " + "and more words " * 20)
        await stores.ingest(turn(step, user("Next."), assistant(None, f"c{step}"), read))
    newest = "Next." if query else "What takes lantern_shelf?"
    await stores.ingest(turn(102, assistant("Done."), user(newest)))
    await indexed(stores)
    told = await Asker(stores).told(max_tokens=2_000, **({"query": query} if query else {}))

    assert LINE in block_of(told)


@pytest.mark.proves("W14", "S11")
async def test_lines_are_told_once_though_a_version_makes_room_for_their_message_again(
    stores: Stores,
) -> None:
    """A result that was cut at the request is whole when older messages are covered."""
    lines = [f"set part_{number}_name to {number}, and more words" for number in range(80)]
    for seq in range(1, 4):
        await stores.ingest(turn(seq, user("long words " * 80), assistant("more words " * 80)))
    await stores.ingest(
        turn(5, user("Read."), assistant(None, "c1"), tool("c1", "\n".join(lines))),
        turn(6, assistant("Read."), user("Go on.")),
    )
    await indexed(stores)
    asker = Asker(stores)
    before = await asker.told(max_tokens=2_000)
    assert "tool, in part: set part_" in block_of(before)

    await stores.ingest(turn(7, assistant(None, "c2"), tool("c2", "short")))
    for job in await stores.claim():
        await stores.jobs.commit(job, summary(), reason=None, now_ms=NOON + 8)
    await indexed(stores)
    told = [await one.told(max_tokens=2_000) for one in (asker, Asker(stores))]

    assert [block_of(one) for one in told] == [block_of(told[0])] * 2
    assert any(one["content"] == "\n".join(lines) for one in told[0]["messages"])
    assert [line for line in lines if line in block_of(told[0])] == []
