"""What a client is told, as values."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar

from turnfold.errors import (
    BadRequest,
    CannotFit,
    Conflict,
    NotAllowed,
    RequestError,
    TooLarge,
    Unavailable,
    UnknownSession,
)

Fields = Mapping[str, Any]
Read = TypeVar("Read")

_ERRORS: dict[str, type[RequestError]] = {
    kind.code: kind for kind in (BadRequest, NotAllowed, UnknownSession, TooLarge, Conflict)
}


@dataclass(frozen=True, slots=True)
class Summary:
    """A version of the summary: prose, its sections, and the exact values carried beside it."""

    version: int
    kind: str
    text: str
    tokens: int
    style: str | None = None
    model: str | None = None
    sections: Fields = field(default_factory=dict)
    ledger: tuple[str, ...] = ()
    covers: Fields = field(default_factory=dict)
    created_at: str | None = None
    in_force: bool | None = None

    @classmethod
    def of(cls, told: Fields) -> Self:
        """The summary in an answer; `in_force` is None where the answer does not say."""
        return cls(
            version=told["version"],
            kind=told.get("kind") or "",
            text=told.get("text") or "",
            tokens=told.get("tokens") or 0,
            style=told.get("style"),
            model=told.get("model"),
            sections=told.get("sections") or {},
            ledger=tuple(str(entry) for entry in told.get("ledger") or ()),
            covers=told.get("covers") or {},
            created_at=told.get("created_at"),
            in_force=told.get("in_force"),
        )


@dataclass(frozen=True, slots=True)
class Account:
    """Where every message of the session is: shown + folded + covered + pending_shown + pending_digested = total."""

    total: int = 0
    shown: int = 0
    trimmed: int = 0
    folded: int = 0
    covered: int = 0
    pending_shown: int = 0
    pending_digested: int = 0
    recalled: int = 0
    synthesised: int = 0

    @classmethod
    def of(cls, told: Fields) -> Self:
        """The account in an answer."""
        return cls(**{name: told.get(name) or 0 for name in cls.__slots__})


@dataclass(frozen=True, slots=True)
class Window:
    """What the model should see next.

    `messages` are as many dictionaries as there are `message_ids`, in the order in which they may be sent; an id is None
    for what is no stored message, and a list where several messages became one. `system` is the system text of the
    Anthropic shape, where it stands apart. `tokens` is counted for the model that was named, the summary included. `fresh` says
    that everything published up to the freshness token is in it. `raw` is the whole answer.
    """

    agent_id: str
    session_id: str
    messages: list[dict[str, Any]]
    message_ids: list[Any]
    summary: Summary | None
    tokens: int
    budget_tokens: int | None
    account: Account
    fresh: bool
    etag: str
    system: Any
    raw: Fields = field(repr=False)

    @classmethod
    def of(cls, told: Fields) -> Self:
        """The window in an answer of `context.get`."""
        window, summary = told.get("window") or {}, told.get("summary")
        return cls(
            agent_id=told["agent_id"],
            session_id=told["session_id"],
            messages=list(told["messages"]),
            message_ids=list(told.get("message_ids") or ()),
            summary=Summary.of(summary) if summary else None,
            tokens=window.get("tokens") or 0,
            budget_tokens=window.get("budget_tokens"),
            account=Account.of(told.get("account") or {}),
            fresh=bool(told.get("fresh")),
            etag=told.get("etag") or "",
            system=told.get("system"),
            raw=told,
        )


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """One message of the history as it was published; `state` is live, pending or covered, `score` that of a search."""

    message_id: str
    position: int
    state: str
    message: dict[str, Any]
    score: float | None = None

    @classmethod
    def of(cls, told: Fields) -> Self:
        """The message in an entry of `history.get` or `history.search`."""
        return cls(
            told["message_id"], told["position"], told["state"], told["message"], told.get("score")
        )


@dataclass(frozen=True, slots=True)
class HistoryPage:
    """Some of the history in order; `next_position` goes into the next request and is None at the end."""

    messages: tuple[StoredMessage, ...]
    next_position: int | None

    @classmethod
    def of(cls, told: Fields) -> Self:
        """The page in an answer of `history.get`."""
        return cls(
            tuple(StoredMessage.of(entry) for entry in told["messages"]), told.get("next_position")
        )


def read(of: Callable[[Fields], Read], told: Fields) -> Read:
    """An answer as a value.

    Raises:
        Unavailable: something in it is not as the contract says, so somebody else replied.
    """
    try:
        return of(told)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise Unavailable(
            "the reply to this request is none of Turnfold's: somebody else on the bus replies to it"
        ) from error


def error_from_json(told: Mapping[str, Any]) -> RequestError:
    """The error an answer speaks of, as an exception."""
    message = str(told.get("message") or told.get("code"))
    if told.get("code") == CannotFit.code:
        return CannotFit(
            message,
            needed_tokens=told.get("needed_tokens"),
            needed_messages=told.get("needed_messages"),
        )
    if told.get("code") == Unavailable.code:
        retry_after_ms = told.get("retry_after_ms")
        return Unavailable(
            message, retry_after_ms=retry_after_ms if isinstance(retry_after_ms, int) else None
        )
    return _ERRORS.get(str(told.get("code")), RequestError)(message)
