"""The part of a digest that names the calls of the open round."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from turnfold.core.history.gist import SEAM_TOKENS, SEPARATOR, Item, gist_of, named_calls
from turnfold.core.window.views import BlockView, RoundView

ROUND: Final = 'Calls made so far for the request "{}", by tool: '
_OPEN_ROUND: Final = "Calls made so far, by tool: "
TIMES: Final = " ×"
BETWEEN: Final = " · "
"""The separator of calls of one tool: commands contain commas, semicolons and pipes."""
# Counted by tests, `ROUND` with the line end before it; see `framing`.
ROUND_TOKENS: Final = 13 + 2 * SEAM_TOKENS
TIMES_SIGN_TOKENS: Final = 1
_PLAIN: Final = re.compile(r"[A-Za-z0-9_./~-]+")
_WORDS: Final = re.compile(r"[A-Z]*[a-z]+|[A-Z]+|[0-9]{1,3}|__+")
"""Parts of a plain name or path of which no two share a token."""


class OpenRoundCalls:
    """The calls of the open round that the window leaves out, by tool; equal ones once.

    All are mentioned, because a model that does not see a call makes it again: the newest by name,
    and those that exceed `room` tokens by number.
    """

    def __init__(self, in_round: RoundView, room: int) -> None:
        self.in_round = in_round
        self._room = room
        self._called: dict[str, _NamedCall] = {}
        self._list = _CallList()

    def add(self, block: BlockView) -> None:
        """Add a block of the round."""
        message = block.head.message
        for call, item in zip(message.calls, named_calls(message), strict=True):
            known = self._called.pop(item.text, None)
            if known is not None:
                self._list.remove(known)
            now = _NamedCall(call.name, item, known.times + 1 if known else 1)
            self._list.add(now)
            # At its last place, because the newest are kept longest.
            self._called[item.text] = now

    @property
    def cost(self) -> int:
        """The tokens that the line takes, at most."""
        if not self._called:
            return 0
        request = self._request
        heading = ROUND_TOKENS + (request.tokens if request else 0)
        return heading + min(self._list.tokens, self._room)

    @property
    def lines(self) -> list[str]:
        """The line that names the calls, if there are any."""
        if not self._called:
            return []
        request = self._request
        heading = ROUND.format(request.text) if request else _OPEN_ROUND
        return [heading + SEPARATOR.join(self._names())]

    @property
    def _request(self) -> Item | None:
        request = self.in_round.request
        return gist_of(request.head.message).opening if request else None

    def _names(self) -> list[str]:
        called: Sequence[_NamedCall] = list(self._called.values())
        listed = _CallList(called)
        if listed.tokens > self._room:
            called = _merged(called, listed, self._room)
        older = _Numbers(self._room // 2)
        first = 0
        while first < len(called) and listed.tokens + older.tokens > self._room:
            listed.remove(called[first])
            older.add(called[first])
            first += 1
        return [*older.texts, *_by_tool(called[first:])]


class _NamedCall(NamedTuple):
    """A call as the digest names it: its tool, its text, and the number of equal calls."""

    name: str
    item: Item
    times: int

    @property
    def tool(self) -> str:
        """The name before the arguments; empty if the call is named without arguments."""
        return self.item.text.partition("(")[0] if self.item.text.endswith(")") else ""

    @property
    def start(self) -> str:
        """The tool and the beginning of a path that is cut in its middle; empty for other calls."""
        start, cut, end = self.item.text.removeprefix(self.tool).partition("…")
        return self.tool + start + cut if self.tool and len(end) > 1 else ""

    @property
    def times_text(self) -> str:
        """The number of equal calls if there are several."""
        return "" if self.times == 1 else f"{TIMES}{self.times}"

    @property
    def tokens(self) -> int:
        """The tokens of the whole text, at most."""
        return _without_seam(self.item) + (_times_tokens(self.times) if self.times > 1 else 0)


class _CallList:
    """The tokens of calls of which each tool and each beginning of cut paths is named once.

    Mutable: calls come and go.
    """

    def __init__(self, called: Iterable[_NamedCall] = ()) -> None:
        self.tokens = 0
        self._times = Counter[str]()
        for call in called:
            self.add(call)

    def add(self, call: _NamedCall) -> None:
        """Add a call, which names its tool only if no other does."""
        self.tokens += call.tokens - self._saved(call)
        self._times.update((call.tool, call.start))

    def remove(self, call: _NamedCall) -> None:
        """Remove a call that was added."""
        self._times.subtract((call.tool, call.start))
        self.tokens -= call.tokens - self._saved(call)

    def _saved(self, call: _NamedCall) -> int:
        """Return how many tokens a call saves, at least, because others name the same."""
        tool, start = call.tool, call.start
        saved = _least_tokens(tool) if tool and self._times[tool] else 0
        if start and self._times[start]:
            # The ellipsis may take one more token after a space.
            saved += _least_tokens(start[len(tool) + 1 : -1]) - 1
        return saved


def _least_tokens(text: str) -> int:
    return len(_WORDS.findall(text)) if _PLAIN.fullmatch(text) else 1


def _by_tool(called: Iterable[_NamedCall]) -> Iterator[str]:
    """Yield each tool with its calls, the tool that was called last at the end.

    Paths with the same beginning stand together; only the first shows it.
    """
    of_tool: dict[str, dict[str, list[str]]] = {}
    for call in called:
        tool, start, text = call.tool, call.start, call.item.text
        if not tool:
            yield text + call.times_text
            continue
        of_tool[tool] = shown = of_tool.pop(tool, {})
        shown[start or text] = alike = shown.pop(start or text, [])
        first = len(start) - 1 if alike else len(tool) + 1
        alike.append(text[first:-1] + call.times_text)
    for tool, shown in of_tool.items():
        yield f"{tool}({BETWEEN.join(text for alike in shown.values() for text in alike)})"


def _without_seam(item: Item) -> int:
    """Return the tokens of an item whose end joins the separator after it at no cost.

    A closing bracket after a letter, a digit or an ellipsis is one token with the comma after it.
    """
    text = item.text
    is_plain = text[-1:] == ")" and (text[-2:-1].isalnum() or text[-2:-1] == "…")
    return item.tokens - SEAM_TOKENS * is_plain


def _merged(called: Sequence[_NamedCall], listed: _CallList, room: int) -> Sequence[_NamedCall]:
    """Merge older calls that differ only behind their cut, until all fit, also in `listed`.

    A path is cut in its middle: files of one folder become the folder and their number.
    """
    older: dict[str, _NamedCall] = {}
    for place, call in enumerate(called):
        if listed.tokens <= room:
            return [*older.values(), *called[place:]]
        text, tool = call.item.text, call.tool
        start = tool + text[len(tool) :].partition("…")[0] if tool else text
        known = older.pop(start, None)
        if known is None:
            older[start] = call
            continue
        item = Item(f"{start}…)", max(known.item.tokens, call.item.tokens))
        older[start] = _NamedCall(call.name, item, known.times + call.times)
        listed.remove(known)
        listed.remove(call)
        listed.add(older[start])
    return list(older.values())


def _times_tokens(times: int) -> int:
    return TIMES_SIGN_TOKENS + (len(str(times)) + 2) // 3


class _Numbers:
    """The calls that are counted and not named: each tool with the number of its calls.

    They take at most `room` tokens, however many tools there are: names are worth more. Mutable,
    because calls are added one by one.
    """

    def __init__(self, room: int) -> None:
        self._room = room
        self._needed = 0
        self._times = Counter[str]()
        self._name_tokens: dict[str, int] = {}

    def add(self, call: _NamedCall) -> None:
        """Count a call. A tool's name takes no more tokens than the shortest of its calls."""
        name = call.name
        before = self._tokens_of(name)
        known = self._name_tokens.get(name, call.item.tokens)
        self._name_tokens[name] = min(known, call.item.tokens)
        self._times[name] += call.times
        self._needed += self._tokens_of(name) - before

    @property
    def tokens(self) -> int:
        """The tokens that they take, at most."""
        return min(self._room, self._needed)

    @property
    def texts(self) -> list[str]:
        """Each tool with the number of its calls, the most used first, as far as they fit."""
        room, texts = self._room, list[str]()
        for name, number in self._times.most_common():
            room -= self._tokens_of(name)
            if room < 0:
                break
            texts.append(f"{name[:64]}{TIMES}{number}")
        return texts

    def _tokens_of(self, name: str) -> int:
        times = self._times[name]
        return self._name_tokens[name] + _times_tokens(times) if times else 0
