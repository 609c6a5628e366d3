"""Inputs that once broke a reader, found by `make fuzz`: each comes to what its reader declares."""

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest

from tests.store_fixtures import words
from turnfold import shapes
from turnfold.access.bearers import read_tokens
from turnfold.contracts.reading import (
    read_request,
)
from turnfold.contracts.requests import (
    PolicyRequest,
)
from turnfold.contracts.subjects import id_of, key_of_event_subject, key_of_subject
from turnfold.core.history.validation import validation_errors
from turnfold.core.policy.presets import Policy, adjusted
from turnfold.core.recovery.compressor import LadderCompressor
from turnfold.core.summary.model_answer import parse_answer
from turnfold.core.text.tokens import count_message
from turnfold.core.window.rendering.character_limit import characters_of
from turnfold.core.window.rendering.render import Rendered
from turnfold.errors import BadRequest, StartError
from turnfold.messages import MessageId, Priority
from turnfold.models.wire import decode
from turnfold.operations.ingest.decode import Delivery, decode_batch, result_priorities
from turnfold.settings import read_settings
from turnfold.transcripts import UnreadableTranscript, read_conversations
from turnfold.transcripts.formats import Format

DEEP = 100_000
CALL = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def test_the_calls_of_a_message_that_has_no_content_at_all_are_seen() -> None:
    asking = {"role": "assistant", "tool_calls": [CALL]}
    said: list[dict[str, Any]] = [
        {"role": "user", "content": "Look."},
        asking,
        {"role": "tool", "tool_call_id": "a", "content": "x" * 4_000},
    ]

    compressed = LadderCompressor(count=words).compress(said, 200)

    assert [call.call_id for call in count_message(asking, words).calls] == ["a"]
    assert validation_errors(compressed.messages) == []
    assert [one["role"] for one in compressed.messages] == ["user", "assistant", "tool"]


@pytest.mark.parametrize("calls", [5, "calls", {"id": "a"}, [None], ["a"], [{"id": ["a"]}], [{}]])
def test_calls_that_are_none_are_a_fault_and_are_mended(calls: Any) -> None:
    said = [
        {"role": "user", "content": "Look."},
        {"role": "assistant", "content": "So.", "tool_calls": calls},
    ]

    compressed = LadderCompressor(count=words).compress(said, 4_000)

    assert validation_errors(said) == ["message 1 has calls that are none"]
    assert validation_errors(compressed.messages) == []


@pytest.mark.parametrize("role", [[], {}, None, 1, "nobody"])
def test_a_role_of_any_shape_is_refused_in_words(role: Any, tmp_path: Path) -> None:
    (tmp_path / "said.json").write_text(json.dumps([{"role": role, "content": "x"}]))

    with pytest.raises(BadRequest, match="has the role"):
        LadderCompressor(count=words).compress([{"role": role}], 100)
    with pytest.raises(UnreadableTranscript, match="has the role"):
        list(read_conversations(tmp_path / "said.json"))


@pytest.mark.proves("X2")
@pytest.mark.parametrize("kind", [[], {}, ["image"], None, 1, "nothing"])
@pytest.mark.parametrize("part", [{}, {"source": {}}, {"image_url": {}}, {"source": {"type": []}}])
def test_a_part_of_any_type_is_imported_converted_and_measured(
    kind: Any, part: dict[str, Any], tmp_path: Path
) -> None:
    said = {"role": "user", "content": [part | {"type": kind}, part | {"type": "image"}]}
    (tmp_path / "said.json").write_text(json.dumps([said, said | {"type": kind}]))
    rendered = Rendered((json.dumps(said),), (MessageId("e1#0"),), "", ())

    told = list(read_conversations(tmp_path / "said.json"))
    with contextlib.suppress(UnreadableTranscript):
        list(read_conversations(tmp_path / "said.json", Format.CODEX))

    assert [len(one.messages) for one in told] == [2]
    assert characters_of(rendered, with_summary=False) >= 0
    assert shapes.anthropic_from_chat([said])[1][0]["role"] == "user"
    assert shapes.responses_from_chat([said])


@pytest.mark.proves("X2", "I5")
@pytest.mark.parametrize("token", ["%00", "a%0Ab", "%C2%85", "%7F", "a" * 257])
def test_a_token_that_stands_for_no_id_an_event_may_have_names_nothing(token: str) -> None:
    (letter,) = decode_batch([Delivery(f"turn.completed.{token}.s", b"{", 1, 1)], count=words).dead

    assert id_of(token) is None
    assert key_of_event_subject(f"turn.completed.{token}.s") is None
    assert letter.key is None
    with pytest.raises(BadRequest):
        key_of_subject("context.get", f"context.get.{token}.s")


@pytest.mark.parametrize(
    "number", ["1" + "0" * 400, "9" * 5_000, "NaN", "Infinity", "1e999", str(2**53 + 1), "-1"]
)
@pytest.mark.parametrize("name", ["trigger_ratio", "keep_messages", "chunk_share"])
def test_a_policy_takes_no_number_that_is_none_or_that_no_database_keeps(
    name: str, number: str
) -> None:
    try:
        asked = read_request(PolicyRequest, f'{{"overrides":{{"{name}":{number}}}}}'.encode())
    except BadRequest:
        return

    with pytest.raises(ValueError, match=name):
        adjusted(Policy(), asked.overrides or {})


def test_files_that_are_nested_too_deep_are_no_settings(tmp_path: Path) -> None:
    (tmp_path / "turnfold.json").write_text("[" * DEEP)
    (tmp_path / "turnfold.toml").write_text("preset = " + "[" * DEEP)

    with pytest.raises(StartError, match="does not hold the hashes"):
        read_tokens(tmp_path / "turnfold.json")
    assert read_settings({"TURNFOLD_DATA_DIR": str(tmp_path)}).data_dir == tmp_path
    with pytest.raises(StartError, match="is not TOML"):
        read_settings({"TURNFOLD_CONFIG": str(tmp_path / "turnfold.toml")})


def test_an_escape_in_an_answer_brings_nothing_into_a_summary_that_no_store_takes() -> None:
    text, sections = parse_answer(
        '{"decisions": ["use \\u0000B\\ud800"], "context": "They spo\\udfffke."}', "structured"
    )

    assert sections["decisions"] == ["use B"]
    assert sections["context"] == "They spoke."
    assert "\0" not in text
    text.encode()


def test_a_frame_that_is_nested_too_deep_is_no_frame() -> None:
    with pytest.raises(ValueError, match="nested too deep"):
        decode(b"[" * DEEP)


NUMBERS = [1] * 2_000


@pytest.mark.proves("I5", "T2")
@pytest.mark.parametrize(
    "said",
    [
        {"role": "user", "content": NUMBERS},
        {"role": "user", "content": [{}] * 2_000},
        {"role": "assistant", "content": "", "reasoning": NUMBERS},
        {"role": "assistant", "content": "", "reasoning": [{"a": 1}] * 2_000},
        {"role": "assistant", "content": "", "tool_calls": NUMBERS},
        {"role": "assistant", "content": "", "unknown": [{"type": "image"}, *NUMBERS]},
    ],
)
def test_thousands_of_values_that_nobody_understands_are_counted_at_once(
    said: dict[str, Any],
) -> None:
    counted: list[str] = []

    def count(text: str) -> int:
        counted.append(text)
        return len(text)

    assert count_message(said, count).tokens > 2 * 2_000
    assert len(counted) <= 2


@pytest.mark.proves("I5", "X6")
def test_an_event_of_ninety_thousand_results_is_refused_in_linear_time() -> None:
    """It takes a second; at quadratic cost it would take more than the time limit of a test."""
    block = {"type": "tool_result", "tool_use_id": "a"}
    event = {
        "event_id": "e",
        "agent_id": "a",
        "session_id": "s",
        "shape": "anthropic",
        "messages": [{"role": "user", "content": [block] * 90_000}],
    }

    decoded = decode_batch(
        [Delivery("turn.completed", json.dumps(event).encode(), 1, 0)], count=len
    )

    assert [letter.reason for letter in decoded.dead] == ["too_many_messages"]


class CountingReads(dict[str, Any]):
    """A part of an event that counts how often it is read."""

    reads = 0

    def get(self, key: str, default: Any = None) -> Any:
        self.reads += 1
        return super().get(key, default)


@pytest.mark.proves("I5", "X6")
@pytest.mark.parametrize(
    "part",
    [
        {"function": CountingReads(name="bash", arguments={"cmd": ["ls"]})},
        {"type": "custom", "custom": CountingReads(name="bash", input="ls")},
    ],
)
def test_a_call_is_read_once_for_all_its_results(part: dict[str, Any]) -> None:
    """It may be large."""
    calling = {"role": "assistant", "content": None, "tool_calls": [{"id": "a", **part}]}
    result = {"role": "tool", "tool_call_id": "a", "content": "1"}
    called = next(one for one in part.values() if isinstance(one, CountingReads))

    def reads(results: int) -> int:
        before = called.reads
        assert result_priorities([calling, *[result] * results]) == {"a": Priority.LOW}
        return called.reads - before

    assert 0 < reads(1) == reads(200)
