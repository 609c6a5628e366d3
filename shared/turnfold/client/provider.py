"""Where an agent's history comes from: the service, or whatever else an agent brings."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol

from turnfold.client.session import Session
from turnfold.core.window.framing import DIGEST_HEADING, HEADING
from turnfold.messages import Json

NOTES: Final = (HEADING, DIGEST_HEADING)


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextBudget:
    """What there is room for: tokens as the model counts them, without what the caller sends besides."""

    budget_tokens: int
    model: str | None = None
    is_emergency: bool = False


@dataclass(frozen=True, slots=True)
class History:
    """What was said so far, ready to be sent: the summary as a user message, then messages. `tokens` counts all of it.

    `synthesised` are the indexes of results that stand in for those nobody has sent yet.
    """

    messages: list[dict[str, Any]]
    tokens: int
    synthesised: frozenset[int] = field(default_factory=frozenset)


class Provider(Protocol):
    """Knows what was said in a session. The only one of the three parts that may do I/O."""

    async def history(self, room: ContextBudget) -> History:
        """The history of the session within this room.

        Raises:
            RequestError: it cannot be told now; `CannotFit` where no history is as small as the room.
        """
        ...


class SessionProvider:
    """The history as the query service tells it."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def history(self, room: ContextBudget) -> History:
        """The window of the session, with everything in it that was published through its client before."""
        mode: Literal["emergency"] | None = "emergency" if room.is_emergency else None
        window = await self._session.context(
            max_tokens=room.budget_tokens, model=room.model, mode=mode, placement="user"
        )
        places = enumerate(zip(window.messages, window.message_ids, strict=True))
        synthesised = frozenset(
            place for place, (body, known) in places if known is None and body.get("role") == "tool"
        )
        return History(window.messages, window.tokens, synthesised)


def is_context_note(body: Json) -> bool:
    """Whether a message is a summary or a digest that a window showed."""
    content = body.get("content")
    return body.get("role") == "user" and isinstance(content, str) and content.startswith(NOTES)


def without_notes(messages: Sequence[Json]) -> list[dict[str, Any]]:
    """The messages but for the summaries and digests of earlier windows."""
    return [dict(body) for body in messages if not is_context_note(body)]
