"""Errors of `turnfold keys new`: a role without its id, or with one that it does not take."""

from typing import Any

import pytest
import typer

from turnfold.cli.keys import new


@pytest.mark.parametrize(
    ("role", "agent", "advice"),
    [
        ("agent", None, "needs the agent's id: turnfold keys new agent AGENT"),
        ("worker", "ada", "takes an id: turnfold keys new worker$"),
    ],
)
def test_a_wrong_id_is_answered_with_the_right_form(
    role: Any, agent: str | None, advice: str
) -> None:
    with pytest.raises(typer.BadParameter, match=advice):
        new(role, agent)
