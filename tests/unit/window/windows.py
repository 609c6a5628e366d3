"""Windows of invented conversations, and what they show."""

from tests.histories import History, Said, assistant, plan, tool, user, words
from turnfold.core.policy.presets import Policy
from turnfold.core.window.forms import Form
from turnfold.core.window.views import ShownMessage
from turnfold.core.window.window import WindowPlan, WindowRequest
from turnfold.messages import Priority

BALANCED = Policy()
FIRST_FIT = Policy(low_water_ratio=1.0)


def asked_of(
    session: History, budget: int, policy: Policy = BALANCED, *, is_emergency: bool = False
) -> WindowPlan:
    return plan(
        session.stored, WindowRequest(budget_tokens=budget, is_emergency=is_emergency), policy
    )


def asked_without_digest(session: History, budget: int, policy: Policy = FIRST_FIT) -> WindowPlan:
    """A window in which nothing tells of what is left out, so that it is small."""
    return plan(session.stored, WindowRequest(budget_tokens=budget, tells_omitted=False), policy)


def tokens_of(session: History) -> int:
    return sum(message.tokens for message in session.stored.messages)


def forms(made: WindowPlan) -> dict[str, Form]:
    return {
        entry.message.message_id: entry.form
        for entry in made.entries
        if isinstance(entry, ShownMessage)
    }


def shown(made: WindowPlan) -> list[str]:
    return list(forms(made))


def tool_rounds(count: int, tokens: int, *, priority: Priority = Priority.NORMAL) -> list[Said]:
    return [
        said
        for number in range(count)
        for said in (
            Said(assistant(None, f"c{number}"), priority=priority),
            Said(tool(f"c{number}", words(tokens)), priority=priority),
        )
    ]


def talk(number: int) -> list[Said]:
    """An answer without calls, after which a program reports: the turn goes on."""
    return [Said(assistant(f"{number} {words(12)}")), Said(user(words(30)), is_meta=True)]
