"""Whatever is said, the ledger holds it to the letter, names where it stands, keeps to its cap and is the same every time."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.histories import counter
from turnfold.core.summary.extractive.extract import extract
from turnfold.core.summary.ledger.entries import entry_values
from turnfold.core.summary.ledger.left_out import LeftOut, mark_of
from turnfold.core.summary.redaction import readable_sources
from turnfold.core.summary.sources import Draft, PreviousSummary, Source, SummaryJob, word_count
from turnfold.core.summary.tool_calls.arguments import argument_texts

VALUES = st.one_of(
    st.sampled_from(
        [
            "/srv/app/config.toml", "config.toml", "app/config.toml", "src/a.py", "https://example.org/a?b=1&c=2", "10.0.0.5:5433", "OPS-1234",
            "8851afb5cabae5df91a979048f765601", "3f2a8c1e-9b7d-4e55-8a10-6c2f0d9e7b31", "350 ms", "80%", "$2,544", "预算100-150元", "3月14日", "v2.3.1-rc1",
            "mia@example.com", "May 27, 2024", "2.5MB", "#4ade80", "x|y", "C:\\Users\\mia", "5\nms", "\x1b[32m17 s\x1b[39m", "</td>12 kg<br/>",
        ]
    ),
    st.integers(10, 99_999).map(lambda number: f"/var/log/part{number % 7}/job-{number}.log"),
    st.integers(10, 99_999).map(lambda number: f"{number} ms"),
    st.integers(10, 99_999).map(lambda number: f"KX-{number}"),
)  # fmt: skip
WORDS = st.sampled_from(
    [
        "def load_rates(order_id):\n",
        "\nrates = load_rates(order_id)  # of RateTable",
        "Let's go with",
        "please never touch",
        "Error:",
        "必须",
        "就选",
        "it is",
        "is at",
        "我们的地址是",
        "\n",
        "from now on use",
        "**",
        ". ",
    ]
)
TEXTS = st.lists(st.one_of(VALUES, WORDS, st.text(max_size=8)), max_size=25).map(" ".join)
COMMANDS = st.sampled_from(
    [
        "cd /w && npm test",
        "git commit -m 'x | y'",
        "cat > /tmp/y.sh <<EOF\nrm -rf /\nEOF",
        "make  all; make bench 2>&1",
        "sed -i s/a/b/ src/x.ts",
    ]
)
CALLS = st.one_of(
    COMMANDS.map(lambda command: ("bash", json.dumps({"command": command}))),
    VALUES.map(
        lambda value: ("edit", json.dumps({"path": value, "note": value, "order_id": value}))
    ),
    st.text(max_size=9).map(lambda text: ("read", text)),
)
JSONS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5), lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=3), max_leaves=12
)  # fmt: skip


@st.composite
def batches(draw: st.DrawFn, most: int = 3) -> list[tuple[Source, ...]]:
    """Messages of a few evictions, each message with an id of its own."""
    found: list[tuple[Source, ...]] = []
    for number in range(draw(st.integers(1, most))):
        roles = draw(
            st.lists(st.sampled_from(["user", "assistant", "tool"]), min_size=1, max_size=5)
        )
        found.append(
            tuple(
                Source(
                    f"b{number}#{index}", role, draw(TEXTS), tuple(draw(st.lists(CALLS, max_size=2))) if role == "assistant" else (),
                    is_error=role == "tool" and draw(st.booleans()),
                )
                for index, role in enumerate(roles)
            )
        )  # fmt: skip
    return found


def chained(
    given_batches: Sequence[tuple[Source, ...]], *, cap: int, request: str | None = None
) -> Draft:
    """The versions of these evictions, one on the other; the last one, as a store gives it back."""
    draft: Draft | None = None
    for sources in given_batches:
        draft = extract(job(sources, draft, cap=cap, request=request), count=counter())
    assert draft is not None
    return draft


def job(
    sources: tuple[Source, ...], before: Draft | None, *, cap: int, request: str | None = None
) -> SummaryJob:
    previous = (
        PreviousSummary(before.text, json.loads(json.dumps(before.sections)), before.ledger)
        if before
        else None
    )
    return SummaryJob(
        sources=sources, previous=previous, newest_request=request, ledger_max_tokens=cap
    )


def texts_of(source: Source) -> list[str]:
    """All that a message says: its text and what its calls were given."""
    (read,) = readable_sources([source])
    given = [json_texts(arguments) for _, arguments in read.calls]
    return [read.text, *(text for texts in given for text in texts)]


def json_texts(arguments: str) -> list[str]:
    try:
        found = json.loads(arguments)
    except ValueError:
        return []
    return (
        [
            *(text for _, text in argument_texts(arguments)),
            *(one for one in found.values() if isinstance(one, str)),
        ]
        if isinstance(found, dict)
        else []
    )


@pytest.mark.proves("S6", "C41", "F3")
@given(batches(), st.integers(40, 600))
def test_every_value_stands_to_the_letter_in_each_of_its_messages(
    some: list[tuple[Source, ...]], cap: int
) -> None:
    said = {source.message_id: texts_of(source) for sources in some for source in sources}

    draft = chained(some, cap=cap)

    for entry, stored in zip(
        draft.ledger, json.loads(json.dumps(draft.sections["provenance"])), strict=True
    ):
        for value, origin in entry_values(entry, stored):
            assert origin.message_ids, f"{entry!r} does not say where it comes from"
            for message_id in origin.message_ids:
                # A long line ends with the mark of its cut.
                whole = value.text.removesuffix("…")
                assert any(whole in text for text in said[message_id]), (
                    f"{value} does not stand in {said[message_id]!r}"
                )


@pytest.mark.proves("S6", "S10")
@given(batches(), st.integers(0, 400), st.none() | TEXTS)
def test_ledger_keeps_to_its_cap(
    some: list[tuple[Source, ...]], cap: int, request: str | None
) -> None:
    draft = chained(some, cap=cap, request=request)

    never_left_out = [
        entry for entry in draft.ledger if entry.startswith(("request ", "left_out "))
    ]
    assert counter()("\n".join(draft.ledger)) <= max(cap, counter()("\n".join(never_left_out)))


@pytest.mark.proves("S11")
@given(batches(), st.integers(200, 400), TEXTS)
def test_text_and_ledger_of_a_narrative_summary_share_its_words(
    some: list[tuple[Source, ...]], words: int, request: str
) -> None:
    asked = SummaryJob(sources=some[-1], newest_request=request, style="narrative", max_words=words)

    draft = extract(asked, count=counter())

    entries = [entry for entry in draft.ledger if not entry.startswith("request ")]
    if entries[:-1]:
        assert word_count("\n".join(entries)) <= words - asked.text_words
    assert word_count(draft.text) <= asked.text_words


@pytest.mark.proves("S6")
@given(batches(), st.integers(30, 400))
def test_same_messages_folded_in_twice_change_nothing(
    some: list[tuple[Source, ...]], cap: int
) -> None:
    once = chained(some, cap=cap)

    twice = extract(job(some[-1], once, cap=cap), count=counter())

    assert twice.ledger == once.ledger
    assert {name: twice.sections[name] for name in ("provenance", "left_out", "names")} == {
        name: once.sections[name] for name in ("provenance", "left_out", "names")
    }


@pytest.mark.proves("S6")
def test_a_stated_value_in_a_line_of_the_ledger_is_not_counted_as_left_out() -> None:
    """S6: it was, until the same messages were folded in again."""
    path = "/srv/app/config.toml"
    first = (
        Source("b1#0", "user", f"{path} {path}"),
        Source(
            "b1#1",
            "user",
            f"{path} 10.0.0.5:5433 src/a.py {path} 3f2a8c1e-9b7d-4e55-8a10-6c2f0d9e7b31 config.toml "
            "3月14日 config.toml https://example.org/a?b=1&c=2 def load_rates(order_id):\n"
            " /var/log/part6/job-1000.log /var/log/part4/job-11.log",
        ),
        Source("b1#2", "assistant", "", (("bash", '{"command": "cd /w && npm test"}'),)),
        Source(
            "b1#3",
            "user",
            f"{path} {path} {path} {path} {path} 8851afb5cabae5df91a979048f765601 {path} $2,544 80% "
            "def load_rates(order_id):\n",
        ),
    )
    some = [first, (Source("b2#0", "user", "/var/log/part3/job-10.log"),)]

    for cap in range(170, 240):
        once = chained(some, cap=cap)
        twice = extract(job(some[-1], once, cap=cap), count=counter())

        assert twice.ledger[-1] == once.ledger[-1], cap


@pytest.mark.proves("S6")
def test_a_full_ledger_stays_when_the_same_messages_are_folded_in_again() -> None:
    """S6: the prices of values are estimates; what fitted once must not leave for its estimate."""
    first = Source(
        "b0#0",
        "assistant",
        "KX-1420 595 ms src/a.py KX-270 KX-9228 5\nms /var/log/part3/job-2425.log "
        "/var/log/part1/job-58479.log Error: 11469 ms KX-3657 125 ms 80% . KX-2528 必须 KX-539 99998 ms",
    )
    second = (
        Source("b1#0", "tool", "/var/log/part2/job-3019.log KX-30272 218 ms", is_error=True),
        Source(
            "b1#2",
            "assistant",
            "93 ms Let's go with /var/log/part0/job-259.log 272 ms ** Error: KX-498",
            (("read", "¡"), ("edit", '{"path": "KX-13138", "order_id": "KX-13138"}')),
        ),
        Source("b1#3", "assistant", "13489 ms"),
    )
    for cap in range(30, 200):
        once = chained([(first,), second], cap=cap)
        twice = extract(job(second, once, cap=cap), count=counter())

        assert twice.ledger == once.ledger


@pytest.mark.proves("S6")
@given(batches(), st.integers(30, 400))
def test_same_messages_give_the_same_order(some: list[tuple[Source, ...]], cap: int) -> None:
    assert chained(some, cap=cap) == chained(some, cap=cap)


@pytest.mark.proves("S6", "C54")
@given(
    batches(most=1),
    st.fixed_dictionaries(
        {},
        optional=dict.fromkeys(
            ("provenance", "left_out", "names", "sources", "file_changes", "tasks", "context"),
            JSONS,
        ),
    ),
)
def test_whatever_was_stored_beside_the_ledger_its_values_are_carried_or_counted(
    some: list[tuple[Source, ...]], sections: dict[str, Any]
) -> None:
    ledger = (
        "request now what",
        "path /srv/old.py",
        "measure 350 ms|12 s",
        "uuid",
        "nothing known",
        "left_out many",
        "id KX-1 KX-2",
    )
    previous = PreviousSummary("They spoke.", sections, ledger)

    draft = extract(SummaryJob(sources=some[0], previous=previous), count=counter())

    whole = "\n".join(draft.ledger)
    marks = LeftOut.of(PreviousSummary("", draft.sections)).marks
    values = ("/srv/old.py", "350 ms", "12 s", "KX-1", "KX-2")
    assert [text for text in values if text not in whole and mark_of(text) not in marks] == []


@pytest.mark.proves("S6", "C54")
@pytest.mark.parametrize("provenance", [["e1#0", 112], [["e1#0"], 112], [["e1#0", "e7#0"], 112, 3]])
def test_every_shape_a_version_was_ever_stored_in_names_its_message(provenance: list[Any]) -> None:
    ((value, origin),) = entry_values("path /srv/app.py", provenance)

    assert (value.text, origin.message_ids[0], origin.rank) == ("/srv/app.py", "e1#0", 112)


@pytest.mark.proves("S6", "O10")
def test_a_value_names_two_messages_at_most_and_only_by_ids() -> None:
    ((_, of_many),) = entry_values("path /srv/app.py", [["e1#0", "e7#0", "e9#0"], 112, 3])
    ((_, of_one),) = entry_values("path /srv/app.py", [["e1#0", 7, "e9#0"], 112, 3])

    assert (of_many.message_ids, of_one.message_ids) == (("e1#0", "e7#0"), ("e1#0",))


@pytest.mark.proves("S6", "C54")
@pytest.mark.parametrize("lost", [None, "e0#0", ["e0#0"], ["e0#0", "112"]])
def test_a_value_whose_origin_is_lost_ranks_as_if_an_assistant_had_named_it(lost: Any) -> None:
    text = "The service at /srv/app.py waits 350 ms, see OPS-1234 and 10.0.0.5:5433."
    draft = extract(job((Source("e0#0", "assistant", text),), None, cap=300), count=counter())
    ranks = dict(
        zip(draft.ledger, (stored[1] for stored in draft.sections["provenance"]), strict=True)
    )

    read = {entry: origin.rank for entry in ranks for _, origin in entry_values(entry, lost)}

    assert len(ranks) >= 4
    assert read == ranks
