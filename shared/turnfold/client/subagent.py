"""A task that a second agent does in a conversation of its own, and that ends with a text whatever becomes of it."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

from turnfold.client.recovery import ContextRecovery
from turnfold.client.session import Session
from turnfold.errors import ContextOverflow

ENDED: Final = (
    "The sub-task was ended before it was done: its conversation became too long for its model, also after it was shortened. "
    "Divide it into smaller sub-tasks, or go on without it."
)
FAILED: Final = "The sub-task was ended before it was done: its conversation became too long, and the shorter attempt failed ({error})."


@dataclass(frozen=True, slots=True)
class SubagentResult:
    """The sub-agent did its task; `text` is its result."""

    text: str
    session: Session


@dataclass(frozen=True, slots=True)
class SubagentFailure:
    """The sub-agent could not go on; `text` says so to the parent's model, and `error` is what happened."""

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
    """Have `work` done beside a parent's conversation; its result, or the text that it ended.

    `work` is given a `Recovering` around `call` and the sub-agent's own session (`parent.subsession(name)`), publishes
    there, and returns the text of its result. `options` are those of `Recovering`. A call that overflows twice, or whose
    second attempt fails, ends the task; the parent's list and session are not touched by either. Any other error of
    `work` rises as it is.
    """
    session = parent.subsession(name)
    complete = ContextRecovery(call, session, **options)
    try:
        return SubagentResult(await work(complete, session), session)
    except ContextOverflow as error:
        return SubagentFailure(ENDED, session, error)
    except Exception as error:
        if complete.second_failure is not error:
            raise
        return SubagentFailure(FAILED.format(error=type(error).__name__), session, error)
