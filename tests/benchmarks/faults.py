"""Measure what each fault of a summary model costs agents, beside a system with a fast model.

The model hangs, trickles, answers 429, 500, 401, HTML, null, nothing, thinking only, cut, refused,
too long or broken text, a tool call or an overflow, or drops the connection, in ten sessions that
are due for a compaction. Calls have 3 seconds.
"""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from random import Random
from statistics import median

from tests.benchmarks.figures import RATIO, Figure
from tests.benchmarks.hanging import WRITTEN, Side, compared, in_turns, side
from tests.benchmarks.system import until
from tests.benchmarks.texts import turn

FAULTS = (
    "hang", "trickle", "429", "500", "401", "html", "null", "empty", "thinking", "length", "refuse", "tool_call", "long", "broken",
    "overflow", "drop",
)  # fmt: skip
TIMEOUT_SECONDS = 3
"""So short that a model that hangs is given up and asked again within the measurement."""
SESSIONS = 10
FIRST_TURNS = 14
TURNS = 300
FAILED = "SELECT count(*) FROM audit_view WHERE phase = 'attempt_failed' OR (phase = 'summary_done' AND reason IS NOT NULL)"


async def measure(directory: Path) -> AsyncIterator[Figure]:
    """Start both once; each fault has sessions of its own, in which compactions become due all the time."""
    settings = {"TURNFOLD_SUMMARY_TIMEOUT_SECONDS": str(TIMEOUT_SECONDS)}
    async with (
        side(directory / "fast", "answer", **settings) as fast,
        side(directory / "faulty", "500", **settings) as faulty,
    ):
        random = Random("faults")
        for at in range(FIRST_TURNS):
            for one in (fast, faulty):
                await one.play("first", f"first-{at}", turn(random, at))
        await until(lambda: fast.one.ask(WRITTEN)[0])
        await until(lambda: faulty.one.ask(FAILED)[0])
        all_fast, all_faulty = (
            replace(fast, published=[], asked=[]),
            replace(faulty, published=[], asked=[]),
        )
        for fault in FAULTS:
            for figure in await _measured(fault, fast, faulty, random):
                yield figure
            for one, whole in ((fast, all_fast), (faulty, all_faulty)):
                whole.published.extend(one.published)
                whole.asked.extend(one.asked)
        # The slow end of 300 requests is three of them; that of all faults says more.
        for figure in compared(all_fast, all_faulty, "all faults"):
            yield figure


async def _measured(fault: str, fast: Side, faulty: Side, random: Random) -> list[Figure]:
    asked, failed, logged = (
        await faulty.model.change(fault),
        faulty.one.ask(FAILED)[0],
        faulty.one.logged(),
    )
    written = faulty.one.ask(WRITTEN)[0]
    for at in range(FIRST_TURNS):
        for session in range(SESSIONS):
            messages = turn(random, at)
            for one in (fast, faulty):
                await one.play(f"{fault}-{session}", f"{fault}-{session}-{at}", messages)
    for one in (fast, faulty):
        for taken in (one.published, one.asked, one.sizes):
            taken.clear()
    for number in range(TURNS):
        messages = turn(random, FIRST_TURNS + number)
        await in_turns(
            (fast, faulty),
            number,
            f"{fault}-{number % SESSIONS}",
            f"{fault}-later-{number}",
            messages,
        )
    calls = await faulty.model.change(fault) - asked
    assert calls, f"the model was not asked while its fault was {fault}"
    return [
        *compared(fast, faulty, fault),
        # An extractive summary is longer than this model's, and windows are larger by it.
        Figure(
            f"size of an answer, {fault} to fast", median(faulty.sizes) / median(fast.sizes), RATIO
        ),
        Figure(f"calls of the model, {fault}", calls, "calls"),
        Figure(f"attempts that failed, {fault}", faulty.one.ask(FAILED)[0] - failed, "attempts"),
        Figure(
            f"summaries that it wrote, {fault}", faulty.one.ask(WRITTEN)[0] - written, "summaries"
        ),
        Figure(f"lines in the log, {fault}", faulty.one.logged() - logged, "lines"),
    ]
