"""Read requests into their models, and say what is wrong with one in a sentence."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from pydantic import ValidationError

from turnfold.contracts.json_values import json_object, most_values
from turnfold.contracts.requests import Command, RecallFields, Request
from turnfold.errors import BadRequest
from turnfold.messages import AgentId, SessionKey

POLICY_READ_BYTES = 8_192
"""More than two ids need, however they are escaped."""


def is_policy_read(body: bytes) -> bool:
    """Return whether a policy request only reads: it contains no field that changes the policy."""
    # Workers and query servers both decide by this function, so that exactly one of them answers.
    if not body:
        return True
    # Before parsing: this is decided before the share of the agent that asks.
    if len(body) > POLICY_READ_BYTES:
        return False
    fields = json_object(body)
    return fields is not None and fields.keys() <= set(SessionKey._fields)


Shape = TypeVar("Shape", bound=Request)
CommandShape = TypeVar("CommandShape", bound=Command)
MAX_NAME_CHARACTERS = 100
"""The maximum length of an unknown field's name in an error message or an answer."""
MOST_IGNORED = 10
"""The most unknown fields that an answer names."""
_NO_ID = object()
"""Equal to no value of a field."""
MOST_VALUES = 10_000
"""More than any request needs: each costs as much as a hundred characters of a text."""
# No further than the first value too many. A string reaches to the end if it is not closed:
# otherwise each quote in it would be a new beginning.
_TOO_MANY = re.compile(
    rb'(?:(?:[^",\[{]++|"(?:[^"\\]++|\\.)*+"?)*+[,\[{]){%d}+' % (MOST_VALUES + 1), re.DOTALL
)
_ESCAPES = re.compile(
    rb"(?:\\[^u][^\\]*+)++|\\u[dD][89abAB]..\\u[dD][c-fC-F]..|(\\u[dD][89a-fA-F]..)", re.DOTALL
)
"""Escapes of JSON, so that none begins within another; the group is half a pair of surrogates."""

_ABOUT_INPUT = re.compile(r"^[A-Z]\w+ should\b")
_ABOUT_PARSING = re.compile(r"^Value error, |, unable to parse string as an? \w+$")


def check_values(body: bytes) -> None:
    """Check how many values the JSON of a request has, before it is parsed.

    Raises:
        BadRequest: they are more than any request needs.
    """
    if most_values(body) > MOST_VALUES and _TOO_MANY.match(body):
        raise BadRequest(f"a request may have at most {MOST_VALUES:,} values")


def read_request(shape: type[Shape], body: bytes) -> Shape:
    """Read the JSON of a request; an empty body means `{}`.

    In a request that reads, half a pair of surrogates becomes U+FFFD: texts that were cut between
    the two are published, and asked about.

    Raises:
        BadRequest: the request is invalid. The text names the first invalid field, never its
            value.
    """
    check_values(body)
    try:
        return shape.model_validate_json(body or b"{}", strict=True)
    except ValidationError as error:
        # Not before: hardly any request has one. Never in a command, whose text may be an id.
        whole = body if issubclass(shape, Command) else _ESCAPES.sub(_whole_character, body)
        if whole != body:
            return read_request(shape, whole)
        raise BadRequest(first_fault(_faults(error))) from None


def _whole_character(escape: re.Match[bytes]) -> bytes:
    return rb"\ufffd" if escape[1] else escape[0]


def read_command(
    shape: type[CommandShape], key: SessionKey | AgentId | None, body: bytes
) -> CommandShape:
    """Read a request that writes; `key` is the session or agent of its subject, if any.

    Raises:
        BadRequest: as in `read_request`, and for an unknown field or ids that differ from the
            subject.
    """
    request = read_request(shape, body)
    ids: tuple[str, ...] = key if isinstance(key, SessionKey) else (key,) if key is not None else ()
    named = dict(zip(SessionKey._fields, ids, strict=False))
    for name in request.model_fields_set.intersection(SessionKey._fields):
        if name not in named or getattr(request, name) != named[name]:
            raise BadRequest(f"{name}: differs from the {name} of the subject; omit it")
    return request


def read_query(shape: type[Shape], fields: dict[str, str]) -> Shape:
    """Read a request from the text fields of a URL.

    Raises:
        BadRequest: as in `read_request`.
    """
    try:
        # Not strict: in a URL, every number and boolean is a text.
        return shape.model_validate(fields)
    except ValidationError as error:
        raise BadRequest(first_fault(_faults(error))) from None


def with_ignored(reply: bytes, key: SessionKey | AgentId, request: Request) -> bytes:
    """Add to an answer the names of fields that the model of its request lacks, if there are any.

    The ids of the subject may be repeated; others are named, because they have no effect.
    """
    named = dict(zip(SessionKey._fields, (key,) if isinstance(key, str) else key, strict=False))
    extra = request.model_extra or {}
    names = [name for name, value in extra.items() if value != named.get(name, _NO_ID)]
    if isinstance(recall := getattr(request, "recall", None), RecallFields):
        names += [f"recall.{name}" for name in recall.model_extra or ()]
    return naming(reply, names)


def naming(reply: bytes, ignored: Sequence[str]) -> bytes:
    """Add to an answer the names of fields that have no effect, if there are any."""
    if not ignored:
        return reply
    named = [name[:MAX_NAME_CHARACTERS] for name in ignored[:MOST_IGNORED]]
    # An answer has at least one field, so a comma may follow.
    return b'{"ignored": %s, ' % json.dumps(named).encode() + reply.removeprefix(b"{")


def _faults(error: ValidationError) -> Sequence[Mapping[str, Any]]:
    return error.errors(include_url=False, include_input=False, include_context=False)


def first_fault(faults: Sequence[Mapping[str, Any]]) -> str:
    """Return the first of pydantic's faults; of a value with several forms, what each form wants.

    >>> wrong = {"type": "int_parsing", "loc": ("after", "constrained-int"), "msg": "No integer"}
    >>> first_fault([wrong, {**wrong, "loc": ("after", "literal['a']"), "msg": "Not 'a'"}])
    "after: No integer; or: Not 'a'"
    """
    first = faults[0]
    where = _field(first)
    if first["type"] == "extra_forbidden":
        return f"unknown field {where[:MAX_NAME_CHARACTERS]!r}; correct its name or omit it"
    messages = "; or: ".join(
        plain_words(fault["msg"]) for fault in faults if _field(fault) == where
    )
    return f"{where or 'the request'}: {messages}"


def plain_words(message: str) -> str:
    """Return a message of pydantic as one about the value of a user.

    >>> plain_words("Input should be a valid integer, unable to parse string as an integer")
    'must be a valid integer'
    >>> plain_words("'Nobody should' is not one of 'live', 'pending'")
    "'Nobody should' is not one of 'live', 'pending'"
    """
    about_value = message.replace("Field required", "is required")
    return _ABOUT_PARSING.sub("", _ABOUT_INPUT.sub("must", about_value))


def _field(fault: Mapping[str, Any]) -> str:
    # Pydantic appends the name that it has for the form of a value.
    forms = ("constrained-", "literal[", "RecallFields")
    return ".".join(part for part in map(str, fault["loc"]) if not part.startswith(forms))
