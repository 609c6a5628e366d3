"""HTTP bearer tokens: each allows its own agents, an operator's allows all, others none."""

import hmac
import json
import os
import resource
import ssl
import subprocess
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme
from typer.testing import CliRunner, Result

from tests.running_system import TURNFOLD, Parts, command, running_system, serving_parts
from turnfold.access.bearers import (
    EVERY_AGENT,
    Grant,
    TokenRegistry,
    check_bind_address,
    new_token,
    read_tokens,
    revoke_token,
)
from turnfold.cli.application import application
from turnfold.errors import StartError, TurnfoldError

USER = {"role": "user", "content": "Where is order 7341?"}
STRANGE = ("*", ">", "a.b", "a b", "..", "a/b", "%2E", "語 ✓", "é" * 128)
IMPOSSIBLE = ("a\nb", "a\rb", "a\x00b", "a\tb", "x" * 10_000)
WAYS = (
    "",
    "/context",
    "/history",
    "/search?q=order",
    "/summaries",
    "/summaries/1",
    "/summaries/1/sources?line=0",
    "/audit",
    "/audit/verification",
    "/compactions",
    "/timeline",
)


@asynccontextmanager
async def guarded(directory: Path) -> AsyncGenerator[tuple[Parts, Path]]:
    """A query service and a worker with two agents' sessions, and the file of tokens."""
    tokens = directory / "tokens.json"
    tokens.write_text("{}")
    environ = {"TURNFOLD_HTTP_TOKENS": str(tokens)}
    async with serving_parts(directory, environ=environ) as (parts, client):
        for agent in ("support", "other"):
            await client.session(agent, "s").turn_completed([USER])
            await client.session(agent, "s").context(wait_ms=5_000)
        yield parts, tokens


def http(parts: Parts, token: str | None = None) -> httpx.AsyncClient:
    """Somebody with a token, or without."""
    headers = {"Authorization": f"Bearer {token}"} if token is not None else {}
    return parts.http(headers=headers)


async def seen(client: httpx.AsyncClient, method: str, path: str) -> tuple[int, str | None]:
    """The status, and the code of the error."""
    answer = await client.request(method, path)
    told = answer.json() if answer.headers["content-type"] == "application/json" else {}
    return answer.status_code, told.get("error", {}).get("code")


def encoded(name: str) -> str:
    """An id as a segment of a path, every byte of it, so that nobody on the way takes it for something else."""
    return "".join(f"%{byte:02X}" for byte in name.encode())


@pytest.mark.proves("X1")
def test_each_token_is_compared_with_all_and_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise, the time of an answer would depend on the tokens of others."""
    path, compared = tmp_path / "tokens.json", list[bytes]()
    tokens = [new_token(path, ["support"]) for _ in range(3)]
    compare = hmac.compare_digest

    def note(known: bytes, presented: bytes) -> bool:
        compared.append(known)
        return compare(known, presented)

    monkeypatch.setattr(hmac, "compare_digest", note)
    registry = TokenRegistry(path)
    grants = [registry.grant(f"Bearer {token}") for token in (*tokens, "tf_none")]

    assert [grant is not None for grant in grants] == [True, True, True, False]
    assert [digest.hex() for digest in compared] == list(read_tokens(path)) * 4


@pytest.mark.proves("X1", "L12")
async def test_a_token_reaches_its_own_agents_and_learns_nothing_of_others(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (parts, tokens):
        mine, every = new_token(tokens, ["support", "more"]), new_token(tokens, [EVERY_AGENT])
        async with (
            http(parts) as stranger,
            http(parts, "tf_guessed") as guesser,
            http(parts, mine) as client,
            http(parts, every) as operator,
        ):
            for way in WAYS:
                assert (await client.get(f"/v1/agents/support/sessions/s{way}")).status_code in (
                    200,
                    400,
                ), way
                for session in ("s", "never-written"):
                    path = f"/v1/agents/other/sessions/{session}{way}"
                    assert await seen(client, "GET", path) == (403, "not_allowed")
                    assert (
                        await seen(stranger, "GET", path)
                        == await seen(guesser, "GET", path)
                        == (401, "not_allowed")
                    )
            for method, path in (
                ("POST", "/v1/agents/other/sessions/s/events"),
                ("DELETE", "/v1/agents/other/sessions/s"),
                ("DELETE", "/v1/agents/other"),
                ("PATCH", "/v1/agents/other/policy"),
                ("PATCH", "/v1/agents/other/sessions/s/policy"),
                ("POST", "/v1/agents/other/summaries"),
                ("POST", "/v1/summaries"),
                ("GET", "/v1/campaigns/1"),
                ("GET", "/v1/deadletters"),
                ("GET", "/v1/agents/other/sessions/s/changes"),
                ("GET", "/v1/agents/other/sessions/s/context/difference?before=1"),
                ("GET", "/v1/sessions?agent_id=other"),
                ("GET", "/v1/compactions?agent_id=other"),
                ("GET", "/v1/erasures?agent_id=other"),
                ("GET", "/v1/costs?agent_id=other"),
                ("GET", "/v1/campaigns?agent_id=other"),
                ("GET", "/v1/stats?agent_id=other"),
                ("GET", "/metrics"),
                ("GET", "/docs"),
                ("GET", "/openapi.json"),
                ("GET", "/asyncapi.json"),
                ("GET", "/v1/agents/%6Fther/sessions/s"),
                ("GET", "/v1/agents/support%2F..%2Fother/sessions/s"),
                ("GET", "/v1/agents//sessions/s"),
                ("GET", "/v1/agents/%FF/sessions/s"),
                ("GET", "/nothing"),
            ):
                assert await seen(client, method, path) == (403, "not_allowed"), path
                assert await seen(stranger, method, path) == (401, "not_allowed"), path
            for path in ("/healthz", "/readyz"):
                assert (await stranger.get(path)).status_code == 200
            for path in ("/metrics", "/docs", "/openapi.json", "/asyncapi.json", "/v1/deadletters"):
                assert (await operator.get(path)).status_code == 200

            assert (await stranger.get("/metrics")).headers["www-authenticate"] == "Bearer"
            assert (
                'turnfold_requests_refused_total{code="not_allowed",request="http"}'
                in (await operator.get("/metrics")).text
            )
            listed = [
                (await one.get("/v1/sessions")).json()["sessions"] for one in (client, operator)
            ]
            assert [{session["agent_id"] for session in sessions} for sessions in listed] == [
                {"support"},
                {"support", "other"},
            ]
            assert (
                await client.request("PATCH", "/v1/agents/support/policy", json={"mode": "manual"})
            ).status_code == 200
            access = [(await one.get("/v1/access")).json() for one in (client, operator)]
            assert [(one["is_operator"], one["agents"]) for one in access] == [
                (False, ["more", "support"]),
                (True, None),
            ]
            assert (access[0]["system"], bool(access[1]["system"])) == (None, True)
            totals = [(await one.get("/v1/stats")).json() for one in (client, operator)]
            assert [one["sessions"] for one in totals] == [1, 2]
            # The windows of a server are those of all agents.
            assert [one["windows"] is None for one in totals] == [True, False]
            listed = [(await one.get("/v1/agents")).json()["agents"] for one in (client, operator)]
            assert [[row["agent_id"] for row in rows] for rows in listed] == [
                ["support"],
                ["other", "support"],
            ]
            assert (await stranger.get("/v1/access")).status_code == 401
            posted = {
                "type": "turn.completed",
                "event_id": "e",
                "agent_id": "other",
                "session_id": "s",
                "messages": [USER],
            }
            assert (
                await client.post("/v1/agents/support/sessions/s/events", json=posted)
            ).status_code == 400

        # Nobody who reads a file or a log finds a token.
        assert mine not in tokens.read_text() + parts.words()
        told = await command(
            "sessions", "--json", environ=parts.environ | {"TURNFOLD_HTTP_TOKEN": every}
        )
        refused = [
            await command("sessions", "--json", environ=parts.environ | shown)
            for shown in ({}, {"TURNFOLD_HTTP_TOKEN": f"“{every}”"})
        ]
        assert {row["agent_id"] for row in told.rows} == {"support", "other"}
        for one in refused:
            assert (one.status, every in one.err) == (1, False)
            # A command cannot show the header that the service asks for.
            assert "commands send the one in TURNFOLD_HTTP_TOKEN" in one.err


@pytest.mark.proves("X1")
async def test_the_file_of_tokens_is_read_again_when_it_changes_and_while_it_is_broken_nobody_is_let_in(
    tmp_path: Path,
) -> None:
    async with guarded(tmp_path) as (parts, tokens):
        token = new_token(tokens, ["support"])
        async with http(parts, token) as client:

            async def status() -> int:
                return (await client.get("/v1/agents/support/sessions/s")).status_code

            statuses = [await status()]
            (digest,) = read_tokens(tokens)
            kept = tokens.read_text()
            revoke_token(tokens, digest)
            statuses.append(await status())
            tokens.write_text(kept)
            statuses.append(await status())
            tokens.write_text("no JSON")
            statuses.append(await status())
            tokens.unlink()
            statuses.append(await status())
            tokens.write_text(kept)
            statuses.append(await status())

        assert statuses == [200, 401, 200, 401, 401, 200]
        assert "tokens.unreadable" in parts.words()


@pytest.mark.proves("X8")
def test_tokens_that_were_unreadable_for_a_moment_are_read_again(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    header = f"Bearer {new_token(path, ['support'])}"
    registry = TokenRegistry(path)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    os.utime(path, ns=(0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
    try:
        refused = registry.grant(header)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)

    assert refused is None
    granted = registry.grant(header)
    assert granted is not None
    assert granted.agents == {"support"}


@pytest.mark.proves("X2", "L12")
async def test_ids_of_any_characters_stay_whole_in_a_path(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (parts, tokens):
        every = new_token(tokens, [EVERY_AGENT])
        for name in STRANGE:
            path = f"/v1/agents/{encoded(name)}/sessions/{encoded(name)}"
            token = every if name == EVERY_AGENT else new_token(tokens, [name])
            async with http(parts, token) as client:
                event = {
                    "type": "turn.completed",
                    "event_id": name,
                    "agent_id": name,
                    "session_id": name,
                    "messages": [USER],
                }
                seq = (await client.post(f"{path}/events", json=event)).json()["seq"]
                window = (
                    await client.get(f"{path}/context", params={"after": seq, "wait_ms": 5_000})
                ).json()
                assert (window["agent_id"], window["session_id"], window["account"]["total"]) == (
                    name,
                    name,
                    1,
                )
        async with http(parts, every) as operator:
            for name in IMPOSSIBLE:
                for path in (
                    f"/v1/agents/{encoded(name)}/sessions/s",
                    f"/v1/agents/support/sessions/{encoded(name)}/context",
                ):
                    assert await seen(operator, "GET", path) == (400, "bad_request")


# --- what a token is


@pytest.mark.proves("X1")
def test_a_file_that_was_repaired_counts_again_even_if_its_time_and_size_are_as_before(
    tmp_path: Path,
) -> None:
    """X1: a file that became readable again was rejected until a restart."""
    path = tmp_path / "tokens.json"
    token = f"Bearer {new_token(path, ['support'])}"
    bearers, kept, times = TokenRegistry(path), path.read_bytes(), path.stat()
    found = [bearers.grant(token)]

    for content in (b"?" * len(kept), kept):
        path.write_bytes(content)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
        found.append(bearers.grant(token))

    assert [grant is not None for grant in found] == [True, False, True]


@pytest.mark.proves("X1")
def test_a_file_holds_hashes_that_only_its_owner_may_read(tmp_path: Path) -> None:
    path = tmp_path / "keys" / "tokens.json"

    tokens = [
        new_token(path, ["support"]),
        new_token(path, ["b", "a"]),
        new_token(path, [EVERY_AGENT]),
    ]

    bearers = TokenRegistry(path)
    names = [digest[:12] for digest in read_tokens(path)]
    assert [bearers.grant(f"Bearer {token}") for token in tokens] == [
        Grant(frozenset({"support"}), names[0]),
        Grant(frozenset({"a", "b"}), names[1]),
        Grant(frozenset({EVERY_AGENT}), names[2]),
    ]
    # The name of a scheme has no case.
    assert bearers.grant(f"bearer {tokens[0]}") is not None
    assert not any(token in path.read_text() for token in tokens)
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.proves("X1")
def test_a_file_that_its_operator_opened_to_a_container_stays_open(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    new_token(path, ["support"])
    path.chmod(0o644)

    new_token(path, ["other"])
    modes = [path.stat().st_mode & 0o777]
    revoke_token(path, next(iter(read_tokens(path))))
    modes.append(path.stat().st_mode & 0o777)

    assert modes == [0o644, 0o644]


@pytest.mark.proves("X1")
@pytest.mark.parametrize(
    "shown",
    [
        None,
        "",
        "Bearer",
        "Bearer ",
        "Basic dTpw",
        "Bearer tf_",
        "Bearer \udcff",
        "Bearer {hash}",
        "{token}",
    ],
)
def test_whatever_is_no_token_lets_nobody_in(tmp_path: Path, shown: str | None) -> None:
    token = new_token(tmp_path / "tokens.json", ["support"])
    (digest,) = read_tokens(tmp_path / "tokens.json")

    given = shown.replace("{hash}", digest).replace("{token}", token) if shown is not None else None

    assert TokenRegistry(tmp_path / "tokens.json").grant(given) is None


@pytest.mark.proves("X1")
@pytest.mark.parametrize("held", ["", "[]", '{"abc": ["a"]}', '{"00": "a"}', '{"00": [1]}'])
def test_a_file_that_holds_no_tokens_stops_the_start(tmp_path: Path, held: str) -> None:
    (tmp_path / "tokens.json").write_text(held)

    with pytest.raises(StartError, match=r"tokens\.json does not hold the hashes of tokens"):
        TokenRegistry(tmp_path / "tokens.json")


# --- the commands


def test_a_revoked_key_says_that_the_server_has_to_read_the_rest(tmp_path: Path) -> None:
    def keys(*words: str) -> Result:
        return CliRunner().invoke(application(["keys"]), ["keys", *words, "--dir", str(tmp_path)])

    key = json.loads(keys("new", "agent", "support", "--json").stdout)["key"]

    revoked = keys("revoke", key)

    assert "stays valid until the server has read" in revoked.stdout


@pytest.mark.proves("X1", "O3")
def test_keys_and_tokens_are_made_listed_and_revoked(tmp_path: Path) -> None:
    def keys(*words: str) -> Result:
        return CliRunner().invoke(
            application(["keys"]), ["keys", *words, "--dir", str(tmp_path / "keys")]
        )

    def told(*words: str) -> list[Any]:
        return [json.loads(line) for line in keys(*words, "--json").stdout.splitlines()]

    (agent,), (worker,), (token,) = (
        told("new", "agent", "support"),
        told("new", "worker"),
        told("token", "support"),
    )
    listed = told("list")
    revoked = [
        keys("revoke", row["name"]).exit_code for row in listed if row["agents"] == "support"
    ]
    accounts = keys("nats").stdout

    assert Path(agent["file"]).stat().st_mode & 0o777 == 0o600
    assert Path(agent["file"]).read_text().startswith("SU")
    assert TokenRegistry(Path(token["file"])).grant(f"Bearer {token['token']}") is None
    assert [row["kind"] for row in listed] == ["key", "key", "token"]
    assert revoked == [0, 0]
    assert [row["name"] for row in told("list")] == [worker["key"]]
    assert worker["key"] in accounts
    assert agent["key"] not in accounts
    assert isinstance(keys("revoke", "U").exception, TurnfoldError)
    for wrong in (
        ("new", "agent"),
        ("new", "worker", "support"),
        ("new", "agent", "a\nb"),
        ("token",),
        ("token", "*"),
        ("new", "king"),
    ):
        assert keys(*wrong).exit_code == 2, wrong


# --- where to listen


@pytest.mark.proves("X1")
@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org", ""])
def test_others_than_this_machine_are_served_only_where_somebody_asks_who_they_are(
    host: str,
) -> None:
    with pytest.raises(StartError, match="TURNFOLD_HTTP_TOKENS"):
        check_bind_address(host, has_tokens=False, is_checked_elsewhere=False)
    check_bind_address(host, has_tokens=True, is_checked_elsewhere=False)
    check_bind_address(host, has_tokens=False, is_checked_elsewhere=True)
    for loopback in ("127.0.0.1", "127.8.8.8", "::1", "localhost"):
        check_bind_address(loopback, has_tokens=False, is_checked_elsewhere=False)


@pytest.mark.proves("X1")
@pytest.mark.parametrize("words", [("query",), ("up", "--nats-port", "0", "--http-port", "0")])
def test_a_service_that_would_serve_strangers_does_not_start(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    # `query` needs a system that is named, `up` makes one.
    where = (
        {"TURNFOLD_DATA_DIR": str(tmp_path)}
        if words[0] == "up"
        else {"TURNFOLD_NATS_URL": "nats://127.0.0.1:4222"}
    )
    environ = os.environ | where | {"TURNFOLD_HTTP_HOST": "0.0.0.0"}

    ended = subprocess.run(
        [*TURNFOLD, *words], env=environ, capture_output=True, text=True, timeout=60, check=False
    )

    assert ended.returncode == 1
    assert (
        "HTTP on 0.0.0.0 would give every caller access to every session; "
        "set TURNFOLD_HTTP_TOKENS" in ended.stderr
    )


# --- encryption


@pytest.mark.proves("X1", "O2")
async def test_http_is_encrypted_with_a_certificate_of_ones_own(tmp_path: Path) -> None:
    authority = trustme.CA()
    made = authority.issue_cert("127.0.0.1", "localhost")
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    made.private_key_pem.write_to_path(str(tmp_path / "key.pem"))
    for number, pem in enumerate(made.cert_chain_pems):
        pem.write_to_path(str(tmp_path / "certificate.pem"), append=number > 0)
    token = new_token(tmp_path / "tokens.json", [EVERY_AGENT])
    environ = {
        "TURNFOLD_HTTP_CERTIFICATE": str(tmp_path / "certificate.pem"),
        "TURNFOLD_HTTP_CERTIFICATE_KEY": str(tmp_path / "key.pem"),
        "TURNFOLD_HTTP_TOKENS": str(tmp_path / "tokens.json"),
        "TURNFOLD_HTTP_HOST": "0.0.0.0",
    }
    async with running_system(tmp_path / "data", environ=environ) as system:
        trusting = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
        async with httpx.AsyncClient(
            verify=trusting, headers={"Authorization": f"Bearer {token}"}, trust_env=False
        ) as http:
            answer = await http.get(f"{system.http_url}/v1/sessions")
        here = {
            "TURNFOLD_DATA_DIR": str(system.data_dir),
            "TURNFOLD_HTTP_TOKEN": token,
            "SSL_CERT_FILE": str(tmp_path / "ca.pem"),
        }
        told = await command("sessions", "--json", environ=here)
        del here["SSL_CERT_FILE"]
        untrusted = [await command(name, environ=here) for name in ("sessions", "doctor")]

    assert system.http_url.startswith("https://127.0.0.1:")
    assert answer.json()["sessions"] == []
    assert (told.status, told.out) == (0, "")
    for refused in untrusted:
        assert refused.status == 1
        assert "set SSL_CERT_FILE to its authority's" in refused.err
