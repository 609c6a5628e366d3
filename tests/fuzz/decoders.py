"""Every part that reads what comes from outside, with what may come of any bytes: a value that keeps its promises, or the error it names."""

import asyncio
import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, NoReturn
from urllib.parse import parse_qsl
from warnings import catch_warnings

from tests.anthropic_faults import anthropic_faults
from tests.fuzz.mutations import mutated
from tests.histories import history, plan
from tests.store_fixtures import words
from turnfold.access.bearers import TokenRegistry
from turnfold.cli.deadletters import escaped
from turnfold.client.replies import error_from_json
from turnfold.contracts.events import EventLimits, claimed_key
from turnfold.contracts.reading import (
    read_query,
    read_request,
)
from turnfold.contracts.requests import (
    ContextRequest,
    PolicyRequest,
    Request,
)
from turnfold.contracts.subjects import (
    id_fault,
    id_of,
    key_of_event_subject,
    key_of_subject,
    session_subject,
    token_of,
)
from turnfold.core.eviction.usage import read_report
from turnfold.core.history.validation import validation_errors
from turnfold.core.policy.overrides import PolicyOverrides, effective_policy
from turnfold.core.policy.presets import Policy, preset_named
from turnfold.core.recovery.compressor import LadderCompressor
from turnfold.core.recovery.overflow import overflow_in_text
from turnfold.core.summary.gate import ModelResponse, check, response_text
from turnfold.core.summary.model_answer import parse_answer
from turnfold.core.text.search import SearchQuery, searchable
from turnfold.core.text.token_offsets import TokenOffsets
from turnfold.core.text.words import terms
from turnfold.core.window.rendering.anthropic import to_anthropic
from turnfold.core.window.window import WindowRequest
from turnfold.errors import (
    BadEvent,
    BadRequest,
    CannotFit,
    EventFault,
    RequestError,
    StartError,
    SummarizerError,
    TooLarge,
)
from turnfold.messages import Role, SessionKey
from turnfold.models.wire import decode, encode
from turnfold.operations.ingest.decode import Delivery, decode_event, to_dead_letter
from turnfold.operations.query.as_of import parse_as_of
from turnfold.process.child_process import encode_frame, read_frame
from turnfold.settings import read_settings
from turnfold.transcripts import UnreadableTranscript, read_conversations, turns
from turnfold_query.http.commands import add_fields
from turnfold_query.posted_events import EventBody, read_posted

GOLDEN = Path(__file__).parent.parent / "contract" / "golden"
EXAMPLES = Path(__file__).parent.parent.parent / "examples"
LIMITS = EventLimits(bytes=8_192, messages=20, depth=12)
REASONS = set(EventFault) - {
    EventFault.EVENT_ID_REUSED,
    EventFault.TOO_MANY_SESSIONS,
    EventFault.REFUSED_BY_DATABASE,
}
"""Those that need no database."""
SUBJECTS = (
    "turn.completed",
    "tool.result",
    "turn.completed.support.user-42",
    "tool.result.support.user-42",
    "usage.reported",
    "usage.reported.support.user-42",
    "turn.retracted.support.user-42",
    "turn.completed.%00.x",
    "turn",
)
POLICY = Policy()


@dataclass(frozen=True, slots=True)
class Decoder:
    """One reader: bytes that it understands, and a check that any bytes must pass. `folder` is the check's own."""

    name: str
    corpus: Sequence[bytes]
    check: Callable[[bytes, Path], None]

    def input(self, seed: int, number: int) -> bytes:
        """The input of this number; the corpus itself comes first."""
        return (
            self.corpus[number]
            if number < len(self.corpus)
            else mutated(Random(f"{seed}/{self.name}/{number}"), self.corpus)
        )

    def fault(self, data: bytes, folder: Path) -> str | None:
        """What is wrong with what came of these bytes; None when nothing is."""
        try:
            self.check(data, folder)
        except Exception as error:  # noqa: BLE001 - whatever comes out that is not declared is what is looked for
            return f"{type(error).__name__}: {error}"
        return None


def _text(data: bytes) -> str:
    """As what is decoded elsewhere arrives: also with lone surrogates, never with bytes that no text stands for."""
    return data.decode("utf-8", "replace" if len(data) % 2 else "surrogateescape")


def _strict(text: str | bytes) -> Any:
    """The value of a JSON text; NaN and infinities are none."""
    return json.loads(text, parse_constant=_no_number)


def _no_number(name: str) -> NoReturn:
    raise AssertionError(f"{name} is no JSON")


def _is_encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


# --- what agents publish


def _event(data: bytes, _: Path) -> None:
    subject = SUBJECTS[len(data) % len(SUBJECTS)]
    delivery = Delivery(subject, data, 1, 1)
    try:
        arrival = decode_event(delivery, count=words, limits=LIMITS)
    except BadEvent as error:
        _buried(delivery, error)
        return
    assert not any(map(id_fault, arrival.key))
    assert len(arrival.messages) <= LIMITS.messages
    for message in arrival.messages:
        assert _strict(message.body)["role"] in set(Role)
        assert message.tokens >= 0
        TokenOffsets.parse(message.cuts)
    again = decode_event(delivery, count=words, limits=LIMITS)
    assert again == arrival


def _buried(delivery: Delivery, error: BadEvent) -> None:
    letter = to_dead_letter(delivery, error)
    assert letter.reason in REASONS, letter.reason
    assert letter.key is None or not any(map(id_fault, letter.key)), letter.key
    assert letter.detail.isascii(), letter.detail


def _claim(data: bytes, _: Path) -> None:
    key = claimed_key(data)
    assert key is None or not any(map(id_fault, key))


def _subject(data: bytes, _: Path) -> None:
    text = _text(data)
    identifier = id_of(text)
    if identifier is not None:
        assert token_of(identifier) == text
        assert id_fault(identifier) is None, "an id that no event can have"
    for name in ("turn.completed", "context.get"):
        with suppress(BadRequest):
            key = key_of_subject(name, f"{name}.{text}")
            if isinstance(key, SessionKey):
                assert session_subject(name, key) == f"{name}.{text}"
    key_of_event_subject(text)
    if id_fault(text) is None:
        assert id_of(token_of(text)) == text


def _usage(data: bytes, _: Path) -> None:
    with suppress(ValueError, RecursionError):
        usage = json.loads(data)
        if isinstance(usage, dict):
            read_report(usage)


# --- what is asked


def _request(data: bytes, _: Path) -> None:
    for shape in Request.__subclasses__():
        with suppress(BadRequest):
            asked = read_request(shape, data)
            if isinstance(asked, ContextRequest) and asked.as_of is not None:
                parse_as_of(asked.as_of)
            if isinstance(asked, PolicyRequest):
                _wish(asked)


def _wish(asked: PolicyRequest) -> None:
    with suppress(ValueError):
        wishes = PolicyOverrides().changed(
            preset=asked.preset, mode=asked.mode, overrides=asked.overrides
        )
        policy = effective_policy(
            PolicyOverrides(), wishes, default_preset="balanced", policy_of=preset_named
        )
        _strict(wishes.overrides or "{}")
        assert 0 <= policy.trigger_ratio <= 1


def _query(data: bytes, _: Path) -> None:
    fields = dict(
        parse_qsl(data.decode("latin-1"), max_num_fields=1_000) if data.count(b"&") < 1_000 else ()
    )
    for shape in Request.__subclasses__():
        with suppress(BadRequest):
            read_query(shape, fields)


def _body(data: bytes, _: Path) -> None:
    with suppress(BadRequest, TooLarge):
        read_posted(EventBody(data, LIMITS))
    with suppress(BadRequest):
        assert json.loads(add_fields(data, {"version": 1}))["version"] == 1


def _moment(data: bytes, _: Path) -> None:
    with suppress(BadRequest):
        parse_as_of(_text(data)[:300])


def _search(data: bytes, _: Path) -> None:
    first, _mark, second = _text(data).partition("\n")
    asked = SearchQuery.of(first[:1_000])
    for lookup in (*asked.lookups(), *asked.beginnings(), *asked.any_word()):
        for term in lookup:
            # Beyond ASCII, words have marks as well, which no index takes for syntax.
            assert all(one.isalnum() or not one.isascii() for one in term.text), (
                f"{term.text!r} is syntax to an index"
            )
    text = searchable({"role": "user", "content": second or first})
    if asked.words:
        asked.grade(text)
        asked.holds(text)
    terms(text)


# --- what is configured and read by commands


def _settings(data: bytes, folder: Path) -> None:
    path = folder / "settings"
    path.write_bytes(data)
    text = data.decode("utf-8", "ignore").replace("\0", "")
    named = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    for environ in (
        {"TURNFOLD_CONFIG": str(path)},
        {"TURNFOLD_SUMMARY_PROMPT": str(path)},
        {"TURNFOLD_REDACT_PATTERNS": str(path)},
        {name.strip().upper(): value for name, value in named.items()},
        {f"TURNFOLD_POLICY__{name.strip().upper()}": value for name, value in named.items()},
    ):
        # Python warns of expressions that it may read otherwise one day; they are expressions all the same.
        with suppress(StartError), catch_warnings(category=FutureWarning, action="ignore"):
            read_settings(environ)


def _ready(data: bytes, folder: Path) -> None:
    (folder / "turnfold.json").write_bytes(data)
    read_settings({"TURNFOLD_DATA_DIR": str(folder)})


def _tokens(data: bytes, folder: Path) -> None:
    path = folder / "tokens.json"
    path.write_bytes(data)
    with suppress(StartError):
        assert TokenRegistry(path).grant(f"Bearer {_text(data)[:200]}") is None


def _transcript(data: bytes, folder: Path) -> None:
    path = folder / "transcript.jsonl"
    path.write_bytes(data)
    with suppress(UnreadableTranscript):
        for told in read_conversations(path):
            assert [
                one for turn in turns(told.messages, told.machine_made) for one in turn.messages
            ] == list(told.messages)
            assert id_fault(told.conversation_id) is None
            json.dumps(told.messages)


def _shown(data: bytes, _: Path) -> None:
    for text in (_text(data), data.decode("latin-1")):
        shown = escaped(text)
        assert all(one.isprintable() or one in "\n\t" for one in shown), (
            "a terminal's cursor could move"
        )


# --- what models and children say


def _answer(data: bytes, _: Path) -> None:
    text = _text(data)
    for style in ("structured", "narrative"):
        for max_words in (0, 40):
            with suppress(SummarizerError):
                told, sections = parse_answer(text, style, max_words=max_words)
                assert told.strip()
                json.dumps(sections)
                assert _is_encodable(told) or not _is_encodable(text)
    check(
        ModelResponse(text, finish_reason=text[:10]),
        input_tokens=len(text),
        output_tokens=len(response_text(text)),
    )
    overflow_in_text(text)


def _frame(data: bytes, _: Path) -> None:
    async def messages(*parts: bytes) -> list[dict[str, Any] | None]:
        reader = asyncio.StreamReader()
        for part in parts:
            reader.feed_data(part)
        reader.feed_eof()
        bodies = [await read_frame(reader) for _ in parts]
        return [None if body is None else decode(body) for body in bodies]

    with suppress(ValueError):
        asyncio.run(messages(encode_frame(data)))
    with suppress(ValueError):
        asyncio.run(messages(data))
    value = {"text": _text(data)}
    assert asyncio.run(messages(encode_frame(encode(value)))) == [value]


def _refusal(data: bytes, _: Path) -> None:
    with suppress(ValueError, RecursionError):
        told = json.loads(data)
        if isinstance(told, dict):
            assert isinstance(error_from_json(told), RequestError)


def _cuts(data: bytes, _: Path) -> None:
    text = _text(data)
    with suppress(ValueError):
        TokenOffsets.parse(text)
    made = TokenOffsets.of(text, words)
    assert TokenOffsets.parse(made.encode()) == made
    assert made.characters == len(text)


# --- what is sent to models


def _window(data: bytes, _: Path) -> None:
    """A published turn, however odd, becomes lists that providers take, in both shapes."""
    try:
        arrival = decode_event(Delivery("turn.completed", data, 1, 1), count=words, limits=LIMITS)
    except BadEvent:
        return
    bodies = [json.loads(message.body) for message in arrival.messages]
    with suppress(CannotFit):
        compressed = LadderCompressor(count=words).compress(bodies, 400)
        assert not validation_errors(compressed.messages), validation_errors(compressed.messages)
    told = history(bodies)
    with suppress(CannotFit):
        planned = plan(told.stored, WindowRequest(budget_tokens=2_000), POLICY)
        rendered = told.rendered(planned)
        assert not validation_errors([json.loads(text) for text in rendered.messages])
        messages = [_strict(text) for text in to_anthropic(planned, rendered).messages]
        assert not anthropic_faults(messages), anthropic_faults(messages)


# --- what each understands

_EVENTS = [path.read_bytes() for path in sorted(GOLDEN.glob("[tu]*.json"))] + [
    b'{"event_id":"e","agent_id":"a","session_id":"s","messages":[{"is_meta":true,"role":"user","content":"Reflect."},{"role":"user"}]}',
    b'{"event_id":"e","agent_id":"a","session_id":"s","model":"m","limit_tokens":16000,"is_overflow":false,"message_id":"e#1"}',
    (
        b'{"event_id":"e","agent_id":"support","session_id":"user-42","messages":[{"role":"user","content":"Where is order 7341?"},'
        b'{"role":"assistant","content":null,"tool_calls":[{"id":"a","type":"function","function":{"name":"f","arguments":"{\\"p\\":[1.5e3]}"}},'
        b'{"id":"b","type":"function","function":{"name":"g","arguments":{}}}]},{"role":"tool","tool_call_id":"b","content":[{"type":"text",'
        b'"text":"42"}]}]}'
    ),
    (
        b'{"event_id":"e","agent_id":"a","session_id":"s","messages":[{"role":"assistant","thinking_blocks":[{"type":"thinking","thinking":"x",'
        b'"signature":"y"}],"content":[{"type":"image_url","image_url":{"url":"https://x/y.png"}},{"type":"file","file":{"file_data":"data:a/b;base64,AA"}}],'
        b'"function_call":{"name":"f","arguments":"{"},"refusal":"no"}]}'
    ),
]
_REQUESTS = [
    b"",
    b'{"max_tokens":4000,"model":"gpt-4.1","system_tokens":0,"mode":"normal","format":"anthropic","after":7,"wait_ms":0,"as_of":"e1#0"}',
    b'{"after_position":0,"limit":10,"message_ids":["e1#0"],"q":"order 7341","state":"live","role":"user","before_position":9}',
    b'{"version":1,"over":2,"entry":0,"line":0,"compaction_id":"abc","campaign_id":"c","style":"narrative","prompt":"Short.","at_once":2}',
    b'{"mode":"auto","preset":"rolling","overrides":{"trigger_ratio":0.5,"keep_messages":10,"summary_model":"openai/gpt","uses_model":true}}',
    b'{"dead_letter_ids":[1],"reason":"not_json","all":false,"after":0,"until":1,"as_of":3}',
]
_ANSWERS = [
    b'```json\n{"current_task":"Ship it","decisions":["use B"],"file_changes":[{"path":"a.py","change":"modified"}],"context":"They spoke."}\n```',
    b"<think>hm</think><summary>They looked for order 7341. It ships.</summary>",
    "抱歉，我无法总结。".encode(),
    b"This model's maximum context length is 8192 tokens. However, your messages resulted in 9000 tokens.",
]
_SETTINGS = [
    b'nats_url = "nats://127.0.0.1:4222"\nhttp_port = 80\npreset = "rolling"\n[policy]\nkeep_messages = 4\ntrigger_ratio = 0.5\n',
    b"TURNFOLD_MODE=auto\nTURNFOLD_HTTP_PORT=80\nMAX_CONTEXT_TOKENS=4000\nTURNFOLD_SUMMARY_TIMEOUT_SECONDS=1.5\nTURNFOLD_LOG_LEVEL=info\n",
    b"keep_messages=4\ntrigger_ratio=0.5\nuses_model=true\nsummary_model=openai/x\nstyle=narrative\n",
    b"# secrets\nsk-[a-z]{3,}\n(?i)bearer .*\n",
    b"Summarise in {words} words, {style}.",
]
_READY = [
    b'{"ready":true,"nats_url":"nats://127.0.0.1:4222","database_url":"sqlite+aiosqlite:///x.db","http_url":"http://127.0.0.1:8080"}'
]
_CLAUDE = [
    (
        b'{"type":"user","uuid":"u1","sessionId":"s","message":{"role":"user","content":"Look."}}\n'
        b'{"type":"assistant","uuid":"u2","sessionId":"s","isSidechain":true,"parentUuid":"u1","message":{"id":"m","model":"x","content":[{"type":'
        b'"thinking","thinking":"hm"},{"type":"tool_use","id":"t","name":"Read","input":{"p":1}},{"type":"text","text":"So."}]}}\n'
        b'{"type":"user","uuid":"u3","sessionId":"s","message":{"content":[{"type":"tool_result","tool_use_id":"t","is_error":true,"content":'
        b'[{"type":"image","source":{"media_type":"image/png","data":"AA"}}]}]}}\n'
    )
]
_TRANSCRIPTS = [
    b'{"id":"c1","agent":"support","messages":[{"role":"user","content":"Hi"},{"role":"assistant","content":"Hello"}]}\n',
    b'[{"role":"user","content":"Hi"},{"role":"assistant","content":"Hello"}]',
    b'{"role":"user","content":"Hi"}\n{"role":"tool","tool_call_id":"a","content":"x"}\n',
    b'[{"id":1,"messages":[{"role":"system","content":"x"}]},\n{"session_id":"b","messages":[{"role":"user","content":null}]}]',
    b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff",
]
_WORDS = [
    b"order 7341\nWhere is order 7341, and src/a.py?",
    "航班 SK-1472\n航班 SK-1472 到奥斯陆".encode(),
    b'"a" OR b* NEAR(c)\n' + b"word " * 50,
]

DECODERS: Sequence[Decoder] = (
    Decoder("event", _EVENTS, _event),
    Decoder("claim", _EVENTS, _claim),
    Decoder(
        "subject",
        [
            b"support.user-42",
            b"%E6%BC%A2.a%2Eb",
            b"turn.completed.support.user-42",
            b"a",
            b"%20.%25",
        ],
        _subject,
    ),
    Decoder(
        "usage",
        [
            b'{"prompt_tokens":1,"completion_tokens":2}',
            b'{"input_tokens":1,"cache_read_input_tokens":2,"output_tokens":3}',
        ],
        _usage,
    ),
    Decoder("request", _REQUESTS, _request),
    Decoder("body", [*_REQUESTS, *_EVENTS], _body),
    Decoder(
        "query",
        [
            b"max_tokens=4000&model=x&as_of=3&wait_ms=0",
            b"q=order&limit=5&state=live",
            b"version=1&entry=0",
        ],
        _query,
    ),
    Decoder(
        "moment",
        [b"3", b"e1#0", b"2026-11-20T10:00:00Z", b"2026-11-20 10:00:00.123 05:30"],
        _moment,
    ),
    Decoder("search", _WORDS, _search),
    Decoder("settings", _SETTINGS, _settings),
    Decoder("ready", _READY, _ready),
    Decoder("tokens", [b'{"00ff":["support","*"]}', b"{}"], _tokens),
    Decoder("transcript", [*_TRANSCRIPTS, *_CLAUDE], _transcript),
    Decoder("shown", [b"plain\ttext\n", b"\x1b]0;title\x07", b"\xc2\x9b2J"], _shown),
    Decoder("answer", _ANSWERS, _answer),
    Decoder("frame", [b'{"id":1}', encode_frame(encode({"id": 0})), b"\xff\xff\xff\xff"], _frame),
    Decoder(
        "refusal",
        [b'{"code":"cannot_fit","message":"m","needed_tokens":5}', b'{"code":"conflict"}'],
        _refusal,
    ),
    Decoder("cuts", [b"256.80.3 10.2", b"line\n" * 100], _cuts),
    Decoder("window", _EVENTS, _window),
)
