"""Read the messages that recall has chosen, with the calls and results that belong to them."""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final

from sqlalchemy import BigInteger, bindparam, exists, func, select
from sqlalchemy.dialects.postgresql import ARRAY

from turnfold.core.recall.material import Quote, RecalledMessage, RecallMaterial
from turnfold.core.text.tokens import text_of
from turnfold.messages import Message
from turnfold.ports.recall import Choice
from turnfold.store.database.inline_reader import WouldBlock, fetch_small
from turnfold.store.database.message_rows import RECALLED, recalled_of, storable_key
from turnfold.store.database.predicates import is_kept, of_messages
from turnfold.store.database.schema import messages, sessions
from turnfold.store.database.statements import Fetch, Prepared, PreparedIn, SupportsStatements
from turnfold.store.query.session_order import SessionOrder

_decode: Final = json.JSONDecoder().raw_decode
_BODY_PLACE: Final = len(RECALLED) - 1
_MESSAGES = PreparedIn(select(*RECALLED).where(of_messages), messages.c.position, "of_sid")
_is_unchanged = exists().where(
    sessions.c.sid == bindparam("of_sid"),
    sessions.c.revision == bindparam("revision", type_=BigInteger),
    sessions.c.unindexed_from.is_not_distinct_from(bindparam("unindexed", type_=BigInteger)),
    is_kept,
)
_UNCHANGED_MESSAGES = Prepared(
    select(*RECALLED).where(
        of_messages,
        messages.c.position == func.any(bindparam("values", type_=ARRAY(BigInteger))),
        _is_unchanged,
    ),
    ("of_sid", "values", "revision", "unindexed"),
)
_UNCHANGED = Prepared(select(_is_unchanged), ("of_sid", "revision", "unindexed"))
_RESULTS = PreparedIn(
    select(messages.c.position, messages.c.answers_position).where(of_messages),
    messages.c.tool_call_id,
    "of_sid",
)
MOST_RESULTS = 64
"""The most calls of a message whose results are looked up."""


@dataclass(frozen=True, slots=True)
class StoredMessages:
    """Messages of a session that were read, with their bodies, by position.

    In no transaction, they are read only while the session is as it was at the first statement:
    then all statements between saw the same. `state` is its revision, which every change of its
    messages counts, and the first position that the index lacks.
    """

    connection: SupportsStatements
    sid: int
    fetch: Fetch
    state: tuple[int, int | None] | None = None
    found: dict[int, tuple[Message, str]] = field(default_factory=dict)

    def add(self, wanted: Collection[int]) -> bool:
        """Read missing messages; return whether any were.

        Raises:
            WouldBlock: the session has changed, or they are large.
        """
        missing = sorted(set(wanted) - self.found.keys())
        if self.state is None or not missing:
            rows = _MESSAGES.rows(self.connection, self.sid, missing, fetch=self.fetch)
        else:
            rows = _UNCHANGED_MESSAGES.rows(self.connection, self.sid, missing, *self.state)
            if not rows:
                raise WouldBlock
        for row in rows:
            self.found[row[0]] = recalled_of(row)
        return bool(missing)

    def check(self) -> None:
        """Check that the session is as it was at the first statement.

        Raises:
            WouldBlock: it has changed.
        """
        if self.state is not None:
            ((is_unchanged,),) = _UNCHANGED.rows(self.connection, self.sid, *self.state)
            if not is_unchanged:
                raise WouldBlock

    def texts(self, positions: Sequence[int]) -> list[str]:
        """Return the texts of messages."""
        self.add(positions)
        return [text_of(json.loads(self.found[at][1])) for at in positions if at in self.found]


def few(cursor: Any) -> list[Sequence[Any]]:
    """Fetch rows of `RECALLED`.

    Raises:
        WouldBlock: they are large.
    """
    return fetch_small(cursor, lambda row: len(row[_BODY_PLACE]))


def read_chosen(
    stored: StoredMessages, choice: Choice, until: int, order: SessionOrder
) -> RecallMaterial:
    """Read the chosen messages, their calls and results, and the messages of the chosen lines.

    Results that came later are left out, or a block that is decided again would have more.
    """
    positions = [order.positions[ordinal] for ordinal in choice.messages]
    quoted = [order.positions[ordinal] for ordinal, _ in choice.lines]
    is_checked = stored.add([*positions, *quoted])
    found = stored.found
    whole = [found[position][0] for position in positions if position in found]
    belonging = _read_partners(stored, whole, until, is_checked=is_checked) - set(positions)
    partners = sorted(belonging & found.keys())
    ordinals = dict(zip(positions, choice.messages, strict=True))
    ordinals |= {order.positions[ordinal]: ordinal for ordinal, _ in choice.lines}
    ordinals |= zip(partners, order.ordinals(partners), strict=True)
    recalled = _recallable(ordinals, found)
    return RecallMaterial(
        [recalled[position] for position in positions if position in recalled],
        [recalled[position] for position in partners if position in recalled],
        [
            Quote(recalled[position], line)
            for position, (_, line) in zip(quoted, choice.lines, strict=True)
            if position in recalled
        ],
    )


def _recallable(
    ordinals: Mapping[int, int], stored: Mapping[int, tuple[Message, str]]
) -> dict[int, RecalledMessage]:
    """Return the messages at these positions as they may be recalled, without copies."""
    return {
        position: _recalled(message, body, ordinals[position])
        for position, (message, body) in stored.items()
        if position in ordinals and not message.is_copy
    }


def _read_partners(
    stored: StoredMessages, whole: Sequence[Message], until: int, *, is_checked: bool
) -> set[int]:
    """Read the calls and the results that belong to these messages; return their positions.

    The last statement tells whether all of them saw the same session; `is_checked` if that before
    this function did.
    """
    belonging = _partners(stored.connection, stored.sid, whole)
    is_checked &= not any(message.calls for message in whole)
    if not stored.add([position for position in belonging if position < until]) | is_checked:
        stored.check()
    return belonging


def _partners(connection: SupportsStatements, sid: int, whole: Sequence[Message]) -> set[int]:
    """Return the positions of the calls and the results that belong to these messages.

    Of a message with many calls, the results of the first ones at least.
    """
    wanted = {message.answers.position for message in whole if message.answers is not None}
    calling = {message.position: message.calls for message in whole if message.calls}
    ids = [
        storable_key(call.call_id) for calls in calling.values() for call in calls[:MOST_RESULTS]
    ]
    for position, answered in _RESULTS.rows(connection, sid, ids):
        if answered in calling:
            wanted.add(position)
    return wanted


def _recalled(message: Message, body: str, ordinal: int) -> RecalledMessage:
    # Stored bodies have no spaces around them, which takes half of the time to find out.
    decoded, _ = _decode(body)
    said_at = _to_the_minute(message.created_at_ms // 60_000)
    return RecalledMessage(message, ordinal, said_at, decoded)


@lru_cache(maxsize=4_096)
def _to_the_minute(minutes: int) -> str:
    """Return a time since the epoch as `2026-11-20 10:00`."""
    said_at = datetime.fromtimestamp(60 * minutes, tz=UTC)
    return said_at.isoformat(" ", "minutes").partition("+")[0]
