"""The answers of the services as values."""

from collections.abc import Callable, Iterable, Mapping
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
from turnfold.messages import META_MARK

Fields = Mapping[str, Any]
Read = TypeVar("Read")

_ERRORS: dict[str, type[RequestError]] = {
    kind.code: kind for kind in (BadRequest, NotAllowed, UnknownSession, TooLarge, Conflict)
}


@dataclass(frozen=True, slots=True)
class Summary:
    """A version of the summary: its text, its sections and its ledger of exact values."""

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
    def of(cls, answer: Fields) -> Self:
        """Read the summary from an answer; `in_force` is None if the answer does not contain it."""
        return cls(
            version=answer["version"],
            kind=answer.get("kind") or "",
            text=answer.get("text") or "",
            tokens=answer.get("tokens") or 0,
            style=answer.get("style"),
            model=answer.get("model"),
            sections=answer.get("sections") or {},
            ledger=tuple(str(entry) for entry in answer.get("ledger") or ()),
            covers=answer.get("covers") or {},
            created_at=answer.get("created_at"),
            in_force=answer.get("in_force"),
        )


@dataclass(frozen=True, slots=True)
class Account:
    """The session's messages by state and treatment.

    shown + folded + covered + pending_shown + pending_digested = total.
    """

    total: int = 0
    shown: int = 0
    trimmed: int = 0
    folded: int = 0
    covered: int = 0
    pending_shown: int = 0
    pending_digested: int = 0
    recalled: int = 0
    synthesised: int = 0
    folded_told: int = 0
    untold: int = 0

    @classmethod
    def of(cls, answer: Fields) -> Self:
        """Read the account from an answer."""
        # A dataclass with `slots=True` lists its own fields there, in their order.
        return cls(**{name: answer.get(name) or 0 for name in cls.__slots__})


@dataclass(frozen=True, slots=True)
class Window:
    """The model's next input.

    `messages` and `message_ids` have the same length. Messages may be sent in this order. An id is
    None if the message is not stored, and a list if several messages were merged. `system` is the
    separate system text of the Anthropic format. `entries` has the `id`, the `form` and what the
    message is shown `without`, if they were asked for. `tokens` includes the summary and is counted
    for the requested model. `fresh` means that the window includes all events up to the freshness
    token, except `refused` ones that became dead letters. `raw` is the whole answer.
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
    refused: int = 0
    entries: list[dict[str, Any]] | None = None

    @classmethod
    def of(cls, answer: Fields) -> Self:
        """Read the window from an answer to `context.get`."""
        window, summary = answer.get("window") or {}, answer.get("summary")
        return cls(
            agent_id=answer["agent_id"],
            session_id=answer["session_id"],
            messages=list(answer["messages"]),
            message_ids=list(answer.get("message_ids") or ()),
            summary=Summary.of(summary) if summary else None,
            tokens=window.get("tokens") or 0,
            budget_tokens=window.get("budget_tokens"),
            account=Account.of(answer.get("account") or {}),
            fresh=bool(answer.get("fresh")),
            etag=answer.get("etag") or "",
            system=answer.get("system"),
            raw=answer,
            refused=answer.get("refused") or 0,
            entries=answer.get("entries"),
        )


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """One original message of the history.

    `state` is live, pending or covered. `score` is set by a search. `is_meta` marks a user message
    that a program wrote, `is_error` the result of a tool that failed. `element` is what was
    published in another `shape` than chat; `message` is its chat view then. `carry` is what its
    event carries for it; searches leave it out. `original_content` is that of a tool result that is
    neither text nor parts; `message` has it as a text.
    """

    message_id: str
    position: int
    state: str
    message: dict[str, Any]
    score: float | None = None
    is_meta: bool = False
    shape: str = "chat"
    element: dict[str, Any] | None = None
    carry: Any = None
    original_content: Any = None
    is_error: bool = False

    @classmethod
    def of(cls, answer: Fields) -> Self:
        """Read the message from an entry of `history.get` or `history.search`."""
        return cls(
            answer["message_id"],
            answer["position"],
            answer["state"],
            answer.get("message", {}) if "element" in answer else answer["message"],
            answer.get("score"),
            answer.get(META_MARK) is True,
            answer.get("shape") or "chat",
            answer.get("element"),
            answer.get("carry"),
            answer.get("original_content"),
            answer.get("is_error") is True,
        )


@dataclass(frozen=True, slots=True)
class HistoryPage:
    """A page of the history, in order.

    `next_position` is the `after_position` of the next page, and None at the end. A page that was
    read backwards has `previous_position`, the `before_position` of the page before it. `fresh`
    means that the page includes all events up to the freshness token.
    """

    messages: tuple[StoredMessage, ...]
    next_position: int | None
    previous_position: int | None = None
    fresh: bool = True

    @classmethod
    def of(cls, answer: Fields) -> Self:
        """Read the page from an answer to `history.get`."""
        return cls(
            tuple(StoredMessage.of(entry) for entry in answer["messages"]),
            answer.get("next_position"),
            answer.get("previous_position"),
            answer.get("fresh", True),
        )


class SearchHits(list[StoredMessage]):
    """The messages that match a query, best first.

    `is_partial` means that more may match: not all were examined, or large ones are left out.
    `fresh` means that the search includes all events up to the freshness token.
    """

    def __init__(self, hits: Iterable[StoredMessage], *, is_partial: bool, fresh: bool) -> None:
        super().__init__(hits)
        self.is_partial = is_partial
        self.fresh = fresh

    @classmethod
    def of(cls, answer: Fields) -> Self:
        """Read the hits from an answer to `history.search`."""
        return cls(
            map(StoredMessage.of, answer["hits"]),
            is_partial=bool(answer.get("is_partial")),
            fresh=answer.get("fresh", True),
        )


def read(of: Callable[[Fields], Read], answer: Fields) -> Read:
    """Convert an answer to a value.

    Raises:
        Unavailable: the answer does not follow the contract, so another program sent it.
    """
    try:
        return of(answer)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise Unavailable(
            "the reply does not follow the contract; another program than Turnfold sent it"
        ) from error


def error_from_json(error_json: Mapping[str, Any]) -> RequestError:
    """Convert the error of an answer to an exception."""
    message = str(error_json.get("message") or error_json.get("code"))
    if error_json.get("code") == CannotFit.code:
        return CannotFit(
            message,
            needed_tokens=error_json.get("needed_tokens"),
            needed_messages=error_json.get("needed_messages"),
        )
    if error_json.get("code") == Unavailable.code:
        retry_after_ms = error_json.get("retry_after_ms")
        return Unavailable(
            message,
            retry_after_ms=retry_after_ms if isinstance(retry_after_ms, int) else None,
            is_answer=True,
        )
    return _ERRORS.get(str(error_json.get("code")), RequestError)(message)
