"""Work on outside input costs at most n log n: processor time over doubled sizes of input that once took longer.

`make costs` generates other input.
"""

import math
from collections.abc import Callable

import pytest

from tests.costs import __main__ as program
from tests.costs.measuring import Case, Work, growth_of
from tests.costs.readers import KNOWN_SEARCHES, KNOWN_TEXTS
from tests.costs.sessions import KNOWN
from turnfold_query import handlers

LEAST_SECONDS = 0.004


@pytest.mark.proves("X6", "C72")
@pytest.mark.parametrize("case", KNOWN, ids=lambda case: case.name)
def test_a_window_of_many_calls_costs_at_most_n_log_n(case: Case) -> None:
    """1,400 calls in one block took seconds, and 6,000 over several events more than a minute."""
    growth = growth_of(case, least_seconds=LEAST_SECONDS / 8)

    assert growth is not None
    assert not growth.is_too_fast, growth


@pytest.mark.proves("X6", "C72", "F1")
@pytest.mark.parametrize("case", KNOWN_SEARCHES, ids=lambda case: case.name)
def test_a_query_of_many_words_costs_as_much_as_the_text(case: Case) -> None:
    """Eight searches for 100 words of two letters in 4 MB kept everybody else waiting for 8 s. Query and text grow together here."""
    growth = growth_of(case, least_seconds=LEAST_SECONDS)

    assert growth is not None
    assert not growth.is_too_fast, growth


@pytest.mark.proves("X6", "C72", "S3")
@pytest.mark.parametrize("case", KNOWN_TEXTS, ids=lambda case: case.name)
def test_quotes_and_tags_that_are_not_closed_cost_no_more_than_their_length(case: Case) -> None:
    """A call with a shell command of unclosed quotes cost 88 ms, and an event holds thousands of them."""
    growth = growth_of(case, least_seconds=LEAST_SECONDS / 8)

    assert growth is not None
    assert not growth.is_too_fast, growth


@pytest.mark.parametrize(
    ("steps", "is_too_fast"),
    [
        (lambda size: size, False),
        (lambda size: size * math.log2(size), False),
        (lambda size: size * size, True),
    ],
    ids=["n", "n log n", "n * n"],
)
def test_work_is_judged_by_how_it_grows(steps: Callable[[int], float], is_too_fast: bool) -> None:
    taken: list[float] = []

    def build(size: int) -> Work:
        return lambda: taken.append(steps(size) / 1_000_000)

    growth = growth_of(
        Case("work of counted steps", build, 1 << 14),
        least_seconds=LEAST_SECONDS,
        clock=lambda: sum(taken),
    )

    assert growth is not None
    assert growth.is_too_fast == is_too_fast


def test_nothing_is_measured_that_a_service_remembers() -> None:
    key_of = handlers._key_of
    key_of("context.get", "context.get.support.user-41")

    growth_of(Case("nothing", lambda _: lambda: None, 64), least_seconds=1)

    assert key_of.cache_info().currsize == 0


@pytest.mark.parametrize(("only", "status"), [("summary of", 0), ("sumary of", 2)])
def test_cases_of_an_unknown_name_are_refused(
    only: str, status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        "sys.argv", ["", "--kind", "text", "--cases", "40", "--only", only, "--least-ms", "1e9"]
    )

    with pytest.raises(SystemExit) as ended:
        program.main()

    assert ended.value.code == status
    assert ("summary of tool" in capsys.readouterr().err) == bool(status)
