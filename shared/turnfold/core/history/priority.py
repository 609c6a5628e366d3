"""Classify messages by words, tools and shell commands: which of them resist trimming."""

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from turnfold.core.text.caches import cached_text
from turnfold.core.text.calls import arguments_of, call_entries, called_tool, command_of
from turnfold.core.text.tokens import text_of
from turnfold.messages import SYSTEM_ROLES, Message, Priority, UnrankedMessage

READ_CHARACTERS: Final = 4_000
NAME_CHARACTERS: Final = 200

_FIRST_IN_SENTENCE: Final = r"(?<![a-z0-9',] {0})(?<![a-z0-9'_-]{0})"


class _Phrase(NamedTuple):
    """A phrase that binds if its pattern matches. Each match contains one of `words`."""

    phrase: str
    pattern: re.Pattern[str]
    words: tuple[str, ...]

    def binds(self, text: str) -> bool:
        """Return whether a lower-case text contains the phrase in this sense."""
        return self.phrase in text and self.pattern.search(text) is not None


def _opening(phrase: str, unless: str = "", *, word: str = "") -> _Phrase:
    """Build a phrase that gives an order at the start of a sentence."""
    pattern = (
        phrase
        + _FIRST_IN_SENTENCE.replace("{0}", phrase)
        + r"(?= [a-z])"
        + (f"(?! (?:{unless}))" if unless else "")
    )
    return _Phrase(phrase, re.compile(pattern), (word or phrase,))


def _phrase(phrase: str, more: str = r"(?![a-z])", *, word: str = "") -> _Phrase:
    """Build a phrase; its literal comes first, so that the search is fast."""
    word = word or phrase
    return _Phrase(
        phrase,
        re.compile(phrase + rf"(?<![a-z0-9_.]{phrase})" + more),
        # Apostrophes separate words, so "mustn't" is looked up as "mustn".
        (word, f"{word}s", f"{word}n"),
    )


STATED: Final = (
    _phrase("remember", r"(?<!i remember)(?<!do you remember)(?<!n't remember)(?! when)(?![a-z])"),
    _phrase("from now on", word="now"),
    _phrase("going forward", word="forward"),
    _phrase("henceforth"),
    _phrase("todo", r"s?(?![a-z0-9_.(/])"),
    _phrase("to-do", word="do"),
    _phrase("fixme"),
    _phrase("decided", r" (?:to|on|that|against|not|we)\b"),
    _phrase("decision", r"(?:s?:|s? (?:is|are|was|were|made)\b|(?<=final decision))"),
    _phrase("agreed", r" (?:to|that|on)\b"),
    _phrase("let's go with", word="go"),
    _phrase("we'll go with", word="go"),
    _phrase("we will go with", word="go"),
    _phrase("settled on", word="settled"),
    _phrase("constraint", r"s?(?![a-z_])"),
    _phrase("requirement", r"s?(?::| (?:is|are)\b)"),
    _phrase("must", r"(?:n't)?(?![a-z-])(?! have (?:been|had))"),
    _phrase("should never", word="never"),
    _phrase("should always", word="always"),
    _phrase("please make sure", word="sure"),
    _phrase("keep in mind", word="mind"),
    _phrase("don't forget", word="forget"),
    _phrase("do not forget", word="forget"),
    _phrase("rule", r"(?:s(?![a-z_])|:| (?:is|that)\b)"),
    _phrase("not allowed", word="allowed"),
    _phrase("under no circumstances", word="circumstances"),
    _phrase("non-negotiable", word="negotiable"),
    _phrase("mandatory"),
    _phrase("forbidden"),
    _phrase("prohibited"),
    _phrase("deadline"),
    _phrase("important", r"(?:!|:| note\b)"),
)
BINDING: Final = (
    *STATED,
    _opening("never", "mind"),
    _opening("always"),
    _opening("do not", "worry|hesitate|you", word="not"),
    _opening("don't", "worry|hesitate|know|think|you|mind|get me wrong", word="don"),
    _opening("make sure", word="sure"),
    _opening("only use", word="only"),
)


def _by_word(phrases: Iterable[_Phrase]) -> Mapping[bytes, Sequence[_Phrase]]:
    """Index phrases by word: looking up the words of a text is faster than searching phrases."""
    phrases_by_word: defaultdict[bytes, list[_Phrase]] = defaultdict(list)
    for phrase in phrases:
        for word in phrase.words:
            phrases_by_word[word.encode()].append(phrase)
    return phrases_by_word


STATED_BY_WORD: Final = _by_word(STATED)
BINDING_BY_WORD: Final = _by_word(BINDING)
WORDS_STATED: Final = frozenset(STATED_BY_WORD)
WORDS_BINDING: Final = frozenset(BINDING_BY_WORD)
TO_WORDS: Final = bytes(
    ord(chr(code).lower()) if code < 128 and chr(code).isalpha() else 32 for code in range(256)
)
"""Lower case for ASCII letters, a space for every other byte.

Only two other characters have an ASCII letter in lower case: one becomes a k, which no word here
contains, and the other an i with a dot.
"""


def _any_of(words: Iterable[str]) -> re.Pattern[str]:
    """Build a pattern of words; grouped by first character, it searches in half the time."""
    rests: defaultdict[str, list[str]] = defaultdict(list)
    for word in words:
        rests[word[0]].append(word[1:])
    return re.compile("|".join(f"{first}(?:{'|'.join(rest)})" for first, rest in rests.items()))


CHINESE: Final = _any_of(
    """
    决定 決定 决策 決策 敲定 定下来 定下來 商定 约束 約束 限制条件 限制條件 硬性 必须 必須
    务必 務必 不得 不许 不許 禁止 不准 不允许 不允許 待办 待辦 记住 記住 牢记 牢記 切记 切記
    请记得 請記得 要记得 要記得 别忘 別忘 不要忘 从现在 從現在 从今 從今 今后 今後
    以后都 以後都 以后请 以後請 以后不 以後不 以后要 以後要 以后就 以後就
    规则 規則 规定 規定 原则 原則 一律 截止
    """.split()
)


def classify(body: Mapping[str, Any], *, call: Mapping[str, Any] | None = None) -> Priority:
    """Return the priority of a chat message; a result may be judged by its tool or its call.

    HIGH: a decision or demand that must still hold later. LOW: the result of a read that can be
    repeated. The first and last 4,000 characters of a long text are examined.
    """
    role = body.get("role")
    if role == "tool":
        if call is not None:
            return classify_results(call)
        name = body.get("name")
        is_read = isinstance(name, str) and _reads(name[:NAME_CHARACTERS])
        return Priority.LOW if is_read else Priority.NORMAL
    if role in SYSTEM_ROLES:
        return Priority.HIGH
    if (text := text_of(body)) and _binds(text, is_advice=role == "assistant"):
        return Priority.HIGH
    calls = call_entries(body)
    return Priority.LOW if calls and all(map(_looks, calls)) else Priority.NORMAL


def classify_results(call: Mapping[str, Any]) -> Priority:
    """Return the priority of all results of a call."""
    return Priority.LOW if _looks(call) else Priority.NORMAL


def priority_of(message: Message) -> Priority:
    """Return the priority of a message; compute it if it was not stored."""
    if isinstance(message.priority, UnrankedMessage):
        message.priority = classify(message.priority.body, call=message.priority.call)
    return message.priority


def _binds(text: str, *, is_advice: bool) -> bool:
    """Return whether a text decides, demands, or asks to remember. Advice does not."""
    if len(text) > 2 * READ_CHARACTERS:
        # The demand about a long paste precedes or follows it.
        text = f"{text[:READ_CHARACTERS]}\n{text[-READ_CHARACTERS:]}"
    if not text.isascii() and CHINESE.search(text):
        return True
    words = (WORDS_STATED if is_advice else WORDS_BINDING).intersection(
        text.encode("ascii", "replace").translate(TO_WORDS).split()
    )
    if not words:
        return False
    text = text.replace("\u2019", "'").lower()
    by_word = STATED_BY_WORD if is_advice else BINDING_BY_WORD
    return any(phrase.binds(text) for word in words for phrase in by_word[word])


WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
READING: Final = frozenset(
    """
    read list ls search grep glob find cat view get fetch open head tail query lookup look
    browse show tree describe inspect
    retrieve scan peek ripgrep
    """.split()
)
WRITING: Final = frozenset(
    """
    write edit create update delete remove insert apply patch send book cancel set put post
    commit push replace move rename add
    save append install run exec execute modify change reserve submit upload pay transfer reply
    """.split()
)
SHELLS: Final = frozenset(
    "bash sh zsh shell terminal exec execute command cmd powershell console editor run".split()
)


@cached_text(1_024)
def _words(name: str) -> frozenset[str]:
    return frozenset(word.lower() for word in WORD.findall(name))


def _reads(name: str) -> bool:
    """Return whether a tool with this name only reads, such as `read_file` or `WebSearch`."""
    words = _words(name)
    return not words.isdisjoint(READING) and words.isdisjoint(WRITING)


def _looks(call: object) -> bool:
    """Return whether a call only reads, by its tool or its shell command."""
    tool = called_tool(call)
    name = None if tool is None else tool.get("name")
    if not isinstance(name, str):
        return False
    name = name[:NAME_CHARACTERS]
    if _reads(name):
        return True
    return not _words(name).isdisjoint(SHELLS) and _command_looks(_command(arguments_of(call)))


def _command(arguments: object) -> str:
    """Return the shell command in a call's arguments; empty if there is none or it is long."""
    if isinstance(arguments, str):
        if len(arguments) > READ_CHARACTERS:
            return ""
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            return ""
    if not isinstance(arguments, Mapping):
        return ""
    command = command_of(arguments)
    return command if isinstance(command, str) and len(command) <= READ_CHARACTERS else ""


QUOTED = re.compile(r"'[^']*'|\"(?:\\.|[^\"\\])*\"|\\.")
HARMLESS = re.compile(r"[12&]?>>? ?/dev/null|2>&1|\d?>&\d")
SEPARATOR = re.compile(r"\|\||&&|[|;&\n]")
LOOKING = re.compile(
    r"\s*(?:(?:sudo|time|command|nice|env(?:\s+\w+=\S*)*)\s+)*(?:"
    r"(?:ls|ll|dir|cat|bat|[ef]?grep|zgrep|rg|ag|ack|head|tail|less|more|pwd|wc|stat|file|du"
    r"|df|which|whereis|type|view|nl|tac"
    r"|uniq|cut|tr|column|diff|cmp|jq|echo|printf|date|whoami|uname|hostname|id|ps"
    r"|printenv|readlink|realpath|basename"
    r"|dirname|strings|hexdump|od|md5sum|sha\d+sum|cd|true|locate)(?![\w-])"
    r"|env\s*\Z"
    r"|(?:sort|tree)(?![\w-])(?!.*\s(?:-\w*o|--output))"
    r"|yq(?![\w-])(?!.*\s(?:-\w*i|--inplace))"
    r"|awk(?![\w-])(?!.*\s(?:-i|--include))"
    r"|xxd(?![\w-])(?!.*\s-r)"
    r"|fd(?![\w-])(?!.*\s(?:-\w*[xX]|--exec))"
    r"|find(?![\w-])(?!.*\s-(?:delete|exec|ok|fprint|fls))"
    r"|sed\s+(?:-[Er]+\s+)?-n(?!\w*i)(?!.*\s(?:-\w*i|--in-place))"
    r"|git\s+(?:-C\s+\S+\s+)?(?:--no-pager\s+)?(?:status|log|diff|show|ls-files|ls-tree|blame|grep"
    r"|rev-parse|describe)(?![\w-])(?!.*\s--output)"
    r"|xargs\s+(?:-\S+\s+)*(?:cat|ls|grep|egrep|rg|head|tail|wc|file|stat)(?![\w-])"
    r")",
    re.DOTALL,
)
NOTHING_SEEN = re.compile(r"\s*(?:cd(?![\w-])|true|echo(?![\w-])|printf(?![\w-])|\Z)")


def _command_looks(command: str) -> bool:
    """Return whether all parts of a shell command only read, and there is at least one."""
    # A substitution may run anything.
    if not command or "$(" in command or "`" in command:
        return False
    # Without quoted texts, whose characters are not operators.
    plain = HARMLESS.sub("", QUOTED.sub("q", command))
    if ">" in plain or "<<" in plain:
        return False
    parts = SEPARATOR.split(plain)
    return all(LOOKING.match(part) or not part.strip() for part in parts) and not all(
        NOTHING_SEEN.match(part) for part in parts
    )
