"""A pytest plugin for the SDK's own tests: our session in place of its `SQLiteSession`.

Tests that do not use a session are not run. `LEFT_OUT` names those about what only SQLite has.
"""

import inspect
import os
import tomllib
from pathlib import Path
from typing import Any
from uuid import uuid4

import agents
import pytest
from agents.memory import sqlite_session

from turnfold.integrations.openai_agents import TurnfoldSession

LEFT_OUT = tomllib.loads(Path(__file__).with_name("left_out.toml").read_text())


class InPlaceOfSQLite(TurnfoldSession):
    """Ours with the signature of theirs: sessions of one file are those of one agent."""

    def __init__(
        self,
        session_id: str,
        db_path: str | Path = ":memory:",
        *,
        session_settings: Any = None,
    ) -> None:
        agent_id = uuid4().hex if db_path == ":memory:" else str(db_path)
        url = os.environ["TURNFOLD_NATS_URL"]
        super().__init__(agent_id, session_id, client=url, session_settings=session_settings)

    def close(self) -> None:
        """Nothing is open: sessions share a client."""


for module in (agents, agents.memory, sqlite_session):
    vars(module)["SQLiteSession"] = InPlaceOfSQLite


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    chosen: list[pytest.Item] = []
    for item in items:
        function = getattr(item, "function", None)
        if function is None or "SQLiteSession" not in inspect.getsource(function):
            continue
        chosen.append(item)
        name = item.nodeid.partition("[")[0]
        for reason, tests in LEFT_OUT.items():
            if name in tests or item.nodeid in tests:
                item.add_marker(pytest.mark.skip(reason=reason))
    items[:] = chosen
