"""Cut windows until so many are checked: `python -m tests.window_check [--cuts N] [--processes N] [--data DIR]`."""

import argparse
import json
import sys
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from tests.histories import counter
from tests.window_check.cuts import (
    MEASURED_FROM,
    Question,
    Subject,
    Tally,
    cut,
    questions,
    steadiness,
)
from tests.window_check.sessions import (
    Conversation,
    Sitting,
    conversations,
    data_directory,
    eviction_faults,
    sitting,
)
from turnfold.core.eviction.triggers import Trigger
from turnfold.core.policy.presets import Policy

QUESTIONS = 32
BATCH = 40
KNOWN_WEIGHTS = 50_000
GOALS = {"first fit": ("1.0", 0.97), "balanced": ("0.85", 0.82)}
"""By policy: its low-water ratio, and the share of their budgets that windows must use on average."""
COMPARED_FROM = 1_000
"""An average of fewer windows is not compared with its goal."""
SHOWN_FAILURES = 5


def main() -> None:
    """Prove, print what was found, and exit with 1 where a law was broken or a goal missed."""
    parser = argparse.ArgumentParser(
        prog="tests.window_check",
        description="Windows of generated and recorded sessions, checked against the laws.",
    )
    parser.add_argument(
        "--cuts", type=int, default=1_000_000, help="how many windows (default: a million)"
    )
    parser.add_argument(
        "--processes", type=int, default=1, help="how many processes cut them (default: 1)"
    )
    parser.add_argument(
        "--data",
        type=Path,
        help="a directory of recorded conversations (default: PROVE_DATA, else the shared ones)",
    )
    parser.add_argument("--seed", type=int, default=1, help="other sessions and questions")
    parser.add_argument(
        "--only", type=int, help="the session of this number alone, as a failure names it"
    )
    chosen = parser.parse_args()
    console = Console() if sys.stdout.isatty() else Console(width=110)
    directory = data_directory(chosen.data)
    recorded = conversations(directory)
    console.print(f"{len(recorded)} recorded conversations, and generated ones")
    numbers = [chosen.only] if chosen.only is not None else range(-(-chosen.cuts // QUESTIONS))
    began = time.perf_counter()
    tally = _proved(
        numbers, seed=chosen.seed, directory=directory, processes=chosen.processes, console=console
    )
    _show(tally, time.perf_counter() - began, console)
    for number, fault in tally.failures[:SHOWN_FAILURES]:
        console.print(f"\nsession {number}: {fault}", markup=False)
    if tally.failures:
        console.print(
            _smallest(tally.failures[0][0], chosen.seed, recorded), markup=False, soft_wrap=True
        )
    missed = missed_goals(tally)
    for goal in missed:
        console.print(goal)
    sys.exit(1 if tally.failures or missed else 0)


def missed_goals(tally: Tally) -> list[str]:
    """A sentence for each goal that was missed; generated and recorded texts have the same goals."""
    return [
        f"windows of {origin} texts use {total / number:.2%} of their budgets, the goal is {GOALS[policy][1]:.0%}"
        for (policy, origin), (total, number) in tally.used.items()
        if number >= COMPARED_FROM and total / number < GOALS[policy][1]
    ]


def _proved(
    numbers: Sequence[int], *, seed: int, directory: Path | None, processes: int, console: Console
) -> Tally:
    batches = [numbers[start : start + BATCH] for start in range(0, len(numbers), BATCH)]
    tally = Tally()
    columns = (
        TextColumn("cutting"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("batches"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=len(batches))
        for done, found in enumerate(_batches(batches, seed, directory, processes), start=1):
            tally.add(found)
            progress.advance(task)
            if not console.is_terminal and done % 100 == 0:
                console.print(f"{tally.cuts:,} windows, {len(tally.failures)} failures")
    return tally


def _batches(
    batches: Sequence[Sequence[int]], seed: int, directory: Path | None, processes: int
) -> Iterable[Tally]:
    prove = partial(proved, seed=seed, directory=directory)
    if processes == 1:
        yield from map(prove, batches)
        return
    counter()
    with ProcessPoolExecutor(processes) as pool:
        for finished in as_completed([pool.submit(prove, batch) for batch in batches]):
            yield finished.result()


def proved(numbers: Iterable[int], *, seed: int, directory: Path | None) -> Tally:
    """Cut the windows of the sessions of these numbers."""
    tally, weights = Tally(), dict[str, int]()
    recorded = conversations(directory)
    for number in numbers:
        if len(weights) > KNOWN_WEIGHTS:
            weights.clear()
        found = prove_session(number, seed, recorded, tally, weights)
        tally.failures += [(number, fault) for fault in found]
    return tally


def prove_session(
    number: int, seed: int, recorded: Sequence[Conversation], tally: Tally, weights: dict[str, int]
) -> list[str]:
    """Every fault of the windows of one session."""
    random = Random(f"{seed}/{number}")
    made = sitting(random, number, recorded)
    tally.sessions += 1
    found = _evicted(random, made, tally)
    subject = Subject(made, weights)
    for question in questions(random, subject.tokens, QUESTIONS - 4):
        found += [
            f"{fault} ({described(made, question)})" for fault in cut(subject, question, tally)
        ]
    if len(made.said) > 1:
        earlier = Subject(made.until(len(made.said) - 1), weights)
        for question in questions(random, subject.tokens, 2):
            found += [
                f"{fault} ({described(made, question)})"
                for fault in steadiness(earlier, subject, question, tally)
            ]
    return found


def _evicted(random: Random, made: Sitting, tally: Tally) -> list[str]:
    """What is wrong with an eviction from this session, under some policy."""
    trigger = random.choice((Trigger.MESSAGES, Trigger.TOKENS, Trigger.REQUEST))
    policy = Policy(
        keep_messages=random.choice((1, 3, 10)), keep_tokens=random.choice((0, 2_000, 20_000))
    )
    tally.evictions += 1
    after = made.evicting(policy, trigger)
    return [f"{fault} ({made.name}, {trigger}, {policy})" for fault in eviction_faults(made, after)]


def described(made: Sitting, question: Question) -> str:
    """A question in one line."""
    asked = question.asked
    what = f"{made.name}, {question.policy}, {asked.budget_tokens} tokens"
    limit = f", {asked.max_messages} messages" if asked.max_messages is not None else ""
    return f"{what}{limit}{', emergency' if asked.is_emergency else ''}, {asked.placement}"


def _show(tally: Tally, seconds: float, console: Console) -> None:
    console.print(
        f"{tally.cuts:,} windows of {tally.sessions:,} sessions in {seconds:,.0f} s: {len(tally.failures)} failures\n"
        f"{tally.emergencies:,} emergencies, {tally.refused:,} refusals (each asked again with what it names), "
        f"{tally.steady:,} pairs of windows one message apart, {tally.evictions:,} evictions"
    )
    title = (
        f"share of the budget used where more text was at hand, from {MEASURED_FROM:,} tokens on"
    )
    table = Table(
        "low-water ratio", "texts", "windows", "used", "goal", title=title, title_justify="left"
    )
    for (policy, origin), (total, number) in sorted(tally.used.items(), reverse=True):
        ratio, goal = GOALS[policy]
        said = f">= {goal:.0%}" if number >= COMPARED_FROM else "too few windows"
        table.add_row(ratio, origin, f"{number:,}", f"{total / number:.1%}", said)
    console.print(table)


def _smallest(number: int, seed: int, recorded: Sequence[Conversation]) -> str:
    """The first fault of a session again, with as few messages as still show it."""
    random = Random(f"{seed}/{number}")
    made = sitting(random, number, recorded)
    _evicted(random, made, Tally())
    subject = Subject(made, {})
    for question in questions(random, subject.tokens, QUESTIONS - 4):
        if fails(made, question):
            smallest = reduced(made, question)
            said = [
                one.body | ({"is_pending": True} if one.is_pending else {}) for one in smallest.said
            ]
            facts = f"factor {made.factor}, summary {len(made.summary)} characters, covered {made.covered}"
            return f"\nsmallest: {described(made, question)}, {facts}\n{fails(smallest, question)[0]}\n{json.dumps(said)[:4_000]}"
    return f"\npython -m tests.window_check --seed {seed} --only {number}"


def fails(made: Sitting, question: Question) -> list[str]:
    """What is wrong with the window of a session."""
    return cut(Subject(made, {}), question, Tally())


def reduced(made: Sitting, question: Question) -> Sitting:
    """The session without what its fault can do without: halves first, then single messages."""
    size = len(made.said) // 2
    while size:
        start = 0
        while start < len(made.said):
            smaller = replace(made, said=made.said[:start] + made.said[start + size :])
            if fails(smaller, question):
                made = smaller
            else:
                start += size
        size //= 2
    return made


if __name__ == "__main__":
    main()
