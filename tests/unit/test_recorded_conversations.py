"""What the core makes of the conversations under examples/, compared with tests/expected/; to write that anew, run this as a module."""

import json
from collections.abc import Iterator, Sequence
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from tests.histories import Json, Said, counter, history, plan
from turnfold.core.eviction.choose import decide_eviction
from turnfold.core.eviction.triggers import Trigger, TriggerLimits, load_of
from turnfold.core.history.blocks import group
from turnfold.core.history.priority import classify
from turnfold.core.policy.presets import PRESETS
from turnfold.core.summary.eviction_digest import digest
from turnfold.core.summary.extractive.extract import extract
from turnfold.core.summary.prompt import build_prompt, message_data
from turnfold.core.summary.redaction import readable_sources
from turnfold.core.summary.sources import Draft, PreviousSummary, Source, SummaryJob
from turnfold.core.text.estimates import token_upper_bound
from turnfold.core.text.search import SearchQuery, ranked, ranked_by_any, searchable
from turnfold.core.text.tokens import count_message, estimate, text_of
from turnfold.core.text.values import values_in
from turnfold.core.text.words import terms
from turnfold.core.window.framing import Placement
from turnfold.core.window.rendering.anthropic import to_anthropic
from turnfold.core.window.window import WindowRequest
from turnfold.errors import CannotFit

ROOT = Path(__file__).parents[2]
EXPECTED = ROOT / "tests" / "expected"
NAMES = ("coding-agent", "support-chat", "zh-travel")
QUERIES = (
    "price",
    "refund order",
    "src/",
    "test passed",
    "酒店",
    "350 EUR",
    "the customer",
    "config.py",
    "火车 元",
    "e-mail",
)
BATCHES = 3
SECTIONS = (
    "measures",
    "values",
    "digests",
    "summaries",
    "prompts",
    "windows",
    "evictions",
    "searches",
    "terms",
)


@pytest.mark.proves("O10")
@pytest.mark.parametrize("section", SECTIONS)
@pytest.mark.parametrize("name", NAMES)
def test_a_conversation_gives_what_it_gave_before(name: str, section: str) -> None:
    """A change that is meant to give other results comes with them: run `python -m tests.unit.test_recorded_conversations` and read the difference."""
    expected: dict[str, Any] = json.loads((EXPECTED / f"{name}.json").read_text())

    assert set(expected) == set(SECTIONS)
    assert results(name)[section] == expected[section]


@cache
def results(name: str) -> dict[str, Any]:
    """Return everything that is compared for one conversation."""
    bodies: list[Json] = json.loads((ROOT / "examples" / f"{name}.jsonl").read_text())["messages"]
    sources = list(_sources(bodies))
    spoken = [source for source in sources if source.role not in ("system", "tool")]
    found = {
        "measures": [_measures(body) for body in bodies],
        "values": [
            [f"{value.kind} {value.text}" for value in values_in(text_of(body))] for body in bodies
        ],
        "digests": {
            str(most): digest(
                spoken, max_tokens=most, count=counter(), silent=len(sources) - len(spoken)
            )[0].split("\n")
            for most in (60, 300, 1_500)
        },
        "summaries": {
            f"{style} {most}": _summaries(sources, style, most)
            for style in ("structured", "narrative")
            for most in (90, 400, 1_200)
        },
        "prompts": [
            _mark(message_data(source, number))
            for number, source in enumerate(readable_sources(sources), start=1)
        ],
        "windows": dict(_windows(bodies)),
        "evictions": dict(_evictions(bodies)),
        "searches": {query: _search(query, bodies) for query in QUERIES},
        "terms": [_mark(sorted(terms(searchable(body)) or ())) for body in bodies],
    }
    return dict(json.loads(json.dumps(found)))


def _sources(bodies: Sequence[Json]) -> Iterator[Source]:
    names: dict[str, str] = {}
    for number, body in enumerate(bodies):
        calls = [
            (call["id"], call["function"]["name"], call["function"]["arguments"])
            for call in body.get("tool_calls", ())
        ]
        names |= {call_id: name for call_id, name, _ in calls}
        made = tuple((name, arguments) for _, name, arguments in calls)
        tool_name = names.get(body.get("tool_call_id", ""))
        is_error = body["role"] == "tool" and "rror" in text_of(body)[:200]
        yield Source(
            f"e{number}#0",
            body["role"],
            text_of(body),
            made,
            tool_name=tool_name,
            is_error=is_error,
        )


def _measures(body: Json) -> list[Any]:
    measured, text = count_message(body, counter()), text_of(body)
    sizes = [measured.tokens, measured.content_tokens, measured.characters, measured.lines]
    return [
        *sizes,
        str(classify(body)),
        round(estimate(text)),
        token_upper_bound(text[:300]),
        _mark(measured.cuts),
    ]


def _summaries(sources: Sequence[Source], style: str, most: int) -> list[Any]:
    """Summaries of the conversation in batches, each over the one before."""
    told: list[Any] = []
    before: Draft | None = None
    size = -(-len(sources) // BATCHES)
    for start in range(0, len(sources), size):
        previous = (
            None if before is None else PreviousSummary(before.text, before.sections, before.ledger)
        )
        batch = sources[start : start + size]
        request = next((source.text for source in reversed(batch) if source.role == "user"), None)
        job = SummaryJob(
            sources=tuple(batch),
            previous=previous,
            newest_request=request,
            style=style,
            max_tokens=most,
            ledger_max_tokens=most // 2,
        )
        prompt = build_prompt(job, boundary="0f")
        before = extract(job, count=counter())
        origins = {name: before.sections[name] for name in ("provenance", "sources", "left_out")}
        told.append(
            {
                "text": before.text.split("\n"),
                "ledger": list(before.ledger),
                "origins": _mark(origins),
                "prompt": _mark(prompt),
            }
        )
    return told


def _windows(bodies: Sequence[Json]) -> Iterator[tuple[str, Any]]:
    pending = len(bodies) // 3
    said = [
        Said(
            body, is_pending=number < pending and body["role"] != "system", priority=classify(body)
        )
        for number, body in enumerate(bodies)
    ]
    for factor in (1.0, 1.2):
        session = history(
            said,
            summary="They spoke of this and that.\n" * 9,
            ledger=["id KX-1", "path /srv/a.toml"],
            covered=7,
            factor=factor,
        )
        for preset, policy in PRESETS.items():
            for budget in (700, 2_000, 6_000):
                for placement in Placement:
                    asked = WindowRequest(
                        budget_tokens=budget, placement=placement, is_emergency=budget == 2_000
                    )
                    yield f"{preset} {budget} {placement} {factor}", _window(session, asked, policy)


def _window(session: Any, asked: WindowRequest, policy: Any) -> Any:
    try:
        made = plan(session.stored, asked, policy)
    except CannotFit as error:
        return str(error)
    rendered = session.rendered(made)
    anthropic = to_anthropic(made, rendered)
    account = made.account
    counts = [
        account.shown,
        account.trimmed,
        account.folded,
        account.covered,
        account.pending_shown,
        account.pending_digested,
    ]
    return [
        made.tokens,
        counts,
        _mark(
            [
                list(rendered.messages),
                rendered.summary_text,
                list(anthropic.messages),
                anthropic.system,
            ]
        ),
    ]


def _evictions(bodies: Sequence[Json]) -> Iterator[tuple[str, Any]]:
    messages = history(bodies).stored.messages
    for preset, policy in PRESETS.items():
        for window in (4_000, 16_000):
            for length in range(10, len(messages) + 1, 10):
                live = messages[:length]
                due = TriggerLimits.of(policy, model_window=window).fired(load_of(live))
                evicted = [decide_eviction(live, policy, trigger, now_ms=0) for trigger in Trigger]
                sizes = [len(leaving) for leaving in evicted]
                yield (
                    f"{preset} {window} {length}",
                    [[str(one) for one in due], sizes, len(group(live).blocks)],
                )


def _search(query: str, bodies: Sequence[Json]) -> list[Any]:
    question = SearchQuery.of(query)
    texts = {place: searchable(body) for place, body in enumerate(bodies)}
    graded = {
        place: grade for place, text in texts.items() if (grade := question.grade(text)) is not None
    }
    best = [[one.position, one.score] for one in ranked(question, graded)[:8]]
    return [
        best,
        [[one.position, one.score] for one in ranked_by_any(question, texts)[:5]],
        [list(map(str, one)) for one in question.lookups()],
    ]


def _mark(value: Any) -> str:
    return sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:12]


def _as_text(found: dict[str, Any]) -> str:
    """Return the results as JSON with one entry per line, so that a difference is short."""
    parts: list[str] = []
    for name, entries in found.items():
        if isinstance(entries, dict):
            lines = [
                f"  {json.dumps(key, ensure_ascii=False)}: {json.dumps(one, ensure_ascii=False)}"
                for key, one in entries.items()
            ]
            parts.append(f" {json.dumps(name)}: {{\n" + ",\n".join(lines) + "\n }")
        else:
            lines = [f"  {json.dumps(one, ensure_ascii=False)}" for one in entries]
            parts.append(f" {json.dumps(name)}: [\n" + ",\n".join(lines) + "\n ]")
    return "{\n" + ",\n".join(parts) + "\n}\n"


if __name__ == "__main__":
    EXPECTED.mkdir(exist_ok=True)
    for conversation in NAMES:
        (EXPECTED / f"{conversation}.json").write_text(_as_text(results(conversation)))
