"""The errors of the project. Each says what to do next.

TurnfoldError
├── RequestError            a request cannot be answered; `code` travels to the caller
│   ├── BadRequest              correct the request
│   ├── NotAllowed              use other credentials
│   ├── UnknownSession          no event of it is stored
│   ├── CannotFit               request again with `needed_tokens` (or `needed_messages`)
│   ├── TooLarge                request or publish less
│   ├── Conflict                read again, then decide again
│   └── Unavailable             try again later
│       └── StreamFull              the event stream is full, nothing was stored: make room
├── ContextOverflow         too long for the model, even shortened: begin a new session, or change
│                           the model
├── BadEvent                an event that can never be stored; it becomes a dead letter
├── UnstorableBatch         the database refuses a value in a batch: try its events one by one
├── LostLease               another worker has the job; stop
├── SummarizerError         a model gave no usable summary: see `reason`, retry if `is_transient`
│   └── BudgetSpent             the token quota of the agent's day is spent: retry at `until_ms`
└── StartError              the process cannot start; the text says what to do
"""

from enum import StrEnum
from typing import Any, ClassVar, Self


class TurnfoldError(Exception):
    """Everything this project raises on purpose."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle and copy without `__init__`, which not every error calls with its text alone."""
        return _restored, (type(self), self.args), self.__dict__


def _restored(kind: type[TurnfoldError], args: tuple[Any, ...]) -> TurnfoldError:
    return kind.__new__(kind, *args)


class RequestError(TurnfoldError):
    """A request that cannot be answered, in the words of the contract."""

    code: ClassVar[str] = "bad_request"
    status: ClassVar[int] = 400

    def as_json(self) -> dict[str, Any]:
        """Return the error as an answer of the contract."""
        return {"error": {"code": self.code, "message": str(self), **self.more()}}

    def more(self) -> dict[str, Any]:
        """Return further fields of the answer."""
        return {}


class BadRequest(RequestError):
    """The request is invalid; correct it."""


class NotAllowed(RequestError):
    """These credentials do not allow the request."""

    code = "not_allowed"
    status = 403


class UnknownSession(RequestError):
    """No event of this agent or session is stored."""

    code = "unknown_session"
    status = 404

    def __init__(self, message: str = "no event of this session is stored") -> None:
        super().__init__(message)


class CannotFit(RequestError):
    """The smallest window exceeds the budget; a request with the stated size succeeds."""

    code = "cannot_fit"
    status = 422

    def __init__(
        self, message: str, *, needed_tokens: int | None = None, needed_messages: int | None = None
    ) -> None:
        super().__init__(message)
        self.needed_tokens = needed_tokens
        self.needed_messages = needed_messages

    def more(self) -> dict[str, Any]:
        """Return the smallest limits that work, as far as they are known."""
        needs = {"needed_tokens": self.needed_tokens, "needed_messages": self.needed_messages}
        return {name: value for name, value in needs.items() if value is not None}


class TooLarge(RequestError):
    """The request or answer exceeds a limit, or the size that the bus accepts."""

    code = "too_large"
    status = 413


class Conflict(RequestError):
    """A newer change conflicts with the request."""

    code = "conflict"
    status = 409


class Unavailable(RequestError):
    """No service can answer now; retry, after `retry_after_ms` if that is set.

    `is_answer` is True if a service sent this error, or the answer that shows it, so the service is
    reachable.
    """

    code = "unavailable"
    status = 503

    def __init__(
        self, message: str = "", *, retry_after_ms: int | None = None, is_answer: bool = False
    ) -> None:
        super().__init__(message)
        self.retry_after_ms = retry_after_ms
        self.is_answer = is_answer

    def more(self) -> dict[str, Any]:
        """Return when to try again, if that is known."""
        return {} if self.retry_after_ms is None else {"retry_after_ms": self.retry_after_ms}


class StreamFull(Unavailable):
    """The event stream is full, and the event was not stored; an operator must make room."""


class ContextOverflow(TurnfoldError):
    """The conversation is too long for the model, even in an emergency window.

    Its text may be shown to a person. `limit_tokens` is the window of the model, `tokens` is what
    it was sent, both as its provider counts; None if the provider did not say.
    """

    def __init__(self, *, limit_tokens: int | None = None, tokens: int | None = None) -> None:
        reads = f" It reads {limit_tokens:,} tokens." if limit_tokens else ""
        super().__init__(
            "This conversation is too long for the model, even after it was shortened to its "
            f"newest part.{reads} Please begin a new conversation, send less at once, or choose a "
            "model that reads more."
        )
        self.limit_tokens = limit_tokens
        self.tokens = tokens


class EventFault(StrEnum):
    """Why an event can never be stored: the reason of its dead letter. The values are stored."""

    NOT_JSON = (
        "not_json",
        "not JSON in UTF-8, or with NaN, 1e999 or an integer of over 4,000 digits",
    )
    WRONG_SHAPE = "wrong_shape", "a field is missing or has the wrong type"
    UNKNOWN_TYPE = "unknown_type", "this release has no event of this type"
    SUBJECT_MISMATCH = "subject_mismatch", "its subject names another agent or session"
    TOO_LARGE = "too_large", "more bytes than an event may have"
    TOO_MANY_MESSAGES = "too_many_messages", "more messages than an event may have"
    TOO_DEEP = "too_deep", "lists and objects are nested too deeply"
    EVENT_ID_REUSED = "event_id_reused", "an event with this id and other content is stored"
    TOO_MANY_SESSIONS = "too_many_sessions", "the agent has reached its limit of sessions"
    REFUSED_BY_DATABASE = "refused_by_database", "the database cannot store a value in it"

    meaning: str

    def __new__(cls, name: str, meaning: str) -> Self:
        """Return the member of a name, with what it means."""
        member = str.__new__(cls, name)
        member._value_ = name
        member.meaning = meaning
        return member


class BadEvent(TurnfoldError):
    """An event that no retry will make good; `reason` is what the dead letter says."""

    def __init__(self, reason: EventFault, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason, self.detail = reason, detail


class UnstorableBatch(TurnfoldError):
    """The database refuses something in a batch for good; each event alone shows which."""


class LostLease(TurnfoldError):
    """The job belongs to another worker by now, or to nobody."""


class SummarizerError(TurnfoldError):
    """A model returned no usable summary.

    `unreported_tokens` are those of calls that were not recorded yet. `retry_after_seconds` is the
    delay that the provider asked for.
    """

    def __init__(
        self,
        reason: str,
        detail: str = "",
        *,
        is_transient: bool = True,
        unreported_tokens: int = 0,
        retry_after_seconds: float | None = None,
    ) -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason
        self.is_transient = is_transient
        self.unreported_tokens = unreported_tokens
        self.retry_after_seconds = retry_after_seconds


class BudgetSpent(SummarizerError):
    """An agent's summaries have used up its tokens of the day; no model was asked."""

    def __init__(self, reason: str, *, until_ms: int) -> None:
        super().__init__(reason, "the agent's tokens of the day are spent", is_transient=False)
        self.until_ms = until_ms


class StartError(TurnfoldError):
    """The process cannot do its work; its text says what would help."""
