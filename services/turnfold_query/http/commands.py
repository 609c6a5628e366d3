"""Routes for requests that write. A worker executes them, because only workers write."""

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import nats.errors
from fastapi import FastAPI, Request, Response
from nats.aio.msg import Msg

from turnfold.access.refusals import retry_after
from turnfold.contracts.answers.reading import read_answer, request_name
from turnfold.contracts.history_requests import PopRequest
from turnfold.contracts.json_values import json_object
from turnfold.contracts.reading import check_values, read_query
from turnfold.contracts.requests import (
    AgentEraseRequest,
    CampaignRequest,
    Command,
    CompactionRequest,
    PolicyRequest,
    PromoteBody,
    RegenerateRequest,
    ReplayRequest,
    SummaryRequest,
)
from turnfold.contracts.subjects import agent_subject, session_subject
from turnfold.errors import BadRequest, RequestError, Unavailable
from turnfold.nats_client.connection import NatsClient
from turnfold_query.auth import ReadSecret, actor_headers
from turnfold_query.http.description import described_request
from turnfold_query.http.responses import AGENT, SESSION, AgentPath, SessionPath, bytes_response

WRITE_SECONDS = 10.0
"""How long a request waits for the reply of a worker."""

_STATUS = {error.code: error.status for error in RequestError.__subclasses__()} | {
    RequestError.code: RequestError.status
}

Forward = Callable[..., Awaitable[Response]]


async def forward_to_worker(
    client: NatsClient, read_secret: ReadSecret, subject: str, http: Request, **path_fields: Any
) -> Response:
    """Send a request with the fields of its path over NATS, and return the reply of a worker.

    Raises:
        BadRequest: the URL has a query, or the body is not a JSON object.
        Unavailable: no worker replied within WRITE_SECONDS.
    """
    # Ignored in silence, a field in the wrong place would change the meaning of the request.
    if http.query_params:
        raise BadRequest(
            "a request that writes takes its fields in the body, not in the query of its URL"
        )
    body = add_fields(await http.body(), path_fields)
    # After the fields of the path were added: the signature covers the body as it is sent.
    headers = await actor_headers(http.scope, subject, body, read_secret)
    try:
        read = partial(_read_reply, request_name(subject))
        data, reply = await client.reply(
            subject, body, seconds=WRITE_SECONDS, read=read, headers=headers
        )
    except nats.errors.Error:
        raise Unavailable("no worker replied; `turnfold doctor` says if one runs") from None
    error_json = reply.get("error", {})
    code = error_json.get("code")
    return bytes_response(
        data,
        _STATUS.get(code, 400) if code else 200,
        **retry_after(error_json.get("retry_after_ms")),
    )


def _read_reply(name: str, message: Msg) -> tuple[bytes, Mapping[str, Any]] | None:
    """Read the reply of a worker; None if the message is not one."""
    reply = read_answer(name, message.data)
    return None if reply is None else (message.data, reply)


def add_fields(body: bytes, path_fields: dict[str, Any]) -> bytes:
    """Add the fields that the path names to a JSON body.

    Raises:
        BadRequest: the body is not a JSON object, or has too many values.
    """
    if not path_fields:
        return body
    check_values(body)
    body_json = json_object(body or b"{}")
    if body_json is None:
        raise BadRequest("the request body must be a JSON object")
    # The path goes last, so that no field of the body replaces what the URL names.
    return json.dumps(body_json | path_fields).encode()


class CommandRoute(NamedTuple):
    """The route of a request that names what it concerns in its path, and all else in its body."""

    method: str
    path: str
    operation_id: str
    request: str
    summary: str
    body: Sequence[type[Command]] = ()


COMMANDS: Final = (
    CommandRoute(
        "PATCH", SESSION + "/policy", "patch_policy", "session.policy",
        "Override the policy of a session", [PolicyRequest],
    ),
    CommandRoute(
        "PATCH", AGENT + "/policy", "patch_agent_policy", "agent.policy",
        "Override the policy of an agent", [PolicyRequest],
    ),
    CommandRoute(
        "POST", SESSION + "/pop", "post_pop", "session.pop",
        "Retract the newest messages", [PopRequest],
    ),
    CommandRoute(
        "POST", SESSION + "/compactions", "post_compaction", "compaction.request",
        "Compact now", [CompactionRequest],
    ),
    CommandRoute(
        "POST", SESSION + "/summaries", "post_summary", "summary.regenerate",
        "Regenerate the summary as a new version beside the old one", [RegenerateRequest],
    ),
    CommandRoute(
        "POST", AGENT + "/summaries", "post_agent_summaries", "agent.regenerate",
        "Regenerate all summaries of an agent", [CampaignRequest],
    ),
    CommandRoute(
        "POST", "/v1/summaries", "post_all_summaries", "installation.regenerate",
        "Regenerate all summaries", [CampaignRequest],
    ),
    CommandRoute(
        "POST", "/v1/deadletters/replay", "post_replay", "deadletters.replay",
        "Replay dead letters", [ReplayRequest],
    ),
    CommandRoute(
        "DELETE", SESSION, "delete_session", "session.erase", "Erase a session permanently"
    ),
    CommandRoute(
        "DELETE", AGENT, "delete_agent", "agent.erase",
        "Erase an agent, or its sessions with a prefix, permanently", [AgentEraseRequest],
    ),
)  # fmt: skip


def add_commands(app: FastAPI, forward: Forward) -> None:
    """Add all routes that write, except publishing."""
    for method, path, operation_id, request, summary, body in COMMANDS:
        app.add_api_route(
            path,
            _endpoint(path, request, forward),
            methods=[method],
            name=operation_id,
            **described_request(request, summary, body=body),
        )

    @app.post(
        SESSION + "/compactions/{compaction_id}/restore",
        **described_request("compaction.restore", "Undo a compaction"),
    )
    async def post_restoration(key: SessionPath, compaction_id: str, http: Request) -> Response:
        subject = session_subject("compaction.restore", key)
        return await forward(subject, http, compaction_id=compaction_id)

    @app.post(
        SESSION + "/summaries/{version}/promote",
        **described_request("summary.promote", "Put a version in force", body=[PromoteBody]),
    )
    async def post_promotion(key: SessionPath, version: str, http: Request) -> Response:
        request = read_query(SummaryRequest, {"version": version})
        subject = session_subject("summary.promote", key)
        return await forward(subject, http, version=request.version)

    @app.get(
        "/v1/campaigns/{campaign_id}",
        **described_request("campaign.get", "The progress of a regeneration campaign"),
    )
    async def get_campaign(campaign_id: str, http: Request) -> Response:
        return await forward("campaign.get", http, campaign_id=campaign_id)


def _endpoint(path: str, request: str, forward: Forward) -> Callable[..., Awaitable[Response]]:
    """Return the function that forwards the requests of a path; FastAPI reads its parameters."""

    async def of_session(key: SessionPath, http: Request) -> Response:
        return await forward(session_subject(request, key), http)

    async def of_agent(agent_id: AgentPath, http: Request) -> Response:
        return await forward(agent_subject(request, agent_id), http)

    async def of_installation(http: Request) -> Response:
        return await forward(request, http)

    if path.startswith(SESSION):
        return of_session
    return of_agent if path.startswith(AGENT) else of_installation
