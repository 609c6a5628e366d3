"""Find the other items of responses, which leave a session together."""

from collections.abc import Collection, Iterator

from sqlalchemy import Connection, select, union_all

from turnfold.messages import MESSAGES_PER_EVENT, Element
from turnfold.store.database.schema import messages, retracted_messages


def rest_of_responses(connection: Connection, sid: int, positions: Collection[int]) -> list[int]:
    """Return the items of the same responses that are not among these positions."""
    if not positions:
        return []
    chosen = set(positions)
    responses = _responses(connection, sid, min(chosen), max(chosen))
    return [
        position
        for response in responses
        if not chosen.isdisjoint(response)
        for position in response
        if position not in chosen
    ]


def _responses(connection: Connection, sid: int, first: int, last: int) -> Iterator[list[int]]:
    """Yield the responses of the events between two positions, each as its positions in order."""
    start = first - first % MESSAGES_PER_EVENT
    end = last - last % MESSAGES_PER_EVENT + MESSAGES_PER_EVENT
    kinds = [int(Element.ITEM), int(Element.JOINED)]
    # Retracted ones as well: the order in which retractions arrive must not matter.
    items = union_all(
        *[
            select(table.c.position, table.c.element).where(
                table.c.sid == sid,
                table.c.position >= start,
                table.c.position < end,
                table.c.element.in_(kinds),
            )
            for table in (messages, retracted_messages)
        ]
    ).order_by("position")
    response: list[int] = []
    for position, element in connection.execute(items):
        if element != Element.JOINED:
            yield response
            response = []
        response.append(position)
    yield response
