"""Six behaviours by name, side by side in one running system, each chosen for its session while it runs."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

import turnfold
from tests.model_server import ModelServer, running_model_server
from tests.running_system import System, eventually, rows, running_system
from turnfold import Session, Window
from turnfold.core.history.validation import validation_errors

pytestmark = pytest.mark.asyncio(loop_scope="module")


class Installation:
    """A running system, its model, and the sessions of one agent."""

    def __init__(self, system: System, client: turnfold.Client, model: ModelServer) -> None:
        self.system = system
        self.model = model
        self._client = client

    async def session(self, preset: str, *, agent: str = "ada", **overrides: Any) -> Session:
        """A session of its own that behaves like this preset, smaller where a test wants it."""
        session = self._client.session(agent, f"{preset} {sorted(overrides)}")
        await session.policy(preset=preset, overrides=overrides)
        return session

    def triggers(self, session: Session) -> list[str]:
        """What made each of its compactions due, in order."""
        query = "SELECT trigger FROM compactions_view WHERE agent_id = ? AND session_id = ? AND messages_evicted > 0 ORDER BY requested_at"
        return [trigger for (trigger,) in rows(self.system.database, query, *session.key)]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def here(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Installation]:
    folder = tmp_path_factory.mktemp("installation")
    async with (
        running_model_server() as model,
        running_system(folder / "data", environ=model.settings) as system,
        turnfold.connect(system.nats_url, environ={}) as client,
    ):
        yield Installation(system, client, model)


async def talk(session: Session, first: int, last: int, *, words: int = 40) -> None:
    """Rounds of a question and an answer."""
    for number in range(first, last + 1):
        said = " ".join(["well"] * words)
        await session.turn_completed(
            [
                {"role": "user", "content": f"Question {number}? {said}"},
                {"role": "assistant", "content": f"Answer {number}. {said}"},
            ]
        )


async def work(session: Session, steps: int, *, words: int = 200) -> None:
    """One request and many calls for it, each with a result."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Look everywhere."}]
    for step in range(steps):
        call = {
            "id": f"c{step}",
            "type": "function",
            "function": {"name": "look", "arguments": "{}"},
        }
        messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
        messages.append(
            {"role": "tool", "tool_call_id": f"c{step}", "content": " ".join(["found"] * words)}
        )
    await session.turn_completed([*messages, {"role": "assistant", "content": "Done."}])


async def window(session: Session, **more: Any) -> Window:
    """What its model would see, with everything published in it."""
    asked: dict[str, Any] = {"max_tokens": 100_000, "wait_ms": 5_000, "recall": False, **more}
    found = await session.context(**asked)
    assert found.fresh
    assert not validation_errors(found.messages)
    return found


async def summarised(session: Session, versions: int = 1) -> Window:
    """Its window once so many versions were written and nothing waits."""

    async def seen() -> Window | None:
        found = await window(session)
        version = found.summary.version if found.summary else 0
        return (
            found
            if version >= versions
            and not found.account.pending_shown + found.account.pending_digested
            else None
        )

    return await eventually(seen, seconds=60)


@pytest.mark.proves("P1", "P2", "P4", "P5", "P6", "E6")
async def test_each_session_behaves_as_the_preset_says_that_was_chosen_for_it(
    here: Installation,
) -> None:
    static, rolling = await here.session("static-buffer"), await here.session("rolling")
    budget = await here.session("token-budget", context_window=40_000)
    adaptive, balanced = await here.session("adaptive"), await here.session("balanced")
    for session in (static, rolling, adaptive, balanced):
        await talk(session, 1, 26)
    await talk(budget, 1, 26, words=480)

    kept = await summarised(static)
    assert here.triggers(static) == ["messages"]
    assert (kept.account.shown, kept.account.covered) == (10, 42)
    assert kept.summary is not None
    assert (kept.summary.kind, kept.summary.style) == ("llm", "narrative")

    kept = await summarised(rolling)
    assert here.triggers(rolling) == ["rounds", "rounds"]
    assert kept.account.shown == 10 + 2 * 6
    assert kept.summary is not None
    assert kept.summary.style == "structured"

    kept = await summarised(budget)
    assert set(here.triggers(budget)) == {"tokens"}
    assert 20_000 <= kept.tokens <= 40_000 - 16_384
    assert kept.account.covered > 0

    kept = await window(adaptive, max_tokens=None)
    assert here.triggers(adaptive) == []
    assert (kept.summary, kept.account.total) == (None, 52)
    assert len(kept.messages) <= 50
    asked = len(here.model.requests)
    small = await window(adaptive, max_tokens=1_000, mode="emergency")
    assert small.tokens <= 600
    assert len(here.model.requests) == asked

    kept = await summarised(balanced)
    assert here.triggers(balanced) == ["messages"]
    assert kept.account.shown == 26


@pytest.mark.proves("P3", "E7", "C33")
async def test_a_selective_session_lets_go_only_what_its_summary_speaks_for(
    here: Installation,
) -> None:
    session = await here.session("selective", context_window=4_000, min_gain_tokens=500)
    here.model.fault = "refuse"
    await talk(session, 1, 20, words=80)

    async def rolled_back() -> bool:
        return "rejected" in {row["phase"] async for row in session.audit_trail()}

    await eventually(rolled_back, seconds=90)
    kept = await window(session)
    assert (kept.account.shown, kept.account.covered, kept.summary) == (40, 0, None)
    assert here.triggers(session) == []

    here.model.fault = "answer"
    asked = await session.compact()
    assert asked is not None
    kept = await summarised(session)
    assert (kept.account.shown, kept.account.covered) == (24, 16)
    assert kept.summary is not None
    assert kept.summary.kind == "llm"
    assert here.triggers(session) == ["request"]

    busy = await here.session("selective", context_window=4_000, min_gain_tokens=500, keep_rounds=2)
    await work(busy, 20)
    kept = await summarised(busy)
    named, request = (str(message["content"]) for message in kept.messages[:2])
    assert request == "Look everywhere."
    assert 'for the request "Look everywhere.", by tool: look ×15' in named
    assert sum(message["role"] == "tool" for message in kept.messages) == 5


@pytest.mark.proves("E1", "C34", "E6")
async def test_a_policy_that_is_changed_acts_from_the_next_event_on(here: Installation) -> None:
    session = await here.session("adaptive", agent="eve")
    await talk(session, 1, 30)
    assert (await window(session, max_tokens=None)).account.folded > 0

    await session.policy(overrides={"idle_seconds": 1, "min_gain_tokens": 100})
    await talk(session, 31, 31)
    kept = await summarised(session)

    assert here.triggers(session) == ["idle"]
    # The last round stays; without a model, for that is what the preset says.
    assert (kept.account.shown, kept.account.covered) == (2, 60)
    assert kept.summary is not None
    assert kept.summary.kind == "extractive"
