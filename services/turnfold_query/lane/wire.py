"""What a query server and its lane say to each other."""

from collections.abc import Hashable
from typing import NamedTuple

from turnfold.contracts.requests import ContextRequest, ExpandRequest, SearchRequest
from turnfold.errors import RequestError
from turnfold.messages import SessionKey
from turnfold.operations.query.context import ContextReply

Request = SearchRequest | ExpandRequest | ContextRequest


class Ask(NamedTuple):
    """To the lane: a question, and for whom it is asked."""

    number: int
    asker: Hashable
    key: SessionKey
    request: Request


class Cancel(NamedTuple):
    """To the lane: nobody waits for this answer any more."""

    number: int


class Forget(NamedTuple):
    """To the lane: something was erased; keep no text."""


class Told(NamedTuple):
    """From the lane: how a question ended, and that nothing works on it any more. None: it was cancelled."""

    number: int
    answer: bytes | ContextReply | RequestError | None
