"""Refuse requests from pages of other sites, if HTTP requires no token."""

from collections.abc import Callable
from typing import Final

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from turnfold.access.bearers import is_loopback
from turnfold.access.refusals import refusal
from turnfold.errors import NotAllowed

HEALTH_PATHS: Final = ("/healthz", "/readyz")
"""Health checks are answered to everybody."""
LOCAL_NAMES: Final = ("host.docker.internal", "host.containers.internal")
"""Names under which containers reach the loopback addresses of their machine."""
OF_ANOTHER_SITE: Final = NotAllowed(
    "a page of another site may not send this; if it is of this site, the reverse proxy before it"
    " has to pass the Host header on, or name it in X-Forwarded-Host"
)


class OwnSiteMiddleware:
    """Passes on requests of programs, and of pages of this service itself.

    A browser sends requests to this machine for each site that its user visits, and without tokens
    nothing else would stop them. Links may lead here: the other site does not see the answer. With
    `is_local`, only names of this machine are answered.
    """

    def __init__(self, app: ASGIApp, *, is_local: bool, on_refusal: Callable[[], object]) -> None:
        self._app = app
        self._is_local = is_local
        self._on_refusal = on_refusal

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or reject it."""
        error = None
        if scope["type"] == "http" and scope["path"] not in HEALTH_PATHS:
            error = self._refusal(scope["method"], Headers(scope=scope))
        if error is None:
            await self._app(scope, receive, send)
            return
        self._on_refusal()
        await refusal(error)(scope, receive, send)

    def _refusal(self, method: str, headers: Headers) -> NotAllowed | None:
        # A browser always sends this header.
        host = headers.get("host", "")
        if self._is_local and host and not is_local_name(host):
            return NotAllowed(
                f"{host!r} is not a name of this machine; use localhost, or set"
                " TURNFOLD_HTTP_TOKENS or TURNFOLD_HTTP_CHECKED_ELSEWHERE"
            )
        is_link = method == "GET" and headers.get("sec-fetch-mode") == "navigate"
        return OF_ANOTHER_SITE if is_of_another_site(headers) and not is_link else None


def is_of_another_site(headers: Headers) -> bool:
    """Return whether a browser says that a page of another site sends a request."""
    # Only browsers send these headers.
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    # Older browsers tell no site, and no browser does over HTTP to another machine.
    if site is not None or origin is None:
        return site == "cross-site"
    # A reverse proxy may replace the first, and name it in the second, which no page may set.
    hosts = ",".join(headers.getlist("host") + headers.getlist("x-forwarded-host"))
    return _name_in(origin.rpartition("/")[2]) not in map(_name_in, hosts.split(","))


def is_local_name(host: str) -> bool:
    """Return whether a `Host` header names this machine itself.

    Where nobody needs a token, other names are refused: a site could give its own name the
    address of this machine, and read answers as if they were its own.
    """
    name = _name_in(host)
    return is_loopback(name) or name in LOCAL_NAMES


def _name_in(host: str) -> str:
    """Return a host without its port."""
    # An IPv6 address ends with a bracket unless a port follows, so its last group is not a port.
    name, _, port = host.strip().rpartition(":")
    return (name if port.isdigit() else host).strip(" []").lower()
