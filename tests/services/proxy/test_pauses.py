"""Calls that Turnfold does not answer: whose next calls go out as they came."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.ports import free_port
from tests.services.proxy.conftest import ProxyScene
from turnfold.client import BufferOptions, Session, Window, connect
from turnfold.client.replies import HistoryPage, error_from_json
from turnfold.errors import Unavailable
from turnfold_proxy.apis import APIS
from turnfold_proxy.lookups import RecallTools
from turnfold_proxy.pauses import Pauses
from turnfold_proxy.recorder import Call, Recorder

pytestmark = pytest.mark.asyncio(loop_scope="module")

PATH = "/v1/chat/completions"
MOMENT_AGO = "a moment ago"
FAILED = {"code": "unavailable", "message": "the request failed; the log says why"}


class _BrokenSession(Session):
    """A session for whose windows the query service answers that they failed."""

    async def context(self, **_: Any) -> Window:
        raise error_from_json(FAILED)


class _SlowSession(Session):
    """A session whose windows do not come in time."""

    async def context(self, **asked: Any) -> Window:
        await asyncio.sleep(60)
        return await super().context(**asked)


class _LateSession(Session):
    """A session that is answered at once, and whose newest events are not stored yet."""

    async def context(self, **asked: Any) -> Window:
        return replace(await super().context(**asked), fresh=False)


class _LateHistorySession(Session):
    """A session whose history is answered at once, without its newest events."""

    async def history(self, **asked: Any) -> HistoryPage:
        return replace(await super().history(**asked), fresh=False)


def sessions_of(scene: ProxyScene) -> Callable[[str, str], Session]:
    """Sessions, some of which are broken or slow by their names."""

    def session_of(agent_id: str, session_id: str) -> Session:
        session = scene.client.session(agent_id, session_id)
        kinds = {
            "broken": _BrokenSession,
            "slow": _SlowSession,
            "late": _LateSession,
            "unread": _LateHistorySession,
        }
        kind = kinds.get(session_id.partition(" ")[0])
        return session if kind is None else kind(scene.client, session.key)

    return session_of


def call_of(session_id: str) -> Call:
    """The first call of a session."""
    api, body = APIS[PATH], {"messages": [{"role": "user", "content": "Where is 7341?"}]}
    conversation = api.conversation(body)
    assert conversation is not None
    return Call(api, "paused", session_id, body, conversation, None)


async def prepared(recorder: Recorder, session_id: str) -> None:
    """Send the first call of a session."""
    await recorder.prepare(call_of(session_id))


async def assert_pauses_alone(recorder: Recorder, session: str) -> None:
    """The calls of a session fail, and then it has a pause while another session is served."""
    with pytest.raises(Unavailable, match="in time"):
        await prepared(recorder, session)
    await prepared(recorder, "sound")
    with pytest.raises(Unavailable, match=MOMENT_AGO):
        await prepared(recorder, session)


@pytest.mark.proves("G10", "C79")
async def test_a_session_whose_window_fails_pauses_no_other(scene: ProxyScene) -> None:
    """The query service answers with an error: it is there, and answers for other sessions."""
    recorder = Recorder(sessions_of(scene), scene.client.erasures, Pauses(), wait_seconds=60)

    await assert_pauses_alone(recorder, "broken")
    await recorder.close()


@pytest.mark.proves("G10", "C79")
async def test_a_session_that_takes_too_long_pauses_others_only_if_none_is_answered(
    scene: ProxyScene,
) -> None:
    recorder = Recorder(sessions_of(scene), scene.client.erasures, Pauses(), wait_seconds=10)

    slow = asyncio.create_task(prepared(recorder, "slow"))
    await asyncio.sleep(0.5)
    await prepared(recorder, "quick")
    with pytest.raises(Unavailable, match="in time"):
        await slow
    with pytest.raises(Unavailable, match=MOMENT_AGO):
        await prepared(recorder, "slow")
    await prepared(recorder, "another")
    with pytest.raises(Unavailable, match="in time"):
        await prepared(recorder, "slow alone")
    with pytest.raises(Unavailable, match=MOMENT_AGO):
        await prepared(recorder, "another")
    await recorder.close()


@pytest.mark.proves("G10", "C79")
@pytest.mark.parametrize("late", ["late", "unread"])
async def test_a_session_whose_answer_lacks_the_newest_events_pauses_no_other(
    scene: ProxyScene, late: str
) -> None:
    """Workers may be behind with one session, while the query service answers."""
    recorder = Recorder(sessions_of(scene), scene.client.erasures, Pauses(), wait_seconds=60)
    await scene.client.session("paused", late).turn_completed([{"role": "user", "content": "Hm."}])

    await assert_pauses_alone(recorder, late)
    await recorder.close()


@pytest.mark.proves("G10", "C79")
async def test_a_call_that_waits_for_its_own_session_in_vain_pauses_no_other(
    scene: ProxyScene,
) -> None:
    """Another call of the session has its turn, which says nothing of Turnfold."""
    recorder = Recorder(sessions_of(scene), scene.client.erasures, Pauses(), wait_seconds=4)

    first = asyncio.create_task(prepared(recorder, "slow again"))
    await asyncio.sleep(0.5)
    await prepared(recorder, "quick")
    second = asyncio.create_task(prepared(recorder, "slow again"))
    for call in (first, second):
        with pytest.raises(Unavailable, match="in time"):
            await call
    await prepared(recorder, "another")
    await recorder.close()


@pytest.mark.proves("G10", "C79")
async def test_of_calls_with_tools_one_waits_while_turnfold_is_away() -> None:
    url, pauses = f"nats://127.0.0.1:{free_port()}", Pauses()
    async with connect(url, buffering=BufferOptions(), environ={}) as client:
        recorder = Recorder(client.session, client.erasures, pauses, wait_seconds=0.5)
        tools = RecallTools(client.session, pauses, wait_seconds=0.5)

        with pytest.raises(Unavailable, match="in time"):
            await tools.offered(call_of("one"))
        with pytest.raises(Unavailable, match=MOMENT_AGO):
            await tools.offered(call_of("two"))
        with pytest.raises(Unavailable, match=MOMENT_AGO):
            await prepared(recorder, "two")
