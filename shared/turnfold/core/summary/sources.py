"""What a summariser is given and what it gives back."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from turnfold.core.text.markers import defused

Kind = Literal["llm", "extractive"]

_UNPRINTABLE = re.compile(
    r"\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff\ufeff]"
)


class Source(NamedTuple):
    """One evicted message as a summariser sees it: its text, no media.

    `calls` are (name, arguments as JSON text) of the tools it calls, `tool_name` the tool a result comes from; a late
    result answers a call that was evicted before it.
    """

    message_id: str
    role: str
    text: str
    calls: tuple[tuple[str, str], ...] = ()
    tool_name: str | None = None
    is_error: bool = False
    is_late: bool = False


@dataclass(frozen=True, slots=True)
class PreviousSummary:
    """The version a new one builds on."""

    text: str
    sections: Mapping[str, Any]
    ledger: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryJob:
    """Everything a summariser needs to write one version.

    `newest_request` is the newest open request of the whole session. Without `model` the extractive summariser writes.
    With one, what is more than `chunk_share` of its `window_tokens` is written in parts; `parts` are the answers that
    earlier attempts had already, by what was asked ("" where that was too large for the model). `task` stands in place of
    our own text of what to do, and `last_reason` says why the attempt before gave nothing. `timeout_seconds` is for a call,
    `job_timeout_seconds` for all of them.
    """

    sources: tuple[Source, ...]
    previous: PreviousSummary | None = None
    newest_request: str | None = None
    style: str = "structured"
    max_tokens: int = 1_200
    max_words: int = 200
    ledger_max_tokens: int = 2_000
    model: str | None = None
    api_base: str | None = None
    api_key: str | None = None
    timeout_seconds: float = 120.0
    job_timeout_seconds: float = 600.0
    window_tokens: int = 128_000
    chunk_share: float = 0.4
    task: str | None = None
    last_reason: str | None = None
    parts: Mapping[str, str] = field(default_factory=dict)
    redactions: tuple[str, ...] = ()

    def __repr__(self) -> str:
        """Sizes only: a key or a user's text must not reach a log by way of a traceback."""
        return (
            f"SummaryJob(sources={len(self.sources)}, style={self.style!r}, model={self.model!r})"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A summary that passed its gate and stands nowhere yet.

    `sections["provenance"]` runs parallel to `ledger` (`turnfold.core.summary.ledger.entries.entry_values` reads it), and where code wrote the
    text, `sections["sources"]` to its lines: the message ids of each. Token counts are those the provider reported and `cost`
    is in US dollars; each is None where nobody said. `unreported_tokens` were used by calls that nobody was told of yet.
    """

    text: str
    sections: dict[str, Any]
    ledger: tuple[str, ...]
    kind: Kind
    model: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cost: float | None = None
    prompt_version: str | None = None
    unreported_tokens: int = 0


class ChunkSummary(NamedTuple):
    """One answer on the way to a version: what was asked (a digest), what came, and the tokens that it took.

    The answer is empty where what was asked was too large for the model.
    """

    digest: str
    answer: str
    tokens: int


def printable(text: str) -> str:
    """The text without terminal codes, control characters and lone surrogates, so that every store and model takes it."""
    return text if text.isascii() and text.isprintable() else _UNPRINTABLE.sub("", text)


def clip(text: str, max_characters: int) -> str:
    """Shorten a text to one line of at most this many characters.

    A cut shows as an ellipsis and prefers the end of a word. Markup is defused before the cut,
    because half a marker is not recognized afterwards.
    """
    line = " ".join(text[: max_characters * 4].split())
    if len(line) <= max_characters:
        return line
    cut = defused(line)[: max_characters - 1]
    space = cut.rfind(" ", max_characters * 2 // 3)
    return (cut[:space] if space > 0 else cut).rstrip() + "…"


def head_and_tail(text: str, head: int, tail: int) -> str:
    """The first and the last characters of a long text with the exact number of those left out between them."""
    left_out = len(text) - head - tail
    if left_out <= 0:
        return text
    return f"{text[:head]}\n[… {left_out} characters left out …]\n{text[len(text) - tail :]}"


def word_count(text: str) -> float:
    """How long a text is in words; a Chinese, Japanese or Korean character counts as half a word."""
    if text.isascii():
        return float(len(text.split()))
    east = len(_EAST_ASIAN.findall(text))
    return len(_EAST_ASIAN.sub(" ", text).split()) + east / 2


_EAST_ASIAN = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff]")
