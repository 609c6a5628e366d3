"""Authentication over HTTP: a bearer token stands for agents.

A request is rejected before any lookup if its token does not reach the agent in its path.
"""

from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from urllib.parse import unquote_to_bytes

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from turnfold.access.actors import ACTOR_HEADER, signed_actor
from turnfold.access.bearers import (
    EVERYTHING,
    OUT_OF_REACH,
    Grant,
    TokenRegistry,
)
from turnfold.access.own_site import HEALTH_PATHS
from turnfold.access.refusals import refusal
from turnfold.errors import NotAllowed
from turnfold.process.clock import now_ms

LISTED = frozenset(
    {
        "/v1/access", "/v1/agents", "/v1/campaigns", "/v1/compactions", "/v1/costs",
        "/v1/erasures", "/v1/sessions", "/v1/stats",
    }
)  # fmt: skip
"""Lists and totals that show each bearer only its own agents."""
AGENTS = "/v1/agents/"
ReadSecret = Callable[[], Awaitable[str]]
"""Reads the secret that signs actors."""
_GRANT = "turnfold.grant"


class AuthMiddleware:
    """Pass on requests for the agents of a bearer token; an operator's token reaches everything.

    It runs before the routes and sees the same path, so a new route is closed until it is opened
    here.
    """

    def __init__(
        self, app: ASGIApp, bearers: TokenRegistry, *, on_refusal: Callable[[], object]
    ) -> None:
        self._app = app
        self._bearers = bearers
        self._on_refusal = on_refusal

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or reject it."""
        if scope["path"] in HEALTH_PATHS:
            await self._app(scope, receive, send)
            return
        grant = self._bearers.grant(Headers(scope=scope).get("authorization"))
        if grant is None:
            refused = refusal(
                NotAllowed("this needs a token of the installation: Authorization: Bearer …"),
                HTTPStatus.UNAUTHORIZED,
                {"WWW-Authenticate": "Bearer"},
            )
        elif not _is_within(grant, scope["path"]):
            refused = refusal(NotAllowed(OUT_OF_REACH))
        else:
            scope[_GRANT] = grant
            await self._app(scope, receive, send)
            return
        self._on_refusal()
        await refused(scope, receive, send)


def request_grant(scope: Scope) -> Grant:
    """Return what the caller of a request may reach: everything, if no token is required."""
    # With tokens in force, only health checks come without a grant, and they read no session.
    grant: Grant = scope.get(_GRANT, EVERYTHING)
    return grant


async def actor_headers(
    scope: Scope, subject: str, body: bytes, read_secret: ReadSecret
) -> Mapping[str, str]:
    """Return the header that signs the name of the caller's token; none if callers need no token.

    Signed, because a worker believes no header that any client of the bus could write.
    """
    name = request_grant(scope).name
    if name is None:
        return {}
    secret = await read_secret()
    signed = signed_actor(secret, f"token:{name}", subject=subject, body=body, now_ms=now_ms())
    return {ACTOR_HEADER: signed}


def _is_within(grant: Grant, path: str) -> bool:
    if grant.is_operators or path in LISTED:
        return True
    agent_id = agent_of(path)
    return agent_id is not None and grant.allows(agent_id)


def agent_of(path: str) -> str | None:
    """Return the agent that a path names, as it was sent; None if it names none."""
    if not path.startswith(AGENTS):
        return None
    try:
        # As the routes do: otherwise one spelling of an id could be checked and another one used.
        return unquote_to_bytes(path.removeprefix(AGENTS).partition("/")[0]).decode() or None
    except UnicodeDecodeError:
        return None
