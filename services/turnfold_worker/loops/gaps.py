"""Detection of sequences that the event stream no longer holds."""

import json
from collections.abc import Sequence

import structlog
from nats.aio.client import Client

from turnfold.bus.asking import asking
from turnfold.bus.streams import ack_floor
from turnfold.contracts.subjects import EVENTS_STREAM
from turnfold.errors import Unavailable
from turnfold.ports.ingest import IngestStore
from turnfold_worker.loops.polling import PollingLoop

log = structlog.get_logger()

GONE_ALREADY = (10_037, 10_043)
"""Error codes of JetStream: no such message (to read), no such message (to delete)."""


class GapFinder(PollingLoop):
    """Finds sequences that the stream does not hold any more, so that nobody waits for them."""

    poll_seconds = 2.0
    ask_at_most = 200

    def __init__(self, *, store: IngestStore, client: Client) -> None:
        super().__init__()
        self._store = store
        self._client = client

    async def work(self) -> float:
        """Ask the stream about the sequences that are missing."""
        gaps = await self._store.gaps(up_to=await ack_floor(self._client))
        if not gaps:
            return self.poll_seconds
        jetstream = self._client.jetstream()
        with asking():
            state = (await jetstream.stream_info(EVENTS_STREAM)).state
            gone = [
                (first, min(last, state.first_seq - 1))
                for first, last in gaps
                if first < state.first_seq
            ]
            if state.num_deleted:
                gone += await self._deleted(
                    [
                        (max(first, state.first_seq), last)
                        for first, last in gaps
                        if last >= state.first_seq
                    ]
                )
        if gone:
            await self._store.mark_ingested(gone)
        return self.poll_seconds

    async def _deleted(self, gaps: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """What of these was taken out of the middle of the stream; a list of all that ever was would grow with every erasure."""
        found: list[tuple[int, int]] = []
        asked = 0
        for first, last in gaps:
            at = first
            while at <= last and asked < self.ask_at_most:
                asked += 1
                held = await self._held_from(at)
                if held is None or held > at:
                    found.append((at, last if held is None else min(last, held - 1)))
                at = last + 1 if held is None else held + 1
        return found

    async def _held_from(self, seq: int) -> int | None:
        """The first sequence from here on that the stream holds; None when there is none."""
        asked = json.dumps({"seq": seq, "next_by_subj": ">"}).encode()
        told = json.loads(
            (
                await self._client.request(
                    f"$JS.API.STREAM.MSG.GET.{EVENTS_STREAM}", asked, timeout=10
                )
            ).data
        )
        if failure := told.get("error"):
            if failure.get("err_code") in GONE_ALREADY:
                return None
            raise Unavailable(
                f"the stream does not say what it holds: {failure.get('description')}"
            )
        return int(told["message"]["seq"])
