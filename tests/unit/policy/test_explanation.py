"""Where each number of a policy comes from."""

import json
from typing import Any

import pytest

from turnfold.core.policy.allowance import Allowance
from turnfold.core.policy.overrides import PolicyOverrides
from turnfold.core.policy.presets import adjusted, preset_named
from turnfold.operations.policy import explanation

NOTHING = PolicyOverrides()
OF_AGENT = PolicyOverrides(mode="manual", overrides='{"keep_tokens": 5, "keep_messages": 6}')
OF_SESSION = PolicyOverrides(overrides='{"keep_messages": 7, "summary_max_words": 900}')


def explained(
    agent: PolicyOverrides = NOTHING, session: PolicyOverrides = NOTHING, **origins: str
) -> dict[str, Any]:
    """Explain under a ceiling of 500 words and the environment's `MAX_LIVE_MESSAGES=77`."""
    explain = explanation(
        "token-budget",
        lambda name: adjusted(preset_named(name), {"max_live_messages": 77}),
        Allowance(ceilings=(("summary_max_words", 500),)),
        origins=origins,
        short_names=frozenset({"max_live_messages"}),
    )
    return dict(explain(agent, session))


@pytest.mark.proves("E6")
def test_a_session_stands_above_its_agent_and_each_number_names_whose_it_is() -> None:
    policy = explained(OF_AGENT, OF_SESSION)

    assert (policy["mode"], policy["preset"]) == ("manual", "token-budget")
    assert policy["numbers"]["keep_messages"] == {"value": 7, "from": "session"}
    assert policy["numbers"]["keep_tokens"] == {"value": 5, "from": "agent"}


@pytest.mark.proves("E6", "X7")
def test_a_number_under_a_ceiling_names_where_the_ceiling_was_set() -> None:
    limited = explained(NOTHING, OF_SESSION, **{"limit.summary_max_words": "file"})
    by_default = explained(NOTHING, OF_SESSION)

    assert limited["numbers"]["summary_max_words"] == {"value": 500, "from": "file"}
    assert by_default["numbers"]["summary_max_words"] == {"value": 500, "from": "preset"}


@pytest.mark.proves("E6")
def test_numbers_of_the_installation_name_their_source_and_others_the_preset() -> None:
    numbers = explained(keep_tokens="file")["numbers"]

    assert numbers["keep_tokens"]["from"] == "file"
    assert numbers["keep_messages"]["from"] == "preset"
    assert numbers["max_live_messages"] == {"value": 77, "from": "environment"}


@pytest.mark.proves("E6")
def test_a_number_of_the_environment_for_one_preset_is_none_of_another() -> None:
    policy = explained(NOTHING, PolicyOverrides(preset="balanced"))

    assert policy["preset"] == "balanced"
    assert policy["numbers"]["max_live_messages"]["from"] == "preset"
    assert json.dumps(policy)
