"""Sources of an agent's history: the query service, or any other `Provider` of the agent."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol

from turnfold.client.session import Session
from turnfold.core.window.framing import DIGEST_HEADING, HEADING
from turnfold.messages import Json

NOTE_HEADINGS: Final = (HEADING, DIGEST_HEADING)


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextBudget:
    """The tokens that the history may take, as the model counts them.

    System messages, tools and the answer are not part of it.
    """

    budget_tokens: int
    model: str | None = None
    is_emergency: bool = False


@dataclass(frozen=True, slots=True)
class History:
    """The history so far, ready to send: the summary as a user message, then messages.

    `tokens` counts all messages. `synthesised` holds the indexes of placeholder tool results, whose
    real results were not published.
    """

    messages: list[dict[str, Any]]
    tokens: int
    synthesised: frozenset[int] = field(default_factory=frozenset)


class Provider(Protocol):
    """A source of a session's history. Of the three parts of recovery, only this one may do I/O."""

    async def history(self, budget: ContextBudget, /) -> History:
        """Return the history of the session within this budget.

        Raises:
            RequestError: the history is not available now. `CannotFit` if no history is that
                small.
        """
        ...


class SessionProvider:
    """The history that the query service returns for a session."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def history(self, budget: ContextBudget) -> History:
        """Return the session's window, including everything its client has published so far."""
        mode: Literal["emergency"] | None = "emergency" if budget.is_emergency else None
        window = await self._session.context(
            max_tokens=budget.budget_tokens, model=budget.model, mode=mode, placement="user"
        )
        numbered = enumerate(zip(window.messages, window.message_ids, strict=True))
        synthesised = frozenset(
            index
            for index, (body, message_id) in numbered
            if message_id is None and body.get("role") == "tool"
        )
        return History(window.messages, window.tokens, synthesised)


def is_context_note(body: Json) -> bool:
    """Return whether a message is a summary or a digest from a window."""
    content = body.get("content")
    return (
        body.get("role") == "user"
        and isinstance(content, str)
        and content.startswith(NOTE_HEADINGS)
    )


def without_notes(messages: Sequence[Json]) -> list[dict[str, Any]]:
    """Return the messages without the summaries and digests of earlier windows."""
    return [dict(body) for body in messages if not is_context_note(body)]
