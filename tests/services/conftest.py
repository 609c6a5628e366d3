"""A bus for a test of the services, and a check of every answer that it receives over one."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.answer_models import AnswerRecorder
from tests.nats_server import NatsServer, nats_server


@pytest.fixture(autouse=True)
def answers_match_their_models(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fail a test that received an answer with a field that its model lacks."""
    recorder = AnswerRecorder()
    recorder.attach(monkeypatch)
    yield
    assert recorder.faults == []


@pytest.fixture
def server(tmp_path: Path) -> Iterator[NatsServer]:
    """A NATS server of its own, with nothing on it."""
    with nats_server(tmp_path) as running:
        yield running
