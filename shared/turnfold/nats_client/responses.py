"""Tell the replies of the server from those of other subscribers."""

from typing import Final

from nats.aio.msg import Msg

from turnfold.contracts.json_values import json_object

API: Final = "$JS.API."
UNREADABLE: Final = (LookupError, TypeError, ValueError, AttributeError, RecursionError)
"""The errors of reading a reply of another form: any client may reply to a request."""
_NO_RESPONDERS: Final = "503"
_API_TYPE: Final = "io.nats.jetstream.api.v1."


def response_type(subject: str) -> str:
    """Return the `type` of the reply to a request of the JetStream API.

    >>> response_type("$JS.API.STREAM.MSG.GET.TURNFOLD_EVENTS")
    'io.nats.jetstream.api.v1.stream_msg_get_response'
    """
    tokens = subject.removeprefix(API).split(".")
    match tokens:
        case ["INFO"]:
            name = "account_info"
        case ["CONSUMER", "DURABLE", "CREATE", *_]:
            name = "consumer_create"
        case ["STREAM", "MSG", verb, *_]:
            name = f"stream_msg_{verb.lower()}"
        case [what, verb, *_]:
            name = f"{what.lower()}_{verb.lower()}"
        case _:
            name = ""
    return f"{_API_TYPE}{name}_response"


def is_response(reply: Msg, wanted: str) -> bool:
    """Return whether a reply is of this `type`, or an error of the JetStream API."""
    answer = json_object(reply.data)
    if answer is None or answer.get("type") != wanted:
        return False
    failure = answer.get("error")
    return failure is None or (isinstance(failure, dict) and isinstance(failure.get("code"), int))


def is_no_responders(reply: Msg) -> bool:
    """Return whether a message reports that there is no subscriber."""
    return not reply.data and (reply.headers or {}).get("Status") == _NO_RESPONDERS
