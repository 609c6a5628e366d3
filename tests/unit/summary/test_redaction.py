"""An operator's own patterns, beside the secrets that are known."""

import json

import pytest

from turnfold.core.summary.redaction import checked_patterns, redact, without_secrets
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
@pytest.mark.parametrize(
    "text",
    [
        'export API_KEY="Zk81mPq2"; ./deploy.sh',
        "mysql --password='Zk81mPq2' -u root",
        '{"user": "ana", "password": "Zk81mPq2", "port": 5432}',
        "curl -H 'X-API-Key: Zk81mPq2' https://x.io",
        "X-API-KEY: Zk81mPq2",
        "MYSQL_PASSWD=Zk81mPq2",
        "AWS_SECRET_ACCESS_KEY=Zk81mPq2",
        "aws_secret_access_key = Zk81mPq2",
        "{:password => 'Zk81mPq2'}",
        r"password=a\Zk81mPq2\b",
        "-----BEGIN PGP PRIVATE KEY BLOCK-----\n\nZk81mPq2\n-----END PGP PRIVATE KEY BLOCK-----",
    ],
)
def test_secrets_are_found_however_often_the_text_is_quoted_as_json(text: str) -> None:
    """The arguments of a call are JSON, and may hold JSON themselves."""
    once = json.dumps({"command": text})
    twice = json.dumps({"body": once})

    assert "[REDACTED:" in redact(text)
    for shown in map(redact, (text, once, twice)):
        assert "Zk81" not in shown
    assert json.loads(json.loads(redact(twice))["body"]) == json.loads(redact(once))


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
