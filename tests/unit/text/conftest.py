"""The token counter that the tests of texts share."""

import pytest

from turnfold.core.text.tokens import Count
from turnfold.model_info.tokenizer import load_counter


@pytest.fixture(scope="session")
def count() -> Count:
    return load_counter()
