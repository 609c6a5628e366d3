"""Twenty summaries, each written on the one before: what a user stated stays, the size does not grow, nothing is told twice."""

import json

import pytest

from tests.histories import counter
from turnfold.core.summary.extractive.extract import extract
from turnfold.core.summary.sources import Draft, PreviousSummary, Source, SummaryJob

VERSIONS = 20
PLANTED = {
    "We keep the settings in /srv/app/config.toml.": "/srv/app/config.toml",
    "The dashboard is at https://grafana.example.org/d/a1?var=x.": "https://grafana.example.org/d/a1?var=x",
    "Staging listens on 10.0.0.5:5433.": "10.0.0.5:5433",
    "The failed job is 3f2a8c1e-9b7d-4e55-8a10-6c2f0d9e7b31.": "3f2a8c1e-9b7d-4e55-8a10-6c2f0d9e7b31",
    "It broke with commit 8851afb5cabae5df91a979048f765601.": "8851afb5cabae5df91a979048f765601",
    "The contract number is KX-20417.": "KX-20417",
    "My user id is mia_li_3668.": "mia_li_3668",
    "The timeout there is 350 ms.": "350 ms",
    "The release is v2.3.1-rc1.": "v2.3.1-rc1",
    "Write to mia@example.com when it is done.": "mia@example.com",
    "We have a budget of $2,544 for it.": "$2,544",
    "From now on answer in metric units.": "metric units",
    "I work as a cartographer.": "cartographer",
    "Let's go with exponential backoff.": "exponential backoff",
    "我叫张曼婷。": "张曼婷",
    "订单号是 DD20417。": "DD20417",
    "预算不能超过500元。": "500元",
    "配置文件在 /srv/应用/app.yaml 旁边的 conf/prod.yaml。": "conf/prod.yaml",
    "会议在3月14日。": "3月14日",
    "就用指数退避。": "指数退避",
}  # fmt: skip


def planted() -> list[Source]:
    """The first messages: facts the user states, and answers to them."""
    found: list[Source] = []
    for number, fact in enumerate(PLANTED):
        found += [
            Source(f"p{number}#0", "user", fact),
            Source(f"p{number}#1", "assistant", "Noted, thank you for telling me."),
        ]
    return found


def filler(version: int) -> list[Source]:
    """A batch of later messages that is full of other values."""
    found: list[Source] = []
    for turn in range(8):
        number = version * 100 + turn
        call = (
            "bash",
            json.dumps(
                {
                    "command": f"make part-{number} && ./deploy.sh --to host-{number}.example.org:8{number % 1000:03}"
                }
            ),
        )
        printed = "\n".join(
            f"/usr/lib/x86/{number}/file-{line}.so {line * 37 + number} ms {number * 7919 + line:x}"
            for line in range(30)
        )
        found += [
            Source(
                f"f{number}#0",
                "user",
                "Can you carry on with the next part of it, and tell me how people did that in the past?",
            ),
            Source(
                f"f{number}#1",
                "assistant",
                f"Part {number} of src/part_{number}/main.py is running.",
                (call,),
            ),
            Source(f"f{number}#2", "tool", printed, tool_name="bash"),
        ]
    return found


def chain(batches: list[list[Source]]) -> list[Draft]:
    """The versions of these batches, each written on the one before as a store gives it back."""
    drafts: list[Draft] = []
    for batch in batches:
        before = drafts[-1] if drafts else None
        previous = (
            PreviousSummary(before.text, json.loads(json.dumps(before.sections)), before.ledger)
            if before
            else None
        )
        drafts.append(
            extract(
                SummaryJob(sources=tuple(batch), previous=previous, newest_request="Carry on."),
                count=counter(),
            )
        )
    return drafts


@pytest.fixture(scope="module")
def drafts() -> list[Draft]:
    return chain(
        [planted()[:20], planted()[20:], *(filler(number) for number in range(VERSIONS - 2))]
    )


def test_every_version_of_the_chain_was_written(drafts: list[Draft]) -> None:
    assert len(drafts) == VERSIONS


@pytest.mark.proves("S6", "C42")
def test_what_the_user_stated_first_is_there_after_twenty_versions(drafts: list[Draft]) -> None:
    artifact = "\n".join([drafts[-1].text, *drafts[-1].ledger])

    assert [fact for fact, answer in PLANTED.items() if answer not in artifact] == []


@pytest.mark.proves("S10")
def test_size_stays_within_its_caps_over_twenty_versions(drafts: list[Draft]) -> None:
    assert max(counter()("\n".join(draft.ledger)) for draft in drafts) <= 2_000
    assert max(counter()(draft.text) for draft in drafts) <= 1_200
    settled = [len(json.dumps(draft.sections)) for draft in drafts[VERSIONS // 2 :]]
    assert max(settled) <= settled[0] * 1.25


@pytest.mark.proves("S10")
def test_nothing_is_told_twice_after_twenty_versions(drafts: list[Draft]) -> None:
    for draft in drafts:
        lines = [line for line in draft.text.split("\n") if line.startswith("- ")]
        assert len(lines) == len(set(lines))
        assert len(draft.ledger) == len(set(draft.ledger))
        assert sum("The user asked:" in line for line in draft.text.split("\n")) <= 1


@pytest.mark.proves("S6")
def test_what_was_left_out_is_counted(drafts: list[Draft]) -> None:
    told = [
        int(draft.ledger[-1].split()[1])
        for draft in drafts
        if draft.ledger[-1].startswith("left_out ")
    ]

    assert told == sorted(told)
    assert told[-1] > 1_000


@pytest.mark.proves("S6")
def test_value_that_was_left_out_and_comes_back_outranks_those_that_came_once() -> None:
    printed = "\n".join(f"/usr/lib/x86/some/where/deep/file-{number}.so" for number in range(400))
    back = "/opt/tools/with/a/very/long/name/that/does/not/fit/at/first/because/it/is/dear/run.sh"
    once = [
        Source("e1#0", "tool", printed, tool_name="bash"),
        Source("e2#0", "tool", back, tool_name="bash"),
    ]

    first, second = chain(
        [
            once,
            [
                Source(
                    "e3#0", "tool", f"{back}\n{printed.replace('deep', 'else')}", tool_name="bash"
                )
            ],
        ]
    )

    assert not any(back in entry for entry in first.ledger)
    assert any(back in entry for entry in second.ledger)


@pytest.mark.proves("F3")
def test_line_of_the_text_names_the_message_it_was_taken_from_also_when_it_was_carried(
    drafts: list[Draft],
) -> None:
    said = {source.message_id: source.text for source in planted()}

    lines = drafts[-1].text.split("\n")
    sources = drafts[-1].sections["sources"]

    assert len(sources) == len(lines)
    named = [
        (line.removeprefix("- "), ids)
        for line, ids in zip(lines, sources, strict=True)
        if ids and ids[0] in said
    ]
    assert len(named) > 3
    assert [line for line, ids in named if line not in said[ids[0]]] == []
