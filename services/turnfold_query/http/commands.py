"""Routes for requests that write. A worker executes them, because only workers write."""

import json
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

import nats.errors
from fastapi import FastAPI, Request, Response
from nats.aio.msg import Msg

from turnfold.access.actors import ACTOR_HEADER, signed_actor
from turnfold.contracts.answers.reading import read_answer, request_name
from turnfold.contracts.history_requests import PopRequest
from turnfold.contracts.reading import (
    read_query,
)
from turnfold.contracts.requests import (
    AgentEraseRequest,
    CampaignRequest,
    CompactionRequest,
    PolicyRequest,
    PromoteBody,
    RegenerateRequest,
    ReplayRequest,
    SummaryRequest,
)
from turnfold.contracts.subjects import session_subject, token_of
from turnfold.errors import BadRequest, RequestError, Unavailable
from turnfold.nats_client.connection import NatsClient
from turnfold_query.admission import retry_after
from turnfold_query.auth import request_grant
from turnfold_query.http.description import described_request
from turnfold_query.http.responses import (
    AGENT,
    SESSION,
    AgentPath,
    SessionPath,
    bytes_response,
    decode_id,
    session_key,
)

WRITE_SECONDS = 10.0
"""How long a request waits for the reply of a worker."""

_STATUS = {error.code: error.status for error in RequestError.__subclasses__()} | {
    RequestError.code: RequestError.status
}

Forward = Callable[..., Awaitable[Response]]


class Forwarder:
    """Forward requests that write to a worker over NATS."""

    def __init__(self, client: NatsClient, read_secret: Callable[[], Awaitable[str]]) -> None:
        self._client = client
        self._read_secret = read_secret

    async def forward(self, subject: str, http: Request, **path_fields: Any) -> Response:
        """Send a request with the fields of its path, and return the reply of the worker.

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
        # Signed, because a worker believes no header that any client of the bus could write.
        headers = await self._actor_header(subject, body, request_grant(http.scope).name)
        try:
            read = partial(_read_reply, request_name(subject))
            data, reply = await self._client.reply(
                subject, body, seconds=WRITE_SECONDS, read=read, headers=headers
            )
        except nats.errors.Error:
            raise Unavailable("no worker replied; retry when one runs") from None
        error_json = reply.get("error", {})
        code = error_json.get("code")
        return bytes_response(
            data,
            _STATUS.get(code, 400) if code else 200,
            **retry_after(error_json.get("retry_after_ms")),
        )

    async def _actor_header(
        self, subject: str, body: bytes, token_name: str | None
    ) -> dict[str, str] | None:
        """Return the signed name of the caller's token; None if callers need no token."""
        if token_name is None:
            return None
        now_ms = time.time_ns() // 1_000_000
        secret = await self._read_secret()
        actor = signed_actor(
            secret, f"token:{token_name}", subject=subject, body=body, now_ms=now_ms
        )
        return {ACTOR_HEADER: actor}


def _read_reply(name: str, message: Msg) -> tuple[bytes, Mapping[str, Any]] | None:
    """Read the reply of a worker; None if the message is not one."""
    reply = read_answer(name, message.data)
    return None if reply is None else (message.data, reply)


def add_fields(body: bytes, path_fields: dict[str, Any]) -> bytes:
    """Add the fields that the path names to a JSON body.

    Raises:
        BadRequest: the body is not a JSON object.
    """
    if not path_fields:
        return body
    try:
        body_json = json.loads(body or b"{}")
    except (ValueError, RecursionError):
        raise BadRequest("the body is no JSON") from None
    if not isinstance(body_json, dict):
        raise BadRequest("the body is no JSON object")
    return json.dumps(body_json | path_fields).encode()


def add_commands(app: FastAPI, forward: Forward) -> None:
    """Add all routes that write, except publishing."""
    _add_policies(app, forward)
    _add_edits(app, forward)
    _add_compactions(app, forward)
    _add_summaries(app, forward)
    _add_campaigns(app, forward)
    _add_replays(app, forward)
    _add_erasures(app, forward)


def _add_policies(app: FastAPI, forward: Forward) -> None:
    @app.patch(
        SESSION + "/policy",
        **described_request(
            "session.policy", "Override the policy of a session", body=[PolicyRequest]
        ),
    )
    async def patch_policy(agent_id: AgentPath, session_id: SessionPath, http: Request) -> Response:
        return await forward(
            session_subject("session.policy", session_key(agent_id, session_id)), http
        )

    @app.patch(
        AGENT + "/policy",
        **described_request(
            "agent.policy", "Override the policy of an agent", body=[PolicyRequest]
        ),
    )
    async def patch_agent_policy(agent_id: AgentPath, http: Request) -> Response:
        return await forward(f"agent.policy.{token_of(decode_id(agent_id))}", http)


def _add_compactions(app: FastAPI, forward: Forward) -> None:
    @app.post(
        SESSION + "/compactions",
        **described_request("compaction.request", "Compact now", body=[CompactionRequest]),
    )
    async def post_compaction(
        agent_id: AgentPath, session_id: SessionPath, http: Request
    ) -> Response:
        return await forward(
            session_subject("compaction.request", session_key(agent_id, session_id)), http
        )

    @app.post(
        SESSION + "/compactions/{compaction_id}/restore",
        **described_request("compaction.restore", "Undo a compaction"),
    )
    async def post_restoration(
        agent_id: AgentPath, session_id: SessionPath, compaction_id: str, http: Request
    ) -> Response:
        return await forward(
            session_subject("compaction.restore", session_key(agent_id, session_id)),
            http,
            compaction_id=compaction_id,
        )


def _add_summaries(app: FastAPI, forward: Forward) -> None:
    @app.post(
        SESSION + "/summaries",
        **described_request(
            "summary.regenerate",
            "Regenerate the summary as a new version beside the old one",
            body=[RegenerateRequest],
        ),
    )
    async def post_summary(agent_id: AgentPath, session_id: SessionPath, http: Request) -> Response:
        return await forward(
            session_subject("summary.regenerate", session_key(agent_id, session_id)), http
        )

    @app.post(
        SESSION + "/summaries/{version}/promote",
        **described_request("summary.promote", "Put a version in force", body=[PromoteBody]),
    )
    async def post_promotion(
        agent_id: AgentPath, session_id: SessionPath, version: str, http: Request
    ) -> Response:
        request = read_query(SummaryRequest, {"version": version})
        return await forward(
            session_subject("summary.promote", session_key(agent_id, session_id)),
            http,
            version=request.version,
        )


def _add_campaigns(app: FastAPI, forward: Forward) -> None:
    @app.post(
        AGENT + "/summaries",
        **described_request(
            "agent.regenerate", "Regenerate all summaries of an agent", body=[CampaignRequest]
        ),
    )
    async def post_agent_summaries(agent_id: AgentPath, http: Request) -> Response:
        return await forward(f"agent.regenerate.{token_of(decode_id(agent_id))}", http)

    @app.post(
        "/v1/summaries",
        **described_request(
            "installation.regenerate", "Regenerate all summaries", body=[CampaignRequest]
        ),
    )
    async def post_all_summaries(http: Request) -> Response:
        return await forward("installation.regenerate", http)

    @app.get(
        "/v1/campaigns/{campaign_id}",
        **described_request("campaign.get", "The progress of a regeneration campaign"),
    )
    async def get_campaign(campaign_id: str, http: Request) -> Response:
        return await forward("campaign.get", http, campaign_id=campaign_id)


def _add_replays(app: FastAPI, forward: Forward) -> None:
    @app.post(
        "/v1/deadletters/replay",
        **described_request("deadletters.replay", "Replay dead letters", body=[ReplayRequest]),
    )
    async def post_replay(http: Request) -> Response:
        return await forward("deadletters.replay", http)


def _add_edits(app: FastAPI, forward: Forward) -> None:
    @app.post(
        SESSION + "/pop",
        **described_request("session.pop", "Retract the newest messages", body=[PopRequest]),
    )
    async def post_pop(agent_id: AgentPath, session_id: SessionPath, http: Request) -> Response:
        return await forward(
            session_subject("session.pop", session_key(agent_id, session_id)), http
        )


def _add_erasures(app: FastAPI, forward: Forward) -> None:
    @app.delete(SESSION, **described_request("session.erase", "Erase a session permanently"))
    async def delete_session(
        agent_id: AgentPath, session_id: SessionPath, http: Request
    ) -> Response:
        return await forward(
            session_subject("session.erase", session_key(agent_id, session_id)), http
        )

    @app.delete(
        AGENT,
        **described_request(
            "agent.erase",
            "Erase an agent, or its sessions with a prefix, permanently",
            body=[AgentEraseRequest],
        ),
    )
    async def delete_agent(agent_id: AgentPath, http: Request) -> Response:
        return await forward(f"agent.erase.{token_of(decode_id(agent_id))}", http)
