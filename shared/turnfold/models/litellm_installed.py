"""Whether models can be called in this environment."""

from importlib.util import find_spec

from turnfold.errors import StartError


def can_call_models() -> bool:
    """Return whether litellm is installed, without importing it."""
    return find_spec("litellm") is not None


def missing_litellm() -> StartError:
    """Return the error of an environment without litellm."""
    return StartError("calling a model needs litellm; install turnfold[models]")
