"""The descriptions of the interfaces: complete, valid, always the same, and readable as a page."""

import asyncio
import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import httpx
import jsonschema_rs
import nats
import pytest
from fastapi.openapi.models import OpenAPI
from faststream.specification.asyncapi.v3_0_0.schema import ApplicationSchema

from tests.console.chromium import CHROMIUM, MISSING, chromium
from tests.running_system import running_parts
from turnfold.contracts.catalog import REQUESTS
from turnfold.contracts.event_models import EVENTS
from turnfold.contracts.notice_models import NOTICE_MODELS

Json = dict[str, Any]
DESCRIPTIONS = ("/openapi.json", "/asyncapi.json", "/docs")
TEXT_PAGES = {"/metrics", "/docs", "/v1/agents/{agent_id}/sessions/{session_id}/changes"}
OPEN_PAGES = {"/healthz", "/readyz"}


def references(value: Any) -> Iterator[str]:
    """Return every `$ref` in a document."""
    if isinstance(value, dict):
        if isinstance(reference := value.get("$ref"), str):
            yield reference
        for part in value.values():
            yield from references(part)
    elif isinstance(value, list):
        for part in value:
            yield from references(part)


def resolved(document: Json, reference: str) -> Any:
    """Return the part that a `$ref` names."""
    part: Any = document
    for name in reference.removeprefix("#/").split("/"):
        part = part[name]
    return part


def example_faults(document: Json, schema: Json, example: Any) -> list[str]:
    """Return why an example does not match its schema."""
    whole = schema | {"components": document["components"]}
    return [
        error.message for error in jsonschema_rs.Draft202012Validator(whole).iter_errors(example)
    ]


async def descriptions(http_url: str) -> dict[str, httpx.Response]:
    async with httpx.AsyncClient(base_url=http_url, trust_env=False, timeout=60) as http:
        return {path: (await http.get(path)).raise_for_status() for path in DESCRIPTIONS}


async def descriptions_of_two_processes(folder: Path) -> list[dict[str, httpx.Response]]:
    async with running_parts(folder) as parts:
        async with parts.running("query"):
            first = [await descriptions(parts.http_url) for _ in range(2)]
        async with parts.running("query"):
            return [*first, await descriptions(parts.http_url)]


@pytest.fixture(scope="module")
def all_served(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, httpx.Response]]:
    """The descriptions by path: twice of one process, and once of another."""
    return asyncio.run(descriptions_of_two_processes(tmp_path_factory.mktemp("parts")))


@pytest.fixture
def served(all_served: list[dict[str, httpx.Response]]) -> dict[str, httpx.Response]:
    """The descriptions by path."""
    return all_served[0]


@pytest.fixture
def openapi(served: dict[str, httpx.Response]) -> Json:
    document: Json = served["/openapi.json"].json()
    return document


@pytest.fixture
def asyncapi(served: dict[str, httpx.Response]) -> Json:
    document: Json = served["/asyncapi.json"].json()
    return document


def operations(openapi: Json) -> Iterator[tuple[str, str, Json]]:
    for path, methods in openapi["paths"].items():
        for method, operation in methods.items():
            yield method, path, operation


def contents(operation: Json) -> Iterator[Json]:
    """Return the JSON content of the body and of each answer of an operation."""
    for part in (operation.get("requestBody", {}), *operation["responses"].values()):
        if "application/json" in part.get("content", {}):
            yield part["content"]["application/json"]


@pytest.mark.proves("V3", "V4")
def test_the_descriptions_are_the_same_whenever_and_by_whichever_process_they_are_made(
    all_served: list[dict[str, httpx.Response]],
) -> None:
    for path in DESCRIPTIONS:
        assert len({served[path].content for served in all_served}) == 1, path


@pytest.mark.proves("V3")
def test_a_body_is_required_unless_an_empty_one_is_valid(openapi: Json) -> None:
    schemas = openapi["components"]["schemas"]
    for method, path, operation in operations(openapi):
        if body := operation.get("requestBody"):
            schema = body["content"]["application/json"]["schema"]
            names = [one["$ref"].rpartition("/")[2] for one in schema.get("oneOf", [schema])]
            expected = all(schemas[name].get("required") for name in names)
            assert body["required"] is expected, (method, path)


@pytest.mark.proves("V3")
def test_both_documents_are_valid_and_all_their_references_exist(
    openapi: Json, asyncapi: Json
) -> None:
    OpenAPI.model_validate(openapi)
    ApplicationSchema.model_validate(asyncapi)

    for document in (openapi, asyncapi):
        for reference in references(document):
            assert resolved(document, reference) is not None
        for schema in document["components"]["schemas"].values():
            jsonschema_rs.meta.validate(schema)


@pytest.mark.proves("V3")
def test_each_operation_has_models_errors_security_a_topic_and_examples(openapi: Json) -> None:
    topics = {tag["name"] for tag in openapi["tags"]}
    seen = list(operations(openapi))

    assert len({operation["operationId"] for _, _, operation in seen}) == len(seen) >= 29
    assert set(openapi["components"]["securitySchemes"]) == {"bearer"}
    for method, path, operation in seen:
        assert operation["summary"]
        assert set(operation["tags"]) <= topics
        assert operation["security"] == ([] if path in OPEN_PAGES else [{}, {"bearer": []}])
        answers = operation["responses"]
        assert "$ref" in answers["default"]["content"]["application/json"]["schema"]
        if path not in TEXT_PAGES:
            assert list(references(answers["200"])), path
        if path.startswith("/v1/"):
            assert {"400", "401", "403", "413", "503"} <= set(answers), path
        if method in {"post", "patch"} and not path.endswith("/restore"):
            assert operation["requestBody"], path
        for content in contents(operation):
            assert content["examples"], path
            for example in content["examples"].values():
                assert example_faults(openapi, content["schema"], example["value"]) == [], path


@pytest.mark.proves("V4")
def test_asyncapi_has_every_event_request_and_notice_with_replies_and_examples(
    asyncapi: Json,
) -> None:
    described = asyncapi["operations"]
    assert asyncapi["info"]["title"] == "Turnfold"
    assert {name: described[name]["action"] for name in described} == {
        **dict.fromkeys((*EVENTS, *REQUESTS), "receive"),
        **dict.fromkeys(NOTICE_MODELS, "send"),
    }
    for name, entry in REQUESTS.items():
        replies = [reference["$ref"] for reference in described[name]["reply"]["messages"]]
        assert [reference.rpartition("/")[2] for reference in replies] == [
            *(model.__name__ for model in entry.answers),
            "ErrorAnswer",
        ]
    for channel in asyncapi["channels"].values():
        address = channel["address"]
        named = re.findall(r"{(\w+)}", address or "")
        assert sorted(channel.get("parameters", {})) == named, address
    for message in asyncapi["components"]["messages"].values():
        assert message["examples"], message["name"]
        for example in message["examples"]:
            assert example_faults(asyncapi, message["payload"], example["payload"]) == []


def reply_faults(asyncapi: Json, name: str, reply: Json) -> list[str]:
    """Return why a reply matches none of the messages that the document names; [] if it does."""
    messages = [
        resolved(asyncapi, reference["$ref"])
        for reference in asyncapi["operations"][name]["reply"]["messages"]
    ]
    wrong = [
        example_faults(asyncapi, resolved(asyncapi, message["$ref"])["payload"], reply)
        for message in messages
    ]
    return [] if [] in wrong else [f"{name}: {faults}" for faults in wrong]


@pytest.mark.proves("V4")
async def test_a_program_that_reads_only_asyncapi_can_publish_and_request_everything(
    tmp_path: Path,
) -> None:
    ids = {"agent_id": "support", "session_id": "user-42"}
    async with (
        running_parts(tmp_path) as parts,
        parts.running("worker"),
        parts.running("query"),
        await nats.connect(parts.server.url) as bus,
    ):
        asyncapi = (await descriptions(parts.http_url))["/asyncapi.json"].json()
        replies: dict[str, Json] = {}
        # Events first, so that there is a session, and erasures last.
        received = [
            name
            for name, operation in asyncapi["operations"].items()
            if operation["action"] == "receive"
        ]
        for name in sorted(
            received, key=lambda name: (name not in EVENTS, name.endswith(".erase"), name)
        ):
            channel = asyncapi["channels"][name]
            (reference,) = channel["messages"].values()
            example = resolved(asyncapi, reference["$ref"])["examples"][0]["payload"]
            subject, data = channel["address"].format(**ids), json.dumps(example).encode()
            if name in EVENTS:
                await bus.jetstream().publish(subject, data)
            else:
                replies[name] = json.loads((await bus.request(subject, data, timeout=20)).data)
        dead = await parts.rows("SELECT reason, detail FROM dead_letters")

    assert dead == []
    assert set(replies) == set(REQUESTS)
    assert [
        fault for name in replies for fault in reply_faults(asyncapi, name, replies[name])
    ] == []
    assert sum("error" not in reply for reply in replies.values()) > len(replies) / 2


class Sections(HTMLParser):
    """The operations that a page shows, its text, and the addresses that it loads."""

    def __init__(self) -> None:
        super().__init__()
        self.sections = 0
        self.loaded: list[str] = []
        self.prose = ""

    def handle_data(self, data: str) -> None:
        self.prose += data

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.sections += tag == "section"
        self.loaded += [
            value or "" for name, value in attrs if name == "src" or (tag == "link" and value)
        ]


@pytest.mark.proves("V3")
def test_the_page_shows_every_operation_and_loads_nothing(
    served: dict[str, httpx.Response], openapi: Json
) -> None:
    page = Sections()
    page.feed(served["/docs"].text)

    assert page.sections == len(list(operations(openapi)))
    assert page.loaded == []
    assert "`" not in page.prose
    assert "boolean (default false)" in page.prose
    assert not any(word.endswith(".,") for word in page.prose.split())


@pytest.mark.proves("V3")
@pytest.mark.skipif(CHROMIUM is None, reason=MISSING)
async def test_the_page_breaks_no_name(served: dict[str, httpx.Response]) -> None:
    async with chromium() as browser:
        page = await browser.new_page()
        await page.set_content(served["/docs"].text)
        lines = await page.eval_on_selector_all(
            "td:first-child code", "names => names.map(name => name.getClientRects().length)"
        )

    assert set(lines) == {1}
