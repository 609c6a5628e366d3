"""The console as an application: routes, signing in, errors and headers."""

from collections.abc import Awaitable, Callable
from importlib.resources import files
from typing import Final

from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from turnfold.access.own_site import OF_ANOTHER_SITE, is_local_name, is_of_another_site
from turnfold.errors import RequestError
from turnfold_query.console.api import ApiCaller, ApiError
from turnfold_query.console.pages import acts, installation, session, summaries
from turnfold_query.console.views import PageView, form_of, page, redirect
from turnfold_query.console.visitors import (
    PATH,
    TOKEN_COOKIE,
    is_token,
    set_cookie,
    visitor_of,
)

Page = Callable[[PageView], Awaitable[Response]]
_STATIC: Final = {
    "console.css": "text/css; charset=utf-8",
    "htmx.min.js": "text/javascript; charset=utf-8",
    "live.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}
_HEADERS: Final = {
    "content-security-policy": "default-src 'self'; base-uri 'none'; form-action 'self';"
    " frame-ancestors 'none'; object-src 'none'",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "same-origin",
    "x-content-type-options": "nosniff",
}
_SESSION: Final = "/agents/{agent}/sessions/{session}"
READS: Final[dict[str, Page]] = {
    "/": installation.overview,
    "/agents": installation.agents,
    "/sessions": installation.sessions,
    "/jobs": installation.jobs,
    "/campaigns": installation.campaigns,
    "/costs": installation.costs,
    "/dead-letters": installation.dead_letters,
    "/dead-letters/{letter}": installation.dead_letter,
    "/erasures": installation.erasures,
    _SESSION: session.timeline,
    _SESSION + "/search": session.search,
    _SESSION + "/changes": session.changes,
    _SESSION + "/window": session.window,
    _SESSION + "/window/difference": session.difference,
    _SESSION + "/audit": session.audit,
    _SESSION + "/compactions": session.compactions,
    _SESSION + "/versions": summaries.versions,
    _SESSION + "/versions/compare": summaries.compare,
    _SESSION + "/versions/{version}": summaries.version,
}
ACTS: Final[dict[str, tuple[Page, Page]]] = {
    _SESSION + "/versions/{version}/promote": (acts.ask_promote, acts.promote),
    _SESSION + "/regenerate": (acts.ask_regenerate, acts.regenerate),
    _SESSION + "/compactions/{compaction}/restore": (acts.ask_restore, acts.restore),
    "/dead-letters/{letter}/replay": (acts.ask_replay, acts.replay),
}
"""The page that asks, and what its form does."""


class ConsoleRouter:
    """Answers `/` and everything below `/console`; all else is the API's."""

    def __init__(self, api: ASGIApp, console: ASGIApp) -> None:
        self._api = api
        self._console = console

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on to the console or to the API."""
        path = scope.get("path", "")
        is_page = path in {"/", PATH} or path.startswith(f"{PATH}/")
        await (self._console if is_page else self._api)(scope, receive, send)


def make_console(
    api: ASGIApp, read_secret: Callable[[], Awaitable[str]], *, is_open: bool
) -> ASGIApp:
    """Build the console over an API.

    With `is_open`, nobody needs a token, and pages are answered under names of this machine alone.
    """
    pages = _Pages(ApiCaller(api), read_secret, is_open=is_open)
    routes = [Route("/", _to_console, methods=["GET"])]
    for path, answer in READS.items():
        routes.append(Route(PATH + path.rstrip("/"), pages.shown(answer), methods=["GET"]))
    for path, (ask, act) in ACTS.items():
        routes.append(Route(PATH + path, pages.shown(ask), methods=["GET"]))
        routes.append(Route(PATH + path, pages.shown(act), methods=["POST"]))
    routes += [
        Route(f"{PATH}/", _to_console, methods=["GET"]),
        Route(f"{PATH}/sign-in", pages.sign_in, methods=["GET", "POST"]),
        Route(f"{PATH}/sign-out", _sign_out, methods=["POST"]),
        Route(f"{PATH}/static/{{name}}", _static, methods=["GET"]),
    ]
    app = Starlette(routes=routes, exception_handlers={404: _not_found})
    app.router.redirect_slashes = False
    return _SafeHeaders(app)


class _Pages:
    """Answers requests for pages, or leads to where a token is asked for."""

    def __init__(
        self, api: ApiCaller, read_secret: Callable[[], Awaitable[str]], *, is_open: bool
    ) -> None:
        self._api = api
        self._read_secret = read_secret
        self._is_open = is_open

    def shown(self, answer: Page) -> Callable[[Request], Awaitable[Response]]:
        """Return the endpoint of a page."""

        async def endpoint(request: Request) -> Response:
            if self._is_open and not is_local_name(request.headers.get("host", "")):
                return page(
                    request,
                    "error.html",
                    status=403,
                    title="Unknown host name",
                    message="Without tokens, the console answers only under"
                    " localhost or a loopback address.",
                )
            try:
                visitor = await visitor_of(request, self._api)
            except ApiError as error:
                return _to_sign_in(request) if error.status == 401 else _failed(request, error)
            view = PageView(request, visitor, self._read_secret)
            try:
                return await answer(view)
            except ApiError as error:
                return _failed(request, error, view)
            except RequestError as error:
                # The database failed, which has the secret of the forms.
                return _failed(request, ApiError(error.status, error.as_json()["error"]), view)

        return endpoint

    async def sign_in(self, request: Request) -> Response:
        """Ask for a token, and keep it in a cookie if the API knows it."""
        if request.method != "POST":
            return page(request, "sign_in.html", next=request.query_params.get("next", ""))
        # A page of another site must not sign its visitors in with a token of its own.
        if _is_foreign(request):
            return _of_another_site(request)
        try:
            fields = await form_of(request)
            token = fields.get("token", "").strip()
            is_known = await is_token(self._api, token)
        except ApiError as error:
            return _failed(request, error)
        place = fields.get("next", "")
        if not is_known:
            return page(request, "sign_in.html", status=403, next=place, is_refused=True)
        # Only a path of the console: another place would be one of the link's choice.
        is_ours = place.startswith(f"{PATH}/") and "\\" not in place
        response = RedirectResponse(place if is_ours else PATH, 303)
        set_cookie(response, request, TOKEN_COOKIE, token)
        return response


async def _sign_out(request: Request) -> Response:
    """Forget the token."""
    if _is_foreign(request):
        return _of_another_site(request)
    response = redirect("/sign-in")
    response.delete_cookie(TOKEN_COOKIE, path=PATH)
    return response


def _is_foreign(request: Request) -> bool:
    """Return whether a browser says that a page of another origin sent the request."""
    site = request.headers.get("sec-fetch-site", "same-origin")
    return site not in {"same-origin", "none"} or is_of_another_site(request.headers)


def _of_another_site(request: Request) -> Response:
    # Told, because a reverse proxy may make pages of this site look foreign.
    error = OF_ANOTHER_SITE.as_json()["error"]
    return _failed(request, ApiError(OF_ANOTHER_SITE.status, error))


async def _to_console(_: Request) -> Response:
    return RedirectResponse(PATH, 303)


def _to_sign_in(request: Request) -> Response:
    if "hx-request" in request.headers:
        # A part that refreshes: the whole page is loaded again, so its own address is `next`.
        return Response(headers={"HX-Refresh": "true"})
    here = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    return redirect("/sign-in", next=here) if here != PATH else redirect("/sign-in")


def _failed(request: Request, error: ApiError, view: PageView | None = None) -> Response:
    titles = {403: "Not allowed", 404: "Nothing here", 409: "In the way", 503: "Not now"}
    return page(
        request,
        "error.html",
        status=error.status,
        title=titles.get(error.status, "This did not work"),
        message=error.message,
        visitor=view.visitor if view else None,
    )


async def _not_found(request: Request, _: Exception) -> Response:
    return page(
        request, "error.html", status=404, title="Nothing here", message="This page does not exist."
    )


async def _static(request: Request) -> Response:
    name = request.path_params["name"]
    # Known names alone: this one comes from the URL, and becomes part of a path below.
    if name not in _STATIC:
        return PlainTextResponse("there is no such file", 404)
    content = (files("turnfold_query.console") / "static" / name).read_bytes()
    response = Response(content, media_type=_STATIC[name])
    response.headers["cache-control"] = "public, max-age=3600"
    return response


class _SafeHeaders:
    """Adds the content security policy and other headers to every page."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Call the application."""

        async def safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
                if "cache-control" not in Headers(scope=message):
                    headers["cache-control"] = "no-store"
            await send(message)

        await self._app(scope, receive, safely)
