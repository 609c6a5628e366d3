"""OpenAPI: the models, errors, security and examples of each route.

The routes answer with bytes, so FastAPI cannot derive their schemas. `described` declares them, and
`DescribedApp` adds the schemas of bodies, which the routes validate themselves.
"""

from collections.abc import Mapping, Sequence
from functools import reduce
from operator import or_
from threading import Lock
from typing import Any, Final, get_args

from fastapi import FastAPI, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from turnfold.contracts.answers.base import Answer
from turnfold.contracts.answers.errors import ErrorAnswer
from turnfold.contracts.answers.history import ElementsAnswer
from turnfold.contracts.answers.window import UnchangedAnswer
from turnfold.contracts.catalog import REQUESTS
from turnfold.contracts.event_models import EVENT_BODIES
from turnfold.contracts.history_requests import EventsKnownRequest, PopRequest
from turnfold.contracts.requests import (
    AgentEraseRequest,
    CampaignRequest,
    CompactionRequest,
    PolicyRequest,
    PromoteBody,
    RegenerateRequest,
    ReplayRequest,
    ToolBody,
)
from turnfold.errors import (
    BadRequest,
    CannotFit,
    Conflict,
    NotAllowed,
    RequestError,
    TooLarge,
    Unavailable,
    UnknownSession,
)
from turnfold.messages import SessionKey

Models = Sequence[type[BaseModel]]
BODIES: Final[Models] = (
    *EVENT_BODIES,
    AgentEraseRequest,
    CampaignRequest,
    CompactionRequest,
    EventsKnownRequest,
    PolicyRequest,
    PopRequest,
    PromoteBody,
    RegenerateRequest,
    ReplayRequest,
    ToolBody,
)
"""The models of all bodies."""
_ON_THE_BUS: Final[Models] = (ElementsAnswer, UnchangedAnswer)
"""Answers that HTTP does not give."""
TOPICS: Final[Mapping[str, str]] = {
    "window": "What the model reads next.",
    "events": "Publish what happened.",
    "history": "Original messages and the audit trail.",
    "sessions": "Counts of sessions, and erasure.",
    "summaries": "Versions of the summary.",
    "compactions": "Evict now, and undo it.",
    "policies": "When messages leave the window, and how many.",
    "dead letters": "Events that could not be stored.",
    "service": "Health, metrics and descriptions of the interfaces.",
}
_ERRORS: Final[Mapping[type[RequestError], str]] = {
    BadRequest: "The request is invalid.",
    NotAllowed: "The token does not reach this agent.",
    UnknownSession: "The session has no event yet.",
    Conflict: "A newer change prevents it.",
    TooLarge: "The request or its answer exceeds a limit.",
    CannotFit: "No window fits the budget; the error contains the smallest that does.",
    Unavailable: "No service can answer now; retry later.",
}
EVERYWHERE: Final = (BadRequest, TooLarge, Unavailable)
"""The errors of every request."""
_BEARER: Final = "bearer"
_SCHEMAS: Final = "#/components/schemas/"
_ERROR: Final[dict[str, Any]] = {"$ref": f"{_SCHEMAS}{ErrorAnswer.__name__}"}
_TOKEN: Final[dict[str, Any]] = {
    "type": "http",
    "scheme": "bearer",
    "description": "A token of `turnfold keys token`. Required if `TURNFOLD_HTTP_TOKENS` is set.",
}
_NONE: Final[Mapping[int, dict[str, Any]]] = {}


def described(
    topic: str,
    summary: str,
    *answers: type[Answer],
    body: Models = (),
    errors: Sequence[type[RequestError]] = (),
    is_open: bool = False,
    responses: Mapping[int, dict[str, Any]] = _NONE,
) -> dict[str, Any]:
    """Return the arguments of a route's decorator.

    `answers` and `body` list the models that the answer and the body may have. Routes that are not
    open require a token, if the installation has tokens.
    """
    extra: dict[str, Any] = {"security": [] if is_open else [{}, {_BEARER: []}]}
    if body:
        extra["requestBody"] = _body(body)
    by_status: dict[int | str, dict[str, Any]] = {200: _answer(answers)} if answers else {}
    if not is_open:
        by_status[401] = _error(NotAllowed) | {"description": "The request has no valid token."}
        possible: Sequence[type[RequestError]] = (NotAllowed, *errors)
        by_status |= {error.status: _error(error) for error in possible}
    return {
        "summary": summary,
        "tags": [topic],
        "response_model": None,
        "responses": by_status | dict(responses),
        "openapi_extra": extra,
    }


def described_request(
    name: str,
    summary: str,
    *,
    body: Models = (),
    responses: Mapping[int, dict[str, Any]] = _NONE,
) -> dict[str, Any]:
    """Return the same for a route that answers a request of the bus."""
    entry = REQUESTS[name]
    return described(
        entry.topic,
        summary,
        *(answer for answer in entry.answers if answer not in _ON_THE_BUS),
        body=body,
        errors=(*EVERYWHERE, *entry.errors),
        responses=responses,
    )


def described_text(
    topic: str,
    summary: str,
    media_type: str,
    example: str,
    *,
    errors: Sequence[type[RequestError]] = (),
) -> dict[str, Any]:
    """Return the same for a route that answers with text."""
    content = {media_type: {"schema": {"type": "string"}, "example": example}}
    text = {"description": summary, "content": content}
    # FastAPI would describe the errors with the media type of a more specific class.
    route = described(topic, summary, errors=errors, responses={200: text})
    return route | {"response_class": Response}


def _answer(models: Sequence[type[Answer]]) -> dict[str, Any]:
    return {
        "model": reduce(or_, models),
        "description": " ".join((model.__doc__ or "").partition("\n")[0] for model in models),
    }


def _error(kind: type[RequestError]) -> dict[str, Any]:
    description = _ERRORS[kind]
    example = {"error": {"code": kind.code, "message": description}}
    return refused(description, examples={kind.code: {"value": example}})


def refused(description: str, **more: Any) -> dict[str, Any]:
    """Return the description of a response with an error.

    Of a model, FastAPI would build a validator for each route and status, in 30 ms altogether.
    """
    return {
        "description": description,
        "content": {"application/json": {**more, "schema": _ERROR}},
    }


def _body(models: Models) -> dict[str, Any]:
    references = [{"$ref": f"{_SCHEMAS}{model.__name__}"} for model in models]
    schema = references[0] if len(models) == 1 else {"oneOf": references}
    is_required = all(
        any(field.is_required() for field in model.model_fields.values()) for model in models
    )
    return {"required": is_required, "content": {"application/json": {"schema": schema}}}


class DescribedApp(FastAPI):
    """An application whose OpenAPI document includes bodies, examples, topics and security."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._making = Lock()

    def openapi(self) -> dict[str, Any]:
        """Return the document; it is made once, in some tenths of a second."""
        # Routes call this in threads, and several may do so at once.
        with self._making:
            return self._made()

    def _made(self) -> dict[str, Any]:
        if self.openapi_schema is None:
            document = super().openapi()
            # FastAPI leaves out nulls, which examples contain.
            schemas = document["components"]["schemas"] | self._schemas()
            document["components"] = {
                "schemas": dict(sorted(schemas.items())),
                "securitySchemes": {_BEARER: _TOKEN},
            }
            document["tags"] = [
                {"name": topic, "description": text} for topic, text in TOPICS.items()
            ]
            for operations in document["paths"].values():
                for operation in operations.values():
                    # FastAPI lists the ids last, because a function reads them.
                    operation.get("parameters", []).sort(key=_is_no_id)
                    _add_examples(operation, schemas)
        return super().openapi()

    def _schemas(self) -> dict[str, Any]:
        """Return the schemas of the models of all bodies and answers."""
        models = {
            model
            for route in self.routes
            if isinstance(route, APIRoute)
            for response in route.responses.values()
            for model in models_of(response)
        }
        _, definitions = models_json_schema(
            [(model, "validation") for model in (*BODIES, *models)],
            ref_template=_SCHEMAS + "{model}",
        )
        schemas: dict[str, Any] = definitions["$defs"]
        return schemas


def models_of(response: Mapping[str, Any]) -> tuple[type[Answer], ...]:
    """Return the models of an answer in a route's `responses`."""
    content = response.get("content", {}).get("application/json", {})
    model = ErrorAnswer if content.get("schema") == _ERROR else response.get("model")
    return get_args(model) or (() if model is None else (model,))


def _is_no_id(parameter: dict[str, Any]) -> bool:
    return parameter["in"] != "path" or parameter["name"] not in SessionKey._fields


def _add_examples(operation: dict[str, Any], schemas: dict[str, Any]) -> None:
    """Show the example of its model beside each body and answer."""
    for part in (operation.get("requestBody", {}), *operation["responses"].values()):
        content = part.get("content", {}).get("application/json", {})
        schema = content.get("schema", {})
        names = [
            reference["$ref"].removeprefix(_SCHEMAS)
            for reference in schema.get("oneOf") or schema.get("anyOf") or [schema]
            if "$ref" in reference
        ]
        if names and "examples" not in content:
            content["examples"] = {name: {"value": schemas[name]["examples"][0]} for name in names}
