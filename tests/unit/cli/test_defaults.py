"""The defaults that help texts name are those of the code and of the contract."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel
from typer.main import get_group

from turnfold.access.bearers import NAME_OF_HASH
from turnfold.cli.application import application
from turnfold.cli.demo import examples
from turnfold.cli.doctor import MONITORING_PORT
from turnfold.cli.keys import TOKENS_FILE
from turnfold.cli.up import DATA_DIR, NATS_PORT
from turnfold.contracts.history_requests import SearchRequest
from turnfold.contracts.requests import CampaignRequest, ContextRequest
from turnfold.settings import Settings

NUMBERS = {"one": 1, "two": 2, "three": 3, "four": 4, "five": 5}
STATED = re.compile(r"\(default: ([^)]*)\)")
FACTS: dict[tuple[str, str], str] = {
    ("up", "data_dir"): f"TURNFOLD_DATA_DIR, else {DATA_DIR}",
    ("up", "http_port"): str(Settings().http_port),
    ("proxy", "port"): str(Settings().proxy_port),
    ("doctor", "monitoring"): f"port {MONITORING_PORT} of its host",
    ("keys token", "name"): f"the first {NAME_OF_HASH} characters of its hash",
    ("keys token", ""): TOKENS_FILE,
    ("demo", "files"): f"{list(NUMBERS)[len(examples()) - 1]} that come with Turnfold",
}
"""Defaults that help texts state in words and that name a number or a file; "" is the command."""
REQUESTS: dict[tuple[str, str], tuple[type[BaseModel], str]] = {
    ("search", "limit"): (SearchRequest, "limit"),
    ("summaries regenerate", "at_once"): (CampaignRequest, "at_once"),
    ("context", "shape"): (ContextRequest, "format"),
    ("context", "placement"): (ContextRequest, "placement"),
}
"""Options that become a field of a request with a default of its own."""


def commands(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Every command by its words."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))
        else:
            yield " ".join((*path, name)), command


COMMANDS = dict(commands(get_group(application())))
PARAMETERS = [
    (name, parameter) for name, command in COMMANDS.items() for parameter in command.params
]


def test_no_default_is_hidden_or_told_twice() -> None:
    faults = [
        f"{name} {parameter.name}: {parameter.default!r}, {parameter.help!r}"
        for name, parameter in PARAMETERS
        if parameter.default not in (None, False, ())
        and (STATED.search(parameter.help or "") or not parameter.show_default)
    ]

    assert faults == []


def test_defaults_in_words_that_name_a_number_or_a_file_are_compared_here() -> None:
    texts = {(name, str(parameter.name)): parameter.help or "" for name, parameter in PARAMETERS}
    texts |= {(name, ""): command.help or "" for name, command in COMMANDS.items()}
    words = "|".join(NUMBERS)

    stated = {
        place: " ".join(found[1].split())
        for place, text in texts.items()
        if (found := STATED.search(text))
        and re.search(rf"\d|\.\w|\b({words})\b(?! in force)", found[1])
    }

    assert stated == FACTS


@pytest.mark.parametrize("place", REQUESTS, ids=" ".join)
def test_an_option_has_the_default_and_the_bounds_of_its_request(place: tuple[str, str]) -> None:
    model, field_name = REQUESTS[place]
    [option] = [parameter for name, parameter in PARAMETERS if (name, parameter.name) == place]
    field = model.model_fields[field_name]
    bounds = {
        kind: getattr(limit, kind)
        for limit in field.metadata
        for kind in ("ge", "le")
        if hasattr(limit, kind)
    }

    assert getattr(option.default, "value", option.default) == field.default
    assert bounds == {
        kind: bound
        for kind, bound in (
            ("ge", option.min),
            ("le", option.max),
        )
        if bound is not None
    }


def test_the_port_of_nats_is_that_of_the_default_url() -> None:
    [option] = [
        parameter for name, parameter in PARAMETERS if (name, parameter.name) == ("up", "nats_port")
    ]

    assert option.default == NATS_PORT
    assert Settings().nats_url.endswith(f":{NATS_PORT}")
