"""Remove secrets from texts before a summarizer reads them.

Built-in patterns find keys, tokens and passwords. An operator can add patterns of their own
(`TURNFOLD_REDACT_PATTERNS`). Stored messages are never changed.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from turnfold.core.summary.sources import PreviousSummary, Source, SummaryJob

_PRIVATE_KEY = re.compile(
    r"-----BEGIN ([A-Z ]*)PRIVATE KEY((?: BLOCK)?)-----.*?(?:-----END \1PRIVATE KEY\2-----|\Z)",
    re.DOTALL,
)
_KNOWN_KEY = re.compile(
    r"(?<![A-Za-z0-9_])(?:"
    r"sk-[A-Za-z0-9_-]{16,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,}"
    r"|glpat-[A-Za-z0-9_-]{16,}"
    r"|xox[abeprs]-[A-Za-z0-9-]{10,}|A(?:KIA|SIA)[A-Z0-9]{16}|AIza[A-Za-z0-9_-]{30,}"
    r"|ya29\.[A-Za-z0-9_-]{20,}"
    r"|npm_[A-Za-z0-9]{30,}|pypi-[A-Za-z0-9_-]{30,}|hf_[A-Za-z0-9]{20,}"
    r"|[rs]k_(?:live|test)_[A-Za-z0-9]{16,}"
    r"|SG\.[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,}"
    r")"
)
# Possessive, and with an optional rest: a text with many "eyJ" that are not tokens takes linear
# time.
_JSON_WEB_TOKEN = re.compile(
    r"(?<![A-Za-z0-9_])eyJ[A-Za-z0-9_-]{8,}+(\.[A-Za-z0-9_-]{8,}+\.[A-Za-z0-9_-]{8,}+)?"
)
# A token has a digit, or a capital behind its first letter; "basic responsibilities" has neither.
_AUTHORIZATION = re.compile(
    r"((?:[Bb]earer|[Bb]asic)[ \t]+)(?=[0-9]|.[a-z._~+/=-]*[A-Z0-9])[A-Za-z0-9._~+/=-]{16,}"
)
_URL_PASSWORD = re.compile(r"(://[^\s/:@]{0,200}:)[^\s/@]{3,200}@")
# In JSON, such as the arguments of a call, each quote is escaped by a backslash; in JSON within
# JSON, three do. The value ends before them, so that the text around it stays JSON.
_ASSIGNED_SECRET = re.compile(
    r"((?:[Pp]assword|PASSWORD|[Pp]asswd|PASSWD|[Ss]ecret(?:_?[Kk]ey)?|SECRET(?:_KEY)?"
    r"|(?:[Aa]pi|API)[_-]?(?:[Kk]ey|KEY)|[Aa]ccess[_-]?[Tt]oken"
    r"|[Ss]ecret_?[Aa]ccess_?[Kk]ey|SECRET_ACCESS_KEY"
    r"|ACCESS_TOKEN|[Aa]uth[_-]?[Tt]oken|AUTH_TOKEN|[Cc]lient[_-]?[Ss]ecret|CLIENT_SECRET"
    r"|[Tt]oken|TOKEN)(?:\\*+[\"'])?\s{0,3}(?:=>|[=:])\s{0,3}(?:\\*+[\"'])?)"
    r"(?!\[REDACTED)(?:[^\s\"',;&<>(){}\[\]\\]|\\++(?![\"'])){8,}"
)
# Searching for these is much cheaper than the expressions, and most texts have none of them.
_KEY_HINTS = (
    "sk-", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "glpat-", "xox", "KIA", "SIA",
    "AIza", "ya29", "npm_", "pypi-", "hf_", "k_live_", "k_test_", "SG.",
)  # fmt: skip
_ASSIGNMENT = re.compile(r"[=:]")
_SECRET_NAME_ENDS = (
    "assword", "ASSWORD", "asswd", "ASSWD", "ecret", "ECRET", "key", "Key", "KEY", "oken", "OKEN",
)  # fmt: skip


def redact(text: str) -> str:
    """Replace secrets by `[REDACTED:<kind>]`.

    Secrets are keys, tokens, private keys, and passwords in assignments and URLs.
    """
    if "PRIVATE KEY" in text:
        text = _PRIVATE_KEY.sub("[REDACTED:private_key]", text)
    if "eyJ" in text:
        text = _JSON_WEB_TOKEN.sub(lambda match: "[REDACTED:key]" if match[1] else match[0], text)
    if any(hint in text for hint in _KEY_HINTS):
        text = _KNOWN_KEY.sub("[REDACTED:key]", text)
    if any(scheme in text for scheme in ("earer ", "earer\t", "asic ", "asic\t")):
        text = _AUTHORIZATION.sub(r"\1[REDACTED:token]", text)
    if "://" in text and "@" in text:
        text = _URL_PASSWORD.sub(r"\1[REDACTED:password]@", text)
    # Last, so that an assigned key of a known form is labeled as a key.
    names = _ASSIGNMENT.split(text)[:-1]
    if any(name.rstrip().rstrip("\\\"'").endswith(_SECRET_NAME_ENDS) for name in names):
        text = _ASSIGNED_SECRET.sub(r"\1[REDACTED:secret]", text)
    return text


def readable_sources(sources: Iterable[Source]) -> tuple[Source, ...]:
    """Return the messages that a summarizer may read: no system prompts, and no secrets."""
    return tuple(
        source._replace(
            text=redact(source.text),
            calls=tuple((name, redact(arguments)) for name, arguments in source.calls),
        )
        for source in sources
        if not source.is_pinnable
    )


def checked_patterns(text: str) -> tuple[str, ...]:
    """Read the regular expressions of an operator, one per line; `#` starts a comment line.

    Raises:
        ValueError: a line is not a regular expression, or matches the empty text. The message names
            the line.
    """
    patterns = []
    for number, line in enumerate(text.splitlines(), start=1):
        pattern = line.strip()
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
    """Replace what an operator's patterns match by `[REDACTED:pattern]`."""
    for pattern in _compiled(tuple(patterns)):
        text = pattern.sub("[REDACTED:pattern]", text)
    return text


def without_secrets(job: SummaryJob) -> SummaryJob:
    """Return the job with the operator's patterns applied to everything that a summarizer reads."""
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
    # A version may be older than a pattern, and carry what the pattern now matches.
    previous = None if job.previous is None else _redacted_summary(job.previous, patterns)
    # `following` is not changed: only checksums of its names are kept, and no text.
    return replace(job, sources=sources, previous=previous, newest_request=request)


def _redacted_summary(previous: PreviousSummary, patterns: tuple[str, ...]) -> PreviousSummary:
    def redacted(value: Any) -> Any:
        if isinstance(value, str):
            return without(value, patterns)
        if isinstance(value, list | tuple):
            return [redacted(item) for item in value]
        if isinstance(value, dict):
            return {name: redacted(item) for name, item in value.items()}
        return value

    return PreviousSummary(
        without(previous.text, patterns),
        redacted(dict(previous.sections)),
        tuple(without(entry, patterns) for entry in previous.ledger),
    )


@lru_cache(maxsize=8)
def _compiled(patterns: tuple[str, ...]) -> tuple[re.Pattern[str], ...]:
    return tuple(re.compile(pattern) for pattern in patterns)
