"""Validate the answers that tests receive against their models; an unknown field is a fault."""

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cache
from types import FunctionType, ModuleType
from typing import Any, cast

import httpx
import pytest
from fastapi.routing import APIRoute
from nats.aio.client import Client
from nats.aio.msg import Msg
from pydantic import ValidationError

from turnfold.contracts.answers.base import Answer
from turnfold.contracts.answers.errors import ErrorAnswer
from turnfold.contracts.answers.history import SessionListAnswer
from turnfold.contracts.answers.installation import DeadLetterAnswer, DeadLetterListAnswer
from turnfold.contracts.answers.reading import request_name
from turnfold.contracts.catalog import REQUESTS
from turnfold.contracts.events import LIMITS
from turnfold.contracts.notice_models import NOTICE_MODELS
from turnfold.nats_client.connection import NatsClient
from turnfold.operations import policy
from turnfold.operations.compact import versions
from turnfold.operations.query import context, dead_letters, expand, history, search
from turnfold.operations.query.environment import ContextReply
from turnfold.store.database.outbox import Notice
from turnfold_query.http.commands import add_commands
from turnfold_query.http.description import DescribedApp, models_of
from turnfold_query.http.inspections import add_inspections
from turnfold_query.http.lists import add_lists
from turnfold_query.http.publish import add_publish
from turnfold_query.http.reads import add_reads

Models = Sequence[type[Answer]]


def faults(models: Models, data: bytes) -> str | None:
    """Return why the data match none of the models; None if they match one."""
    try:
        answer = json.loads(data)
    except ValueError as error:
        return str(error)
    reasons = []
    is_error = isinstance(answer, dict) and "error" in answer
    for model in (ErrorAnswer,) if is_error else models:
        try:
            model.model_validate_json(data, strict=True, extra="forbid")
        except ValidationError as error:
            reasons.append(str(error))
        else:
            return None
    return "\n".join(reasons)


def notice_faults(notices: Sequence[Notice]) -> list[str]:
    """Return why notices of the outbox do not match their models."""
    wrong = []
    for notice in notices:
        model = NOTICE_MODELS[request_name(notice.subject)]
        if fault := faults([model], notice.payload.encode()):
            wrong.append(f"{notice.subject}: {fault}")
    return wrong


@cache
def described_app() -> DescribedApp:
    """Return the routes of the HTTP interface, which nobody can call."""
    app, nobody = DescribedApp(), cast("Any", None)
    add_reads(app, nobody)
    add_publish(app, nobody, LIMITS, nobody, nobody)
    add_commands(app, nobody)
    add_lists(app, nobody, nobody)
    add_inspections(app, nobody)
    return app


class AnswerRecorder:
    """Validate all answers that reach clients in this process, over the bus and over HTTP."""

    def __init__(self) -> None:
        self.faults: list[str] = []
        self._routes = [route for route in described_app().routes if isinstance(route, APIRoute)]

    def check(self, subject: str, message: Msg) -> None:
        """Validate one answer; messages on other subjects, and without a payload, are none."""
        entry = REQUESTS.get(request_name(subject))
        if entry is None or not message.data:
            return
        if fault := faults(entry.answers, message.data):
            self.faults.append(f"{subject}: {fault}")

    def check_http(self, response: httpx.Response) -> None:
        """Validate one answer over HTTP; other servers of a test have other paths."""
        path = response.request.url.raw_path.partition(b"?")[0].decode()
        if not path.startswith("/v1/") or not response.content:
            return
        for route in self._routes:
            if response.request.method in (route.methods or ()) and route.path_regex.fullmatch(
                path
            ):
                models = models_of(route.responses[response.status_code])
                if fault := faults(models, response.content):
                    self.faults.append(f"{response.request.method} {path}: {fault}")
                return

    def attach(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Observe every request that a client of nats-py or httpx, or our own, sends."""
        request, reply, send = Client.request, NatsClient.reply, httpx.AsyncClient.send

        async def on_send(client: httpx.AsyncClient, *args: Any, **options: Any) -> httpx.Response:
            response = await send(client, *args, **options)
            if not options.get("stream"):
                self.check_http(response)
            return response

        async def on_request(client: Client, subject: str, *args: Any, **options: Any) -> Msg:
            message = await request(client, subject, *args, **options)
            self.check(subject, message)
            return message

        async def on_reply(
            client: NatsClient, subject: str, payload: bytes, *, read: Any, **options: Any
        ) -> Any:
            def read_checked(message: Msg) -> Any:
                if (answer := read(message)) is not None:
                    self.check(subject, message)
                return answer

            return await reply(client, subject, payload, read=read_checked, **options)

        monkeypatch.setattr(Client, "request", on_request)
        monkeypatch.setattr(NatsClient, "reply", on_reply)
        monkeypatch.setattr(httpx.AsyncClient, "send", on_send)


OPERATIONS: Mapping[Callable[..., Awaitable[Any]], Models] = {
    context.context: REQUESTS["context.get"].answers,
    history.history: REQUESTS["history.get"].answers,
    search.search: REQUESTS["history.search"].answers,
    expand.expand: REQUESTS["summary.expand"].answers,
    history.session: REQUESTS["session.get"].answers,
    history.summaries: REQUESTS["summary.list"].answers,
    history.summary: REQUESTS["summary.get"].answers,
    history.audit: REQUESTS["audit.list"].answers,
    history.sessions: [SessionListAnswer],
    history.dead_letters: [DeadLetterListAnswer],
    dead_letters.show: [DeadLetterAnswer],
    dead_letters.replay: REQUESTS["deadletters.replay"].answers,
    versions.restore: REQUESTS["compaction.restore"].answers,
    versions.regenerate: REQUESTS["summary.regenerate"].answers,
    versions.begin_campaign: REQUESTS["agent.regenerate"].answers,
    versions.progress: REQUESTS["campaign.get"].answers,
    policy.policy_in_force: REQUESTS["session.policy"].answers,
}
"""The operations that write answers."""


def check_operations(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Validate what the operations return when this module calls them."""
    callers = (module, context, history, search, expand, dead_letters, versions, policy)
    for caller in callers:
        for name, value in list(vars(caller).items()):
            if isinstance(value, FunctionType) and value in OPERATIONS:
                monkeypatch.setattr(caller, name, _checked(value, OPERATIONS[value]))


def _checked(
    operation: Callable[..., Awaitable[Any]], models: Models
) -> Callable[..., Awaitable[Any]]:
    async def checked(*args: Any, **options: Any) -> Any:
        answer = await operation(*args, **options)
        fault = faults(models, _encoded(answer))
        assert fault is None, f"{operation.__name__}: {fault}"
        return answer

    return checked


def _encoded(answer: Any) -> bytes:
    match answer:
        case ContextReply():
            return answer.body
        case str():
            return answer.encode()
        case _:
            return json.dumps(answer).encode()
