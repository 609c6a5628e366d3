"""One conversation of a coding agent under smaller and smaller budgets: what each message becomes.

Run it with `python examples/ladder.py`; docs/windows.md shows what it prints. No service is needed.
"""

import json
from collections.abc import Sequence
from typing import Any

from turnfold import CannotFit, LadderCompressor

Json = dict[str, Any]
SHARES = (0.8, 0.6, 0.2)


def conversation() -> list[Json]:
    """A request, searches, a large file, a long thought, a change, and tests that fail."""
    log = "\n".join(
        f"tests/test_queue.py::test_{number} PASSED in {number % 7} ms" for number in range(400)
    )
    source = "\n".join(
        f"def step_{number}(job):\n    return job.run(retries={number % 5})\n"
        for number in range(300)
    )
    return [
        {"role": "system", "content": "You are a careful engineer. Answer in English."},
        {
            "role": "user",
            "content": "The retry queue drops jobs. Find out why, and remember: the billing tables"
            " must not be touched.",
        },
        calls(
            "c1",
            "grep",
            {"pattern": "retry", "path": "src"},
            thought="Where are retries counted? " * 120,
        ),
        result(
            "c1", "\n".join(f"src/queue/file_{number}.py:{number}: retry" for number in range(90))
        ),
        calls("c2", "read_file", {"path": "src/queue/worker.py"}),
        result("c2", source),
        {
            "role": "assistant",
            "content": "Decision: retries are counted per worker; they have to be counted per job. "
            + "I looked at it. " * 60,
        },
        {"role": "user", "content": "Good. Change it, and run the tests."},
        calls("c3", "write_file", {"path": "src/queue/worker.py", "content": source[:6_000]}),
        result("c3", "written"),
        calls("c4", "shell", {"command": "pytest -q"}),
        result("c4", log + "\nFAILED tests/test_queue.py::test_retry - expected 3 attempts, saw 2"),
        {"role": "assistant", "content": "One test fails: it expects 3 attempts and sees 2."},
        {"role": "user", "content": "Then mend it."},
    ]


def calls(call_id: str, name: str, arguments: Json, thought: str = "") -> Json:
    """An assistant that calls one tool."""
    call = {
        "id": call_id,
        "type": "function",
        "function": {"name": name, "arguments": json.dumps(arguments)},
    }
    return {"role": "assistant", "content": None, "tool_calls": [call]} | (
        {"reasoning_content": thought} if thought else {}
    )


def result(call_id: str, content: str) -> Json:
    """What the tool said."""
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def fates(given: Sequence[Json], shown: Sequence[Json], compressor: LadderCompressor) -> list[str]:
    """The form of each message; results are known by their call, others by how they begin."""
    found = []
    for message in given:
        same = next((one for one in shown if is_same(message, one)), None)
        if same is None:
            found.append("-")
        elif same == message:
            found.append("whole")
        else:
            found.append(f"{compressor.tokens([same])}")
    return found


def is_same(message: Json, other: Json) -> bool:
    """Whether one stands for the other."""
    if message["role"] != other["role"]:
        return False
    if message["role"] == "tool":
        return bool(message["tool_call_id"] == other["tool_call_id"])
    if message.get("tool_calls"):
        return bool(
            other.get("tool_calls")
            and message["tool_calls"][0]["id"] == other["tool_calls"][0]["id"]
        )
    return (
        not other.get("tool_calls") and str(message["content"])[:20] == str(other["content"])[:20]
    )


def main() -> None:
    """Print the table."""
    given = conversation()
    compressor = LadderCompressor()
    total = compressor.tokens(given)
    columns: list[list[str]] = []
    for share in SHARES:
        budget = int(total * share)
        try:
            made = compressor.compress(given, budget)
            columns.append(
                [f"{budget:,}", *fates(given, made.messages, compressor), f"{made.tokens:,}"]
            )
        except CannotFit as error:
            columns.append([f"{budget:,}", *[""] * len(given), f"needs {error.needed_tokens:,}"])
    made = compressor.compress(given, total // 2, is_emergency=True)
    columns.append(
        [f"emergency, {total // 2:,}", *fates(given, made.messages, compressor), f"{made.tokens:,}"]
    )
    labels = ["budget", *[label(message, compressor) for message in given], "tokens used"]
    for cells in zip(labels, *columns, strict=True):
        print(f"| {' | '.join(cells)} |")
        if cells[0] == "budget":
            print(f"|---|{'---|' * len(columns)}")


def label(message: Json, compressor: LadderCompressor) -> str:
    """Which message this is."""
    what = message["tool_calls"][0]["function"]["name"] if message.get("tool_calls") else ""
    return f"{message['role']}{' calls ' + what if what else ''}, {compressor.tokens([message]):,}"


if __name__ == "__main__":
    main()
