"""Clients that publish and read during faults, and record every reply."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from random import Random
from time import monotonic

import nats.errors
from nats.aio.client import Client as Bus

from tests.chaos.fault_plan import LONGEST_PAUSE_SECONDS
from tests.published import MARK, Listed, Page, Published, Reading
from tests.running_system import eventually, wait_until
from turnfold.cli.recordings import Recording, Step, events_of, load_recordings
from turnfold.client import Client, OutgoingEvent, session_key
from turnfold.contracts.subjects import session_subject
from turnfold.errors import CannotFit, RequestError, Unavailable
from turnfold.messages import SessionKey

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.jsonl"))
PUBLISHERS = 4
READERS = 3
BUDGETS = (2_000, 6_000, 20_000, 200_000)
NEWEST_SESSIONS = 8
PAGE = 50
SETTLED_SECONDS = 150.0
BAD = {
    b"\xff not JSON": "not_json",
    b'{"event_id": "b1", "agent_id": "chaos", "session_id": "s", "messages": []}': "wrong_shape",
    b'{"event_id": "b2", "agent_id": "chaos", "session_id": "s", "messages": [{"role": "robot"}]}': "wrong_shape",
}


@dataclass(frozen=True, slots=True)
class Clients:
    """Connections: two that know nothing of what the other publishes, and one for what is no event."""

    one: Client
    another: Client
    bus: Bus


@dataclass
class Load:
    """What is published and asked, and what came of it."""

    seed: int
    clients: Clients
    published: Published = field(default_factory=Published)
    refused: Counter[str] = field(default_factory=Counter)
    is_calm: asyncio.Event = field(default_factory=asyncio.Event)
    is_settled: asyncio.Event = field(default_factory=asyncio.Event)

    async def publish(self, number: int) -> None:
        """Publish conversations one after another until there is calm: some events twice, some results before their calls."""
        random = Random(f"{self.seed} publishes {number}")
        await self.publish_bad(random)
        for recording, step in conversations(number):
            for event in shuffled((event for event, _ in events_of(recording, step)), random):
                if self.is_calm.is_set():
                    return
                await self.publish_event(self.clients.one, event)
                if random.random() < 0.15:
                    await self.publish_event(
                        random.choice((self.clients.one, self.clients.another)), event
                    )
                if random.random() < 0.02:
                    await self.publish_bad(random)
                await asyncio.sleep(random.uniform(0, 0.05))

    async def publish_event(self, client: Client, event: OutgoingEvent) -> None:
        """Publish one event until the stream says that it has it."""
        self.published.trying(event)
        while True:
            with contextlib.suppress(Unavailable):
                self.published.took(event, (await client.publish(event)).seq)
                return

    async def publish_bad(self, random: Random) -> None:
        """Publish what nobody can store."""
        payload, reason = random.choice(list(BAD.items()))
        self.published.trying_bad(payload, reason)
        with contextlib.suppress(nats.errors.Error):
            await self.clients.bus.request("turn.completed", payload, timeout=5)

    async def read(self, number: int) -> None:
        """Ask all the time; what is answered has to be right, whatever dies meanwhile."""
        random = Random(f"{self.seed} reads {number}")
        while not self.is_settled.is_set():
            await asyncio.sleep(random.uniform(0, 0.05))
            keys = list(self.published.order)[-NEWEST_SESSIONS:]
            if keys:
                key = random.choice(keys)
                await random.choices(
                    (partial(self.ask, max_tokens=random.choice(BUDGETS)), self.page, self.list),
                    (8, 1, 1),
                )[0](key)

    async def ask(self, key: SessionKey, *, max_tokens: int) -> None:
        """A window; the answer is kept with what was acknowledged before it was asked."""
        published = self.published
        acknowledged, after = published.messages_acknowledged[key], published.newest_seq.get(key)
        request = {"max_tokens": max_tokens, "after": after, "wait_ms": 500}
        began = monotonic()
        with self._told():
            answer = await self.clients.one.ask(
                session_subject("context.get", key), request, patience_seconds=0.5
            )
            attempted = published.messages_attempted[key]
            published.readings.append(
                Reading(key, acknowledged, after, answer, attempted, began, monotonic())
            )

    async def page(self, key: SessionKey) -> None:
        """A page of originals, after a message that some window named."""
        after = max(
            (
                one.answer["messages"][-1]["position"]
                for one in self.published.pages
                if one.key == key
            ),
            default=0,
        )
        with self._told():
            request = {"after_position": after or None, "limit": PAGE}
            answer = await self.clients.one.ask(session_subject("history.get", key), request)
            if answer["messages"]:
                self.published.pages.append(Page(key, answer))

    async def list(self, key: SessionKey) -> None:
        """The versions of a session."""
        with self._told():
            self.published.lists.append(
                Listed(key, await self.clients.one.ask(session_subject("summary.list", key), {}))
            )

    @contextlib.contextmanager
    def _told(self) -> Generator[None]:
        """A refusal is an answer too, if it is one of the contract."""
        try:
            yield
        except CannotFit:
            self.refused["cannot_fit"] += 1
        except RequestError as error:
            self.refused[error.code] += 1

    async def flowed(self, events: int) -> None:
        """Return when so many more events were acknowledged, or that takes too long."""
        wanted = len(self.published.acknowledged) + events
        with contextlib.suppress(AssertionError):
            await wait_until(
                lambda: len(self.published.acknowledged) >= wanted, seconds=LONGEST_PAUSE_SECONDS
            )

    async def settle(self, told: Callable[[], object]) -> None:
        """Wait until all is stored and nothing is pending; then ask for everything once more."""
        for key in self.published.order:
            await eventually(
                partial(self._has_settled, key), seconds=SETTLED_SECONDS, every=0.2, told=told
            )
        for key in self.published.order:
            await self.ask(key, max_tokens=max(BUDGETS))
            await self.list(key)
        self.is_settled.set()

    async def _has_settled(self, key: SessionKey) -> bool:
        """Whether a session holds all that was acknowledged, and has summarised what it evicted."""
        session = self.clients.one.session(*key)
        with contextlib.suppress(Unavailable):
            window = await session.context(
                max_tokens=10_000_000, after=self.published.newest_seq.get(key), wait_ms=2_000
            )
            return window.fresh and not (await session.status())["messages_pending"]
        return False


def conversations(number: int) -> Iterator[tuple[Recording, Step]]:
    """The examples again and again, whole turns and single messages in turn; each agent has sessions and events of the same names.

    What an agent said says so, in a field that nobody knows and everybody keeps.
    """
    agent = f"chaos-{number}"
    for lap in range(10_000):
        for recording in load_recordings([str(path) for path in EXAMPLES], agent=agent):
            said = tuple(
                one if one["role"] == "tool" else {**one, MARK: agent}
                for one in recording.conversation.messages
            )
            key = session_key(agent, f"{recording.key.session_id}-{lap}")
            yield (
                Recording(key, replace(recording.conversation, messages=said)),
                (Step.TURN, Step.MESSAGE)[lap % 2],
            )


def shuffled(events: Iterable[OutgoingEvent], random: Random) -> Iterator[OutgoingEvent]:
    """The same events, here and there two of them the other way round: a result before its call, a turn before the one it follows."""
    held: OutgoingEvent | None = None
    for event in events:
        if held is None and random.random() < 0.1:
            held = event
            continue
        yield event
        if held is not None:
            yield held
            held = None
    if held is not None:
        yield held
