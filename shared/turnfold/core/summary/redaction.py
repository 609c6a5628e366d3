"""Secrets are taken out of a text before any summariser sees it."""

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from turnfold.core.summary.sources import PreviousSummary, SummaryJob

_PRIVATE_KEY = re.compile(
    r"-----BEGIN ([A-Z ]*)PRIVATE KEY-----.*?(?:-----END \1PRIVATE KEY-----|\Z)", re.DOTALL
)
_KNOWN = re.compile(
    r"(?<![A-Za-z0-9_])(?:"
    r"sk-[A-Za-z0-9_-]{16,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,}|glpat-[A-Za-z0-9_-]{16,}"
    r"|xox[abeprs]-[A-Za-z0-9-]{10,}|A(?:KIA|SIA)[A-Z0-9]{16}|AIza[A-Za-z0-9_-]{30,}|ya29\.[A-Za-z0-9_-]{20,}"
    r"|npm_[A-Za-z0-9]{30,}|pypi-[A-Za-z0-9_-]{30,}|hf_[A-Za-z0-9]{20,}|[rs]k_(?:live|test)_[A-Za-z0-9]{16,}"
    r"|SG\.[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,}"
    r")"
)
# What begins as a JSON web token and is none is passed over whole: it may hold as many beginnings as a text has characters.
_TOKEN = re.compile(
    r"(?<![A-Za-z0-9_])eyJ[A-Za-z0-9_-]{8,}+(\.[A-Za-z0-9_-]{8,}+\.[A-Za-z0-9_-]{8,}+)?"
)
_BEARER = re.compile(r"((?:[Bb]earer|[Bb]asic)\s+)[A-Za-z0-9._~+/=-]{16,}")
_IN_URL = re.compile(r"(://[^\s/:@]{1,200}:)[^\s/@]{3,200}@")
_NAMED = re.compile(
    r"((?:[Pp]assword|PASSWORD|[Pp]asswd|[Ss]ecret(?:_?[Kk]ey)?|SECRET(?:_KEY)?|[Aa]pi[_-]?[Kk]ey|API_?KEY|[Aa]ccess[_-]?[Tt]oken"
    r"|ACCESS_TOKEN|[Aa]uth[_-]?[Tt]oken|AUTH_TOKEN|[Cc]lient[_-]?[Ss]ecret|CLIENT_SECRET|[Tt]oken|TOKEN)[\"']?\s{0,3}[=:]\s{0,3}[\"']?)"
    r"(?!\[REDACTED)[^\s\"',;&<>(){}\[\]]{8,}"
)
_HINTS = (
    "sk-", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "glpat-", "xox", "KIA", "SIA", "AIza", "ya29", "npm_", "pypi-", "hf_",
    "k_live_", "k_test_", "SG.",
)  # fmt: skip
_ASSIGNS = re.compile(r"[=:]")
_NAMES = ("assword", "ASSWORD", "asswd", "ecret", "ECRET", "key", "Key", "KEY", "oken", "OKEN")
"""How the names end that secrets are assigned to."""


def redact(text: str) -> str:
    """The text with keys, tokens, passwords in assignments and URLs, and private keys replaced by `[REDACTED:<kind>]`."""
    if "PRIVATE KEY" in text:
        text = _PRIVATE_KEY.sub("[REDACTED:private_key]", text)
    if "eyJ" in text:
        text = _TOKEN.sub(lambda found: "[REDACTED:key]" if found[1] else found[0], text)
    if any(hint in text for hint in _HINTS):
        text = _KNOWN.sub("[REDACTED:key]", text)
    if "earer " in text or "asic " in text:
        text = _BEARER.sub(r"\1[REDACTED:token]", text)
    if "://" in text and "@" in text:
        text = _IN_URL.sub(r"\1[REDACTED:password]@", text)
    if any(before.rstrip().rstrip("\"'").endswith(_NAMES) for before in _ASSIGNS.split(text)[:-1]):
        text = _NAMED.sub(r"\1[REDACTED:secret]", text)
    return text


def checked_patterns(text: str) -> tuple[str, ...]:
    """The regular expressions of an operator, one a line; blank lines and those that begin with # say nothing.

    Raises:
        ValueError: a line is none, or would take out nothing at all everywhere; the text says which.
    """
    found = [(number, line.strip()) for number, line in enumerate(text.splitlines(), start=1)]
    patterns = []
    for number, pattern in found:
        if not pattern or pattern.startswith("#"):
            continue
        try:
            compiled = re.compile(pattern)
        except (re.error, OverflowError, RecursionError) as error:
            raise ValueError(f"line {number} is no regular expression: {error}") from None
        if compiled.search(""):
            raise ValueError(f"line {number} matches the empty text, and so everywhere")
        patterns.append(pattern)
    return tuple(patterns)


def without(text: str, patterns: Sequence[str]) -> str:
    """The text with what an operator's patterns find replaced."""
    for pattern in _compiled(tuple(patterns)):
        text = pattern.sub("[REDACTED:pattern]", text)
    return text


def without_secrets(job: SummaryJob) -> SummaryJob:
    """The job as a summariser may see it: texts, arguments and all that was carried, with the patterns' finds replaced."""
    patterns = job.redactions
    if not patterns:
        return job
    sources = tuple(
        source._replace(
            text=without(source.text, patterns),
            calls=tuple((name, without(arguments, patterns)) for name, arguments in source.calls),
        )
        for source in job.sources
    )
    request = None if job.newest_request is None else without(job.newest_request, patterns)
    return replace(
        job, sources=sources, previous=_carried(job.previous, patterns), newest_request=request
    )


def _carried(previous: PreviousSummary | None, patterns: tuple[str, ...]) -> PreviousSummary | None:
    """A version may be older than a pattern."""
    if previous is None:
        return None

    def cleaned(value: Any) -> Any:
        if isinstance(value, str):
            return without(value, patterns)
        if isinstance(value, list | tuple):
            return [cleaned(one) for one in value]
        return (
            {name: cleaned(one) for name, one in value.items()}
            if isinstance(value, dict)
            else value
        )

    ledger = tuple(without(entry, patterns) for entry in previous.ledger)
    return PreviousSummary(
        without(previous.text, patterns), cleaned(dict(previous.sections)), ledger
    )


@lru_cache(maxsize=8)
def _compiled(patterns: tuple[str, ...]) -> tuple[re.Pattern[str], ...]:
    return tuple(re.compile(pattern) for pattern in patterns)
