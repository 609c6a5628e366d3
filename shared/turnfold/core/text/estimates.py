"""Count tokens without a tokenizer: an upper bound, and an estimate."""

import re
from collections import Counter
from collections.abc import Iterator
from typing import Final

from turnfold.core.text.caches import cached_text

COMMON: Final = frozenset(
    """
    a about above after again all already an and answer are arguments as ask assistant at be because
    been before below between budget but by call called can cannot change changed characters code
    command content context conversation count cut data date deleted details do document done each
    empty end error event example failed fetch fields file files first fits for found from full get
    given had has have head here history how id image in input is it its key last later length less
    lines list live long made message messages middle mode model more most name names new next no
    none not note nothing now number of off old older on one only open or original other out output
    over page part parts path pending piece preview read reason removed request response result
    results row rows same search section see seen sent session set short since size some start still
    stored such summary system tail text than that the their them then there these they this those
    time to token tokens tool tools total turn two type under up use used user value version view
    was were what when where which who why will window with without word words write written yes yet
    you your
    agent api app base book build case class client com config core create css customer db delete
    dev doc docs edit email env export find flight folder go group home host hotel html http import
    index info io item items job js json lib load local lock log logs main make map math md models
    module net object order org package port process product project py query re report run script
    scripts self server service settings shared src state static store str sub support table target
    task team template test tests todo ts txt ui update users util utils var weather web work worker
    zip
    """.split()
)
"""Words of one token, also capitalized or after a space; after a punctuation mark, two."""

BOUNDED = re.compile(
    r"(?P<word>(?: |(?<![^\n0-9!-&(-/:-@[-`{-~])|(?<=[a-z])(?=[A-Z]))"
    r"[A-Z]?[a-z]+(?=[^a-z'\u0080-\U0010ffff]|\Z))"
    r"|(?P<letters>[a-ilmnopr-wy]+)"
    # The tokenizer groups digits of all alphabets by threes: next to others, groups are unknown.
    r"|(?P<digits>(?<![^\x00-\x7f])[0-9]+(?![^\x00-\x7f]))"
    r"|(?P<spaces> +)"
    r"|(?s:.)"
)
COMMON_LETTERS = re.compile("[a-ilmnopr-wy]+")


def token_upper_bound(text: str) -> int:
    """Return an upper bound for the tokens of a short text that Turnfold itself writes.

    The bound is proven, not counted: a token is at least one byte, three digits are one token, and
    two letters whose pair is a token are never separate tokens. All pairs of the common lower-case
    letters are tokens.
    """
    return sum(_bounds(text))


def _bounds(text: str) -> Iterator[int]:
    """Yield the most tokens of each piece of a text."""
    for match in BOUNDED.finditer(text):
        piece = match[0]
        kind = match.lastgroup
        if kind == "word":
            yield _word_bound(piece)
        elif kind == "letters":
            yield (2 * len(piece) + 2) // 3
        elif kind == "digits":
            yield (len(piece) + 2) // 3
        elif kind == "spaces":
            yield 1 + (len(piece) > 1) + len(piece) // 40
        else:
            yield len(piece.encode("utf-8", "surrogatepass"))


@cached_text(8_192)
def _word_bound(word: str) -> int:
    return 1 if word.lstrip(" ").lower() in COMMON else _spelled(word)


def _spelled(word: str) -> int:
    runs = COMMON_LETTERS.findall(word)
    return len(word) - sum(map(len, runs)) + sum((2 * len(run) + 2) // 3 for run in runs)


PIECES = re.compile(
    r"[A-Za-z0-9+/]{48,}={0,2}"
    r"| ?[A-Za-z]*[\u00c0-\u024f][A-Za-z\u00c0-\u024f]*"
    r"| [A-Z]?[a-z]+(?![A-Za-z])"
    r"|[!-/:-@\[-`{-~]?(?:[A-Z]?[a-z]+|[A-Z]+[a-z]*)"
    r"| [A-Z]+[a-z]*"
    r"|[0-9]{1,3}"
    r"|[ \t]*[\r\n](?:\s*[\r\n])?"
    r"|[ \t]+(?= [0-9])|[ \t]{2,}|\t| (?=[0-9])"
    r"| ?[\x01-\x08\x0b\x0c\x0e-\x1f!-/:-@\[-`{-\x7f]+[\r\n]*|\x00"
    r"|[\u3400-\u9fff\uf900-\ufaff]+|[\u3041-\u30ff]+| ?[\uac00-\ud7af]+"
    r"|[\u2010-\u303f\uff00-\uffef]| ?[\u0370-\u1fff\ua000-\uabff]+"
    r"|[^\x00-\x7f]"
)
WORDS = re.compile(r"[A-Z]*[a-z]+|[A-Z]+|[0-9]+")

SPACED: Final = (1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.06, 1.07, 1.06, 1.09, 1.12, 1.14, 1.2, 1.2, 1.3)
GLUED: Final = (1.0, 1.0, 1.0, 1.05, 1.05, 1.08, 1.11, 1.2, 1.22, 1.38, 1.6, 1.6, 2.0, 2.0, 2.3)
CAPITALS: Final = (1.0, 1.0, 1.03, 1.4, 1.45, 1.65, 1.8, 2.0, 2.4, 2.8, 2.9)
PREFIXES: Final = {"'": 0.05, ".": 0.1, "_": 0.12, "\\": 0.15, "(": 0.2, "-": 0.3, "/": 0.4}


def estimate(text: str) -> int:
    """Estimate the tokens of a text: within 15% on prose, CJK, code, JSON, base64 and tables."""
    return round(
        # Each different piece once: most words of a text repeat.
        sum(_cost(piece) * times for piece, times in Counter(PIECES.findall(text)).items())
    )


def _cost(piece: str) -> float:
    first = piece[0]
    rest = piece[1:] if first == " " else piece
    if not rest or rest[0].isspace():
        return 1.0
    if not rest.isascii():
        return _foreign(rest)
    if len(rest) >= 48 and rest.rstrip("=").replace("+", "").replace("/", "").isalnum():
        return _dense(rest)
    if rest[0].isdigit():
        return 1.0
    if rest[0].isalpha():
        return _word(rest, spaced=rest is not piece)
    if rest[-1].isalpha():
        return PREFIXES.get(rest[0], 0.8) + _word(rest[1:], spaced=False)
    signs = rest.rstrip("\r\n")
    if len(set(signs)) <= 1:
        return 1.0 + len(signs) // 4 / 8
    return 1.05 if len(signs) <= 3 else len(signs) / 2.5


def _word(word: str, *, spaced: bool) -> float:
    size = len(word)
    if word.islower() or word[1:].islower():
        costs = SPACED if spaced else GLUED
        return costs[size] if size < len(costs) else size / 5
    if word.isupper():
        return CAPITALS[size] if size < len(CAPITALS) else 0.3 * size
    return 0.55 * size


def _dense(run: str) -> float:
    """Estimate a long run without spaces: base64, hex, or words joined together."""
    words = WORDS.findall(run)
    if 10 * len(words) < 3 * len(run):
        return (
            sum(_word(word, spaced=False) if word.isalpha() else len(word) / 3 for word in words)
            + run.count("/") / 4
        )
    return 0.585 * len(run) if run.islower() or run.isupper() else 0.685 * len(run)


def _foreign(piece: str) -> float:
    code = ord(piece[-1])
    size = len(piece)
    if code < 0x250:
        return max(1.0, 0.29 * size)
    if 0x3400 <= code <= 0x9FFF or 0xF900 <= code <= 0xFAFF:
        return min(size, 1.15 + 0.62 * size)
    if 0x3041 <= code <= 0x30FF:
        return 0.53 * size
    if 0xAC00 <= code <= 0xD7AF:
        return 0.58 * (size + 1)
    if 0x370 <= code < 0x2000 or 0xA000 <= code <= 0xABFF:
        return max(1.0, (0.37 if 0x900 <= code < 0x1000 else 0.26) * size)
    return 0.92 if code <= 0x303F or 0xFF00 <= code <= 0xFFEF else 1.4
