"""Routes that list sessions and dead letters."""

from typing import Annotated

from fastapi import FastAPI, Path, Query, Request, Response

from turnfold.contracts.answers.history import SessionListAnswer
from turnfold.contracts.answers.installation import DeadLetterAnswer, DeadLetterListAnswer
from turnfold.messages import MOST_INT64
from turnfold.operations.query import dead_letters, history
from turnfold.ports.admin import DeadLetterStore
from turnfold.ports.query import HistoryStore
from turnfold_query.http.description import EVERYWHERE, described
from turnfold_query.http.inspections import Limit, agents_among
from turnfold_query.http.responses import read_response


def add_lists(app: FastAPI, histories: HistoryStore, letter_store: DeadLetterStore) -> None:
    """Add the routes that list sessions and dead letters."""

    @app.get(
        "/v1/sessions",
        **described(
            "sessions", "Sessions, newest event first", SessionListAnswer, errors=EVERYWHERE
        ),
    )
    async def get_sessions(
        http: Request,
        agent_id: str | None = None,
        after: Annotated[str | None, Query(description="`next_after` of the page before.")] = None,
        limit: Limit = 100,
    ) -> Response:
        agent_ids = agents_among(http, agent_id)
        return read_response(
            http,
            await history.sessions(agent_ids=agent_ids, after=after, limit=limit, store=histories),
        )

    @app.get(
        "/v1/deadletters",
        **described(
            "dead letters",
            "Events that could not be stored",
            DeadLetterListAnswer,
            errors=EVERYWHERE,
        ),
    )
    async def get_dead_letters(
        http: Request,
        after: Annotated[int, Query(ge=0, le=MOST_INT64)] = 0,
        before: Annotated[
            int | None,
            Query(ge=1, le=MOST_INT64, description="Newest first, those with lower numbers."),
        ] = None,
        limit: Limit = 100,
    ) -> Response:
        return read_response(
            http,
            await history.dead_letters(after=after, before=before, limit=limit, store=histories),
        )

    @app.get(
        "/v1/deadletters/{dead_letter_id}",
        **described(
            "dead letters", "A dead letter with its bytes", DeadLetterAnswer, errors=EVERYWHERE
        ),
    )
    async def get_dead_letter(
        http: Request,
        dead_letter_id: Annotated[int, Path(ge=1, le=MOST_INT64)],
    ) -> Response:
        return read_response(http, await dead_letters.show(dead_letter_id, store=letter_store))
