"""Sub-agents: a task in a session of its own that always ends with a text for its parent."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

from turnfold.client.recovery import ContextRecovery
from turnfold.client.session import Session
from turnfold.core.recovery.overflow import only_error
from turnfold.errors import ContextOverflow

ENDED: Final = (
    "The sub-task was ended before it was done: its conversation became too long for its model, "
    "even after it was shortened. Divide it into smaller sub-tasks, or go on without it."
)
FAILED: Final = (
    "The sub-task was ended before it was done: its conversation became too long, "
    "and the shorter attempt failed ({error})."
)


@dataclass(frozen=True, slots=True)
class SubagentResult:
    """The result of a sub-agent that finished its task, in `text`."""

    text: str
    session: Session


@dataclass(frozen=True, slots=True)
class SubagentFailure:
    """The failure of a sub-agent.

    `text` explains it to the parent's model, and `error` is the cause.
    """

    text: str
    session: Session
    error: Exception


async def run_subagent(
    work: Callable[[ContextRecovery, Session], Awaitable[str]],
    call: Callable[..., Awaitable[Any]],
    *,
    parent: Session,
    name: str | None = None,
    **options: Any,
) -> SubagentResult | SubagentFailure:
    """Run `work` in a session of its own, and return its result or the reason why it ended.

    `work` receives a `ContextRecovery` around `call` and the sub-agent's session
    (`parent.subsession(name)`). It publishes to that session and returns the text of its result.
    `options` are passed to `ContextRecovery`. A call that overflows twice, or whose second attempt
    fails, ends the task. Neither changes the parent's messages and session. Any other error of
    `work` is raised unchanged.
    """
    session = parent.subsession(name)
    complete = ContextRecovery(call, session, **options)
    try:
        return SubagentResult(await work(complete, session), session)
    except Exception as error:
        cause = only_error(error)
        if isinstance(cause, ContextOverflow):
            return SubagentFailure(ENDED, session, cause)
        second = complete.second_failure
        if not isinstance(second, Exception) or only_error(second) is not cause:
            raise
        return SubagentFailure(FAILED.format(error=type(cause).__name__), session, cause)
