"""The SDK's own tests of sessions pass with ours in place of its SQLite session."""

from pathlib import Path

import pytest

from tests.hosts import own_tests
from tests.hosts.conftest import RunningSystem

TESTS = [
    "tests/memory/test_session.py",
    "tests/memory/test_session_limit.py",
    "tests/test_agent_runner.py",
    "tests/test_agent_runner_streamed.py",
    "tests/test_max_turns.py",
    "tests/test_native_tool_failure_history.py",
    "tests/test_programmatic_tool_calling.py",
    "tests/test_run_impl_resume_paths.py",
    "tests/test_soft_cancel.py",
    "tests/test_tool_batch_failure_history.py",
    "tests/test_tool_failure_boundaries.py",
]


@pytest.mark.proves("G3")
@pytest.mark.timeout(300)
def test_the_session_tests_of_the_sdk_pass(system: RunningSystem, tmp_path: Path) -> None:
    """Proves G3; `left_out.toml` names the others with their reasons."""
    source = own_tests.unpacked("openai-agents", tmp_path)

    status = own_tests.run(
        source,
        TESTS,
        plugin=Path(__file__).with_name("sdk_tests.py"),
        name="sdk",
        nats_url=system.nats_url,
    )

    assert status == 0
