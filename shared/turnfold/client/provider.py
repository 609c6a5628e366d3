"""Sources of an agent's history: the query service, or any other `Provider` of the agent."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol, runtime_checkable

from turnfold.client.session import Session
from turnfold.core.recall.block import HEADING as RECALL_HEADING
from turnfold.core.window.framing import DIGEST_TITLE, HEADING
from turnfold.messages import Json

LASTING_HEADINGS: Final = (HEADING, DIGEST_TITLE)
NOTE_HEADINGS: Final = (*LASTING_HEADINGS, RECALL_HEADING)


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
    real results were not published. `model_window` is the size of the model's window as far as the
    source knows it.
    """

    messages: list[dict[str, Any]]
    tokens: int
    synthesised: frozenset[int] = field(default_factory=frozenset)
    model_window: int | None = None


class Provider(Protocol):
    """A source of a session's history. Of the three parts of recovery, only this one may do I/O."""

    async def history(self, budget: ContextBudget, /) -> History:
        """Return the history of the session within this budget.

        Raises:
            RequestError: the history is not available now. `CannotFit` if no history is that
                small.
        """
        ...


@runtime_checkable
class UsageReporter(Provider, Protocol):
    """A provider that also accepts reports about a model's window."""

    async def report(self, model: str, report: "WindowReport") -> None:
        """Accept what a call revealed about a model's window.

        Raises:
            RequestError: the report cannot be accepted now.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowReport:
    """The window of a model as a call revealed it, in tokens as the provider counts them.

    `limit_tokens` is the size that the provider named. `prompt_tokens` is the size of the call,
    which failed if `is_overflow`.
    """

    limit_tokens: int | None = None
    prompt_tokens: int | None = None
    is_overflow: bool = False


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
        # Every stored message has an id, so a tool result without one is a placeholder.
        synthesised = frozenset(
            index
            for index, (body, message_id) in numbered
            if message_id is None and body.get("role") == "tool"
        )
        model_window = (window.raw.get("window") or {}).get("model_window")
        return History(window.messages, window.tokens, synthesised, model_window or None)

    async def report(self, model: str, report: WindowReport) -> None:
        """Publish the report, so that windows and compactions of the session follow it."""
        tokens = report.prompt_tokens
        await self._session.usage_reported(
            model,
            limit_tokens=report.limit_tokens,
            is_overflow=report.is_overflow,
            usage=None if tokens is None else {"prompt_tokens": tokens},
        )


def lasting_notes(messages: Sequence[Json]) -> list[dict[str, Any]]:
    """Return the summaries and digests; a recall block belongs to one request."""
    return [dict(body) for body in messages if _begins_with(body, LASTING_HEADINGS)]


def _begins_with(body: Json, headings: tuple[str, ...]) -> bool:
    content = body.get("content")
    return body.get("role") == "user" and isinstance(content, str) and content.startswith(headings)


def split_notes(messages: Sequence[Json]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the lasting notes of a list, and the list without what windows add to it.

    The last user message is not a note, whatever it says: windows add nothing after a request.
    """
    users = [place for place, body in enumerate(messages) if body.get("role") == "user"]
    last = users[-1] if users else 0
    rest = [
        dict(body)
        for place, body in enumerate(messages)
        if place >= last or not _begins_with(body, NOTE_HEADINGS)
    ]
    return lasting_notes(messages[:last]), rest
