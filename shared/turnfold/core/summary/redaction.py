"""Remove secrets from texts before a summarizer reads them.

Built-in patterns find keys, tokens and passwords. An operator can add patterns of their own
(`TURNFOLD_REDACT_PATTERNS`). Stored messages are never changed.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from turnfold.core.summary.sources import PreviousSummary, Source, SummaryJob
from turnfold.core.text.json_text import with_texts

# Without an end, such as in a cut text, a key is what looks like its lines. Neither form reads past
# the start of another key, so that many starts take linear time.
_PRIVATE_KEY = re.compile(
    r"-{4,5} ?BEGIN ([A-Z0-9 ]*)PRIVATE KEY((?: BLOCK)?) ?-{4,5}"
    r"(?:(?:(?!-{4} ?BEGIN ).)*?-{4,5} ?END \1PRIVATE KEY\2 ?-{4,5}"
    r"|(?>(?:(?>(?:\s|\\++[nr]|[\"',+])*)"
    r"(?:[A-Z][A-Za-z-]{2,20}: [^\s\\\"']{1,99}|[A-Za-z0-9+/=]{16,}+))*)"
    r"(?:(?>(?:\s|\\++[nr])*)[A-Za-z0-9+/=]{1,15}[.…\s]*\Z)?)",
    re.DOTALL,
)
_KNOWN_KEY = re.compile(
    r"(?<![A-Za-z0-9_])(?:"
    r"sk-(?:[A-Za-z0-9]{16}|(?=[a-z_-]{0,60}[A-Z0-9])[A-Za-z0-9_-]{16})[A-Za-z0-9_-]*"
    r"|gh[pousr]_[A-Za-z0-9]{20,}"
    r"|github_pat_[A-Za-z0-9_]{20,}"
    r"|gl(?:pat|rt|dt|cbt)-[A-Za-z0-9_-]{16,}"
    r"|xox[abeprs]-[A-Za-z0-9-]{10,}|xapp-[A-Za-z0-9-]{10,}"
    r"|A(?:KIA|SIA)[A-Z0-9]{16}|LTAI[A-Za-z0-9]{12,20}(?![A-Za-z0-9])|AIza[A-Za-z0-9_-]{30,}"
    r"|ya29\.[A-Za-z0-9_-]{20,}|GOCSPX-[A-Za-z0-9_-]{20,}"
    r"|npm_[A-Za-z0-9]{30,}|pypi-[A-Za-z0-9_-]{30,}|hf_[A-Za-z0-9]{20,}"
    r"|[rs]k_(?:live|test)_[A-Za-z0-9]{16,}|whsec_[A-Za-z0-9+/=]{20,}"
    r"|SG\.[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,}"
    r"|do[op]_v1_[a-f0-9]{40,}|shp(?:at|ca|pa|ss)_[a-fA-F0-9]{32}|dckr_pat_[A-Za-z0-9_-]{16,}"
    r"|gsk_[A-Za-z0-9]{30,}|xai-[A-Za-z0-9]{30,}|pplx-[A-Za-z0-9]{30,}|hv[sb]\.[A-Za-z0-9_-]{20,}"
    r"|ATATT3[A-Za-z0-9_=-]{20,}|lin_api_[A-Za-z0-9]{20,}"
    r"|tf_[A-Za-z0-9_-]{20,}|hooks\.slack\.com/services/[A-Za-z0-9/]{20,}"
    r"|AGE-SECRET-KEY-1[A-Z0-9]{50,}|S[UAOCNX][A-Z2-7]{56}(?![A-Z0-9])"
    r")"
)
# Possessive, and with an optional rest: a text with many "eyJ" that are not tokens takes linear
# time.
_JSON_WEB_TOKEN = re.compile(
    r"(?<![A-Za-z0-9_])eyJ[A-Za-z0-9_-]{8,}+(\.[A-Za-z0-9_-]{8,}+\.[A-Za-z0-9_-]{8,}+)?"
)
# A token has a digit, or a capital behind its first letter; "basic responsibilities" has neither.
_AUTHORIZATION = re.compile(
    r"((?:[Bb]earer|BEARER|[Bb]asic|BASIC)[ \t]+)"
    r"(?=[0-9]|.[a-z._~+/=-]*[A-Z0-9])[A-Za-z0-9._~+/=-]{16,}"
)
# Chinese has no spaces around a value.
_WIDE = r"\u2018-\u201d\u3000-\u303f\u3400-\u9fff\uff00-\uffef"
# The password neither crosses quotes, or it would reach from one string of JSON into another.
_URL_PASSWORD = re.compile(
    rf"(:(?:\\*+/){{2}}[^\s/:@\"<>\\{_WIDE}]{{0,200}}:)"
    rf"(?:[^\s/@\"'<>\\{_WIDE}]|'(?![,:)\]}}])){{3,200}}@"
)
_URL_TOKEN = re.compile(r"(:(?:\\*+/){2})(?=[A-Za-z_-]{0,60}[0-9])[A-Za-z0-9_-]{16,200}@")
_URL_SIGNATURE = re.compile(r"([?&](?:X-(?:Amz|Goog)-)?[Ss]ig(?:nature)?=)[A-Za-z0-9%+/=_-]{16,}")
_URL_KEY = re.compile(
    r"([?&]key=)(?=[a-z]{0,60}[A-Z0-9])(?=[A-Za-z_-]{0,60}[0-9])[A-Za-z0-9_-]{16,}"
)
_COOKIES = re.compile(
    r"(?:\b(?:[Ss]et-|SET-)?(?:[Cc]ookie|COOKIE)(?:\\*[\"'])?[ \t]{0,4}[:=]"
    r"|\bcurl\b[^\n]{0,300}?\s(?:-[A-Za-z]{0,8}b|--cookie))[ \t=]{0,4}(?:\\*[\"'])?"
    r"(?:[\w.!#$%&*+^`|~-]{1,80}=[^\s;,\"'\\]*+;?[ \t]{0,4})+"
)
# A value with a digit: attributes such as `Max-Age=31536000` and `Domain=eu1.example.com` stay.
# Whether it has one is not asked here: each name within a value would ask again.
_COOKIE_VALUE = re.compile(
    r"(?<![\w-])((?!(?i:domain|path|expires)=)[^\s;,=\"'\\]{1,80}=)"
    r"(?=[0-9]*[A-Za-z._~%+/=|:-])([^\s;,\"'\\]{12,}+)"
)
# host:port:database:user:password. Neither a compiler's line, column and code nor an IPv6 address.
_PGPASS = re.compile(
    r"((?<=[\w.*]):(?:[0-9]{4,5}|\*):(?![0-9]+:)[\w.*-]{1,63}:[\w.*-]{1,63}:)"
    r"(?![0-9A-Fa-f]{1,4}/[0-9])(?=[^\s\"'\\]{0,60}?[0-9])[^\s\"'\\:]{5,200}(?![^\s\"'\\])"
)
_PUTTY_KEY = re.compile(
    r"(Private-Lines: [0-9]{1,4})(?:(?>(?:\s|\\++[nr])+)[A-Za-z0-9+/=]{16,}+)+"
    r"(?:(?>(?:\s|\\++[nr])+)[A-Za-z0-9+/]{1,15}={0,2}(?=\s|\\|\Z|\"))?"
)


def _any_case(words: str) -> str:
    return "|".join([form for word in words.split() for form in (word, word.title(), word.upper())])


# In JSON, a quote, a tab and the end of a line are escaped by a backslash; in JSON within JSON, by
# two or three.
_ESCAPED_NAMES = r"\\{1,4}+u(?:5bc6\\++u(?:7801|94a5)|53e3\\++u4ee4|4ee4\\++u724c)"
_GAP = r"(?>(?:[ \t]|\\++t){0,40})"
_LINE = r"(?:(?:[|>][+-]?)?(?:\r?\n|(?:\\++r)?\\++n)[ \t]{0,12}+)?"
_NAME = re.compile(
    rf"({_any_case('password passwd passphrase authorization secret token pass pwd')}"
    rf"|(?:{_any_case('api access secret private account signing encryption auth master')})"
    rf"[_-]?(?:[Kk]ey|KEY)|密码|口令|密钥|令牌|{_ESCAPED_NAMES})(?:_?(?:[Kk]ey|KEY)(?:_(?:[Bb]ase|BASE))?)?"
    rf"((?:\\*+[\"'])?\]?)(?:({_GAP}(?:=>|:=|:[ \t]?(?:str|[Ss]tring)[ \t]?=|[=:：](?!=)|\\++uff1a)"
    rf"{_GAP}{_LINE}(?:(?i:basic|bearer|token|apikey)[ \t]+)?)"
    r"|(>|[ \t]*+(?:(?:is|was)[ \t]|[是为,]|\\++u(?:662f|4e3a))?[ \t]*+))"
    r"(?:[rbfu]{1,2}(?=\\*[\"']))?"
)
# How a name stands that needs no sign before its value.
_NAMED_BEFORE = re.compile(
    r"(?:(?:^|[\s\"'])--?[A-Za-z_-]{0,24}|\blogin[ \t]+\S{1,24}[ \t]+"
    r"|\b(?:ENV|setenv)[ \t]+\w{0,24})$"
)
_PASSWORD_NAME = re.compile(r"(?i:pass|pwd)|密码|口令|\\++u(?:5bc6\\++u7801|53e3)")
_LONG = 300
_SINGLE_QUOTED = re.compile(r"(\\*+')((?:[^\"'\\\n]|\\++(?![\"'])){1,300})(?=\1)")
_OPENING = re.compile(r"\\*+\"")
_QUOTE = re.compile(r"\\*+[\"']")
_BARE_CHARACTER = rf"(?:[^\s\"',;&<>(){{}}\[\]\\{_WIDE}]|\\++(?![\"'nrt]|u[0-9a-fA-F]{{4}}))"
_BARE = re.compile(rf"(?:\\*+[\"'“])?((?>{_BARE_CHARACTER}{{4,}}))")
_COMMAND = re.compile(
    r"(\b(?:curl\b[^\n]{0,300}?[\s\"'](?:-[uU]|--(?:proxy-)?user)(?:[\s=,]|\\*+[\"']){0,6}"
    r"[^\s:\"'\\]{1,64}:|sshpass[ \t]+-p[ \t]*|mysql\w*\b[^\n]{0,200}?\s-p"
    r"|redis-cli\b[^\n]{0,200}?\s-a[ \t]+|login\b[^\n]{0,200}?\s-p[ \t]+"
    rf"|pass(?:in|out)?[ \t]+pass:))(?:\\*+[\"'])?(?!-)((?>{_BARE_CHARACTER}{{4,}}))"
)
_COMMANDS = ("curl", "sshpass", "mysql", "redis-cli", "login", "pass:")
# `$ecretPass1` is none: a variable of a shell is in capitals, and is the whole value.
_REFERENCE = re.compile(
    r"\$[({]|\$[A-Z_][A-Z0-9_]{0,60}$|\{\{|\{[A-Za-z_]\w{0,40}[.(}]|%(?:\(|[A-Za-z_]\w{0,40}%$|s$)"
    r"|\[REDACTED|<"
)
_NAME_ITSELF = re.compile(
    r"\.(?i:\w{0,40}(?:password|token|secret|key))$"
    r"|^(?:Secret(?:Str|Bytes)|Optional|required|optional|undefined)$"
)

# Searching for these is much cheaper than the expressions, and most texts have none of them.
_KEY_HINTS = (
    "sk-", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "glpat-", "glrt-", "gldt-",
    "glcbt-", "xox", "xapp-", "KIA", "SIA", "LTAI", "AIza", "ya29", "GOCSPX-", "npm_", "pypi-",
    "hf_", "k_live_", "k_test_", "whsec_", "SG.", "_v1_", "shpat_", "shpca_", "shppa_", "shpss_",
    "dckr_pat_", "gsk_", "xai-", "pplx-", "hvs.", "hvb.", "ATATT3", "lin_api_", "AGE-SECRET-KEY",
    "tf_",
    "hooks.slack.com",
    "SU", "SA", "SO", "SC", "SN", "SX",
)  # fmt: skip

_REPLACED: tuple[
    tuple[tuple[str, ...], re.Pattern[str], Callable[[re.Match[str]], str] | str], ...
] = (
    (("PRIVATE KEY",), _PRIVATE_KEY, "[REDACTED:private_key]"),
    (("eyJ",), _JSON_WEB_TOKEN, lambda match: "[REDACTED:key]" if match[1] else match[0]),
    (_KEY_HINTS, _KNOWN_KEY, "[REDACTED:key]"),
    (("earer", "EARER", "asic", "ASIC"), _AUTHORIZATION, r"\1[REDACTED:token]"),
    (("@",), _URL_PASSWORD, r"\1[REDACTED:password]@"),
    (("@",), _URL_TOKEN, r"\1[REDACTED:token]@"),
    (("ig=", "ignature="), _URL_SIGNATURE, r"\1[REDACTED:token]"),
    (("key=",), _URL_KEY, r"\1[REDACTED:key]"),
    (
        ("ookie", "OOKIE", "curl"),
        _COOKIES,
        lambda match: _COOKIE_VALUE.sub(_without_cookie, match[0]),
    ),
    ((":",), _PGPASS, r"\1[REDACTED:password]"),
    (("Private-Lines",), _PUTTY_KEY, r"\1 [REDACTED:private_key]"),
)


def redact(text: str) -> str:
    """Replace secrets by `[REDACTED:<kind>]`.

    Secrets are keys, tokens, private keys, and passwords in assignments, commands and URLs.
    """
    for hints, pattern, replacement in _REPLACED:
        if any(hint in text for hint in hints):
            text = pattern.sub(replacement, text)
    if any(command in text for command in _COMMANDS):
        text = _without(
            text,
            (
                match.span(2)
                for match in _COMMAND.finditer(text)
                if _is_secret(match[2], needs_digit=False)
            ),
        )
    # Last, so that an assigned key of a known form is labeled as a key.
    return _without(text, _assigned_secrets(text))


def _without(text: str, secrets: Iterable[tuple[int, int]]) -> str:
    parts, end = [], 0
    for start, secret_end in secrets:
        if start >= end:
            parts += [text[end:start], "[REDACTED:secret]"]
            end = secret_end
    return "".join([*parts, text[end:]]) if parts else text


def _without_cookie(cookie: re.Match[str]) -> str:
    return f"{cookie[1]}[REDACTED:token]" if _has_digit(cookie[2]) else cookie[0]


def _assigned_secrets(text: str) -> Iterator[tuple[int, int]]:
    """Find the values of passwords, keys and tokens, by their names."""
    end = 0
    for match in _NAME.finditer(text):
        if match.start() < end or not _is_naming(match, text):
            continue
        is_password = bool(_PASSWORD_NAME.match(match[1]))
        span = _value(text, match.end())
        if span is None or (match[4] == ">" and text[span[1] : span[1] + 1] != "<"):
            continue
        value = text[slice(*span)]
        is_code = text[span[1] : span[1] + 1] in {"(", "["} and not _has_digit(value)
        needs_digit = match[3] is None or match[1].lower() == "authorization"
        # Long ones always, or those in a row would be read again and again.
        if len(value) > _LONG or (
            not is_code
            and _is_secret(value, needs_digit=needs_digit, least=5 if is_password else 8)
        ):
            end = span[1]
            yield span


def _is_naming(match: re.Match[str], text: str) -> bool:
    """Return whether a value follows a name: after a sign, or as this name has it."""
    name, closing, sign, other = match.groups()
    before = text[max(0, match.start() - 40) : match.start()]
    if name.lower() in {"pass", "pwd"}:
        if not sign:
            return bool(other and _NAMED_BEFORE.search(before))
        # `PASS: test_login` is not a password, and neither is the folder in `PWD`.
        is_part = before[-1:].isalpha() or (":" in (sign or ":") and before[-1:] != "_")
        return not (is_part and not closing) and text[match.end() : match.end() + 1] not in set(
            "/~."
        )
    if sign or other == ">":
        return True
    word = other.strip()
    if word in {"", ","}:
        is_quoted = not word and bool(_QUOTE.match(text, match.end()))
        return bool(other) and (is_quoted or bool(_NAMED_BEFORE.search(before)))
    return bool(_PASSWORD_NAME.match(name))


def _value(text: str, start: int) -> tuple[int, int] | None:
    """Return where the value that starts here is, without its quotes."""
    if opening := _OPENING.match(text, start):
        escapes = len(opening[0]) - 1
        for quote in _OPENING.finditer(text, opening.end(), opening.end() + 300):
            # In other JSON, the quote of a string has more backslashes than the string's own.
            if (more := len(quote[0]) - 1 - escapes) <= 0 or (not escapes and more % 2 == 0):
                found = (opening.end(), quote.start())
                if more >= 0 and found[0] < found[1]:
                    return found
                break
    if single := _SINGLE_QUOTED.match(text, start):
        return single.span(2)
    bare = _BARE.match(text, start)
    return bare and bare.span(1)


def _is_secret(value: str, *, needs_digit: bool, least: int = 4) -> bool:
    """Return whether a value may be a secret: no reference, name, or sentence."""
    if _REFERENCE.match(value) or not value.strip("*.xX"):
        return False
    if len(words := value.split()) != 1 or words[0] != value:
        is_code = value[:1].isspace() or value[:1] in {",", "+"}
        return not is_code and any(len(word) >= 6 and _is_mixed(word) for word in words)
    if _is_mixed(value):
        return len(value) >= least
    return not needs_digit and len(value) >= 8 and not _NAME_ITSELF.search(value)


def _has_digit(text: str) -> bool:
    return any(character.isdigit() for character in text)


def _is_mixed(text: str) -> bool:
    return _has_digit(text) and any(character.isalpha() for character in text)


def readable_sources(sources: Iterable[Source]) -> tuple[Source, ...]:
    """Return the messages that a summarizer may read: no system prompts, and no secrets."""
    return tuple(_rewritten(source, redact) for source in sources if not source.is_pinnable)


def _rewritten(source: Source, rewrite: Callable[[str], str]) -> Source:
    calls = tuple((name, rewrite(arguments)) for name, arguments in source.calls)
    return source._replace(text=rewrite(source.text), calls=calls)


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
            raise ValueError(f"line {number} is not a regular expression: {error}") from None
        if compiled.search(""):
            raise ValueError(f"line {number} matches the empty text, and so everywhere")
        patterns.append(pattern)
    return tuple(patterns)


def without(text: str, patterns: Sequence[str]) -> str:
    """Replace what an operator's patterns match by `[REDACTED:pattern]`."""
    for pattern in patterns:
        # The module `re` caches compiled patterns.
        text = re.sub(pattern, "[REDACTED:pattern]", text)
    return text


def without_secrets(job: SummaryJob) -> SummaryJob:
    """Return the job with the operator's patterns applied to everything that a summarizer reads."""
    if not job.redactions:
        return job
    rewrite = partial(without, patterns=job.redactions)
    sources = tuple(_rewritten(source, rewrite) for source in job.sources)
    request = None if job.newest_request is None else rewrite(job.newest_request)
    # A version may be older than a pattern, and carry what the pattern now matches.
    previous = None if job.previous is None else _rewritten_summary(job.previous, rewrite)
    # `following` is not changed: only checksums of its names are kept, and no text.
    return replace(job, sources=sources, previous=previous, newest_request=request)


def _rewritten_summary(previous: PreviousSummary, rewrite: Callable[[str], str]) -> PreviousSummary:
    return PreviousSummary(
        rewrite(previous.text),
        with_texts(dict(previous.sections), rewrite),
        tuple(map(rewrite, previous.ledger)),
    )
