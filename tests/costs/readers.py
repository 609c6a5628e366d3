"""Every part that works on a text from outside, each given generated texts."""

import json
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from random import Random
from typing import Any, Final, NamedTuple

from tests.costs.measuring import Case
from tests.costs.texts import Texts, texts
from turnfold.contracts.events import claimed_key, read_payload
from turnfold.contracts.history_requests import SearchRequest
from turnfold.contracts.reading import (
    read_request,
)
from turnfold.contracts.subjects import id_fault, key_of_subject
from turnfold.core.history.priority import classify
from turnfold.core.recall.quotes import ASKED_WORTH, best_by_worth, mark_lines
from turnfold.core.recovery.overflow import overflow_in_text
from turnfold.core.shapes.blocks import answer_blocks, content_blocks
from turnfold.core.summary.carry_over import carry_over
from turnfold.core.summary.eviction_digest import digest
from turnfold.core.summary.extractive.evidence import collect_evidence
from turnfold.core.summary.extractive.extract import extract
from turnfold.core.summary.gate import ModelResponse, check, missing_facts
from turnfold.core.summary.model_answer import fitted, parse_answer, shortened
from turnfold.core.summary.prompt import prompt_data
from turnfold.core.summary.redaction import readable_sources, redact
from turnfold.core.summary.sentences import language, sentence_kinds, sentences
from turnfold.core.summary.sources import (
    PreviousSummary,
    Source,
    SummaryJob,
    head_and_tail,
    word_count,
)
from turnfold.core.summary.tool_calls.actions import actions, commands_of, file_changes, touched
from turnfold.core.summary.tool_calls.arguments import argument_texts
from turnfold.core.text.defuse import defused
from turnfold.core.text.estimates import estimate, token_upper_bound
from turnfold.core.text.lines import clip, printable
from turnfold.core.text.names import names_in
from turnfold.core.text.search import SearchQuery, ranked_by_any, searchable
from turnfold.core.text.token_offsets import TokenOffsets
from turnfold.core.text.tokens import count_message, lines_of, path_in
from turnfold.core.text.values import values_in
from turnfold.core.text.words import exact_terms, normalize, runs, terms
from turnfold.core.window.digest.earlier_messages import ToldText
from turnfold.core.window.forms import TextCut
from turnfold.core.window.framing import (
    Placement,
    measure_summary,
    wrapped_digests,
    wrapped_summary,
)
from turnfold.core.window.rendering.render import shortened_arguments, shortened_text
from turnfold.errors import TurnfoldError
from turnfold.messages import ToolCall
from turnfold.model_info.tokenizer import load_counter

count_tokens: Final = load_counter()
MOST_CHARACTERS: Final = 1 << 20


class Reader(NamedTuple):
    """A part that works on texts: it is given them all at once."""

    name: str
    read: Callable[[list[str]], object]
    prepare: Callable[[str], str] = str


def _each(read: Callable[[str], object]) -> Callable[[list[str]], object]:
    def read_all(found: list[str]) -> None:
        for text in found:
            with suppress(TurnfoldError):
                read(text)

    return read_all


def _arguments(text: str, wrap: str) -> str:
    match wrap:
        case "raw":
            return text
        case "command":
            return json.dumps({"command": text})
        case "list":
            return json.dumps(
                {
                    "command": ["bash", "-lc", text],
                    "paths": [text[at : at + 40] for at in range(0, len(text), 40)],
                }
            )
        case "path":
            return json.dumps({"path": text, "text": text[:100]})
        case "patch":
            return json.dumps({"input": text, "file_path": text[:300]}, ensure_ascii=False)
        case "keys":
            return json.dumps(
                {text[at : at + 20] + str(at): text[at : at + 20] for at in range(0, len(text), 20)}
            )
        case "nested":
            found: Any = [text[at : at + 20] for at in range(0, len(text), 20)]
            for _ in range(50):
                found = {"a": found}
            return json.dumps(found)
        case _:
            raise ValueError(wrap)


WRAPS: Final = ("raw", "command", "list", "path", "patch", "keys", "nested")


def _call(arguments: str, name: str) -> dict[str, Any]:
    return {"id": "c", "type": "function", "function": {"name": name, "arguments": arguments}}


def _classified(role: str) -> Callable[[str], object]:
    return lambda text: classify({"role": role, "content": text, "name": text})


def _classified_call(name: str) -> Callable[[str], object]:
    def read(text: str) -> object:
        call = _call(text, name)
        classify({"role": "assistant", "content": None, "tool_calls": [call]})
        return classify({"role": "tool", "content": text}, call=call)

    return read


def _acted(name: str) -> Callable[[list[str]], object]:
    def read(arguments: list[str]) -> object:
        source = Source("e#0", "assistant", "", tuple((name, one) for one in arguments))
        for one in arguments:
            list(touched(name, one))
            list(commands_of(name, one))
            list(argument_texts(one))
        return (
            actions([source]),
            file_changes(None, [source]),
            file_changes([{"path": one} for one in arguments], [source]),
        )

    return read


def _source(role: str, text: str, number: int) -> Source:
    if role == "call":
        return Source(
            f"e{number}#0",
            "assistant",
            "",
            (
                ("bash", json.dumps({"command": text})),
                ("edit", json.dumps({"path": text, "text": text})),
            ),
        )
    if role == "error":
        return Source(f"e{number}#0", "tool", text, tool_name=text[:80], is_error=True)
    return Source(f"e{number}#0", role, text)


def _summarised(role: str) -> Callable[[list[str]], object]:
    def read(found: list[str]) -> object:
        sources = tuple(_source(role, text, number) for number, text in enumerate(found))
        previous = PreviousSummary(
            found[0][:20_000],
            {
                "tasks": found,
                "file_changes": [{"path": one[:500], "action": "read"} for one in found],
            },
            (f"path {found[0][:300]}",),
        )
        job = SummaryJob(sources=sources, newest_request=found[0], previous=previous)
        draft = extract(job, count=estimate)
        prompt_data(job, boundary="x")
        return draft, role != "tool" and digest(sources, count=estimate)

    return read


def _evidenced(role: str) -> Callable[[list[str]], object]:
    def read(found: list[str]) -> object:
        sources = readable_sources(
            tuple(_source(role, text, number) for number, text in enumerate(found))
        )
        return collect_evidence(
            SummaryJob(sources=sources, newest_request=None), sources, count=estimate
        )

    return read


def _answered(style: str) -> Callable[[str], object]:
    def read(text: str) -> object:
        check(ModelResponse(text, "stop"), input_tokens=10**9, output_tokens=1)
        overflow_in_text(text)
        said, sections = parse_answer(text, style, max_words=100)
        before = {
            name: text.split("\n")[:2_000]
            for name in ("decisions", "constraints", "open_questions")
        }
        sections = carry_over(before, sections | before, max_tokens=800, count=estimate)
        missing_facts(
            said, before["decisions"][:50], facts=before["constraints"][:50], request=text[:100]
        )
        return fitted(said, sections, max_tokens=400, count=estimate)

    return read


def _searched(found: list[str]) -> object:
    """A query grows with the texts that are searched, up to what a request takes."""
    characters = sum(map(len, found))
    question = SearchQuery.of(found[0][: min(1_000, max(8, characters // 400))])
    if not question.words:
        return None
    lookups = (question.lookups(), question.beginnings(), question.any_word())
    texts = [searchable({"role": "user", "content": text}) for text in found]
    graded = [question.grade(text) for text in texts]
    return (
        lookups,
        graded,
        [question.holds(text) for text in texts],
        ranked_by_any(question, dict(enumerate(texts))),
    )


def _cut(text: str) -> object:
    grid = TokenOffsets.of(text, estimate)
    return (
        TokenOffsets.parse(grid.encode()),
        shortened_text(text, TextCut(len(text) // 3, len(text) // 2, 1, 1, 1)),
        lines_of(text),
    )


def _wrapped(text: str) -> object:
    defused(text)
    wrapped_summary(text, text.split("\n"), Placement.SYSTEM)
    wrapped_digests(text.split("\n"))
    return measure_summary(1, text, text.split("\n"), tokens=1, text_tokens=1)


def _shown_to_anthropic(text: str) -> object:
    calls = (ToolCall(0, "c", "bash", max(40, len(text) // 8)),)
    body = {
        "role": "assistant",
        "content": text,
        "refusal": text,
        "tool_calls": [_call(text, "bash")],
    }
    parts = [
        {"type": "image_url", "image_url": {"url": text}},
        {"type": "file", "file": {"file_data": text}},
        text,
        {"type": "text", "text": text},
    ]
    return (
        answer_blocks(body, calls, {"c": "c"}),
        content_blocks(parts, "user"),
        content_blocks(text, "tool"),
    )


def _measured(text: str) -> object:
    parts = [{"type": "text", "text": text[at : at + 10]} for at in range(0, len(text), 10)]
    body = {
        "role": "assistant",
        "content": parts,
        "reasoning_content": text,
        "thinking_blocks": [{"type": "thinking", "thinking": text}],
        "refusal": text,
    }
    return count_message(body, count_tokens), path_in(json.dumps({"path": text})), path_in(text)


def _sentenced(text: str) -> object:
    return [
        (sentence_kinds(one, is_user=True), sentence_kinds(one, is_user=False))
        for one in sentences(text)
    ], language(text)


def _shortened_call(text: str) -> object:
    return shortened_arguments(text, max(50, len(text) // 20), 10), shortened_arguments(
        _arguments(text, "keys"), max(50, len(text) // 20), 10
    )


def _payload(text: str) -> object:
    payload = text.encode("utf-8", "surrogatepass")
    claimed_key(payload)
    claimed_key(b'"agent_id": ' + payload)
    id_fault(text)
    with suppress(TurnfoldError):
        key_of_subject("context.get", f"context.get.{text}")
    with suppress(TurnfoldError):
        read_request(SearchRequest, payload)
    for before, after in (
        (b"", b""),
        (b'{"event_id": "', b'"}'),
        (b'{"messages": [{"role": "user", "content": "', b'"}]}'),
    ):
        with suppress(TurnfoldError):
            read_payload("turn.completed", before + payload + after)
    return None


READERS: Final = (
    Reader("tokens", _each(count_tokens)),
    Reader("estimate", _each(estimate)),
    Reader("ceiling", _each(token_upper_bound)),
    Reader("cuts", _each(_cut)),
    Reader("measure", _each(_measured)),
    *[
        Reader(f"priority of {role}", _each(_classified(role)))
        for role in ("user", "assistant", "tool")
    ],
    *[
        Reader(
            f"priority of a {name} call, {wrap}",
            _each(_classified_call(name)),
            partial(_arguments, wrap=wrap),
        )
        for name in ("bash", "write_file")
        for wrap in WRAPS
    ],
    Reader(
        "index",
        _each(
            lambda text: (
                terms(normalize(text)),
                runs(normalize(text)),
                exact_terms(normalize(text)),
            )
        ),
    ),
    Reader(
        "marked lines",
        _each(lambda text: mark_lines({"role": "user", "content": text}, estimate)),
    ),
    Reader("names", _each(names_in)),
    Reader("query", _each(lambda text: SearchQuery.of(text[:1_000]))),
    Reader("search", _searched),
    Reader("redaction", _each(redact)),
    Reader("values", _each(values_in)),
    Reader("sentences", _each(_sentenced)),
    Reader(
        "printable",
        _each(
            lambda text: (
                printable(text),
                clip(text, 200),
                head_and_tail(text, 10, 10),
                word_count(text),
            )
        ),
    ),
    Reader("shortened prose", _each(lambda text: shortened(text, 50))),
    *[
        Reader(f"{name} call, {wrap}", _acted(name), partial(_arguments, wrap=wrap))
        for name in ("bash", "edit_file", "mcp__book")
        for wrap in WRAPS
    ],
    *[
        Reader(f"summary of {role}", _summarised(role))
        for role in ("user", "assistant", "tool", "error", "call")
    ],
    *[
        Reader(f"ledger of {role}", _evidenced(role))
        for role in ("user", "assistant", "tool", "error", "call")
    ],
    Reader("wrapping", _each(_wrapped)),
    Reader("anthropic", _each(_shown_to_anthropic)),
    Reader("short arguments", _each(_shortened_call)),
    Reader("payload", _each(_payload)),
    *[Reader(f"{style} answer", _each(_answered(style))) for style in ("structured", "narrative")],
)


def text_case(random: Random) -> Case:
    """A reader with generated texts: its name, the work, and the sizes."""
    reader = random.choice(READERS)
    kind: Texts = texts(random)
    copies = random.choice((1, 1, 1, 8, 64))

    def build(size: int) -> Callable[[], object]:
        text = kind.make(size)
        found = [text] if copies == 1 else [f"{number} {text}" for number in range(copies)]
        prepared = [reader.prepare(text) for text in found]
        return lambda: reader.read(prepared)

    last = MOST_CHARACTERS // copies
    return Case(f"{reader.name}: {copies} x {kind.name}", build, last)


def _searched_case(name: str, query: Callable[[int], str], text: str) -> Case:
    def build(size: int) -> Callable[[], object]:
        question, found = SearchQuery.of(query(size)), [text * (size // len(text))]
        texts = [searchable({"role": "user", "content": one}) for one in found]
        return lambda: [(question.grade(one), ranked_by_any(question, {0: one})) for one in texts]

    return Case(name, build, 1 << 22, first=1 << 12)


_LETTERS: Final = "abcdefghij"
_PAIRS: Final = [first + second for first in _LETTERS for second in _LETTERS]
KNOWN_SEARCHES: Final = (
    _searched_case(
        "100 words of two letters",
        lambda size: " ".join(_PAIRS[: min(100, size >> 9)]),
        "".join(f"{pair}x {pair[::-1]} " for pair in _PAIRS),
    ),
    _searched_case(
        "rows of Chinese characters",
        lambda size: " ".join(f"漢字文{chr(0x4E00 + at)}" for at in range(min(100, size >> 9))),
        "漢字文章" * 25,
    ),
    _searched_case(
        "a query that is nearly there everywhere",
        lambda size: "a-" * min(490, size >> 10) + "a",
        "-a" * 50,
    ),
)
"""Queries that once cost their words times the text."""


def _text_case(name: str, read: Callable[[str], object], unit: str, *, copies: int) -> Case:
    def build(size: int) -> Callable[[], object]:
        found = [f"{number} {unit * (size // len(unit))}" for number in range(copies)]
        return lambda: [read(text) for text in found]

    return Case(name, build, 1 << 13)


def _commands_in(text: str) -> object:
    return list(commands_of("bash", json.dumps({"command": text})))


def _lines_of_a_name(size: int) -> Callable[[], object]:
    offered = [(9.0, (0,))] * size
    return lambda: list(best_by_worth(offered, {0: ASKED_WORTH}, (), (0,)))


def _values_in_names(size: int) -> Callable[[], object]:
    paths = [f"/srv/part_{number}.py" for number in range(size)]
    text = " · ".join(paths)

    def sought() -> object:
        told = ToldText(text)
        return [path in told for path in paths]

    return sought


KNOWN_TEXTS: Final = (
    Case("lines with one name that is asked for", _lines_of_a_name, 1 << 13, first=512),
    Case("exact values that stand in names of calls", _values_in_names, 1 << 13),
    _text_case("quotes of a command that are not closed", _commands_in, '\\"', copies=8),
    _text_case(
        "tags that are not closed",
        lambda text: list(sentences("</a>" + text)),
        "<command-a> ",
        copies=64,
    ),
)
"""Texts that once cost the square of what is read of them."""
