"""Messages between a query server and its lane."""

from collections.abc import Hashable
from typing import NamedTuple

from turnfold.contracts.history_requests import DifferenceRequest, SearchRequest
from turnfold.contracts.requests import (
    ContextRequest,
    ExpandRequest,
    ToolRequest,
)
from turnfold.errors import RequestError
from turnfold.messages import SessionKey
from turnfold.operations.query.environment import ContextReply
from turnfold_query.posted_events import EventBody, PostedEvent

Request = (
    SearchRequest | DifferenceRequest | ExpandRequest | ContextRequest | ToolRequest | EventBody
)
Answer = bytes | ContextReply | PostedEvent


class Ask(NamedTuple):
    """To the lane: a request, and the agent whose turn it uses."""

    number: int
    asker: Hashable
    key: SessionKey
    request: Request


class Cancel(NamedTuple):
    """To the lane: cancel a request, because its caller has given up."""

    number: int


class Erased(NamedTuple):
    """To the lane: something was erased."""


class Answered(NamedTuple):
    """From the lane: a request has ended with this answer, or an error; None if cancelled."""

    number: int
    answer: Answer | RequestError | None
