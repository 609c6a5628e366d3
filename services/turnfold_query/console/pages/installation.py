"""Pages about the whole installation: overview, sessions, jobs, dead letters and erasures."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from starlette.responses import Response

from turnfold.errors import Unavailable
from turnfold.messages import MOST_INT64
from turnfold_query.console.api import ApiError
from turnfold_query.console.formats import segment
from turnfold_query.console.views import PageView

NEWEST = 8
PAGE = 50
JOBS = 100
CAMPAIGNS = 100
ERASURES = 200
DAYS = 30
PUBLISHED = frozenset({"stored", "published", "dead", "replayed_before"})
"""Outcomes of a replay after which a dead letter has a time of its replay."""


async def overview(view: PageView) -> Response:
    """Show totals, and the sessions that received an event last."""
    api = view.visitor.api
    stats, fault = None, None
    try:
        stats = await api.get("/v1/stats")
    except ApiError as error:
        # Counting takes long in a very large installation; the rest of the page does not.
        fault = error.message
    return view.page(
        "overview.html",
        stats=stats,
        fault=fault,
        sessions=(await api.get("/v1/sessions", limit=NEWEST))["sessions"],
    )


async def sessions(view: PageView) -> Response:
    """Show sessions, newest event first; those of one agent, or whose ids begin with a text."""
    agent, prefix = view.text("agent"), view.text("prefix")
    after = view.text("after")
    if agent and prefix:
        listed = await view.visitor.api.get(
            f"/v1/agents/{segment(agent)}/sessions", prefix=prefix, after=after, limit=PAGE
        )
        listed["sessions"] = [{"agent_id": agent} | named for named in listed["sessions"]]
    else:
        listed = await view.visitor.api.get("/v1/sessions", agent_id=agent, after=after, limit=PAGE)
    return view.page(
        "sessions.html",
        sessions=listed["sessions"],
        next_after=listed["next_after"],
        agent=agent,
        prefix=prefix,
        needs_agent=bool(prefix and not agent),
        is_first=after is None,
    )


async def agents(view: PageView) -> Response:
    """Show the agents with their totals, in the order of their ids."""
    return await _part_of_list(view, "agents", PAGE)


async def _part_of_list(view: PageView, name: str, number: int) -> Response:
    """Show that many entries of a list of the API, from `after` on."""
    after = view.text("after")
    listed = await view.visitor.api.get(f"/v1/{name}", after=after, limit=number)
    return view.page(
        f"{name}.html",
        **{name: listed[name]},
        next_after=listed["next_after"],
        is_first=after is None,
    )


async def costs(view: PageView) -> Response:
    """Show the tokens and the money that summaries took, and the tokens that they saved."""
    agent = view.text("agent")
    api, costs, stats, fault = view.visitor.api, None, None, None
    try:
        costs = await api.get("/v1/costs", agent_id=agent, days=DAYS)
        stats = await api.get("/v1/stats", agent_id=agent)
    except ApiError as error:
        if error.status != Unavailable.status:
            raise
        fault = error.message
    return view.page(
        "costs.html",
        agent=agent,
        costs=costs,
        stats=stats,
        fault=fault,
        days=DAYS,
        bars=bars_of(costs["days"]) if costs else (),
    )


async def campaigns(view: PageView) -> Response:
    """Show the campaigns that regenerate many summaries, and their progress."""
    listed = await view.visitor.api.get("/v1/campaigns", limit=CAMPAIGNS)
    return view.page("campaigns.html", campaigns=listed["campaigns"], most=CAMPAIGNS)


async def jobs(view: PageView) -> Response:
    """Show the summaries that are being written, and those that failed."""
    api = view.visitor.api
    return view.page(
        "jobs.html",
        most=JOBS,
        waiting=(await api.get("/v1/compactions", status="open", limit=JOBS))["compactions"],
        failed=(await api.get("/v1/compactions", status="failed", limit=JOBS))["compactions"],
    )


async def dead_letters(view: PageView) -> Response:
    """Show the events that could not be stored, newest first."""
    before = view.whole("before", most=MOST_INT64)
    listed = await view.visitor.api.get("/v1/deadletters", before=before or MOST_INT64, limit=PAGE)
    letters = listed["dead_letters"]
    return view.page(
        "dead_letters.html",
        letters=letters,
        before=before,
        next_before=letters[-1]["dead_letter_id"] if len(letters) == PAGE else None,
    )


async def dead_letter(view: PageView) -> Response:
    """Show one of them with its bytes."""
    number = view.number("letter")
    letter = await view.visitor.api.get(f"/v1/deadletters/{number}")
    did = view.text("did")
    # A link may name an outcome that never was.
    if did in PUBLISHED and letter["replayed_at"] is None:
        did = None
    return view.page("dead_letter.html", letter=letter, did=did)


async def erasures(view: PageView) -> Response:
    """Show what was erased, newest first."""
    return await _part_of_list(view, "erasures", ERASURES)


HEIGHT = 100.0
LEAST = 1.5
"""The height of a bar of the smallest number that is not 0."""


class Bar(NamedTuple):
    """A day: its place, its height upward from the bottom, and what it tells."""

    x: int
    y: float
    height: float
    day: str
    tokens: int


def bars_of(days: Sequence[Mapping[str, Any]]) -> list[Bar]:
    """Draw days side by side, each one unit wide; the largest reaches the top."""
    most = max((day["tokens"] for day in days), default=0) or 1
    bars = []
    for place, day in enumerate(days):
        height = max(LEAST, round(HEIGHT * day["tokens"] / most, 2)) if day["tokens"] else 0.0
        bars.append(Bar(place, round(HEIGHT - height, 2), height, day["day"], day["tokens"]))
    return bars
