"""Rank the candidates of the ledger, and choose as many of the best as fit.

Values that the user stated precede all others, which are ranked by their worth per token. The
choice uses estimates of tokens. The tokenizer then counts the whole ledger, never one value.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence

from turnfold.core.summary.ledger.candidates import PATH_KINDS, Candidate
from turnfold.core.summary.ledger.entries import LedgerEntry, group_into_entries

_MAX_ATTEMPTS = 5
_TOLERANCE = 0.01
"""The share of the room that may stay unused, so that few attempts suffice."""
_MAX_OF_KIND: Mapping[str, int] = {"decision": 4, "constraint": 4, "error": 2}


def best_entries(
    candidates: Collection[Candidate], room_tokens: int, count: Callable[[str], int]
) -> list[LedgerEntry]:
    """Return the entries of the best candidates that fit."""
    ranked = rank(candidates)
    fitting = _entries_that_fit(ranked, room_tokens, count)
    kept = [candidate for _, group in fitting for candidate in group]
    if _inherit_times(ranked, kept):
        # If the worth of a path has grown, it gets the rank that the next version would give it.
        reordered = list(group_into_entries(_in_order(kept)))
        if tokens_of(reordered, count) <= room_tokens:
            return reordered
    return fitting


def tokens_of(entries: Sequence[LedgerEntry], count: Callable[[str], int]) -> int:
    """Count the tokens of entries, one per line."""
    return count("\n".join([text for text, _ in entries])) if entries else 0


def rank(candidates: Collection[Candidate]) -> list[Candidate]:
    """Return the candidates, best first, with at most a few of the kinds that are whole lines."""
    numbers = Counter[str]()
    chosen: list[Candidate] = []
    for candidate in _in_order(_without_shortened_paths(candidates)):
        kind = candidate.value.kind
        numbers[kind] += 1
        if kind not in _MAX_OF_KIND or numbers[kind] <= _MAX_OF_KIND[kind]:
            chosen.append(candidate)
    return chosen


def _in_order(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Sort stated values by rank, then the others by utility. The newer of two equals is first."""
    stated = [candidate for candidate in candidates if candidate.is_stated]
    stated.sort(key=lambda candidate: (-candidate.rank, not candidate.is_new, -candidate.order))
    others = [candidate for candidate in candidates if not candidate.is_stated]
    others.sort(key=lambda candidate: (-candidate.utility, not candidate.is_new, -candidate.order))
    return [*stated, *others]


def _without_shortened_paths(candidates: Collection[Candidate]) -> list[Candidate]:
    """Drop a path of the user that is the end of a modified file's path.

    The user meant that file, so the modified file takes over the rank.
    """
    modified = {
        part: candidate
        for candidate in candidates
        if candidate.is_modified
        for part in candidate.path_parts
    }
    remaining: list[Candidate] = []
    for candidate in candidates:
        may_be_short = candidate.is_stated and candidate.value.kind in PATH_KINDS
        whole = modified.get(candidate.value.text) if may_be_short else None
        if whole is None:
            remaining.append(candidate)
        else:
            whole.rank = max(whole.rank, candidate.rank)
            whole.times = max(whole.times, candidate.times)
    return remaining


def _entries_that_fit(
    ranked: Sequence[Candidate], room_tokens: int, count: Callable[[str], int]
) -> list[LedgerEntry]:
    """Return the entries of as many of the best as fit, by counting and correcting the estimate."""
    slack = room_tokens * _TOLERANCE
    # All of them if they may fit: an estimate is wrong by a few percent.
    budget: float = sum([candidate.token_estimate for candidate in ranked])
    if budget >= room_tokens * (1 + 4 * _TOLERANCE):
        budget = room_tokens * (1 - _TOLERANCE)
    best, most_kept = list[LedgerEntry](), 0
    for _ in range(_MAX_ATTEMPTS):
        kept, token_estimate, is_all = _select(ranked, budget)
        entries = list(group_into_entries(kept))
        spare = room_tokens - tokens_of(entries, count)
        if spare >= 0 and len(kept) >= most_kept:
            best, most_kept = entries, len(kept)
        if spare >= 0 and (is_all or spare <= 2 * room_tokens * _TOLERANCE):
            break
        # The next estimate will be wrong by about as much as this one was.
        correction = spare - slack if spare >= 0 else 1.05 * spare - slack - 2
        budget = token_estimate + correction
    return best


def _select(
    ranked: Sequence[Candidate], budget_tokens: float
) -> tuple[list[Candidate], float, bool]:
    """Return the best within a budget, their estimated tokens, and whether these are all.

    A path that another path of the ledger contains is left out.
    """
    kept: dict[str, Candidate] = {}
    contained: set[str] = set()
    total = 0.0
    for candidate in ranked:
        if candidate.value.text in contained:
            continue
        # A stated path is replaced by a stated one only, or what the user said would be lost.
        replaced = [
            kept[part]
            for part in dict.fromkeys(candidate.path_parts)
            if part in kept and (candidate.is_stated or not kept[part].is_stated)
        ]
        cost = candidate.token_estimate - sum([inner.token_estimate for inner in replaced])
        if total + cost > budget_tokens:
            return list(kept.values()), total, False
        total += cost
        for inner in replaced:
            del kept[inner.value.text]
        kept[candidate.value.text] = candidate
        contained.update(candidate.path_parts)
    return list(kept.values()), total, True


def _inherit_times(ranked: Sequence[Candidate], kept: Sequence[Candidate]) -> bool:
    """Let kept paths take over the `times` of paths that they contain; return whether any did.

    Otherwise the contained path would leave the ledger together with its worth.
    """
    is_changed = False
    # Reversed, so that the first of several paths that contain it takes over.
    containing = {part: candidate for candidate in reversed(kept) for part in candidate.path_parts}
    for candidate in ranked:
        outer = containing.get(candidate.value.text)
        if outer is not None:
            is_changed |= candidate.times > outer.times
            outer.times = max(outer.times, candidate.times)
    return is_changed
