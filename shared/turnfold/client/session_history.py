"""Look back in a session: its messages, the versions of its summary, and its audit rows."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Literal

from turnfold.client.replies import HistoryPage, SearchHits, StoredMessage, Summary, read
from turnfold.contracts.subjects import session_subject
from turnfold.errors import TooLarge, Unavailable, UnknownSession
from turnfold.messages import Json, SessionKey

if TYPE_CHECKING:  # both import this module
    from turnfold.client.client import Client
    from turnfold.client.portal import PortalClient

WAIT_MS = 250
MOST_WAIT_MS = 5_000
PAGE_MESSAGES = 200


def wait_seconds(wait_ms: int | None) -> float:
    """Return how long a service may wait for an event."""
    return (WAIT_MS if wait_ms is None else wait_ms) / 1000


class SessionHistory:
    """The past of one session; `Session` adds what changes it."""

    def __init__(self, client: "Client | PortalClient", key: SessionKey) -> None:
        self._client = client
        self.key = key

    async def ask(
        self, name: str, fields: Json | None = None, *, patience_seconds: float = 0.0
    ) -> dict[str, Any]:
        """Send any request of the contract about this session and return the answer unchanged.

        `name` is the request's name, such as `session.get`.
        """
        return await self._client.ask(
            session_subject(name, self.key), fields or {}, patience_seconds=patience_seconds
        )

    async def exists(self) -> bool:
        """Return whether the session has stored anything; a policy counts as well."""
        try:
            await self.ask("session.get")
        except UnknownSession:
            return False
        return True

    async def history(  # noqa: PLR0913  # a parameter for each field of the request
        self,
        *,
        after_position: int | None = None,
        before_position: int | None = None,
        limit: int | None = None,
        newest: int | None = None,
        message_ids: Sequence[str] | None = None,
        include_retracted: bool = False,
        bodies: Literal["published"] | None = None,
        as_of: str | int | None = None,
        after: int | Literal["latest"] | None = None,
        wait_ms: int | None = None,
    ) -> HistoryPage:
        """Return a page of the original messages, or those with these ids, in any state.

        `newest` reads the last messages, `before_position` alone those before a position. `after`
        is a freshness token or `latest`; the service waits at most `wait_ms` (limit 5,000) for it.
        `include_retracted` adds retracted messages in their places. With `bodies` "published",
        messages that have an `element` come without their chat view, which is empty then. `as_of`
        is a version, message id or RFC 3339 time: the messages of that moment, with the states that
        they had.
        """
        is_flushed = True
        if after == "latest":
            is_flushed, wait_ms = await self._flushed(wait_ms)
        fields: dict[str, Any] = {
            "after_position": after_position,
            "before_position": before_position,
            "limit": limit,
            "newest": newest,
            "message_ids": list(message_ids) if message_ids is not None else None,
            "include_retracted": include_retracted or None,
            "bodies": bodies,
            "as_of": None if as_of is None else str(as_of),
            "after": after,
            "wait_ms": wait_ms,
        }
        seconds = wait_seconds(wait_ms) if after else 0.0
        answer = await self.ask("history.get", fields, patience_seconds=seconds)
        page = read(HistoryPage.of, answer)
        return page if is_flushed else replace(page, fresh=False)

    async def tail(self, count: int = 50, *, wait_ms: int | None = None) -> list[StoredMessage]:
        """Return the last messages of the session, in order; none if the session does not exist.

        They include everything that this client has published before, if that is stored within
        `wait_ms` (250, limit 5,000).
        """
        _, wait_ms = await self._flushed(wait_ms)
        after = self._client.newest_seq(self.key) or None
        try:
            page = await self.history(newest=count, after=after, wait_ms=wait_ms)
        except UnknownSession:
            return []
        return list(page.messages)

    async def _flushed(self, wait_ms: int | None) -> tuple[bool, int | None]:
        """Wait until the bus has what this client has published before.

        Return whether it has, and the rest of `wait_ms`, in which the services may store it.
        """
        loop = asyncio.get_running_loop()
        began = loop.time()
        most_ms = min(WAIT_MS if wait_ms is None else wait_ms, MOST_WAIT_MS)
        is_flushed = await self._client.flushed(self.key, seconds=most_ms / 1000)
        waited_ms = round((loop.time() - began) * 1000)
        # Unchanged if no time has passed: without a value, the service applies its own default.
        return is_flushed, max(0, most_ms - waited_ms) if waited_ms else wait_ms

    async def flush(self) -> None:
        """Wait until the bus has what this client has published before.

        Raises:
            Unavailable: after five seconds it has not.
        """
        is_flushed, _ = await self._flushed(MOST_WAIT_MS)
        if not is_flushed:
            raise Unavailable("earlier events of the session wait for the bus; try again")

    async def originals(
        self, *, include_retracted: bool = False, as_of: str | int | None = None
    ) -> AsyncIterator[StoredMessage]:
        """Iterate over all messages of the session, oldest first; see `history`.

        Messages are fetched in pages. A page that is too large is requested again with a smaller
        limit.
        """
        position: int | None = None
        limit = PAGE_MESSAGES
        while True:
            try:
                page = await self.history(
                    after_position=position,
                    limit=limit,
                    include_retracted=include_retracted,
                    as_of=as_of,
                )
            except TooLarge:
                if limit == 1:
                    raise
                # One long message may exceed an answer together with others, but not alone.
                limit = max(limit // 4, 1)
                continue
            for stored in page.messages:
                yield stored
            if page.next_position is None or not page.messages:
                return
            position = page.next_position

    async def search(
        self,
        q: str,
        *,
        limit: int | None = None,
        after: int | Literal["latest"] | None = None,
        wait_ms: int | None = None,
    ) -> SearchHits:
        """Return the messages that match a query, best first, including evicted ones.

        `after` is a freshness token or `latest`; the service waits at most `wait_ms` (limit 5,000)
        for it.
        """
        is_flushed = True
        if after == "latest":
            is_flushed, wait_ms = await self._flushed(wait_ms)
        fields = {"q": q, "limit": limit, "after": after, "wait_ms": wait_ms}
        seconds = wait_seconds(wait_ms) if after else 0.0
        answer = await self.ask("history.search", fields, patience_seconds=seconds)
        hits = read(SearchHits.of, answer)
        hits.fresh &= is_flushed
        return hits

    async def summaries(self) -> list[Summary]:
        """Return all versions of the summary."""
        return [read(Summary.of, entry) for entry in (await self.ask("summary.list"))["summaries"]]

    async def summary(self, version: int) -> Summary:
        """Return one version of the summary."""
        return read(Summary.of, await self.ask("summary.get", {"version": version}))

    async def expand(
        self, version: int, *, entry: int | None = None, line: int | None = None
    ) -> dict[str, Any]:
        """Return the source messages of a ledger entry or of a line of the summary.

        `entry` and `line` count from 0.
        """
        return await self.ask("summary.expand", {"version": version, "entry": entry, "line": line})

    async def audit(
        self, *, after: int | None = None, limit: int | None = None
    ) -> list[dict[str, Any]]:
        """Return audit rows in the order in which they were written, after the row `after`."""
        rows: list[dict[str, Any]] = (
            await self.ask("audit.list", {"after": after, "limit": limit})
        )["audit"]
        return rows

    async def audit_trail(self) -> AsyncIterator[dict[str, Any]]:
        """Iterate over all audit rows of the session, fetched in pages."""
        after: int | None = None
        while rows := await self.audit(after=after, limit=PAGE_MESSAGES):
            for row in rows:
                yield row
            after = read(itemgetter("audit_id"), rows[-1])
