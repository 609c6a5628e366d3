"""Routes that read one session: its window, messages, summaries, audit and policy."""

from typing import Annotated

from fastapi import FastAPI, Query, Request, Response

from turnfold.contracts.requests import (
    AuditRequest,
    ContextRequest,
    ExpandRequest,
    HistoryRequest,
    PolicyReadRequest,
    SearchRequest,
    SessionRequest,
    SummaryRequest,
    read_query,
)
from turnfold.contracts.requests import Request as RequestModel
from turnfold.messages import AgentId, SessionKey
from turnfold_query.admission import place_of
from turnfold_query.handlers import QueryDispatcher
from turnfold_query.http.responses import (
    AGENT,
    SESSION,
    AgentPath,
    SessionPath,
    bytes_response,
    decode_id,
    session_key,
)


def add_reads(app: FastAPI, dispatcher: QueryDispatcher) -> None:
    """Add the routes that read one session."""

    async def reply(
        name: str, http: Request, agent_id: str, session_id: str, request: RequestModel
    ) -> Response:
        key = session_key(agent_id, session_id)
        return bytes_response(await dispatcher.answer(name, key, request, place_of(http.scope)))

    @app.get(
        SESSION + "/context",
        summary="What should my model see next?",
        response_model=None,
        responses={304: {"description": "The window has not changed since `etag`.", "content": {}}},
    )
    async def get_context(
        agent_id: AgentPath,
        session_id: SessionPath,
        request: Annotated[ContextRequest, Query()],
        http: Request,
    ) -> Response:
        tag = http.headers.get("if-none-match")
        if tag is not None and request.etag is None:
            etag = tag.strip().removeprefix("W/").strip('"')
            request = request.model_copy(update={"etag": etag})
        key = session_key(agent_id, session_id)
        window = await dispatcher.context(key, request, place_of(http.scope))
        if not window.is_modified:
            return Response(status_code=304, headers={"ETag": f'"{window.etag}"'})
        return bytes_response(window.body, ETag=f'"{window.etag}"')

    @app.get(SESSION + "/history", summary="Original messages, in any state", response_model=None)
    async def get_history(
        agent_id: AgentPath,
        session_id: SessionPath,
        request: Annotated[HistoryRequest, Query()],
        http: Request,
    ) -> Response:
        return await reply("history.get", http, agent_id, session_id, request)

    @app.get(SESSION + "/search", summary="Search all messages", response_model=None)
    async def get_search(
        agent_id: AgentPath,
        session_id: SessionPath,
        request: Annotated[SearchRequest, Query()],
        http: Request,
    ) -> Response:
        return await reply("history.search", http, agent_id, session_id, request)

    @app.get(SESSION + "/summaries", summary="All versions of the summary", response_model=None)
    async def get_summaries(
        agent_id: AgentPath, session_id: SessionPath, http: Request
    ) -> Response:
        return await reply("summary.list", http, agent_id, session_id, SessionRequest())

    @app.get(
        SESSION + "/summaries/{version}", summary="One version of the summary", response_model=None
    )
    async def get_summary(
        agent_id: AgentPath, session_id: SessionPath, version: str, http: Request
    ) -> Response:
        request = read_query(SummaryRequest, {"version": version})
        return await reply("summary.get", http, agent_id, session_id, request)

    @app.get(
        SESSION + "/summaries/{version}/sources",
        summary="The messages behind a ledger entry or a line of the summary",
        response_model=None,
    )
    async def get_sources(
        agent_id: AgentPath,
        session_id: SessionPath,
        version: str,
        http: Request,
        entry: str | None = None,
        line: str | None = None,
    ) -> Response:
        parameters = {"version": version, "entry": entry, "line": line}
        request = read_query(
            ExpandRequest, {name: text for name, text in parameters.items() if text is not None}
        )
        return await reply("summary.expand", http, agent_id, session_id, request)

    @app.get(SESSION + "/audit", summary="The audit trail of a session", response_model=None)
    async def get_audit(
        agent_id: AgentPath,
        session_id: SessionPath,
        request: Annotated[AuditRequest, Query()],
        http: Request,
    ) -> Response:
        return await reply("audit.list", http, agent_id, session_id, request)

    @app.get(SESSION, summary="The counts of a session", response_model=None)
    async def get_session(agent_id: AgentPath, session_id: SessionPath, http: Request) -> Response:
        return await reply("session.get", http, agent_id, session_id, SessionRequest())


def add_policies(app: FastAPI, dispatcher: QueryDispatcher) -> None:
    """Add the routes that explain the policy in force."""

    async def reply(name: str, http: Request, key: SessionKey | AgentId) -> Response:
        place = place_of(http.scope)
        return bytes_response(await dispatcher.answer(name, key, PolicyReadRequest(), place))

    @app.get(
        SESSION + "/policy",
        summary="The policy in force, and the origin of each value",
        response_model=None,
    )
    async def get_policy(agent_id: AgentPath, session_id: SessionPath, http: Request) -> Response:
        return await reply("session.policy", http, session_key(agent_id, session_id))

    @app.get(
        AGENT + "/policy",
        summary="The policy of an agent's sessions that set none themselves",
        response_model=None,
    )
    async def get_agent_policy(agent_id: AgentPath, http: Request) -> Response:
        return await reply("agent.policy", http, AgentId(decode_id(agent_id)))
