"""What `trim_messages` of LangChain makes of the same messages, in a process whose Python has langchain-core; not needed otherwise.

Run as a program it reads a question a line and answers each with a line: `python tests/benchmarks/trimming.py MESSAGES.json`.
"""

import gc
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

PYTHON_VARIABLE = "BENCH_LANGCHAIN_PYTHON"
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "advised": {"include_system": True, "start_on": "human", "end_on": ("human", "tool")},
}
"""With nothing set, and as its documentation advises."""


class Trimmer:
    """`trim_messages`, asked over a pipe; its own clock measures it."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def ask(self, **question: Any) -> Any:
        """One question."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def seconds(
        self, max_tokens: int, *, counter: str = "approximate", ready: bool = False
    ) -> float:
        """How long one trim of all messages takes, from plain dicts or from ready message objects."""
        return float(self.ask(do="time", max_tokens=max_tokens, counter=counter, ready=ready))

    def tokens(self) -> int:
        """What its approximate counter says of all messages."""
        return int(self.ask(do="count"))

    def kept(self, length: int, max_tokens: int, options: str) -> list[int]:
        """Which of the first so many messages are kept, by their places."""
        found: list[int] = self.ask(
            do="keep", length=length, max_tokens=max_tokens, options=options
        )
        return found


def python_with_langchain() -> str | None:
    """A Python that has langchain-core: the one named in BENCH_LANGCHAIN_PYTHON, else this one; None when neither has."""
    named = os.environ.get(PYTHON_VARIABLE)
    return named or (sys.executable if find_spec("langchain_core") else None)


@contextmanager
def trimming(
    python: str, messages: list[dict[str, Any]], directory: Path, tokenizers: Path
) -> Generator[Trimmer]:
    """A process that trims these messages."""
    file = directory / "messages.json"
    file.write_text(json.dumps(messages), encoding="utf-8")
    environ = {**os.environ, "TIKTOKEN_CACHE_DIR": str(tokenizers)}
    process = subprocess.Popen(
        [python, str(Path(__file__)), str(file)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environ,
    )
    try:
        yield Trimmer(process)
    finally:
        process.communicate()


def _answer(file: str) -> None:
    tools: Any = import_module("langchain_core.messages")
    approximate = import_module("langchain_core.messages.utils").count_tokens_approximately
    bodies: list[dict[str, Any]] = json.loads(Path(file).read_text(encoding="utf-8"))
    for place, body in enumerate(bodies):
        body["content"] = "" if body.get("content") is None else body["content"]
        body["id"] = str(place)
    ready = tools.convert_to_messages(bodies)
    for place, message in enumerate(ready):
        message.id = str(place)
    tools.trim_messages(ready[:20], max_tokens=100, token_counter=approximate)
    gc.collect()
    gc.freeze()
    for line in sys.stdin:
        question = json.loads(line)
        options = OPTIONS[question.get("options", "advised")]
        if question["do"] == "count":
            answer: Any = approximate(ready)
        elif question["do"] == "keep":
            given: Any = ready[: question["length"]]
            kept = tools.trim_messages(
                given, max_tokens=question["max_tokens"], token_counter=approximate, **options
            )
            answer = [int(message.id) for message in kept]
        else:
            given = ready if question["ready"] else bodies
            count = approximate if question["counter"] == "approximate" else _tokenizer()
            began = time.perf_counter()
            tools.trim_messages(
                given, max_tokens=question["max_tokens"], token_counter=count, **options
            )
            answer = time.perf_counter() - began
        print(json.dumps(answer), flush=True)


def _tokenizer() -> Callable[[list[Any]], int]:
    encode = import_module("tiktoken").get_encoding("o200k_base").encode_ordinary

    def count(messages: list[Any]) -> int:
        return sum(
            len(
                encode(
                    message.content
                    if isinstance(message.content, str)
                    else json.dumps(message.content)
                )
            )
            + 4
            for message in messages
        )

    return count


if __name__ == "__main__":
    _answer(sys.argv[1])
