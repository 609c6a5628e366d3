"""Who asked stands in the audit, sealed; and what left a window can be read through the views: on both databases."""

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

from tests.postgres import Postgres
from tests.shaped import decoded
from tests.store_fixtures import (
    KEY,
    NOON,
    Stores,
    assistant,
    new_postgres,
    new_sqlite,
    result,
    sql_stores,
    summary,
    tool,
    turn,
    turns,
    user,
)
from turnfold.contracts.requests import (
    PolicyRequest,
)
from turnfold.core.history.audit_chain import WORKER, row_hash
from turnfold.messages import CompactionId
from turnfold.ports.compact import RegenerateOptions
from turnfold.ports.query import (
    AuditRow,
)


@dataclass(frozen=True, slots=True)
class Opened:
    """A database with its stores."""

    url: str
    stores: Stores

    async def rows(self, statement: str) -> list[dict[str, Any]]:
        """What SQL says."""
        engine = create_async_engine(self.url)
        try:
            async with engine.connect() as connection:
                return [dict(row) for row in (await connection.execute(text(statement))).mappings()]
        finally:
            await engine.dispose()

    async def actors(self) -> list[tuple[str, str]]:
        """Phase and actor of each audit row, in order; every chain verifies."""
        before: dict[tuple[str, str], str] = {}
        found = await self.rows(
            f"SELECT {', '.join(AuditRow._fields)} FROM audit ORDER BY audit_id"
        )
        for row in found:
            key = row["agent_id"], row["session_id"]
            assert row["prev_hash"] == before.get(key, "")
            assert row["hash"] == row_hash(row["prev_hash"], row)
            before[key] = row["hash"]
        return [(row["phase"], row["actor"]) for row in found]


@pytest.fixture(params=["sqlite", "postgresql"])
async def opened(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Opened]:
    """Stores on a database of either kind."""
    server: Postgres | None = (
        request.getfixturevalue("postgres") if request.param == "postgresql" else None
    )
    url = await new_postgres(server) if server else new_sqlite(tmp_path)
    async with sql_stores(url) as stores:
        yield Opened(url, stores)


ODD = "a\0b"
LONE = "x\ud800y"
TEXTS: list[tuple[Any, Any]] = [
    ("plain", "plain"),
    ("", ""),
    (None, None),
    (
        "emoji 😀, \\u0000 and \\ud800 as words, \ufffd, 語\n",
        "emoji 😀, \\u0000 and \\ud800 as words, \ufffd, 語\n",
    ),
    (
        [
            {"type": "text", "text": "one"},
            {"type": "image_url", "image_url": {"url": "u"}},
            {"type": "text", "text": "two 😀"},
        ],
        "one\ntwo 😀",
    ),
    ([{"type": "image_url", "image_url": {"url": "u"}}], None),
    ([], None),
    (["bare", {"type": "text", "text": 7}], "bare"),
    (ODD, ...),
    (LONE, ...),
    ([{"type": "text", "text": LONE}], ...),
]
"""A content, and how the view shows it; `...`: neither database can hold it, so it stands as in the body."""


@pytest.mark.proves("A2", "A7")
async def test_the_texts_of_evicted_messages_can_be_read_through_the_view(opened: Opened) -> None:
    said = [
        user(content) if number % 2 else assistant(content, f"c{number}")
        for number, (content, _) in enumerate(TEXTS)
    ]
    results = [tool(f"c{number}") for number in range(0, len(said), 2)]
    await opened.stores.ingest(turn(1, *said), turn(2, *results), *turns(3, 10))

    rows = await opened.rows("SELECT * FROM messages_view ORDER BY position")

    assert list(rows[0])[-2:] == ["text", "body"]
    assert "pending" in {row["state"] for row in rows[: len(said)]}
    for (_, shown), published, row in zip(TEXTS, said, rows, strict=False):
        assert json.loads(row["body"]) == published
        assert row["text"] == (row["body"] if shown is ... else shown), published


@pytest.mark.proves("A2", "A7")
@pytest.mark.parametrize(
    ("content", "shown"),
    [
        ("fine", "fine"),
        ({"a": [1, None, "😀"]}, '{"a":[1,null,"😀"]}'),
        (7, "7"),
        (None, None),
        ([{"type": "text", "text": "t"}], "t"),
    ],
)
async def test_a_tool_result_stands_in_the_view_as_it_was_published(
    opened: Opened, content: Any, shown: str | None
) -> None:
    name = 'said, "content": here'
    await opened.stores.ingest(turn(1, assistant(None, "c")), result(2, "c", content, name=name))

    *_, row = await opened.rows("SELECT * FROM messages_view ORDER BY position")

    assert row["text"] == shown
    assert json.loads(row["body"]) == {
        "role": "tool",
        "tool_call_id": "c",
        "name": name,
        "content": content,
    }


LONG = 'said 😀 "quoted", \\ and \n lines, \ufffd ' * 8
ITEMS: list[dict[str, Any]] = [
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": LONG}]},
    {"type": "reasoning", "id": "r", "summary": []},
    {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c", "output": LONG + ODD + LONE},
    {"role": "assistant", "content": "short"},
]
"""Items whose text is stored once or twice, and two that are one chat message."""


@pytest.mark.proves("A2", "A7")
@pytest.mark.parametrize("shape", ["responses", "anthropic"])
async def test_an_element_stands_in_the_view_as_it_was_published(
    opened: Opened, shape: str
) -> None:
    block = {"type": "text", "text": LONG, "cache_control": {"type": "ephemeral"}}
    published = ITEMS if shape == "responses" else [{"role": "user", "content": [block]}]
    await opened.stores.ingest(decoded(1, published, shape))

    rows = await opened.rows("SELECT * FROM messages_view ORDER BY position")

    assert [row["body"] for row in rows] == list(map(json.dumps, published))


@pytest.mark.proves("A7")
@pytest.mark.parametrize("commit", ["immediate", "on_summary"])
async def test_what_somebody_asked_for_names_who(opened: Opened, commit: str) -> None:
    stores, installation = opened.stores, opened.stores.installation
    for number in (1, 2):
        await stores.ingest(*turns(10 * number, 7))
        (job,) = await stores.claim(NOON + 1_000 * number)
        await stores.jobs.commit(job, summary(), reason=None, now_ms=NOON + 1_000 * number)
    known = len(await opened.actors())
    assert {actor for _, actor in await opened.actors()} == {WORKER}

    await stores.changes.set_policy(
        KEY,
        PolicyRequest(overrides={"commit": commit}),
        installation=installation,
        now_ms=NOON,
        actor="token:a",
    )
    await stores.changes.set_policy(
        KEY,
        PolicyRequest(overrides={"commit": commit}),
        installation=installation,
        now_ms=NOON,
        actor="token:idle",
    )
    await stores.changes.set_policy(
        KEY.agent_id,
        PolicyRequest(mode="manual"),
        installation=installation,
        now_ms=NOON,
        actor="token:b",
    )
    requested = await stores.changes.compact_now(
        KEY, installation=installation, now_ms=NOON + 3_000, actor="key:C"
    )
    (job,) = await stores.claim(NOON + 4_000)
    loaded = await stores.jobs.load(job, now_ms=NOON + 4_000)
    await stores.jobs.commit(
        job, summary(), leaving=loaded.leaving, reason=None, now_ms=NOON + 4_000
    )
    await stores.versions.regenerate(
        KEY,
        RegenerateOptions(style="narrative"),
        installation=installation,
        now_ms=NOON + 5_000,
        actor="token:d",
    )
    await stores.campaigns.begin(
        None,
        RegenerateOptions(model="test/other"),
        at_once=2,
        installation=installation,
        now_ms=NOON + 5_500,
        actor="key:E",
    )
    await stores.campaigns.advance(installation=installation, now_ms=NOON + 5_600)
    await stores.versions.restore(
        KEY,
        CompactionId(str(requested)),
        installation=installation,
        now_ms=NOON + 6_000,
        actor="token:f",
    )
    await stores.versions.promote(
        KEY, 1, over=None, installation=installation, now_ms=NOON + 7_000, actor="key:G"
    )
    await stores.changes.erase(KEY, last_seq=100, now_ms=NOON + 8_000, actor="token:h")

    asked = [(phase, actor) for phase, actor in (await opened.actors())[known:] if actor != WORKER]
    opens = ["evicted"] if commit == "immediate" else ["selective_start", "evicted"]
    assert asked == [
        ("policy", "token:a"),
        ("policy", "token:b"),
        *((phase, "key:C") for phase in opens),
        ("opened", "token:d"),
        ("opened", "key:E"),
        ("restored", "token:f"),
        ("promoted", "key:G"),
        ("opened", "key:G"),
        ("erased", "token:h"),
    ]
    policies = await opened.rows(
        "SELECT session_id, details, actor FROM audit_view WHERE phase = 'policy' ORDER BY audit_id"
    )
    assert [(row["session_id"], json.loads(row["details"])) for row in policies] == [
        (KEY.session_id, {"overrides": {"commit": commit}}),
        ("", {"mode": "manual"}),
    ]
