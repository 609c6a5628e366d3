"""Take messages of a session back."""

from turnfold.client.events import Receipt, retraction_event
from turnfold.client.replies import StoredMessage, read
from turnfold.client.session_history import SessionHistory
from turnfold.errors import UnknownSession

POP_SECONDS = 8.0
"""How long a worker waits at most for the events before."""


class SessionEdits(SessionHistory):
    """Retract messages of one session. The originals stay in its history."""

    async def retract(
        self, *message_ids: str, after: str | None = None, event_id: str | None = None
    ) -> Receipt:
        """Retract these messages, or all after one; a result follows its call.

        Only messages that were published before are retracted; unknown ids have no effect. No
        window, search, count or summary includes a retracted message any more.
        """
        event = retraction_event(self.key, message_ids, after=after, event_id=event_id)
        return await self._client.publish(event)

    async def clear(self, *, event_id: str | None = None) -> Receipt:
        """Retract all messages. Unlike `erase`, this keeps the originals in the history."""
        return await self._client.publish(
            retraction_event(self.key, is_all=True, event_id=event_id)
        )

    async def pop(self, count: int = 1) -> list[StoredMessage]:
        """Retract the newest messages and return them, in order; of several callers, one gets each.

        Fewer are returned if the session has no more, or if they are very long.
        """
        try:
            answer = await self.ask("session.pop", {"count": count}, patience_seconds=POP_SECONDS)
        except UnknownSession:
            return []
        return [read(StoredMessage.of, entry) for entry in answer["messages"]]
