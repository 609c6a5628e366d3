"""The values that a summarizer receives and returns, and helpers for their texts."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple

from turnfold.messages import SYSTEM_ROLES

Kind = Literal["llm", "extractive"]

NARRATIVE_LEDGER_PART: Final = 4
"""The ledger of a narrative summary takes at most a quarter of its words."""

REQUEST_PREFIX: Final = "request "
"""Begins the ledger entry of the open request, which is the first."""


class Source(NamedTuple):
    """One evicted message as a summarizer reads it: its text, without media.

    `calls` are the names and the JSON arguments of its tool calls. `tool_name` is the tool that a
    result comes from. A late result answers a call that was evicted earlier.
    """

    message_id: str
    role: str
    text: str
    calls: tuple[tuple[str, str], ...] = ()
    tool_name: str | None = None
    is_error: bool = False
    is_late: bool = False

    @property
    def is_pinnable(self) -> bool:
        """Whether it is a system message that begins its event; see `Message.is_pinnable`."""
        return self.role in SYSTEM_ROLES and self.message_id.endswith("#0")


@dataclass(frozen=True, slots=True)
class PreviousSummary:
    """The version that a new one builds on."""

    text: str
    sections: Mapping[str, Any]
    ledger: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryJob:
    """Everything a summarizer needs to write one version.

    `newest_request` is the newest unanswered request that the version covers. `following` are the
    texts of the newest messages after the sources: names that they use belong in the ledger.
    Without `model`, the extractive summarizer writes. With a model, input of more than
    `chunk_share` of its `window_tokens` is written in parts. `parts` are the answers of earlier
    attempts by the digest of their prompt; an empty answer means that the prompt was too large.
    `task` replaces the built-in task of the prompt. `last_reason` is why the last attempt gave no
    version. `timeout_seconds` limits each call, `job_timeout_seconds` all of them.
    """

    sources: tuple[Source, ...]
    previous: PreviousSummary | None = None
    newest_request: str | None = None
    following: tuple[str, ...] = ()
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

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to summarize: a model would invent what it writes."""
        said = any(source.text.strip() or source.calls for source in self.sources)
        return self.previous is None and not said

    @property
    def ledger_words(self) -> int:
        """The most words of the ledger: a share of a narrative summary's; 0 if it has no limit."""
        return self.max_words // NARRATIVE_LEDGER_PART if self.style == "narrative" else 0

    @property
    def text_words(self) -> int:
        """The most words of prose; 0 if it has no limit."""
        return self.max_words - self.ledger_words

    def __repr__(self) -> str:
        """Show sizes only: no key or user's text may reach a log through a traceback."""
        return (
            f"SummaryJob(sources={len(self.sources)}, style={self.style!r}, model={self.model!r})"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A summary that passed the gate and is not stored yet.

    `sections["provenance"]` runs parallel to `ledger`; see `ledger.entries.entry_values`. If code
    wrote the text, `sections["sources"]` runs parallel to its lines and has the message ids of
    each. Token counts and `cost` (US dollars) are those of the provider, or None if it reported
    none. `unreported_tokens` are those of calls that were not recorded yet.
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
    """The answer of a model to one part: the digest of its prompt, the text, and the tokens used.

    The answer is empty if the prompt was too large for the model.
    """

    digest: str
    answer: str
    tokens: int


def head_and_tail(text: str, head: int, tail: int) -> str:
    """Shorten a text to its first and last characters, with the number of those left out."""
    left_out = len(text) - head - tail
    if left_out <= 0:
        return text
    return f"{text[:head]}\n[… {left_out} characters left out …]\n{text[len(text) - tail :]}"


def word_count(text: str) -> float:
    """Count the words of a text. A Chinese, Japanese or Korean character is half a word."""
    if text.isascii():
        return float(len(text.split()))
    east = len(_EAST_ASIAN.findall(text))
    return len(_EAST_ASIAN.sub(" ", text).split()) + east / 2


_EAST_ASIAN = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff]")
