"""Read conversation files of several formats, and split conversations into turns."""

import gzip
import io
import json
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, Final, NoReturn

from turnfold.contracts.elements import item_fault
from turnfold.contracts.strict_json import STRICT
from turnfold.contracts.subjects import id_fault
from turnfold.errors import BadEvent, TurnfoldError
from turnfold.messages import ROLES, Json, Role, Shape
from turnfold.transcripts.claude_code import Transcript
from turnfold.transcripts.codex import Rollout
from turnfold.transcripts.formats import Format, format_of, is_conversation, is_item
from turnfold.transcripts.nanobot import SessionFile
from turnfold.transcripts.parsed import RecordFault
from turnfold.transcripts.saved_history import SavedHistory

STANDARD_INPUT = "-"

_GZIP = b"\x1f\x8b"


class UnreadableTranscript(TurnfoldError):
    """A file without a readable conversation; the text has the file, the line and the cause."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """One conversation of a file: messages in order, each unchanged.

    `machine_made` has the indexes of user messages that a program wrote in the user's name,
    `pinned` those of system messages that must begin their event.
    `question` may be asked about what was said early. With the shape `responses`, messages are
    items of the Responses API.
    """

    conversation_id: str
    messages: tuple[Json, ...]
    agent: str | None = None
    model: str | None = None
    machine_made: frozenset[int] = frozenset()
    question: str | None = None
    shape: Shape = Shape.CHAT
    pinned: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Turn:
    """A user message and the messages that answer it; `is_meta` if a program wrote it."""

    messages: tuple[Json, ...]
    is_meta: bool = False


def turns(
    messages: Sequence[Json],
    machine_made: frozenset[int] = frozenset(),
    pinned: frozenset[int] = frozenset(),
) -> list[Turn]:
    """Split a conversation before each user message except the first.

    Messages before the first user message belong to the first turn. A pinned system message begins
    a turn, of which a user message after it is a part.

    >>> roles = ["system", "user", "assistant", "user"]
    >>> [len(turn.messages) for turn in turns([{"role": role} for role in roles])]
    [3, 1]
    """
    users = [index for index, message in enumerate(messages) if message.get("role") == Role.USER]
    starts = {0, *pinned, *(index for index in users[1:] if index - 1 not in pinned)}
    edges = [*sorted(starts), len(messages)] if messages else []
    return [
        Turn(tuple(messages[first:last]), not machine_made.isdisjoint(range(first, last)))
        for first, last in pairwise(edges)
    ]


def read_conversations(
    path: Path | str, form: Format | None = None, *, left_out: Counter[str] | None = None
) -> Iterator[Conversation]:
    """Read the conversations of a file, gzipped or not; `-` reads stdin.

    Formats: one conversation per line (`{"id", "agent", "messages": [...]}`); a JSON list of OpenAI
    chat messages, of items of the Responses API or of such conversations; one message or item per
    line; saved histories of sessions; session logs of Claude Code, in which every sub-agent has its
    own conversation; rollouts of Codex; session files of nanobot. The first value decides, unless
    `form` names the format.
    Conversations without an id are named after the file. `left_out` receives the number of
    records that no conversation contains, by kind.

    Raises:
        UnreadableTranscript: the file cannot be opened, or a line is invalid.
    """
    name = "standard input" if str(path) == STANDARD_INPUT else str(path)
    stem = (
        "stdin"
        if str(path) == STANDARD_INPUT
        else Path(path).name.removesuffix(".gz").rpartition(".")[0] or Path(path).name
    )
    reader = _Reader(name, stem, form, Counter() if left_out is None else left_out)
    try:
        with _opened(path) as stream:
            yield from reader.read(stream)
    except (OSError, EOFError, zlib.error) as error:
        raise UnreadableTranscript(
            f"{name} cannot be read: {getattr(error, 'strerror', None) or error}"
        ) from error


@contextmanager
def _opened(path: Path | str) -> Generator[io.BufferedIOBase, None, None]:
    with ExitStack() as stack:
        if str(path) != STANDARD_INPUT:
            buffered = stack.enter_context(Path(path).open("rb"))
        elif isinstance(sys.stdin.buffer, io.BufferedReader):
            buffered = sys.stdin.buffer
        else:
            buffered = io.BufferedReader(io.BytesIO(sys.stdin.buffer.read()))
        # Peeked and not read, because standard input cannot be rewound.
        yield (
            stack.enter_context(gzip.open(buffered)) if buffered.peek(2)[:2] == _GZIP else buffered
        )


_Log = SavedHistory | Transcript | Rollout | SessionFile
"""The records of a log, added one by one in their order.

`left_out` counts what its conversations do not contain, by a name of its kind.
"""
_LOGS: Final[Mapping[Format, Callable[[], _Log]]] = {
    Format.HISTORY: SavedHistory,
    Format.CLAUDE_CODE: Transcript,
    Format.CODEX: Rollout,
    Format.NANOBOT: SessionFile,
}
"""The readers of the formats whose lines form conversations only together."""


@dataclass(slots=True)
class _Reader:
    """One pass over a file.

    Lines that form one conversation together are collected until the end of the file.
    """

    name: str
    stem: str
    form: Format | None
    left_out: Counter[str]
    loose: list[Json] = field(default_factory=list)

    def read(self, stream: io.BufferedIOBase) -> Iterator[Conversation]:
        lines = enumerate(stream, start=1)
        written = ((number, line) for number, line in lines if line.strip(b"\xef\xbb\xbf \t\r\n"))
        number, line = next(written, (1, b""))
        if not line:
            self.refuse(1, "the file is empty")
        try:
            value = self.parsed(number, line)
        except UnreadableTranscript:
            # A pretty-printed file: its first line is not JSON, but the whole file is.
            others = stream.read()
            if not others:
                raise
            value = self.parsed(number, line + others)
        form = self.form or format_of(value)
        if form is None:
            self.refuse_value(number)
        rest = ((number, self.parsed(number, line)) for number, line in lines if line.strip())
        if form in _LOGS:
            yield from self.log(_LOGS[form](), form, chain([(number, value)], rest))
        else:
            yield from self.entries(number, value, rest)

    def log(
        self, log: _Log, form: Format, values: Iterable[tuple[int, Any]]
    ) -> Iterator[Conversation]:
        """Yield the conversations of a log."""
        for number, value in values:
            if not isinstance(value, Mapping):
                self.refuse(number, f"not a record of {form}: it is not an object")
            try:
                log.add(value)
            except RecordFault as fault:
                self.refuse(number, f"not a record of {form}: {fault}", fault)
        self.left_out.update(log.left_out)
        for parsed in log.conversations():
            if parsed.messages:
                about = {"agent": parsed.agent, "model": parsed.model}
                machine_made = frozenset(parsed.machine_made_indexes)
                name = parsed.name or self.stem
                read = self.conversation(
                    1, name, parsed.messages, about, machine_made, parsed.shape
                )
                yield replace(read, pinned=frozenset(parsed.pinned_indexes))

    def entries(
        self, first_number: int, first: Any, rest: Iterable[tuple[int, Any]]
    ) -> Iterator[Conversation]:
        """Yield the conversations of lines that are conversations, or one message each."""
        yield from self.entry(first_number, first, self.stem)
        for number, value in rest:
            yield from self.entry(number, value, f"{self.stem}-{number}")
        # Lines of single messages end only with the file.
        if self.loose:
            yield self.conversation(1, self.stem, self.loose, {})

    def parsed(self, number: int, text: bytes) -> Any:
        try:
            # With or without a byte order mark, which editors of Windows write.
            return STRICT.decode(text.decode("utf-8-sig"))
        except json.JSONDecodeError as error:
            self.refuse(
                number + error.lineno - 1, f"not JSON: {error.msg} at column {error.colno}", error
            )
        except BadEvent as error:
            self.refuse(number, f"not JSON: {error.detail}", error)
        except UnicodeDecodeError as error:
            self.refuse(number, "not text in UTF-8", error)
        except (ValueError, RecursionError) as error:
            self.refuse(number, f"not JSON: {error}", error)

    def entry(self, number: int, value: Any, name: str) -> Iterator[Conversation]:
        """Yield the conversations of one line, or collect the line for the end of the file."""
        is_message = isinstance(value, Mapping) and (is_item(value) or "role" in value)
        if is_message and not is_conversation(value) and self.form is not Format.TURNFOLD:
            self.loose.append(self.message(number, len(self.loose), value))
        else:
            yield from self.conversations(number, value, name)

    def conversations(self, number: int, value: Any, name: str) -> Iterator[Conversation]:
        """Yield the conversations of a JSON value.

        The value is a conversation, a list of messages, or a list of conversations.
        """
        if isinstance(value, Mapping) and isinstance(value.get("messages"), list):
            yield self.conversation(number, name, value["messages"], value)
        elif isinstance(value, list) and value and all(map(is_conversation, value)):
            for index, entry in enumerate(value, start=1):
                yield from self.conversations(number, entry, f"{name}-{index}")
        elif self.form is Format.TURNFOLD:
            self.refuse_value(number)
        elif isinstance(value, list):
            yield self.conversation(number, name, value, {})
        elif isinstance(value, Mapping) and isinstance(value.get("input"), list):
            self.left_out["instructions"] += bool(value.get("instructions"))
            yield self.conversation(number, name, value["input"], value, shape=Shape.RESPONSES)
        else:
            self.refuse_value(number)

    def conversation(
        self,
        number: int,
        name: str,
        messages: Sequence[Any],
        about: Json,
        machine_made: frozenset[int] = frozenset(),
        shape: Shape | None = None,
    ) -> Conversation:
        """Return a conversation that is checked; without a shape, by what its messages are."""
        shape = shape or _shape(messages)
        checked = tuple(
            self.message(number, index, message, shape) for index, message in enumerate(messages)
        )
        if not checked:
            self.refuse(number, "the conversation has no messages")
        conversation_id = next(
            (str(about[key]) for key in ("id", "session_id") if about.get(key) is not None), name
        )
        agent = next(
            (str(about[key]) for key in ("agent", "agent_id") if about.get(key) is not None), None
        )
        model, question = (
            value if isinstance(value := about.get(name), str) else None
            for name in ("model", "question")
        )
        for what, identifier in (("id", conversation_id), ("agent", agent)):
            if identifier is not None and (fault := id_fault(identifier)):
                self.refuse(number, f"the {what} {fault}")
        return Conversation(conversation_id, checked, agent, model, machine_made, question, shape)

    def message(self, number: int, index: int, message: Any, shape: Shape | None = None) -> Json:
        """Return a message that is checked; without a shape, by what it is itself."""
        if not isinstance(message, Mapping):
            self.refuse(number, f"message {index} is not an object")
        is_element = is_item(message) if shape is None else shape is Shape.RESPONSES
        if is_element:
            if fault := item_fault(message):
                self.refuse(number, f"message {index} cannot be read: {fault}")
            return message
        role = message.get("role")
        if not isinstance(role, str) or role not in ROLES:
            self.refuse(
                number,
                f"message {index} has the role {repr(role)[:80]};"
                f" it must be one of {', '.join(Role)}",
            )
        return message

    def refuse_value(self, number: int) -> NoReturn:
        self.refuse(
            number,
            "neither a conversation ({'messages': [...]}), nor a list of messages,"
            f" nor a line of another format ({', '.join(Format)})",
        )

    def refuse(self, number: int, cause: str, error: Exception | None = None) -> NoReturn:
        raise UnreadableTranscript(f"{self.name}, line {number}: {cause}") from error


def _shape(messages: Sequence[Any]) -> Shape:
    """Return the shape of a list: one item of the Responses API makes all of them items."""
    is_responses = any(isinstance(message, Mapping) and is_item(message) for message in messages)
    return Shape.RESPONSES if is_responses else Shape.CHAT
