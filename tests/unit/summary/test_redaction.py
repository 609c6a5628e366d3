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
    [("ok\n(", "line 2 is not a regular expression"), ("a*", "line 1 matches the empty text")],
)
@pytest.mark.proves("X4", "O5")
def test_a_line_that_is_no_pattern_is_named(text: str, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        checked_patterns(text)


@pytest.mark.proves("X4")
@pytest.mark.parametrize(
    "text",
    [
        "password\t= hunter2",
        "password=$Zk81mPq2; kept",
        "DB_PASS=Zk81mPq2\nNEXT=kept",
        "export PGPASSWORD='Zk81mPq2 x, y', kept",
        "MYSQL_PWD=Zk81mPq2 mysql kept",
        "password: |\n  Zk81mPq2\nnext: kept",
        "AccountKey=Zk81mPq2mPq2==;kept",
        "os.environ['API_KEY'] = 'Zk81mPq2' # kept",
        "{'token': b'Zk81mPq2', 'user': 'kept'}",
        '{"password": "Zk81,mPq2 x&y", "user": "kept"}',
        "<password>Zk81mPq2</password> kept",
        "tool --api-key Zk81mPq2 kept",
        '["tool", "--api-key", "Zk81mPq2", "kept"]',
        "token 'Zk81mPq2' kept",
        'token "Zk81mPq2" kept',
        "curl -u ana:Zk81mPq2 https://x.io/kept",
        "sshpass -p 'Zk81mPq2' ssh kept",
        "mysql -u root -pZk81mPq2 kept",
        "Authorization: token Zk81mPq2 kept",
        "amqp://ana:Zk81mPq2@host/kept",
        "https://Zk81mPq2Zk81mPq2@github.com/kept",
        "machine host login ana password Zk81mPq2 kept",
        "密码：Zk81mPq2，请保存 kept",
        "数据库的密码是Zk81mPq2。kept",
        "token：Zk81mPq2，请保存 kept",
        "-----BEGIN RSA PRIVATE KEY-----\nMIIEZk81mPq2Zk81mPq2\nZk81\n-----END RSA PRIVATE KEY-----\nkept",
        "gsk_Zk81mPq2Zk81mPq2Zk81mPq2Zk81mPq2 kept",
        "https://maps.example.com/v1?key=Zk81mPq2Zk81mPq2&place=kept",
        "Cookie: sid=Zk81mPq2Zk81mPq2; theme=kept",
        "Set-Cookie: session_id=s%3AZk81mPq2Zk81.mPq2; Path=/kept; Max-Age=3600; HttpOnly",
        "curl -sb 'sid=Zk81mPq2Zk81mPq2' https://x.io/kept",
        "curl --cookie sid=Zk81mPq2Zk81mPq2 https://x.io/kept",
        '{"cookie": "theme=kept; sid=Zk81mPq2Zk81mPq2"}',
        "db.kept.example:5432:orders:ana:Zk81mPq2",
        "*:*:*:kept:Zk81,mPq2",
        "Private-Lines: 2\nZk81mPq2Zk81mPq2Zk81\nZk81mP==\nPrivate-MAC: kept",
    ],
)
def test_a_secret_is_taken_out_and_the_text_around_it_kept(text: str) -> None:
    for is_ascii in (True, False):
        once = json.dumps({"command": text}, ensure_ascii=is_ascii)
        twice = json.dumps({"body": once}, ensure_ascii=is_ascii)
        for shown in map(redact, (text, once, twice)):
            assert "[REDACTED:" in shown
            assert "Zk81" not in shown
            assert "hunter2" not in shown
            assert ("kept" in shown) == ("kept" in text)
        assert json.loads(json.loads(redact(twice))["body"]) == json.loads(redact(once))


@pytest.mark.proves("X4")
@pytest.mark.parametrize(
    "text",
    [
        "token_count: 512",
        "max_tokens=4000, total_tokens: 12345678",
        "commit 3f2a9c1b7d8e4f5061728394a5b6c7d8e9f00112",
        "the token order7341x has expired",
        'columns: "token", "order7341x"',
        "key: 550e8400-e29b-41d4-a716-446655440000",
        "password = os.environ['DB_PASSWORD']",
        "token = request.headers.get('x')",
        "password=args.password",
        "api_key: SecretStr | None = None",
        'export TOKEN="$MY_TOKEN"',
        "password: ${DB_PASSWORD}",
        '"password": "Please enter your old password"',
        "PASS: test_login_2fa",
        "PWD=/srv/app/data1",
        "docker run -u 1000:1000 image",
        "bypass: enabled123",
        "proxy_pass http://localhost:5000;",
        "parameters/atapi_passthru16: File shrank by 4094 bytes",
        "密码：请在设置里修改",
        '{"url":"http://host:8080","mail":"joe@example.com"}',
        "grep -r 'BEGIN PRIVATE KEY' and -----BEGIN",
        "sk-learn-something-pipeline",
        "https://x.io/rows?key=customer_orders_by_month&page=2",
        "Set-Cookie: theme=dark; Domain=eu1.west.example.com; Path=/app/v2/reports1; Max-Age=31536000",
        "The cookie banner: consent=accepted, version=12",
        "src/app.py:1024:12:error:E0602",
        "at 2026-11-20T10:00:00 12:3000:a:b",
        "host:8080:/srv/data:/mnt/data1",
        "fe80:1:2001:abcd:ef01:2345 and 2001:0db8:85a3:1234:abcd:ef01/64",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert redact(text) == text
    assert redact(json.dumps({"text": text})) == json.dumps({"text": text})


def test_the_start_of_a_private_key_alone_does_not_take_the_rest_of_a_text() -> None:
    text = "Search for -----BEGIN PRIVATE KEY----- in all files, then tell me."

    assert redact(text) == "Search for [REDACTED:private_key] in all files, then tell me."


@pytest.mark.parametrize(
    "part",
    [
        "password=",
        'password=\\"',
        "token: ",
        "curl -u ",
        "--token ",
        "\\",
        "-----BEGIN PRIVATE KEY-----",
        "Cookie: a=",
        "Cookie: aaaaaaaaa",
        "n=n=n=n=n=n=",
        "curl -b ",
        "host:5432:",
        "a:5432:b:c:",
        "?key=",
        "Private-Lines: 8\n",
        "Private-Lines: 8\nAAAAAAAAAAAAAAAA\n",
    ],
)
def test_starts_of_secrets_in_a_row_take_linear_time(part: str) -> None:
    """At quadratic cost, each of these would take minutes."""
    assert redact("Cookie: " + part * 30_000).startswith("Cookie: ")
