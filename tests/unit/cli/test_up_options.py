"""`turnfold up` reads simple options without the command line, and reads them as it does."""

from pathlib import Path
from typing import Any

import pytest
import typer

from turnfold.cli.application import application
from turnfold.cli.up import NATS_PORT, simple_options

DEFAULTS = {
    "data_dir": None,
    "nats_port": NATS_PORT,
    "http_port": None,
    "proxy_url": None,
    "as_json": False,
}


def read_by_command_line(words: list[str]) -> dict[str, Any]:
    """The options of `turnfold up` as the command line reads them."""
    group: Any = typer.main.get_command(application(["up"]))
    params: dict[str, Any] = group.commands["up"].make_context("up", list(words)).params
    return params


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--json"],
        ["--data-dir", "here and there"],
        ["--nats-port", "0", "--http-port", "65535"],
        ["--http-port", "08080"],
        ["--proxy", "https://models.example/v1", "--json", "--data-dir", "/srv/turnfold"],
    ],
)
def test_simple_options_mean_the_same_to_both(words: list[str]) -> None:
    options = simple_options(words)

    assert options is not None
    assert DEFAULTS | options == read_by_command_line(words)
    assert isinstance(options.get("data_dir", Path()), Path)


@pytest.mark.parametrize(
    "words",
    [
        ["-h"],
        ["--help"],
        ["--json", "--json"],
        ["--data-dir"],
        ["--data-dir", ""],
        ["--data-dir", "--json"],
        ["--data-dir=here"],
        ["--nats-port", "many"],
        ["--nats-port", "-1"],
        ["--nats-port", "65536"],
        ["--http-port", "²"],
        ["--port", "1"],
        ["here"],
    ],
)
def test_all_others_are_left_to_the_command_line(words: list[str]) -> None:
    assert simple_options(words) is None
