"""Mark unmarked user messages of programs as `is_meta`, by the policy of their session.

The mark is stored with the message, so that every later reader counts the same rounds. A policy
that changes afterwards changes the marks of new messages only.
"""

import json

from turnfold.core.policy.meta import is_written_by_program
from turnfold.core.policy.presets import Policy
from turnfold.core.text.tokens import text_of
from turnfold.messages import Role
from turnfold.ports.ingest import DecodedEvent

_USER = str(Role.USER)


def with_marks(arrival: DecodedEvent, policy: Policy) -> DecodedEvent:
    """Return the event with `is_meta` on the messages that begin like a program's."""
    if not policy.meta_prefixes:
        return arrival
    found = {
        index
        for index, message in enumerate(arrival.messages)
        if message.role == _USER
        and not message.is_meta
        and is_written_by_program(text_of(json.loads(message.body)), policy)
    }
    if not found:
        return arrival
    messages = tuple(
        message._replace(is_meta=True) if index in found else message
        for index, message in enumerate(arrival.messages)
    )
    return arrival._replace(messages=messages)
