"""A request for a page: its visitor, its parameters, and the page that answers it."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from turnfold.errors import BadRequest, TooLarge
from turnfold.messages import MOST_EXACT
from turnfold_query.console.api import ApiError
from turnfold_query.console.formats import FILTERS, finalize
from turnfold_query.console.visitors import (
    FORM_COOKIE,
    FORM_FIELD,
    PATH,
    Visitor,
    cookies_of,
    form_proof,
    is_own_form,
    set_cookie,
)

FORM_BYTES = 16 * 1024
FORM_SECONDS = 10.0
REFUSED_FORM = "this form was not made for you here; open the page again, and send it from there"

templates = Environment(
    loader=PackageLoader("turnfold_query.console"),
    autoescape=True,
    undefined=StrictUndefined,
    finalize=finalize,
    trim_blocks=True,
    lstrip_blocks=True,
)
templates.filters.update(FILTERS)


@dataclass(frozen=True, slots=True)
class PageView:
    """A request, its visitor, and the secret of the installation with which forms are signed."""

    request: Request
    visitor: Visitor
    read_secret: Callable[[], Awaitable[str]]

    def text(self, name: str) -> str | None:
        """Return a parameter of the URL; None if it is missing or empty."""
        return self.request.query_params.get(name) or None

    def whole(self, name: str, *, most: int = MOST_EXACT) -> int | None:
        """Return a parameter as a number from 0 to `most`; None if it is none."""
        number = whole_number(self.text(name) or "")
        return None if number is None else min(number, most)

    def part(self, name: str) -> str:
        """Return a segment of the path, percent-encoded as it came."""
        return str(self.request.path_params[name])

    def number(self, name: str) -> int:
        """Return a segment of the path as a number.

        Raises:
            ApiError: it is none.
        """
        number = whole_number(self.part(name))
        if number is None:
            raise ApiError(404, {"message": "This page does not exist."})
        return number

    @property
    def session_path(self) -> str:
        """The path of the session below `/v1` and below the console alike."""
        return f"/agents/{self.part('agent')}/sessions/{self.part('session')}"

    async def get_session(self, below: str = "", **query: object) -> dict[str, Any]:
        """Ask the API about the session of the path.

        Raises:
            ApiError: the answer is an error.
        """
        return await self.visitor.api.get(f"/v1{self.session_path}{below}", **query)

    def page(self, template: str, *, status: int = 200, **values: Any) -> Response:
        """Return a page."""
        return page(self.request, template, status=status, visitor=self.visitor, **values)

    async def question(self, *, title: str, sentences: list[str], **values: Any) -> Response:
        """Return the page that asks before an act, with the form that does it."""
        proof = form_proof(await self.read_secret(), self.visitor)
        response = self.page(
            "confirm.html",
            title=title,
            sentences=sentences,
            field=FORM_FIELD,
            proof=proof,
            host=self.request.headers.get("host", ""),
            **values,
        )
        # Kept if there is one: with a new key, the forms of other open pages would be refused.
        if FORM_COOKIE not in cookies_of(self.request.headers):
            set_cookie(response, self.request, FORM_COOKIE, self.visitor.form_key)
        return response

    def check_operator(self) -> None:
        """Check that the visitor may change something.

        Raises:
            ApiError: they are not an operator.
        """
        if not self.visitor.is_operator:
            raise ApiError(
                403, {"code": "not_allowed", "message": "only an operator's token may change this"}
            )

    async def check_form(self) -> dict[str, str]:
        """Return the fields of a form that this visitor sent from a page made for them.

        Raises:
            ApiError: the form was not made for them, or they are not an operator.
        """
        fields = await form_of(self.request)
        self.check_operator()
        if not is_own_form(
            await self.read_secret(), self.visitor, self.request, fields.get(FORM_FIELD, "")
        ):
            raise ApiError(403, {"code": "not_allowed", "message": REFUSED_FORM})
        return fields


def whole_number(text: str) -> int | None:
    """Return the number that a text is; None if it is none, or of more than 19 digits."""
    # `isdigit` alone is also true of superscripts, which `int` refuses.
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 19 else None


def page(request: Request, template: str, *, status: int = 200, **values: Any) -> Response:
    """Return a page; without `visitor`, that of somebody who has not signed in."""
    shown = {"visitor": None, "here": request.scope["path"], "path": PATH} | values
    html = templates.get_template(template).render(shown)
    # Published texts may contain half a character, which UTF-8 cannot express.
    return HTMLResponse(html.encode("utf-8", "replace"), status)


def redirect(place: str, **query: str) -> Response:
    """Return a redirect to a page below the console."""
    target = f"{PATH}{place}" + (f"?{urlencode(query)}" if query else "")
    return RedirectResponse(target, 303)


async def form_of(request: Request) -> dict[str, str]:
    """Return the fields of a form.

    Raises:
        ApiError: the form is too long, too slow, unfinished or no text.
    """
    body = bytearray()
    try:
        async with asyncio.timeout(FORM_SECONDS):
            async for part in request.stream():
                body += part
                if len(body) > FORM_BYTES:
                    raise ApiError(TooLarge.status, {"message": "the form is too long"})
        fields = parse_qs(body.decode(), keep_blank_values=True, max_num_fields=20)
    except (TimeoutError, ValueError, ClientDisconnect):
        raise ApiError(BadRequest.status, {"message": "the form cannot be read"}) from None
    return {name: values[-1] for name, values in fields.items()}
