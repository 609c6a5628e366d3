"""A stand-in for a provider, and callbacks that end with their test."""

import os
from collections.abc import Iterator

import pytest

# Its table of models comes with the package; without this, an import asks the network for a newer one.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import litellm

from tests.hosts.litellm.provider import Provider, running_provider


@pytest.fixture
def provider() -> Iterator[Provider]:
    """An OpenAI-compatible endpoint on loopback."""
    with running_provider() as running:
        yield running


@pytest.fixture(autouse=True)
def callbacks() -> Iterator[None]:
    """Callbacks are global in LiteLLM."""
    yield
    litellm.callbacks = []
