"""Fair turns: a caller with many requests does not displace the others (X6)."""

import asyncio
from contextvars import copy_context

import pytest

from turnfold.errors import Unavailable
from turnfold.process.caller_order import ASKER, MEAN_OF_TURNS, Rounds, Turns
from turnfold.process.request_limits import ConcurrencyLimiter
from turnfold.settings import Settings


async def started(turns: Turns, asker: str, order: list[str]) -> asyncio.Task[object]:
    """Somebody who wants a turn, or the service itself; `order` receives it when it begins."""

    async def wants() -> object:
        taken = await turns.take()
        order.append(asker)
        return taken

    context = copy_context()
    context.run(ASKER.set, asker or None)
    task = asyncio.get_running_loop().create_task(wants(), context=context)
    await asyncio.sleep(0)
    return task


@pytest.mark.proves("X6")
async def test_one_asker_runs_no_more_than_its_part_and_others_are_let_in_before_its_next() -> None:
    turns, order = Turns(3, 2), list[str]()
    for asker in ("greedy", "greedy", "greedy", "greedy", "patient", "late"):
        await started(turns, asker, order)

    at_first = list(order)
    turns.release("greedy")
    await asyncio.sleep(0)
    turns.release("patient")
    await asyncio.sleep(0)

    assert at_first == ["greedy", "greedy", "patient"]
    # One more of the first, then of the other; the fourth of the first waits on.
    assert order[3:] == ["greedy", "late"]


@pytest.mark.proves("X6")
async def test_who_is_cancelled_while_it_waits_or_as_it_begins_leaves_the_turn_to_others() -> None:
    turns, order = Turns(1, 1), list[str]()
    await started(turns, "first", order)
    gone = await started(turns, "gone", order)
    woken = await started(turns, "woken", order)
    await started(turns, "last", order)

    gone.cancel()
    await asyncio.sleep(0)
    turns.release("first")
    woken.cancel()
    for _ in range(3):
        await asyncio.sleep(0)

    assert order == ["first", "last"]


@pytest.mark.proves("X6")
async def test_who_would_wait_for_too_long_behind_many_others_is_refused_at_once() -> None:
    now, order = [0.0], list[str]()
    turns = Turns(1, 1, longest_wait_seconds=3.0, clock=lambda: now[0])
    await started(turns, "slow", order)
    early = await started(turns, "early", order)
    # The mean time between two turns becomes two seconds.
    now[0] = 2.0 * MEAN_OF_TURNS
    turns.release("slow")
    await early
    await started(turns, "other", order)
    await started(turns, "another", order)

    refused = await started(turns, "late", order)
    itself = await started(turns, "", order)

    with pytest.raises(Unavailable) as told:
        await refused
    assert told.value.retry_after_ms == 4_000
    for asker in ("early", "other", "another"):
        assert not itself.done()
        turns.release(asker)
        await asyncio.sleep(0)
    assert order == ["slow", "early", "other", "another", ""]


@pytest.mark.proves("X6")
async def test_the_many_requests_of_one_agent_have_nobody_else_refused() -> None:
    now, order = [0.0], list[str]()
    turns = Turns(1, 1, longest_wait_seconds=3.0, clock=lambda: now[0])
    for _ in range(9):
        await started(turns, "greedy", order)
    now[0] = 2.0 * MEAN_OF_TURNS
    turns.release("greedy")
    await asyncio.sleep(0)

    await started(turns, "patient", order)
    for _ in range(2):
        turns.release("greedy")
        await asyncio.sleep(0)

    assert order[-1] == "patient"


@pytest.mark.proves("X6")
async def test_one_agent_at_its_own_limit_teaches_nothing_about_the_others_wait() -> None:
    now, order = [0.0], list[str]()
    turns = Turns(4, 2, longest_wait_seconds=3.0, clock=lambda: now[0])
    for _ in range(3):
        await started(turns, "greedy", order)
    for _ in range(MEAN_OF_TURNS):
        now[0] += 9.0
        turns.release("greedy")
        await started(turns, "greedy", order)

    for number in range(9):
        await started(turns, f"patient {number}", order)

    # Two begin at once, and the others wait for as long as those two take.
    assert order[-2:] == ["patient 0", "patient 1"]
    for number in range(7):
        turns.release(f"patient {number}")
        await asyncio.sleep(0)
        assert order[-1] == f"patient {number + 2}"


@pytest.mark.proves("X6")
async def test_a_request_that_has_read_is_not_refused_its_next_transaction() -> None:
    now, order = [0.0], list[str]()
    turns = Turns(1, 1, longest_wait_seconds=3.0, clock=lambda: now[0])

    async def reads_twice() -> None:
        turns.release(await turns.take())
        turns.release(await turns.take())
        order.append("read twice")

    await started(turns, "slow", order)
    context = copy_context()
    context.run(ASKER.set, "reader")
    reading = asyncio.get_running_loop().create_task(reads_twice(), context=context)
    await asyncio.sleep(0)
    for number in range(3):
        await started(turns, f"other {number}", order)
    now[0] = 5.0 * MEAN_OF_TURNS

    turns.release("slow")
    for _ in range(3):
        await asyncio.sleep(0)
    refused = await started(turns, "late", order)
    with pytest.raises(Unavailable):
        await refused
    for number in range(3):
        turns.release(f"other {number}")
        await asyncio.sleep(0)

    await reading
    assert order[-1] == "read twice"


@pytest.mark.proves("X6")
async def test_a_slow_hour_is_forgotten_after_a_quiet_one() -> None:
    now, order = [0.0], list[str]()
    turns = Turns(1, 1, longest_wait_seconds=3.0, clock=lambda: now[0])
    await started(turns, "slow", order)
    now[0] = 5.0 * MEAN_OF_TURNS
    turns.release("slow")
    now[0] += 3_600.0

    for number in range(9):
        await started(turns, f"agent {number}", order)
    turns.release("agent 0")
    await asyncio.sleep(0)

    assert order == ["slow", "agent 0", "agent 1"]


@pytest.mark.proves("X6")
async def test_of_a_burst_one_request_of_each_asker_begins_in_a_round() -> None:
    rounds, order = Rounds(), list[str]()

    async def begins(asker: str) -> None:
        await rounds.turn(asker)
        order.append(asker)

    await asyncio.gather(*(begins("greedy") for _ in range(5)), begins("patient"))

    assert order[:2] == ["greedy", "patient"]
    assert order.count("greedy") == 5


@pytest.mark.proves("X6")
async def test_places_waiting_places_and_searches_are_counted_apart_and_given_back() -> None:
    limiter = ConcurrencyLimiter(
        Settings(max_requests=8, max_waiting=16, max_searches=8, agent_share=0.25)
    )
    with limiter.admitted("greedy") as first, limiter.admitted("greedy"):
        with pytest.raises(Unavailable) as told, limiter.admitted("greedy"):
            pass
        first.wait()
        with limiter.admitted("greedy") as third:
            third.search()
        with limiter.admitted("patient"):
            pass

    assert told.value.retry_after_ms == 1_000
    with limiter.admitted("greedy"), limiter.admitted("greedy"):
        pass


@pytest.mark.proves("X6")
async def test_a_turn_at_something_else_lets_no_request_wait_for_long() -> None:
    now, order = [0.0], list[str]()
    stream, turns = Turns(1, 1), Turns(1, 1, longest_wait_seconds=3.0, clock=lambda: now[0])
    await started(turns, "slow", order)
    await started(turns, "early", order)
    now[0] = 5.0 * MEAN_OF_TURNS
    turns.release("slow")
    await started(turns, "other", order)

    async def asks() -> None:
        stream.release(await stream.take())
        await turns.take()

    context = copy_context()
    context.run(ASKER.set, "late")
    with pytest.raises(Unavailable):
        await asyncio.get_running_loop().create_task(asks(), context=context)
