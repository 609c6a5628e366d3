"""Visitors of the console: cookies, what they may reach, and the proof that a form is ours."""

import hmac
import secrets
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final

from starlette.datastructures import Headers
from starlette.requests import Request, cookie_parser
from starlette.responses import Response

from turnfold_query.console.api import ApiCaller, ApiError

TOKEN_COOKIE: Final = "turnfold_token"  # noqa: S105  # a name
FORM_COOKIE: Final = "turnfold_form"
FORM_FIELD: Final = "proof"
PATH: Final = "/console"
COOKIE_SECONDS: Final = 12 * 3600
TOKEN_CHARACTERS: Final = 200


@dataclass(frozen=True, slots=True)
class Visitor:
    """The person who looks at a page, and what the API lets them reach.

    `form_key` is the value of a cookie that the browser keeps. `is_signed_in` is false where
    nobody needs a token.
    """

    api: ApiCaller
    name: str | None
    is_operator: bool
    agents: tuple[str, ...] | None
    system: str | None
    form_key: str
    is_signed_in: bool


async def visitor_of(request: Request, api: ApiCaller) -> Visitor:
    """Return who sent a request, as the API knows them.

    Raises:
        ApiError: the API knows no such token, or needs one.
    """
    cookies = cookies_of(request.headers)
    token = cookies.get(TOKEN_COOKIE) or None
    asking = ApiCaller(api.app, token)
    # The API checks the token for each page, so a revoked one ends at once.
    access: dict[str, Any] = await asking.get("/v1/access")
    agents = access["agents"]
    return Visitor(
        api=asking,
        name=access["caller"],
        is_operator=access["is_operator"],
        agents=None if agents is None else tuple(agents),
        system=access["system"],
        # Without the cookie the key is a new one for each request, so no proof matches it.
        form_key=cookies.get(FORM_COOKIE) or secrets.token_urlsafe(16),
        is_signed_in=access["caller"] is not None,
    )


async def is_token(api: ApiCaller, token: str) -> bool:
    """Return whether the API knows a token.

    Raises:
        ApiError: the API cannot answer now.
    """
    if not token or len(token) > TOKEN_CHARACTERS or not token.isascii():
        return False
    try:
        await ApiCaller(api.app, token).get("/v1/access")
    except ApiError as error:
        if error.status == 401:
            return False
        raise
    return True


def cookies_of(headers: Headers) -> dict[str, str]:
    """Return the cookies of a request. One that is malformed hides no other."""
    return cookie_parser(headers.get("cookie", ""))


def set_cookie(response: Response, request: Request, name: str, value: str) -> None:
    """Set a cookie that no script reads and no other site sends."""
    response.set_cookie(
        name,
        value,
        max_age=COOKIE_SECONDS,
        path=PATH,
        secure=request.url.scheme == "https",
        httponly=True,
        samesite="strict",
    )


def form_proof(secret: str, visitor: Visitor) -> str:
    """Return what a form of this visitor carries; only this browser's cookies produce it."""
    # The same secret signs actors, over a JSON list: this prefix keeps the two kinds apart.
    keyed = f"console form\n{visitor.form_key}\n{visitor.api.token or ''}"
    return hmac.new(secret.encode(), keyed.encode(), sha256).hexdigest()


def is_own_form(secret: str, visitor: Visitor, request: Request, proof: str) -> bool:
    """Return whether a form was made for this visitor, and sent from a page of this origin."""
    # Not every browser sends this header; without it, the proof alone decides.
    site = request.headers.get("sec-fetch-site", "same-origin")
    expected = form_proof(secret, visitor)
    # As bytes, because `compare_digest` refuses texts with characters outside ASCII.
    return site == "same-origin" and hmac.compare_digest(expected.encode(), proof.encode())
