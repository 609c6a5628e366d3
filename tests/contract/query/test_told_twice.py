"""No line stands in a window twice: once in a message, and once in the recall block."""

import json
from typing import Any

import pytest

from tests.contract.query.test_recall import Asker, block_of
from tests.contract.query.test_search import indexed
from tests.store_fixtures import Stores, assistant, tool, turn, turns, user

KEPT = "KEEP_ME = open_ledger_file('/srv/app/ledger.db')"
LONG = "\n".join(f"    total_{row % 30} = parse_order_{row % 30}(row)" for row in range(400))
"""Thirty lines with names are quoted of it, so that some room is left for `KEPT`."""
SHORT = "\n".join([*6 * ["# " + "plain words of a comment " * 4], KEPT])


def writes(call_id: str, path: str, content: str) -> dict[str, Any]:
    arguments = json.dumps({"path": path, "content": content})
    return {
        "id": call_id,
        "type": "function",
        "function": {"name": "write_file", "arguments": arguments},
    }


@pytest.mark.proves("F2", "S11")
@pytest.mark.parametrize("max_tokens", [1_200, 1_500, 2_000])
async def test_arguments_shown_beside_shortened_ones_are_not_quoted_again(
    stores: Stores, max_tokens: int
) -> None:
    calling = {
        "role": "assistant",
        "content": None,
        "tool_calls": [writes("a1", "/srv/app/ledger.py", SHORT), writes("a2", "big.py", LONG)],
    }
    await stores.ingest(turn(1, user("old"), assistant("ok")), *turns(2, 6))
    done = assistant("open_ledger_file is written")
    both = [tool("a1", "done"), tool("a2", "done")]
    await stores.ingest(turn(20, user("write both files"), calling, *both, done))
    await stores.ingest(turn(30, user("Now use open_ledger_file in main.py")))
    await indexed(stores)

    told = await Asker(stores).told(max_tokens=max_tokens)

    block = block_of(told)
    shown = json.dumps(
        [message for message in told["messages"] if "</turnfold-recall>" not in str(message)]
    )
    assert shown.count("KEEP_ME") + block.count("KEEP_ME") == 1
