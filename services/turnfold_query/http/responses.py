"""Helpers of all routes: paths and the ids in them, and JSON responses."""

import json
from typing import Annotated, Any
from urllib.parse import unquote_to_bytes

from fastapi import Depends, Path, Request, Response

from turnfold.contracts.reading import naming
from turnfold.contracts.subjects import id_fault
from turnfold.errors import BadRequest
from turnfold.messages import AgentId, SessionId, SessionKey

AGENT = "/v1/agents/{agent_id}"
SESSION = AGENT + "/sessions/{session_id}"

Segment = Annotated[str, Path(description="One percent-encoded segment.")]


def json_response(value: Any, status: int = 200) -> Response:
    """Return a value as JSON."""
    return bytes_response(json.dumps(value).encode(), status)


def read_response(http: Request, value: Any) -> Response:
    """Return the answer to a read as JSON, with the parameters that its route does not have."""
    known = {field.alias for field in http.scope["route"].dependant.query_params}
    ignored = [name for name in http.query_params if name not in known]
    return bytes_response(naming(json.dumps(value).encode(), ignored))


def bytes_response(body: bytes, status: int = 200, **headers: str) -> Response:
    """Return JSON that is already encoded."""
    return Response(body, status, media_type="application/json", headers=headers)


def decode_id(segment: str) -> str:
    """Decode an id from a path segment.

    Raises:
        BadRequest: the segment is not UTF-8, or not an id.
    """
    try:
        decoded = unquote_to_bytes(segment).decode()
    except UnicodeDecodeError:
        raise BadRequest("an id in the path is not UTF-8") from None
    if fault := id_fault(decoded):
        raise BadRequest(f"an id in the path {fault}")
    return decoded


# Async, because FastAPI calls other functions in a thread.
async def agent_key(agent_id: Segment) -> AgentId:
    """Decode the id of an agent's path.

    Raises:
        BadRequest: the segment is not an id.
    """
    return AgentId(decode_id(agent_id))


async def session_key(agent_id: Segment, session_id: Segment) -> SessionKey:
    """Decode the two ids of a session's path.

    Raises:
        BadRequest: a segment is not an id.
    """
    return SessionKey(await agent_key(agent_id), SessionId(decode_id(session_id)))


AgentPath = Annotated[AgentId, Depends(agent_key)]
"""The agent of a path below `AGENT`."""
SessionPath = Annotated[SessionKey, Depends(session_key)]
"""The session of a path below `SESSION`."""
