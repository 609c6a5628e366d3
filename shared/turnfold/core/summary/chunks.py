"""Messages that are too many for one call of a model, in chronological pieces."""

from collections.abc import Callable, Sequence

from turnfold.core.summary.sources import Source, head_and_tail

LEAST_CHARACTERS = 40
OVERSIZE = "[oversize message]"


def chunks(
    sources: Sequence[Source],
    sizes: Sequence[int],
    *,
    max_tokens: int,
    size: Callable[[Source], int],
) -> list[tuple[Source, ...]]:
    """Messages in chronological pieces of at most so many tokens; `sizes` are theirs, `size` tells that of a cut one.

    A call stays with the results that follow it unless these alone are more than a piece holds. Each message is in exactly
    one piece; one that is larger than a piece is cut to head and tail with a note that says so, and stands alone.
    """
    pieces: list[tuple[Source, ...]] = []
    piece: list[Source] = []
    used = 0
    for block in _blocks(sources):
        whole = sum(sizes[index] for index in block)
        if piece and used + whole > max_tokens:
            pieces.append(tuple(piece))
            piece, used = [], 0
        for index in block:
            source, tokens = sources[index], sizes[index]
            if tokens > max_tokens:
                source, tokens = _within(source, tokens, max_tokens, size), max_tokens
            if piece and used + tokens > max_tokens:
                pieces.append(tuple(piece))
                piece, used = [], 0
            piece.append(source)
            used += tokens
    if piece:
        pieces.append(tuple(piece))
    return pieces


def _within(source: Source, tokens: int, max_tokens: int, size: Callable[[Source], int]) -> Source:
    """A message that is larger than a piece, cut to head and tail until a piece holds it."""
    characters, calls = len(source.text) * max_tokens // tokens, source.calls[:4]
    while True:
        keep = max(LEAST_CHARACTERS, characters // 2)
        cut = source._replace(
            text=f"{OVERSIZE}\n{head_and_tail(source.text, keep, keep // 2)}", calls=calls
        )
        if size(cut) <= max_tokens or (keep == LEAST_CHARACTERS and not calls):
            return cut
        characters, calls = characters // 2, calls[: len(calls) // 2]


def _blocks(sources: Sequence[Source]) -> list[list[int]]:
    """Where calls and the results that follow them stand together."""
    found: list[list[int]] = []
    for index, source in enumerate(sources):
        before = sources[found[-1][-1]] if found else None
        if (
            source.role == "tool"
            and before is not None
            and (sources[found[-1][0]].calls or before.role == "tool")
        ):
            found[-1].append(index)
        else:
            found.append([index])
    return found
