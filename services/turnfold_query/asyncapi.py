"""The NATS interface as an AsyncAPI document: events, requests with replies, and notices.

FastStream describes the channels and payloads, from a broker that never connects and whose handlers
have the types of the contract. The services' handlers are untyped, because FastStream would
validate each message with its model, at the cost of a thread switch per request. FastStream
cannot describe replies, the ids in a subject, or examples; this module adds them.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from importlib.metadata import version
from typing import Any

from faststream.nats import NatsBroker
from faststream.specification import AsyncAPI
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from turnfold.contracts.answers.errors import ErrorAnswer
from turnfold.contracts.catalog import REQUESTS, address
from turnfold.contracts.event_models import EVENTS
from turnfold.contracts.notice_models import NOTICE_MODELS
from turnfold.contracts.subjects import EVENTS_STREAM, NOTICES_STREAM

DESCRIPTION = f"""\
Publish events to the stream `{EVENTS_STREAM}`, on their subject or on their bare type, and receive
notices from the stream `{NOTICES_STREAM}`. Requests are request/reply, and each may be answered
with an error; an empty request means `{{}}`."""
PARAMETERS: Mapping[str, dict[str, Any]] = {
    name: {
        "description": f"The id of the {what} as one token: every byte of its UTF-8 outside"
        " `A-Za-z0-9_-` is written `%XX`."
    }
    for name, what in (("agent_id", "agent"), ("session_id", "session"))
}


@cache
def asyncapi_document(nats_urls: str) -> dict[str, Any]:
    """Return the document; the URLs, separated by commas, must contain no password."""
    document = _described_by_faststream(nats_urls.split(","))
    channels, operations = document["channels"], document["operations"]
    schemas = document["components"]["schemas"] | _answer_schemas()
    for name in list(operations):
        models = [_received_model(document, name)]
        channel = channels[name]
        # A channel that names no servers is available on all of them.
        del channel["servers"]
        channel["parameters"] = {
            key: value for key, value in PARAMETERS.items() if f"{{{key}}}" in channel["address"]
        }
        channel["messages"] = _messages_of(models)
        operations[name]["messages"] = _references(name, models)
        if name in REQUESTS:
            operations[name]["tags"] = [{"name": REQUESTS[name].topic}]
            replies = [*(model.__name__ for model in REQUESTS[name].answers), ErrorAnswer.__name__]
            channel_name = f"{name}.reply"
            channels[channel_name] = {
                "address": None,
                "description": "The reply subject of the request.",
                "messages": _messages_of(replies),
            }
            operations[name]["reply"] = {
                "channel": _ref("channels", channel_name),
                "messages": _references(channel_name, replies),
            }
    # FastStream keeps its parts in sets, so their order differs between processes.
    return document | {
        "servers": {
            f"bus-{number}": server for number, server in enumerate(document["servers"].values(), 1)
        },
        "channels": dict(sorted(channels.items())),
        "operations": dict(sorted(operations.items())),
        "components": {
            "messages": {name: _message(name, schemas[name]) for name in _used(channels)},
            "schemas": dict(sorted(schemas.items())),
        },
    }


def _described_by_faststream(nats_urls: Sequence[str]) -> dict[str, Any]:
    broker = NatsBroker(nats_urls)
    requests = {name: entry.request for name, entry in REQUESTS.items()}
    inbound: dict[str, type[BaseModel]] = {**EVENTS, **requests}
    # The broker holds its parts by weak references.
    parts: list[object] = []
    for name, model in inbound.items():

        async def on_message(body: BaseModel) -> None:
            """Do nothing; only the type of the argument matters."""

        on_message.__annotations__["body"] = model
        subscriber = broker.subscriber(address(name), title=name, description=model.__doc__)
        parts.append(subscriber(on_message))
    for name, notice in NOTICE_MODELS.items():
        parts.append(
            broker.publisher(address(name), title=name, description=notice.__doc__, schema=notice)
        )
    specification = AsyncAPI(
        broker, title="Turnfold", version=version("turnfold"), description=DESCRIPTION
    )
    document: dict[str, Any] = specification.to_specification().to_jsonable()
    return document


def _answer_schemas() -> dict[str, Any]:
    models = {model for entry in REQUESTS.values() for model in entry.answers} | {ErrorAnswer}
    _, definitions = models_json_schema(
        [(model, "validation") for model in models], ref_template="#/components/schemas/{model}"
    )
    schemas: dict[str, Any] = definitions["$defs"]
    return schemas


def _received_model(document: dict[str, Any], name: str) -> str:
    """Return the name of the payload's model of a channel that FastStream describes."""
    ((_, reference),) = document["channels"][name]["messages"].items()
    message = document["components"]["messages"][reference["$ref"].rpartition("/")[2]]
    return str(message["payload"]["$ref"].rpartition("/")[2])


def _used(channels: dict[str, Any]) -> list[str]:
    return sorted({name for channel in channels.values() for name in channel["messages"]})


def _message(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": name,
        "title": name,
        "summary": schema["description"].partition("\n")[0],
        "contentType": "application/json",
        "payload": _ref("components", "schemas", name),
        "examples": [{"payload": example} for example in schema.get("examples", ())],
    }


def _messages_of(models: list[str]) -> dict[str, Any]:
    return {model: _ref("components", "messages", model) for model in models}


def _references(channel: str, models: list[str]) -> list[dict[str, Any]]:
    return [_ref("channels", channel, "messages", model) for model in models]


def _ref(*parts: str) -> dict[str, Any]:
    return {"$ref": "#/" + "/".join(parts)}
