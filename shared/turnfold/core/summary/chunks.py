"""Split messages that are too long for one call of a model into chronological pieces."""

from collections.abc import Callable, Sequence

from turnfold.core.summary.sources import Source, head_and_tail

LEAST_CHARACTERS = 40
OVERSIZE = "[oversize message]"
_MAX_CALLS_SHOWN = 4


def chunks(
    sources: Sequence[Source],
    sizes: Sequence[int],
    *,
    max_tokens: int,
    size: Callable[[Source], int],
) -> list[tuple[Source, ...]]:
    """Split messages into chronological pieces of at most `max_tokens` each.

    `sizes` are the tokens of the messages, and `size` counts those of a shortened one. Each message
    is in exactly one piece. A call stays with the results that follow it, unless they alone exceed
    a piece. A message that exceeds a piece is shortened to head and tail, with a note.
    """
    pieces: list[tuple[Source, ...]] = []
    piece: list[Source] = []
    used = 0
    for block in _blocks(sources):
        block_tokens = sum(sizes[index] for index in block)
        if piece and used + block_tokens > max_tokens:
            pieces.append(tuple(piece))
            piece, used = [], 0
        # Only a block that exceeds a piece by itself is divided between its messages.
        for index in block:
            source, tokens = sources[index], sizes[index]
            if tokens > max_tokens:
                source, tokens = _shortened(source, tokens, max_tokens, size), max_tokens
            if piece and used + tokens > max_tokens:
                pieces.append(tuple(piece))
                piece, used = [], 0
            piece.append(source)
            used += tokens
    if piece:
        pieces.append(tuple(piece))
    return pieces


def _shortened(
    source: Source, tokens: int, max_tokens: int, size: Callable[[Source], int]
) -> Source:
    """Shorten a message to head and tail until a piece can hold it."""
    characters, calls = len(source.text) * max_tokens // tokens, source.calls[:_MAX_CALLS_SHOWN]
    while True:
        head = max(LEAST_CHARACTERS, characters // 2)
        text = f"{OVERSIZE}\n{head_and_tail(source.text, head, head // 2)}"
        shortened = source._replace(text=text, calls=calls)
        # Below this there is nothing left to remove, whatever the tokenizer counts.
        is_least = head == LEAST_CHARACTERS and not calls
        if is_least or size(shortened) <= max_tokens:
            return shortened
        characters, calls = characters // 2, calls[: len(calls) // 2]


def _blocks(sources: Sequence[Source]) -> list[list[int]]:
    """Return the indexes of messages in groups: calls with the results that follow them."""
    blocks: list[list[int]] = []
    for index, source in enumerate(sources):
        if source.role == "tool" and blocks and _takes_results(sources, blocks[-1]):
            blocks[-1].append(index)
        else:
            blocks.append([index])
    return blocks


def _takes_results(sources: Sequence[Source], block: list[int]) -> bool:
    return bool(sources[block[0]].calls) or sources[block[-1]].role == "tool"
