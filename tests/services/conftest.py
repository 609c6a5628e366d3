"""Validate every answer that a test of the services receives over the bus."""

from collections.abc import Iterator

import pytest

from tests.answer_models import AnswerRecorder


@pytest.fixture(autouse=True)
def answers_match_their_models(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fail a test that received an answer with a field that its model lacks."""
    recorder = AnswerRecorder()
    recorder.attach(monkeypatch)
    yield
    assert recorder.faults == []
