"""A framework that is not installed is one sentence with the name of its extra."""

from importlib import import_module

import pytest

from turnfold.integrations import requires


def test_a_missing_framework_is_one_sentence_with_its_extra() -> None:
    with pytest.raises(ImportError) as caught, requires("openai-agents"):
        import_module("framework_that_nobody_has")

    assert str(caught.value) == (
        "turnfold.integrations.openai_agents needs the module framework_that_nobody_has; "
        "install it with: pip install 'turnfold[openai-agents]'"
    )
