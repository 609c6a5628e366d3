"""What `turnfold up` shows a person when it is ready."""

import pytest

from turnfold.cli.up import print_panel


def test_the_panel_names_the_base_url_of_each_kind_of_client(
    capsys: pytest.CaptureFixture[str],
) -> None:
    ready = {
        "nats_url": "nats://127.0.0.1:4222",
        "http_url": "http://127.0.0.1:8080",
        "worker_url": "http://127.0.0.1:8081",
        "database_url": "sqlite+aiosqlite:///turnfold.db",
        "proxy_url": "http://127.0.0.1:8090",
        "pids": {},
    }

    print_panel(ready)

    shown = capsys.readouterr().out
    assert "http://127.0.0.1:8090/v1  (OPENAI_BASE_URL)" in shown
    assert "http://127.0.0.1:8090  (ANTHROPIC_BASE_URL)" in shown
