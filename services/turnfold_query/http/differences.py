"""The route that compares the windows of two moments."""

import json
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request, Response

from turnfold.contracts.answers.inspection import DifferenceAnswer
from turnfold.contracts.history_requests import HistoryRequest
from turnfold.contracts.requests import ContextRequest
from turnfold.errors import CannotFit, TooLarge, UnknownSession
from turnfold.messages import MOST_EXACT, SessionKey
from turnfold.operations.query.difference import WindowThen, changed_ids, difference, forms_of
from turnfold.process.request_limits import Place
from turnfold_query.handlers import QueryDispatcher
from turnfold_query.http.description import EVERYWHERE, described
from turnfold_query.http.request_reading import place_of
from turnfold_query.http.responses import SESSION, SessionPath, json_response

IDS = 500
"""The messages whose states are read at once."""


def add_differences(app: FastAPI, dispatcher: QueryDispatcher) -> None:
    """Add the route."""

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
        http: Request,
        before: Annotated[
            str, Query(max_length=300, description="A moment as in `as_of` of `context.get`.")
        ],
        after: Annotated[
            str | None, Query(max_length=300, description="A moment likewise; by default now.")
        ] = None,
        max_tokens: Annotated[int | None, Query(ge=0, le=MOST_EXACT)] = None,
        model: Annotated[str | None, Query(max_length=300)] = None,
        limit: Annotated[int, Query(ge=1, le=1_000)] = 200,
    ) -> Response:
        place = place_of(http.scope)
        answers: list[dict[str, Any]] = []
        for moment in (before, after):
            asked = ContextRequest(
                as_of=moment,
                max_tokens=max_tokens,
                model=model,
                entries=True,
                # With the summary in it, as the console shows windows.
                placement="user",
                follow_budget=False,
            )
            answers.append(json.loads((await dispatcher.context(key, asked, place)).body))
        changed = changed_ids(*map(forms_of, answers))
        old, new = [
            WindowThen(moment, answer, await _messages(dispatcher, key, changed, moment, place))
            for moment, answer in zip((before, after), answers, strict=True)
        ]
        return json_response(difference(old, new, limit=limit))


async def _messages(
    dispatcher: QueryDispatcher, key: SessionKey, ids: list[str], moment: str | None, place: Place
) -> dict[str, dict[str, Any]]:
    """Return messages by id with the states of a moment."""
    messages: dict[str, dict[str, Any]] = {}
    groups = [ids[first : first + IDS] for first in range(0, len(ids), IDS)]
    while groups:
        group = groups.pop()
        asked = HistoryRequest(message_ids=group, include_retracted=True, as_of=moment)
        try:
            page = json.loads(await dispatcher.answer("history.get", key, asked, place))
        except TooLarge:
            if len(group) == 1:
                raise
            half = len(group) // 2
            groups += [group[:half], group[half:]]
            continue
        messages |= {stored["message_id"]: stored for stored in page["messages"]}
    return messages
