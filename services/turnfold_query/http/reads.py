"""Routes that read one session: its window, messages, summaries, audit and policy."""

from collections.abc import Awaitable, Callable
from typing import Annotated, TypeVar

from fastapi import FastAPI, Path, Query, Request, Response

from turnfold.contracts.answers.inspection import DifferenceAnswer
from turnfold.contracts.answers.policies import PolicyAnswer
from turnfold.contracts.history_requests import (
    AuditRequest,
    DifferenceRequest,
    EventsKnownRequest,
    HistoryRequest,
    SearchRequest,
    SessionListRequest,
)
from turnfold.contracts.reading import read_query, read_request, with_ignored
from turnfold.contracts.requests import (
    ContextQuery,
    CountsRequest,
    ExpandRequest,
    SessionRequest,
    SummaryRequest,
    ToolBody,
    ToolRequest,
    ToolsRequest,
)
from turnfold.contracts.requests import Request as RequestModel
from turnfold.errors import CannotFit, UnknownSession
from turnfold.messages import AgentId, SessionKey
from turnfold_query.handlers import QueryDispatcher
from turnfold_query.http.description import EVERYWHERE, described, described_request
from turnfold_query.http.request_reading import place_of
from turnfold_query.http.responses import AGENT, SESSION, AgentPath, SessionPath, bytes_response
from turnfold_query.http.windows import PATH, answer_window

QueryShape = TypeVar("QueryShape", bound=RequestModel)
Reply = Callable[[str, Request, SessionKey | AgentId, RequestModel], Awaitable[Response]]


def add_reads(app: FastAPI, dispatcher: QueryDispatcher) -> None:
    """Add the routes that read a session, or look up what an agent has."""

    async def reply(
        name: str, http: Request, key: SessionKey | AgentId, request: RequestModel
    ) -> Response:
        answer = await dispatcher.answer(name, key, request, place_of(http.scope))
        return bytes_response(with_ignored(answer, key, request))

    _add_messages(app, dispatcher, reply)
    _add_summaries(app, reply)
    _add_records(app, reply)
    _add_tools(app, reply)
    _add_policies(app, reply)
    _add_agent_lists(app, reply)


def _add_messages(app: FastAPI, dispatcher: QueryDispatcher, reply: Reply) -> None:
    """Add the window, the history and the search."""

    @app.get(
        PATH,
        **described_request(
            "context.get",
            "What should my model see next?",
            responses={304: {"description": "The window has not changed since `etag`."}},
        ),
    )
    async def get_context(
        key: SessionPath,
        query: Annotated[ContextQuery, Query()],
        http: Request,
    ) -> Response:
        return await answer_window(dispatcher, http.scope, key, query)

    @app.get(
        SESSION + "/history",
        **described_request("history.get", "Original messages, in any state"),
    )
    async def get_history(
        key: SessionPath,
        request: Annotated[HistoryRequest, Query()],
        http: Request,
    ) -> Response:
        return await reply("history.get", http, key, request)

    @app.get(SESSION + "/search", **described_request("history.search", "Search all messages"))
    async def get_search(
        key: SessionPath,
        request: Annotated[SearchRequest, Query()],
        http: Request,
    ) -> Response:
        return await reply("history.search", http, key, request)

    @app.get(
        SESSION + "/context/difference",
        **described(
            "window",
            "What changed between the windows of two moments",
            DifferenceAnswer,
            errors=(*EVERYWHERE, CannotFit, UnknownSession),
        ),
    )
    async def get_difference(
        key: SessionPath,
        request: Annotated[DifferenceRequest, Query()],
        http: Request,
    ) -> Response:
        return await reply("context.difference", http, key, request)


def _add_summaries(app: FastAPI, reply: Reply) -> None:
    """Add the versions of the summary, and the messages behind one."""

    @app.get(
        SESSION + "/summaries",
        **described_request("summary.list", "All versions of the summary"),
    )
    async def get_summaries(key: SessionPath, http: Request) -> Response:
        return await reply("summary.list", http, key, _read(SessionRequest, http))

    @app.get(
        SESSION + "/summaries/{version}",
        **described_request("summary.get", "One version of the summary"),
    )
    async def get_summary(key: SessionPath, version: str, http: Request) -> Response:
        return await reply("summary.get", http, key, _read(SummaryRequest, http, version=version))

    @app.get(
        SESSION + "/summaries/{version}/sources",
        **described_request(
            "summary.expand", "The messages behind a ledger entry or a line of the summary"
        ),
    )
    async def get_sources(
        key: SessionPath,
        version: str,
        http: Request,
        entry: str | None = None,
        line: str | None = None,
    ) -> Response:
        parameters = {"version": version, "entry": entry, "line": line}
        texts = {name: text for name, text in parameters.items() if text is not None}
        return await reply("summary.expand", http, key, _read(ExpandRequest, http, **texts))


def _read(shape: type[QueryShape], http: Request, **fields: str) -> QueryShape:
    """Read a request from these fields and the parameters of its URL, also those it lacks."""
    return read_query(shape, {**http.query_params, **fields})


def _add_records(app: FastAPI, reply: Reply) -> None:
    """Add the audit trail and the counts."""

    @app.get(SESSION + "/audit", **described_request("audit.list", "The audit trail of a session"))
    async def get_audit(
        key: SessionPath,
        request: Annotated[AuditRequest, Query()],
        http: Request,
    ) -> Response:
        return await reply("audit.list", http, key, request)

    @app.get(SESSION, **described_request("session.get", "The counts of a session"))
    async def get_session(
        key: SessionPath, request: Annotated[CountsRequest, Query()], http: Request
    ) -> Response:
        return await reply("session.get", http, key, request)


def _add_tools(app: FastAPI, reply: Reply) -> None:
    """Add the routes with which a model looks things up in its session."""

    @app.get(
        SESSION + "/tools",
        **described_request(
            "session.tools", "Tools with which a model looks things up in its session"
        ),
    )
    async def get_tools(
        key: SessionPath,
        request: Annotated[ToolsRequest, Query()],
        http: Request,
    ) -> Response:
        return await reply("session.tools", http, key, request)

    @app.post(
        SESSION + "/tools/{name}",
        **described_request("session.tool", "Run a tool", body=(ToolBody,)),
    )
    async def post_tool(
        key: SessionPath,
        name: Annotated[str, Path(max_length=100)],
        http: Request,
    ) -> Response:
        body = read_request(ToolBody, await http.body())
        extra = body.model_extra or {}
        request = ToolRequest.model_validate(extra | {"name": name, "arguments": body.arguments})
        return await reply("session.tool", http, key, request)


def _add_agent_lists(app: FastAPI, reply: Reply) -> None:
    """Add the routes that look up what an agent has."""

    @app.get(
        AGENT + "/sessions",
        **described_request("session.list", "The sessions of an agent, by id"),
    )
    async def get_agent_sessions(
        agent_id: AgentPath, request: Annotated[SessionListRequest, Query()], http: Request
    ) -> Response:
        return await reply("session.list", http, agent_id, request)

    @app.post(
        AGENT + "/events/known",
        **described_request(
            "events.known", "Which of these events are stored", body=(EventsKnownRequest,)
        ),
    )
    async def post_known_events(agent_id: AgentPath, http: Request) -> Response:
        request = read_request(EventsKnownRequest, await http.body())
        return await reply("events.known", http, agent_id, request)


def _add_policies(app: FastAPI, reply: Reply) -> None:
    """Add the routes that explain the policy in force."""

    @app.get(
        SESSION + "/policy",
        **described(
            "policies",
            "The policy in force, and the origin of each value",
            PolicyAnswer,
            errors=EVERYWHERE,
        ),
    )
    async def get_policy(key: SessionPath, http: Request) -> Response:
        return await reply("session.policy", http, key, _read(SessionRequest, http))

    @app.get(
        AGENT + "/policy",
        **described(
            "policies",
            "The policy of an agent's sessions that set none themselves",
            PolicyAnswer,
            errors=EVERYWHERE,
        ),
    )
    async def get_agent_policy(agent_id: AgentPath, http: Request) -> Response:
        return await reply("agent.policy", http, agent_id, _read(SessionRequest, http))
