"""How many tokens a model takes, however it is spelt, and with no map at all."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from turnfold.model_info.context_windows import (
    SHIPPED_MAP,
    UNKNOWN_WINDOW_TOKENS,
    ModelWindows,
    litellm_map,
    read_map,
)


@pytest.fixture(scope="module")
def windows() -> ModelWindows:
    return ModelWindows()


@pytest.mark.proves("T1")
@pytest.mark.parametrize(
    "model",
    [
        "claude-opus-4-5",
        "anthropic/claude-opus-4-5",
        "claude-opus-4-5-20251101",
        "anthropic/claude-opus-4-5-20251101",
        "openrouter/anthropic/claude-opus-4.5",
        "bedrock/us.anthropic.claude-opus-4-5-20251101-v1:0",
        "bedrock/converse/eu.anthropic.claude-opus-4-5-20251101-v1:0",
        "vertex_ai/claude-opus-4-5@20251101",
        "Anthropic/Claude-Opus-4-5",
        " claude-opus-4-5 ",
        "claude-3-5-haiku-latest",
        "claude-sonnet-4",
    ],
)
def test_a_claude_has_200_000_under_every_name(windows: ModelWindows, model: str) -> None:
    assert windows(model) == 200_000


@pytest.mark.proves("T1")
@pytest.mark.parametrize(
    ("model", "tokens"),
    [
        ("gpt-4.1", 1_047_576),
        ("openai/gpt-4.1", 1_047_576),
        ("openai:gpt-4.1", 1_047_576),
        ("google-vertex:gemini-2.5-pro", 1_048_576),
        ("openai/gpt-4.1-2025-04-14", 1_047_576),
        ("GPT-4.1", 1_047_576),
        ("gpt-4o", 128_000),
        ("ft:gpt-4o-mini-2024-07-18:our-org::abc123", 128_000),
        ("gpt-4", 8_192),
        ("gemini/gemini-2.5-pro", 1_048_576),
        ("models/gemini-2.5-pro", 1_000_000),
    ],
)
def test_prefixes_editions_and_case_do_not_matter(
    windows: ModelWindows, model: str, tokens: int
) -> None:
    assert windows(model) >= tokens if model.startswith("models/") else windows(model) == tokens


@pytest.mark.proves("T1")
@pytest.mark.parametrize(
    "model",
    [
        "no-such-model-anywhere",
        "",
        " ",
        "/",
        "..",
        "a/b/c",
        "sample_spec",
        "x" * 1_000_000,
        "\ud800",
        "字",
        None,
        7,
        [],
        {},
    ],
)
def test_a_name_nobody_knows_has_128_000(windows: ModelWindows, model: Any) -> None:
    assert windows(model) == UNKNOWN_WINDOW_TOKENS == 128_000


@pytest.mark.proves("T1")
@pytest.mark.parametrize("override", [0, 1, 32_000])
def test_an_override_wins_and_0_is_one(windows: ModelWindows, override: int) -> None:
    assert windows("gpt-4.1", override=override) == override
    assert windows(None, override=override) == override


@pytest.mark.proves("T1")
def test_without_litellm_the_shipped_windows_are_the_same() -> None:
    """`scripts/model-windows` brings them up to the locked litellm."""
    theirs = litellm_map()
    assert theirs is not None
    assert read_map(SHIPPED_MAP) == read_map(theirs)
    assert ModelWindows(locate=lambda: SHIPPED_MAP)("openai:gpt-4.1") == 1_047_576


@pytest.mark.proves("T1")
def test_without_any_map_every_model_has_128_000(tmp_path: Path) -> None:
    assert ModelWindows(locate=lambda: tmp_path / "none.json")("gpt-4.1") == 128_000


@pytest.mark.proves("T1")
@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "7",
        '{"a": 1}',
        "{broken",
        '{"a": {"max_input_tokens": "many"}}',
        '{"a": {"max_tokens": -1}}',
        "[" * 50_000,
    ],
)
def test_a_broken_map_is_no_map(tmp_path: Path, content: str) -> None:
    file = tmp_path / "map.json"
    file.write_text(content)

    assert ModelWindows(locate=lambda: file)("a") == 128_000


@pytest.mark.proves("T1")
def test_max_tokens_stands_in_where_max_input_tokens_is_missing(tmp_path: Path) -> None:
    file = tmp_path / "map.json"
    entries = {
        "near/alpha-2": {"mode": "chat", "max_input_tokens": None, "max_tokens": 9_000},
        "far/alpha-2": {"mode": "chat", "max_input_tokens": 7_000, "max_tokens": 1_000},
        "far/beta": {"mode": "image_generation", "max_input_tokens": 77},
    }
    file.write_text(json.dumps(entries))

    windows = ModelWindows(locate=lambda: file)

    assert windows("near/alpha-2") == 9_000
    assert windows("far/alpha-2") == 7_000
    assert windows("alpha-2") == windows("elsewhere/alpha-2") == 7_000
    assert windows("beta") == 128_000


@pytest.mark.proves("T1")
def test_reading_the_map_neither_imports_litellm_nor_needs_much_memory() -> None:
    pytest.importorskip("resource")
    program = (
        "import resource, sys; from turnfold.model_info.context_windows import ModelWindows; w = ModelWindows();"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss; assert w('claude-opus-4-5') == 200_000;"
        "assert not {'litellm', 'toktok'} & set(sys.modules);"
        "print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // (1024 if sys.platform == 'linux' else 1024 * 1024))"
    )

    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )

    assert int(done.stdout) < 30
