"""What an operator sets is what holds, and what was misspelt stops the start."""

import asyncio
import gc
import io
import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from sqlalchemy.engine import make_url

from turnfold.core.policy.presets import PRESETS, Mode, adjusted
from turnfold.errors import StartError
from turnfold.observability.logs import configure_logs
from turnfold.settings import Settings, http_url, read_settings, redacted, short_overrides


def test_nothing_set_gives_the_documented_defaults() -> None:
    settings = read_settings({"PATH": "/bin", "HOME": "/root"})

    assert settings.nats_url == "nats://127.0.0.1:4222"
    assert settings.database_url == "sqlite+aiosqlite:///./turnfold.db"
    assert settings.http_url == "http://127.0.0.1:8080"
    assert (settings.preset, settings.policy.mode, settings.summary_model) == (
        "balanced",
        Mode.AUTO,
        None,
    )
    assert settings.policy == PRESETS["balanced"]
    assert settings.explicit_names == frozenset()


@pytest.mark.proves("O5")
@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("TURNFOLD_NAST_URL", "TURNFOLD_NATS_URL"),
        ("TURNFOLD_DATABASE", "TURNFOLD_DATABASE_URL"),
        ("TURNFOLD_SUMARY_MODEL", "TURNFOLD_SUMMARY_MODEL"),
        ("TURNFOLD_POLICY__MAX_LIVE_MESAGES", "TURNFOLD_POLICY__MAX_LIVE_MESSAGES"),
        ("TURNFOLD_POLICY_KEEP_TOKENS", "TURNFOLD_POLICY__KEEP_TOKENS"),
        ("TURNFOLD_nats_url", "TURNFOLD_NATS_URL"),
        ("TURNFOLD_PORT", "TURNFOLD_HTTP_PORT"),
        ("TURNFOLD_API_KEY", "TURNFOLD_SUMMARY_API_KEY"),
        ("TURNFOLD_POLICY__PRESET", "TURNFOLD_PRESET"),
        ("TURNFOLD_POLICY__SUMMARY_CONCURRENCY", "TURNFOLD_SUMMARY_CONCURRENCY"),
        ("TURNFOLD_LIMIT__SUMMARY_TOKEN_PER_DAY", "TURNFOLD_LIMIT__SUMMARY_TOKENS_PER_DAY"),
    ],
)
def test_a_misspelt_name_stops_the_start_with_its_nearest_match(name: str, nearest: str) -> None:
    with pytest.raises(StartError, match=rf"there is no setting {name}: did you mean {nearest}\?"):
        read_settings({name: "1"})


@pytest.mark.proves("O5")
@pytest.mark.parametrize(
    ("line", "nearest"),
    [
        ("nats_ulr = 'nats://a'", "nats_url"),
        ("[policy]\nmax_live_message = 3", "max_live_messages"),
    ],
)
def test_a_misspelt_name_in_the_file_stops_the_start_too(
    tmp_path: Path, line: str, nearest: str
) -> None:
    file = tmp_path / "turnfold.toml"
    file.write_text(line)

    with pytest.raises(StartError, match=rf"did you mean {nearest}\? \(in {file}\)"):
        read_settings({"TURNFOLD_CONFIG": str(file)})


@pytest.mark.proves("O5")
def test_the_command_line_stands_above_the_environment_and_that_above_the_file_and_that_above_the_preset(
    tmp_path: Path,
) -> None:
    file = tmp_path / "turnfold.toml"
    file.write_text(
        "preset = 'static-buffer'\nhttp_port = 1\nlog_level = 'error'\nsummary_concurrency = 9\n"
        "[policy]\nmax_live_messages = 7\nkeep_messages = 3\n"
    )
    environ = {
        "TURNFOLD_CONFIG": str(file),
        "TURNFOLD_HTTP_PORT": "2",
        "TURNFOLD_LOG_LEVEL": "DEBUG",
        "TURNFOLD_POLICY__KEEP_MESSAGES": "4",
    }

    settings = read_settings(environ, {"http_port": 3, "data_dir": None})

    assert (settings.http_port, settings.log_level, settings.summary_concurrency) == (3, "debug", 9)
    assert (settings.policy.max_live_messages, settings.policy.keep_messages) == (7, 4)
    assert settings.policy.trigger_ratio == PRESETS["static-buffer"].trigger_ratio
    assert settings.http_url == "http://127.0.0.1:3"


@pytest.mark.proves("O5")
def test_numbers_set_one_by_one_stay_above_the_preset_a_session_chooses() -> None:
    settings = read_settings(
        {
            "TURNFOLD_POLICY__MAX_LIVE_MESSAGES": "5",
            "TURNFOLD_MODE": "manual",
            "TURNFOLD_CONTEXT_WINDOW": "0",
        }
    )

    other = settings.policy_of("static-buffer")

    assert settings.overrides == {"max_live_messages": 5, "mode": Mode.MANUAL, "context_window": 0}
    assert (other.max_live_messages, other.mode, other.context_window) == (5, Mode.MANUAL, 0)
    assert other.style == PRESETS["static-buffer"].style


def test_the_short_names_belong_to_one_preset_alone() -> None:
    environ = {"MAX_CONTEXT_TOKENS": "8000", "MAX_CHARS_PER_MESSAGE": "4000"}

    balanced = read_settings(environ)

    assert balanced.policy == PRESETS["balanced"]
    assert short_overrides(environ)["max_context_tokens"] == "8000"
    if "token-budget" in PRESETS:
        policy = read_settings(environ | {"TURNFOLD_PRESET": "token-budget"}).policy
        assert (policy.max_context_tokens, policy.user_max_chars, policy.tool_result_max_chars) == (
            8_000,
            4_000,
            4_000,
        )


@pytest.mark.proves("O5")
@pytest.mark.parametrize(
    ("environ", "told"),
    [
        (
            {"TURNFOLD_HTTP_PORT": "eighty"},
            "TURNFOLD_HTTP_PORT is not valid: must be a whole number of at least 0 and at most 65535",
        ),
        ({"TURNFOLD_HTTP_PORT": "70000"}, "at most 65535"),
        ({"TURNFOLD_SUMMARY_TIMEOUT_SECONDS": "0"}, "a number of seconds above 0"),
        ({"TURNFOLD_SUMMARY_LEASE_SECONDS": "-1"}, "a number of seconds above 0"),
        ({"TURNFOLD_SUMMARY_TIMEOUT_SECONDS": "nan"}, "a number of seconds above 0"),
        ({"TURNFOLD_MODE": "sometimes"}, "must be one of off, manual, auto"),
        ({"TURNFOLD_LOG_LEVEL": "loud"}, "must be one of debug, info"),
        (
            {"TURNFOLD_PRESET": "balance"},
            "TURNFOLD_PRESET is not valid: must be one of adaptive, balanced, .*did you mean balanced",
        ),
        (
            {"TURNFOLD_POLICY__VIEW": "ful"},
            "TURNFOLD_POLICY__VIEW is not valid: must be one of full, .*did you mean full",
        ),
        ({"TURNFOLD_HTTP_HOST": "http://localhost"}, "HTTP_HOST is not valid: must be a host's"),
        ({"TURNFOLD_PROXY_HOST": "http://localhost"}, "without scheme, port and path"),
        ({"TURNFOLD_WORKER_HTTP_HOST": "127.0.0.1/x"}, "without scheme, port and path"),
        ({"TURNFOLD_POLICY__KEEP_TOKENS": "many"}, "keep_tokens cannot be 'many'"),
        ({"TURNFOLD_POLICY__SOFT_RATIO": "2"}, "soft_ratio is 2"),
        (
            {"TURNFOLD_DATABASE_URL": "postgres://me:secret@host/db"},
            r"must begin with sqlite\+aiosqlite:// or postgresql\+asyncpg://",
        ),
        ({"TURNFOLD_NATS_URL": "127.0.0.1:4222"}, "must begin with nats://"),
        ({"TURNFOLD_SUMMARY_API_BASE": "llm.internal:8000"}, "must begin with http://"),
        ({"TURNFOLD_PROXY_UPSTREAM": "http://llm.internal:80800"}, "a port, if any, must be valid"),
        ({"TURNFOLD_SUMMARY_API_BASE": "http://me:secret/2@host"}, "a port, if any, must be valid"),
        ({"TURNFOLD_DATA_DIR": "~nobody-here/x"}, "TURNFOLD_DATA_DIR is not valid: ~nobody-here/x"),
        ({"TURNFOLD_CONFIG": "/no/such/file.toml"}, "/no/such/file.toml, which cannot be read"),
        ({"TURNFOLD_CONFIG": "~nobody-here/x"}, "TURNFOLD_CONFIG is not valid: ~nobody-here/x"),
        ({"TURNFOLD_STREAM_RETENTION_HOURS": "20000000"}, "at most 10000000"),
    ],
)
def test_a_value_that_means_nothing_stops_the_start_and_is_named(
    environ: dict[str, str], told: str
) -> None:
    with pytest.raises(StartError, match=told) as stopped:
        read_settings(environ)

    assert "secret" not in str(stopped.value)


def test_the_path_of_the_file_may_begin_with_the_home_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "turnfold.toml").write_text("http_port = 9000\n")

    settings = read_settings({"TURNFOLD_CONFIG": "~/turnfold.toml"})

    assert settings.http_port == 9000


@pytest.mark.parametrize("empty", ["", " "])
def test_an_empty_variable_leaves_the_value_of_the_file(tmp_path: Path, empty: str) -> None:
    config = tmp_path / "turnfold.toml"
    config.write_text('nats_user = "ada"\nnats_tls_first = true\n')
    variables = {"TURNFOLD_CONFIG": str(config), "TURNFOLD_NATS_TLS_FIRST": empty}

    identity = read_settings(variables | {"TURNFOLD_NATS_USER": empty}).identity

    assert (identity.user, identity.tls_first) == ("ada", "1")


@pytest.mark.parametrize("line", ["http_port = [1]", "[limit]\nledger_max_tokens = [1]"])
def test_a_list_in_place_of_a_number_stops_the_start(tmp_path: Path, line: str) -> None:
    config = tmp_path / "turnfold.toml"
    config.write_text(line)

    with pytest.raises(StartError, match="is not valid: must be a whole number of at least 0"):
        read_settings({"TURNFOLD_CONFIG": str(config)})


@pytest.mark.proves("O5")
@pytest.mark.parametrize("name", ["request_seconds", "agent_share"])
@pytest.mark.parametrize("sign", ["", "-"])
def test_a_number_of_the_file_beyond_all_floats_stops_the_start(
    tmp_path: Path, name: str, sign: str
) -> None:
    config = tmp_path / "turnfold.toml"
    config.write_text(f"{name} = {sign}1{'0' * 400}\n")

    with pytest.raises(StartError, match=f"{name} in .* is not valid: must be a number"):
        read_settings({"TURNFOLD_CONFIG": str(config)})


def test_a_choice_may_be_written_in_any_case() -> None:
    settings = read_settings(
        {
            "TURNFOLD_MODE": "Off",
            "TURNFOLD_PRESET": "Token-Budget",
            "TURNFOLD_POLICY__STYLE": "Narrative",
            "MAX_CONTEXT_TOKENS": "8000",
        }
    )

    assert (settings.policy.mode, settings.preset) == ("off", "token-budget")
    assert (settings.policy.style, settings.policy.max_context_tokens) == ("narrative", 8_000)


def test_an_empty_value_is_no_value() -> None:
    assert read_settings(
        {"TURNFOLD_SUMMARY_MODEL": "", "TURNFOLD_HTTP_PORT": " "}
    ) == read_settings({})


@pytest.mark.proves("O4", "X1")
def test_nothing_secret_stands_in_the_repr() -> None:
    settings = read_settings(
        {
            "TURNFOLD_NATS_URL": "nats://me:secret@host:4222",
            "TURNFOLD_NATS_PASSWORD": "secret",
            "TURNFOLD_NATS_NKEY": "SUsecret",
            "TURNFOLD_DATABASE_URL": "postgresql+asyncpg://me:secret@host/db",
            "TURNFOLD_HTTP_TOKEN": "secret",
            "TURNFOLD_SUMMARY_API_KEY": "secret",
            "TURNFOLD_SUMMARY_API_BASE": "https://me:secret@host/v1",
        }
    )

    assert settings.nats_password == settings.http_token == "secret"
    assert "secret" not in repr(settings) + repr(settings.identity)


def test_urls_are_shown_without_user_and_password() -> None:
    assert redacted("nats://me:secret@a:4222,nats://b:4222") == "nats://a:4222,nats://b:4222"
    assert (
        redacted("postgresql+asyncpg://me:p@ss@host/db?password=secret")
        == "postgresql+asyncpg://host/db"
    )
    assert (
        redacted("sqlite+aiosqlite:////data/turnfold.db") == "sqlite+aiosqlite:////data/turnfold.db"
    )
    for password in ("pa/ss", "p@/ss", "pa,ss", "pa?ss", "pa?s@s", "pa://ss"):
        shown = redacted(f"postgresql+asyncpg://me:{password}@host:5432/db")
        assert "ss" not in shown.removeprefix("postgresql")
        assert "pa" not in shown
    assert redacted("nats://me:pa/ss@a:4222, tls://b:4222") == "nats://…@a:4222,tls://b:4222"
    assert redacted("nats://u:s,x://y@h") == "nats://…@h"
    assert redacted("postgresql+asyncpg:///me:secret@host/db") == "postgresql+asyncpg://…@host/db"
    assert redacted("postgresql://me:se?cret") == "postgresql://…"
    assert redacted("https://proxy:8080/v1/@cf/llama") == "https://…@cf/llama"
    assert redacted("https://api.example/v1?key=secret") == "https://api.example/v1"
    assert redacted("nats://[::1]:4222") == "nats://[::1]:4222"
    many = ", ".join(f"h{number}" for number in range(60))
    assert redacted(f"nats://{many}:4222") == f"nats://{many}:4222"
    assert redacted(f"nats://{many}:x") == "nats://…"
    assert redacted("a:4222,b:4222") == "a:4222,b:4222"
    assert redacted("postgresql://host/db?password=a@b") == "postgresql://…"
    assert redacted("sqlite:////data/me@home.db?mode=ro") == "sqlite:////data/me@home.db"
    assert http_url("0.0.0.0", 1) == "http://127.0.0.1:1"
    assert http_url("::1", 1) == "http://[::1]:1"
    assert (
        read_settings({"TURNFOLD_HTTP_CERTIFICATE": "c.pem"}).http_url == "https://127.0.0.1:8080"
    )


@pytest.fixture
def running(tmp_path: Path) -> Path:
    ready = {
        "ready": True,
        "nats_url": "nats://127.0.0.1:1",
        "http_url": "http://127.0.0.1:2",
        "http_host": "0.0.0.0",
        "database_url": "sqlite+aiosqlite:////d.db",
    }
    (tmp_path / "turnfold.json").write_text(json.dumps(ready))
    return tmp_path


@pytest.mark.proves("O3")
def test_where_no_bus_is_named_the_system_of_the_data_directory_is_meant(running: Path) -> None:
    found = read_settings({"TURNFOLD_DATA_DIR": str(running)})
    partly = read_settings(
        {
            "TURNFOLD_DATA_DIR": str(running),
            "TURNFOLD_DATABASE_URL": "sqlite+aiosqlite:////other.db",
        }
    )
    elsewhere = read_settings(
        {"TURNFOLD_DATA_DIR": str(running), "TURNFOLD_NATS_URL": "nats://cluster:4222"}
    )

    assert (found.nats_url, found.http_url, found.http_host, found.database_url) == (
        "nats://127.0.0.1:1",
        "http://127.0.0.1:2",
        # A service that joins this system listens where its own settings say.
        Settings().http_host,
        "sqlite+aiosqlite:////d.db",
    )
    assert (partly.nats_url, partly.database_url) == (
        "nats://127.0.0.1:1",
        "sqlite+aiosqlite:////other.db",
    )
    assert (elsewhere.nats_url, elsewhere.database_url) == (
        "nats://cluster:4222",
        Settings().database_url,
    )


@pytest.mark.parametrize("content", ["", "[]", "{", '{"nats_url": 3}'])
def test_an_unreadable_ready_line_counts_as_none(tmp_path: Path, content: str) -> None:
    (tmp_path / "turnfold.json").write_text(content)

    assert read_settings({"TURNFOLD_DATA_DIR": str(tmp_path)}).nats_url == Settings().nats_url


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    """What the logs of this process say, as JSON lines; afterwards they say nothing of it any more."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    stream = io.StringIO()
    configure_logs(role="worker", level="info", format="json", stream=stream)
    yield stream
    structlog.reset_defaults()
    root.handlers[:], root.level = handlers, level


def read(lines: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in lines.getvalue().splitlines()]


@pytest.mark.proves("O4")
def test_each_unit_of_work_is_one_json_line_that_names_its_role(lines: io.StringIO) -> None:
    log = structlog.get_logger()

    log.debug("batch.fetched")
    with structlog.contextvars.bound_contextvars(session_id="s"):
        log.info("batch.ingested", events=3)
    logging.getLogger("nats").warning("slow consumer")

    ours, theirs = read(lines)
    assert ours | {"timestamp": 0} == {
        "event": "batch.ingested",
        "events": 3,
        "session_id": "s",
        "level": "info",
        "role": "worker",
        "timestamp": 0,
    }
    assert (theirs["event"], theirs["logger"], theirs["role"]) == (
        "slow consumer",
        "nats",
        "worker",
    )


@pytest.mark.proves("O4")
def test_what_a_user_wrote_does_not_reach_the_logs_through_an_exception(lines: io.StringIO) -> None:
    log = structlog.get_logger()

    try:
        try:
            raise ValueError("my password is hunter2")  # noqa: TRY301 - a cause is what the test is about
        except ValueError as error:
            raise RuntimeError("could not store 'my password is hunter2'") from error
    except RuntimeError:
        log.exception("batch.failed")
        logging.getLogger("asyncio").exception("task failed")
    logging.getLogger("LiteLLM").error("prompt was: my password is hunter2")

    assert "hunter2" not in lines.getvalue()
    assert [line["error"] for line in read(lines)] == ["RuntimeError <- ValueError"] * 2
    assert all("test_settings.py" in line["at"][-1] for line in read(lines))


@pytest.mark.proves("O4")
def test_what_a_user_wrote_does_not_reach_the_logs_through_a_task_or_a_callback(
    lines: io.StringIO,
) -> None:
    def fail(text: str) -> None:
        raise ValueError(text)

    async def leave_a_failed_task() -> None:
        loop = asyncio.get_running_loop()
        loop.call_soon(fail, "my password is hunter2")
        await asyncio.wait([loop.create_task(asyncio.to_thread(fail, "my password is hunter2"))])

    asyncio.run(leave_a_failed_task())
    gc.collect()

    assert "hunter2" not in lines.getvalue()
    begun, _, name = read(lines)[0]["event"].rpartition(" ")
    assert (begun, name.rpartition(".")[2]) == ("Exception in callback", "fail")
    assert read(lines)[1]["event"] == "Task exception was never retrieved"


def test_an_error_of_the_system_keeps_its_words(lines: io.StringIO) -> None:
    structlog.get_logger().error("store.failed", exc_info=OSError(28, "No space left on device"))

    assert read(lines)[0]["error"] == "OSError: [Errno 28] No space left on device"


# --- files that are read at the start


@pytest.mark.proves("O5", "X4", "S2")
def test_a_task_and_patterns_are_read_from_their_files(tmp_path: Path) -> None:
    (tmp_path / "task.txt").write_text("Sum it up in {words} words.")
    (tmp_path / "patterns.txt").write_text("# badges\nACME-\\d+\n")

    settings = read_settings(
        {
            "TURNFOLD_SUMMARY_PROMPT": str(tmp_path / "task.txt"),
            "TURNFOLD_REDACT_PATTERNS": str(tmp_path / "patterns.txt"),
        }
    )

    assert settings.summary_prompt == "Sum it up in {words} words."
    assert settings.redact_patterns == ("ACME-\\d+",)
    assert "Sum it up" not in repr(settings)


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        (
            "TURNFOLD_SUMMARY_PROMPT",
            "Sum {it} up.",
            "there is no placeholder {it}, only {words} and {style}",
        ),
        ("TURNFOLD_SUMMARY_PROMPT", "Sum { up.", "does not parse"),
        ("TURNFOLD_SUMMARY_PROMPT", None, "cannot be read (No such file or directory)"),
        ("TURNFOLD_REDACT_PATTERNS", "fine\n(", "line 2 is not a regular expression"),
        ("TURNFOLD_REDACT_PATTERNS", None, "cannot be read (No such file or directory)"),
    ],
)
@pytest.mark.proves("O5", "X4")
def test_a_file_that_cannot_be_used_stops_the_start_with_its_fault(
    tmp_path: Path, name: str, content: str | None, told: str
) -> None:
    path = tmp_path / "file.txt"
    if content is not None:
        path.write_text(content)

    with pytest.raises(StartError) as caught:
        read_settings({name: str(path)})

    assert name in str(caught.value)
    assert str(path) in str(caught.value)
    assert told in str(caught.value)


@pytest.mark.parametrize("name", ["gpt 4", "", " ", "a\nb", "é", "-x", "x" * 300, 5, True, ["x"]])
@pytest.mark.proves("S4", "O5")
def test_what_cannot_be_the_name_of_a_model_is_refused(name: object) -> None:
    with pytest.raises(ValueError, match="summary_model"):
        adjusted(PRESETS["balanced"], {"summary_model": name})


@pytest.mark.parametrize(
    "name",
    [
        "session",
        "gpt-4.1",
        "anthropic/claude-opus-4-5",
        "bedrock/us.anthropic.x-v1:0",
        "ollama/llama3.1:8b",
    ],
)
@pytest.mark.proves("S4")
def test_a_model_nobody_knows_is_a_name_all_the_same(name: str) -> None:
    assert adjusted(PRESETS["balanced"], {"summary_model": name}).summary_model == name


@pytest.mark.parametrize("share", [0, 1.5, -0.1])
@pytest.mark.proves("S2", "O5")
def test_a_share_of_a_window_is_above_nothing_and_at_most_all(share: float) -> None:
    with pytest.raises(ValueError, match="chunk_share"):
        adjusted(PRESETS["balanced"], {"chunk_share": share})


def test_a_comma_separates_servers_of_nats_but_no_databases() -> None:
    several = "nats://one:4222, tls://two:4222"
    database = "postgresql+asyncpg://me:se,cret@host/db"

    found = read_settings({"TURNFOLD_NATS_URL": several, "TURNFOLD_DATABASE_URL": database})

    assert (found.nats_url, found.database_url) == (several, database)


@pytest.mark.proves("O5")
@pytest.mark.parametrize(
    ("name", "url"),
    [
        ("NATS_URL", "nats://"),
        ("NATS_URL", "nats://host:99999"),
        ("NATS_URL", "nats://host:0"),
        ("NATS_URL", "nats://one:4222,nats://"),
        ("NATS_URL", "nats://me:pass#word@host"),
        ("NATS_URL", "nats://me:pass/word@host"),
        ("NATS_URL", "nats://me:pass\u2100word@host"),
        ("DATABASE_URL", "postgresql+asyncpg://me:pa@ss:word@host/db"),
        ("DATABASE_URL", "postgresql+asyncpg://me:pass@word@host/db"),
        ("DATABASE_URL", "postgresql+asyncpg://me:word@host:99999/db"),
        ("DATABASE_URL", "postgresql+asyncpg://me:word@host:0/db"),
        ("DATABASE_URL", "postgresql+asyncpg://me:word@host:x/db"),
        ("DATABASE_URL", "postgresql+asyncpg://me:word@host:/db"),
        ("DATABASE_URL", "postgresql+asyncpg://me:word@one:1,two:2/db"),
        ("DATABASE_URL", "sqlite+aiosqlite://:memory:"),
    ],
)
def test_a_url_without_a_valid_address_stops_the_start_and_is_not_shown(
    name: str, url: str
) -> None:
    with pytest.raises(StartError, match=f"TURNFOLD_{name} is not valid: must name a host") as told:
        read_settings({f"TURNFOLD_{name}": url})

    assert "pass" not in str(told.value).replace("password", "")
    assert "word@" not in str(told.value)


@pytest.mark.parametrize(
    ("name", "url"),
    [
        ("NATS_URL", "nats://[::1]:4222"),
        ("NATS_URL", "wss://me:p%40 ss@host/path"),
        ("DATABASE_URL", "postgresql+asyncpg://"),
        ("DATABASE_URL", "postgresql+asyncpg://me:p/a?s#s:w@[::1]:5432/db"),
        ("DATABASE_URL", "postgresql+asyncpg://me@/db?host=one:1&host=two:2"),
        ("DATABASE_URL", "sqlite+aiosqlite:////data/a:b@c.db?x=1"),
        ("DATABASE_URL", "sqlite+aiosqlite:///./turnfold.db"),
    ],
)
def test_a_url_that_the_libraries_can_read_is_taken(name: str, url: str) -> None:
    found = read_settings({f"TURNFOLD_{name}": url})

    assert url in (found.nats_url, found.database_url)
    if name == "DATABASE_URL":
        make_url(url)


@pytest.mark.proves("O5")
@pytest.mark.parametrize("section", ["policy", "limit"])
def test_a_wrong_choice_or_limit_is_named_where_it_stands(tmp_path: Path, section: str) -> None:
    name, value = {"policy": ("style", "prosa"), "limit": ("retain_days", "-1")}[section]
    config = tmp_path / "turnfold.toml"
    config.write_text(f'[{section}]\n{name} = "{value}"\n')

    for variable, given, shown in (
        ("TURNFOLD_CONFIG", str(config), f"{section}.{name} in {config}"),
        (f"TURNFOLD_{section}__{name}".upper(), value, f"TURNFOLD_{section}__{name}".upper()),
    ):
        with pytest.raises(StartError, match=f"^{re.escape(shown)} is not valid"):
            read_settings({variable: given})
