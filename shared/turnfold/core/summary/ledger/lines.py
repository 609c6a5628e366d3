"""Choose lines with recurring names for the ledger.

An agent needs a function, a field or a path again, together with the line that explains it. The
lines of a version are chosen from those of its messages and of the previous version.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final

from turnfold.core.recall.quotes import (
    MOST_LINES,
    READ_CHARACTERS,
    NameNumber,
    best_by_worth,
    name_numbers,
    numbers_of_names,
)
from turnfold.core.summary.ledger.candidates import Candidate
from turnfold.core.summary.ledger.entries import LINE
from turnfold.core.summary.ledger.name_uses import NameUses
from turnfold.core.summary.sources import Source
from turnfold.core.summary.tool_calls.arguments import parsed_arguments
from turnfold.core.text.names import NamedLine, named_lines, names_in
from turnfold.core.text.values import (
    KIND_WEIGHTS,
    RANK_BY_TOOL,
    Value,
    values_in,
)

ENTRY_TOKENS: Final = 2
"""About the tokens that an entry needs in addition to its line."""
DEFINITION_BONUS: Final = 1.5
"""The factor for a line that defines a name instead of using it."""
_DEFINITION: Final = re.compile(
    r"(?:\d+[:\s|→]+)?"
    r"(?:(?:export|default|pub|async|static|public|private|protected|final|abstract) )*"
    r"(?:def|defp|defmodule|class|function|fn|func|const|let|var|type|interface|struct|enum|trait"
    r"|impl|schema|CREATE|#define|@type|@spec)\b"
)


def read_lines(sources: Sequence[Source], uses: NameUses) -> dict[str, Candidate]:
    """Return the lines of messages that hold names, by their text, and count the names' uses."""
    found: dict[str, Candidate] = {}
    used: list[Collection[NameNumber]] = []
    for order, source in enumerate(sources, start=1):
        names: set[str] = set()
        for line in islice(_lines_of(source), MOST_LINES):
            names |= line.names
            # A line with only a name tells no more than a value.
            if line.text.isprintable() and line.text not in line.names:
                value = Value(LINE, line.text)
                found[line.text] = Candidate(
                    value, (source.message_id,), RANK_BY_TOOL + KIND_WEIGHTS[LINE], order=order
                )
        used.append(name_numbers(names))
    uses.add_covered(used)
    return found


def _lines_of(source: Source) -> Iterator[NamedLine]:
    """Yield the lines with names of a message's text, then of the arguments of its calls."""
    yield from named_lines(source.text[:READ_CHARACTERS])
    for _, arguments in source.calls:
        for value in parsed_arguments(arguments).values():
            if isinstance(value, str):
                yield from named_lines(value[:READ_CHARACTERS])


def best_lines(
    lines: Collection[Candidate],
    weights: Mapping[NameNumber, float],
    room_tokens: float,
    known: Collection[NameNumber],
) -> list[Candidate]:
    """Return the lines with the greatest worth per token that fit, best first.

    A name that is `known`, or in a better line, is worth nothing. Of equal lines, the newest
    counts.
    """
    newest_first = sorted(lines, key=lambda line: -line.order)
    tokens = [line.token_estimate + ENTRY_TOKENS for line in newest_first]
    offered = [
        # A line that defines a name counts as if it were shorter.
        (
            size / DEFINITION_BONUS if _DEFINITION.match(line.value.text) else size,
            tuple(numbers_of_names(line.value.text)),
        )
        for size, line in zip(tokens, newest_first, strict=True)
    ]
    chosen: list[Candidate] = []
    for place in best_by_worth(offered, weights, known):
        room_tokens -= tokens[place]
        if room_tokens < 0:
            break
        chosen.append(newest_first[place])
    return chosen


def texts_of_lines(lines: Iterable[Candidate]) -> set[str]:
    """Return the texts of lines, and of the values and names in them."""
    texts: set[str] = set()
    for line in lines:
        text = line.value.text
        texts |= {text, *names_in(text), *(value.text for value in values_in(text))}
    return texts


def without_repeated(values: Iterable[Candidate], lines: Iterable[Candidate]) -> list[Candidate]:
    """Return the values in no chosen line, modified files, and values that the user stated."""
    texts = texts_of_lines(lines)
    return [
        value
        for value in values
        if value.is_stated or value.is_modified or value.value.text not in texts
    ]
