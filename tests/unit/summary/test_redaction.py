"""An operator's own patterns, beside the secrets that are known."""

import pytest

from turnfold.core.summary.redaction import checked_patterns, without_secrets
from turnfold.core.summary.sources import PreviousSummary, Source, SummaryJob


@pytest.mark.proves("X4")
def test_patterns_are_taken_out_of_all_that_a_summariser_reads() -> None:
    job = SummaryJob(
        sources=(Source("e1#0", "assistant", "Badge A-12.", (("open", '{"badge": "A-12"}'),)),),
        previous=PreviousSummary(
            "Badge A-7 came.",
            {"decisions": ["A-7 may enter."], "provenance": [["e0#0", 90]]},
            ("id A-7",),
        ),
        newest_request="Let A-12 in.",
        redactions=(r"A-\d+",),
    )

    found = without_secrets(job)

    assert found.sources[0].text == "Badge [REDACTED:pattern]."
    assert found.sources[0].calls == (("open", '{"badge": "[REDACTED:pattern]"}'),)
    assert found.newest_request == "Let [REDACTED:pattern] in."
    assert found.previous is not None
    assert found.previous.text == "Badge [REDACTED:pattern] came."
    assert found.previous.sections == {
        "decisions": ["[REDACTED:pattern] may enter."],
        "provenance": [["e0#0", 90]],
    }
    assert found.previous.ledger == ("id [REDACTED:pattern]",)


@pytest.mark.proves("X4")
def test_without_patterns_a_job_is_what_it_was() -> None:
    job = SummaryJob(sources=(Source("e1#0", "user", "Badge A-12."),))

    assert without_secrets(job) is job


@pytest.mark.proves("X4", "O5")
def test_a_file_of_patterns_has_one_a_line_and_remarks() -> None:
    assert checked_patterns("# badges\nA-\\d+\n\n  B-\\w+  \n") == ("A-\\d+", "B-\\w+")


@pytest.mark.parametrize(
    ("text", "told"),
    [("ok\n(", "line 2 is no regular expression"), ("a*", "line 1 matches the empty text")],
)
@pytest.mark.proves("X4", "O5")
def test_a_line_that_is_no_pattern_is_named(text: str, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        checked_patterns(text)
