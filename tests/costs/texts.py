"""Generated texts: short atoms, repeated, nested, numbered and mixed, as no person would write them."""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Final

ATOMS: Final = (
    *"abzAZ019_-./\\:@#~%+*$=?&,;|<>()[]{}'\"`!^ \n\t\r\x0b\x00\x1b\x7f\u00a0\u2028\ufeff",
    *"éßİŉ̈ͅあカ漢字猫한글ｱﾞＡ\u200d🙂🏽元年月日点。！？、「」：",
    "\ud83d", "\r\n", "\\n", '\\"', "\\\\", "  ", "\n\n", "\n ", " \n", "''", '""', "'\"", "```", "**", "- ", "* ", "# ", "| ", "> ", "1. ", "1)", "(1)",
    "word ", "the ", "of a ", "aB", "Abc", "a1", "1a", "x_y", "a.b", "a/b", "a-b", "/a", "../", "./a", "~/a.py", "C:\\", "a@b", "a@b.", "a.py ", "12.5 ",
    "must ", "never ", "always do ", "remember ", "do not ", "decided to ", "i remember ", "rule: ", "important! ", "必须", "请帮我", "してください",
    "echo ", "cat ", "sudo ", "git -C ", "git log ", "sed -n ", "sed -E ", "find . ", "xargs -n ", "time ", " -exec", "2>&1", ">/dev/null", ">>", "<<", "<<EOF\n", "<<'a'\n", "EOF\n",
    "&&", "||", "$(", "A=1 ", "rm -rf ", " > ", "*** Update File: ", "*** ", "tee ", "cd ",
    "<a>", "</a>", "<a", "</", "/>", "< /", "<turnfold-", "</turnfold-summary>", "<system-reminder>", "</system-reminder>", "<command-x>", "<think>", "</think>", "<summary>",
    "http://", "https://a.b/c ", "://", "://a:", "data:a/b;", "s3://", "localhost:", "1.2.3.4", "1.", "1-", "1:", "1,000", "2024-01-01", "Jan ", "Jan 1 ", "12:30 ", "5 kg ", "10%", "$1", "€ 5",
    "v1.", "#1", "AB-1 ", "deadbeef", "0-", "+1", "550e8400-e29b-41d4-a716-446655440000 ",
    "eyJ", "eyJhbGciOi.", "sk-", "ghp_", "xoxb-", "AKIA", "SG.", "-----BEGIN PRIVATE KEY-----", "-----BEGIN A PRIVATE KEY-----", "-----END PRIVATE KEY-----",
    "Cookie: ", "curl -b ", "n=", "Bearer ", "basic ", "password=", "token: ", "api_key", 'secret"', "='", "PASSWORD",
    "\x1b[", "\x1b[0m", "[0m", "[1", "[1;", "Error: ", "E  ", "Traceback", "Failure[", "x.yError", "command not found", "import ", "def f(", "return x;", "E501 ",
    '{"', '":', '",', '{"a":', "[1,", "},", "[[", "]]", "{}", "[]", '"path": "', '"command":"', '"context":', ",}", "null,", "1e9,", "-", "0x",
    "tokens ", "maximum context length is ", "maximum context length of 1", "prompt contains ", "prompt (length 1", "too large", "you passed 1 input tokens", "input token count (1", "i'm sorry, ", "申し訳",
)  # fmt: skip

SPECIAL: Final = (
    "",
    "<",
    "{",
    "[",
    '"',
    "'",
    "\\",
    "```",
    "```json\n",
    '{"a":"',
    "a",
    " ",
    "\n",
    "x\n",
    "。",
    "1",
    "é",
    "<a>",
    "/",
    "[0m",
    "cat ",
    "Cookie: n",
    "echo '",
    "$",
    "a\n\n",
)

Text = Callable[[int], str]


@dataclass(frozen=True, slots=True)
class Texts:
    """A generated kind of text: `make` gives one of about so many characters, `name` says how it is made."""

    name: str
    make: Text


def texts(random: Random) -> Texts:
    """A kind of text."""
    kind = random.choice(
        ("unit", "unit", "unit", "two", "nested", "numbered", "soup", "lines", "ends")
    )
    first, second = _unit(random), _unit(random)
    before, after = random.choice(SPECIAL), random.choice(SPECIAL)
    seed = random.random()

    def make(characters: int) -> str:
        match kind:
            case "two":
                inner = _row(first, characters // 2) + _row(second, characters // 2)
            case "nested":
                times = max(1, characters // (len(first) + len(second)))
                inner = first * times + second * times
            case "numbered":
                size = len(first) + len(str(characters))
                inner = "".join(
                    [f"{first}{number}" for number in range(max(1, characters // size))]
                )
            case "lines":
                inner = "\n".join([_row(first, 60)] * max(1, characters // 61))
            case "soup":
                inner = "".join(Random(seed).choices(ATOMS, k=max(1, characters // 3)))[:characters]
            case "ends":
                inner = _row(first, characters) + second
            case _:
                inner = _row(first, characters)
        return before + inner + after

    return Texts(f"{kind} {first!r} {second!r} in {before!r} {after!r}", make)


def _unit(random: Random) -> str:
    return "".join(random.choices(ATOMS, k=random.choice((1, 1, 1, 2, 2, 3, 4))))


def _row(unit: str, characters: int) -> str:
    return unit * max(1, characters // len(unit))
