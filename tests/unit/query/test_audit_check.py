"""The check of a session's audit finds what somebody changed behind the back of the service."""

from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.store_fixtures import KEY, NOON, Stores, new_sqlite, sql_stores, turns
from turnfold.core.history.audit_chain import ChainEnd, row_hash
from turnfold.messages import AgentId, SessionId, SessionKey
from turnfold.operations.query.inspection import audit_check
from turnfold.ports.query import AuditRow, HistoryStore

Change = Callable[[list[AuditRow]], list[AuditRow]]


class Changed:
    """A history with other audit rows than were written."""

    def __init__(self, history: HistoryStore, change: Change) -> None:
        self._history = history
        self._change = change

    async def chain_end(self, key: SessionKey) -> ChainEnd | None:
        return await self._history.chain_end(key)

    async def audit(self, key: SessionKey, *, after: int, limit: int) -> list[AuditRow]:
        rows = [*await self._history.audit(key, after=0, limit=100)]
        return self._change(rows)[after : after + limit]


@pytest.fixture
async def stores(tmp_path: Path) -> AsyncGenerator[Stores]:
    """Open a database that holds one session with three audit rows."""
    async with sql_stores(new_sqlite(tmp_path)) as stores:
        for first in (1, 101, 201):
            await stores.ingest(*turns(first, 7))
        yield stores


def forged(row: AuditRow, previous: AuditRow | None, **fields: Any) -> AuditRow:
    """The row with other fields, and with hashes that fit them."""
    prev_hash = previous.hash if previous else ""
    changed = row._replace(prev_hash=prev_hash, **fields)
    return changed._replace(hash=row_hash(prev_hash, changed._asdict()))


def rewritten(rows: list[AuditRow]) -> list[AuditRow]:
    """Every row anew after a change of the first one."""
    made: list[AuditRow] = []
    for row in rows:
        made.append(forged(row, made[-1] if made else None, actor="nobody"))
    return made


@pytest.mark.proves("A1")
@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda rows: rows, None),
        (lambda rows: rows[:-1], "the end is cut off: 3 rows were written, 2 are there"),
        (lambda rows: rows[:0], "the end is cut off: 3 rows were written, 0 are there"),
        (lambda rows: rows[1:], "row 1 is missing"),
        (
            lambda rows: [*rows, forged(rows[-1], rows[-1], ordinal=4)],
            "row 4 was added: 3 rows were written, 4 are there",
        ),
        (lambda rows: [rows[0], rows[1]._replace(actor="nobody"), rows[2]], "row 2 was changed"),
        (rewritten, "row 3 differs from the hash in the session row"),
    ],
)
async def test_the_check_names_the_first_fault(
    stores: Stores, change: Change, fault: str | None
) -> None:
    store: Any = Changed(stores.history, change)

    checked = await audit_check(KEY, store=store)

    assert (checked["is_intact"], checked["fault"]) == (fault is None, fault)


@pytest.mark.proves("A1", "A6")
@pytest.mark.parametrize(
    ("left", "fault"),
    [
        (4, None),
        (3, "the end is cut off: 4 rows were written, 3 are there"),
        (0, "the end is cut off: 4 rows were written, 0 are there"),
    ],
)
async def test_the_chain_of_an_erased_session_is_checked_to_its_end(
    stores: Stores, left: int, fault: str | None
) -> None:
    await stores.changes.erase(KEY, last_seq=999, now_ms=NOON)
    store: Any = Changed(stores.history, lambda rows: rows[:left])

    checked = await audit_check(KEY, store=store)

    assert checked == {"rows": left, "is_intact": fault is None, "fault": fault}


@pytest.mark.proves("A1")
async def test_rows_of_no_session_and_no_erasure_are_a_fault(stores: Stores) -> None:
    class Nameless(Changed):
        async def chain_end(self, key: SessionKey) -> ChainEnd | None:  # noqa: ARG002  # none has
            return None

    store: Any = Nameless(stores.history, lambda rows: rows)

    checked = await audit_check(KEY, store=store)

    assert checked["fault"] == "row 1 was added: 0 rows were written, 3 are there"


@pytest.mark.proves("A1")
async def test_what_was_written_during_the_check_is_no_fault(stores: Stores) -> None:
    class Late(Changed):
        async def chain_end(self, key: SessionKey) -> ChainEnd | None:
            """Return the end of the chain; turns that evict come directly after each look at it."""
            end = await self._history.chain_end(key)
            await stores.ingest(*turns(301, 7))
            return end

    store: Any = Late(stores.history, lambda rows: rows)

    checked = await audit_check(KEY, store=store)

    assert checked == {"rows": 5, "is_intact": True, "fault": None}


@pytest.mark.proves("A1")
async def test_a_session_of_another_agent_is_checked_by_its_own_end(stores: Stores) -> None:
    other = SessionKey(AgentId("bob"), SessionId("s-9"))
    await stores.ingest(*turns(901, 7, key=other))

    checked = await audit_check(other, store=stores.history)

    assert checked == {"rows": 1, "is_intact": True, "fault": None}
