"""The answer to `context.get`: the summary and the messages that the model reads next."""

from typing import Annotated, Any, Literal

from pydantic import Field

from turnfold.contracts.answers.base import Answer, OfSession, ReadAnswer
from turnfold.contracts.answers.summaries import SummaryFields
from turnfold.contracts.fields import (
    ChatMessage,
    Count,
    MessageField,
    Time,
    example,
)
from turnfold.messages import ToolFormat

Etag = Annotated[str, Field(description="Changes when the window changes.")]


class ShownSummary(SummaryFields):
    """The version in force, as far as it fits the window."""

    trimmed: Literal[True] | None = Field(
        None, description="True if the text or the ledger is shortened to fit the budget."
    )


class WindowSizes(Answer):
    """The size of the window."""

    tokens: Count = Field(description="Tokens of the window, including the summary.")
    budget_tokens: Count | None = Field(description="The limit; null if there is none.")
    messages: Count = Field(description="The length of `messages`.")
    model_window: Count = Field(description="Tokens that the model can read.")


class MessageAccount(Answer):
    """The treatment of each message of the session.

    `shown + folded + covered + pending_shown + pending_digested = total`.
    """

    total: Count = Field(description="Messages of the session.")
    shown: Count = Field(description="Live messages in the window, in any form.")
    trimmed: Count = Field(description="Shown messages that are shortened.")
    folded: Count = Field(description="Live messages that the window leaves out.")
    covered: Count = Field(description="Messages that the summary in force covers.")
    pending_shown: Count = Field(description="Pending messages in the window.")
    pending_digested: Count = Field(description="Pending messages that only a digest covers.")
    recalled: Count = Field(description="Copies of evicted messages, shown in addition.")
    synthesised: Count = Field(description="Stand-in results of calls without a result.")
    folded_told: Count = Field(description="Folded messages that a digest in the window covers.")
    untold: Count = Field(
        description="Folded or pending messages that nothing in the window covers; 0 unless even "
        "the shortest digest does not fit."
    )


class RecalledBlock(Answer):
    """The block of earlier messages directly before the newest request."""

    tokens: Count = Field(description="Tokens of the block, included in those of the window.")
    messages: Count = Field(description="Messages in the block.")
    message_ids: list[MessageField] = Field(description="Their ids, in order of time.")
    is_partial: bool = Field(description="Whether the search index lagged behind too far.")
    indexed_to: Count = Field(description="The `seq` up to which the session is in the index.")


class PendingMessages(Answer):
    """The evicted messages that no summary covers yet."""

    messages: Count
    tokens: Count
    since: Time | None = Field(description="When the oldest eviction happened; null if none waits.")


MessageIds = MessageField | list[MessageField | None] | None


class WindowEntry(Answer):
    """The form in which a window shows a message."""

    id: MessageIds = Field(description="As in `message_ids`.")
    form: Literal["whole", "cut", "line", "mended", "stand_in", "summary", "digest", "recall"] = (
        Field(
            description="`whole`: verbatim, as published. `cut`: parts are shortened or left out."
            " `line`: one line replaces a result. `mended`: rewritten, only what `without` names"
            " is missing. The other forms are not stored messages. A merged or"
            " converted message is `mended`, or has the form of its most shortened part."
        )
    )
    without: list[Literal["reasoning", "arguments", "ids"]] = Field(
        description="Parts that are left out or shortened."
    )
    carry: Any = Field(
        None,
        description="What the event carries for this message, verbatim; absent if that is"
        " null. If `id` is a list, a list beside it. At most 8,000,000 characters for one window.",
    )


class ContextAnswer(OfSession, ReadAnswer):
    """The model's next input: the summary in force and the newest messages, within the budget."""

    model_config = example(
        agent_id="support",
        session_id="user-42",
        fresh=True,
        refused=0,
        etag="9f1c0b7a5d3e4f6a8b2c1d0e",
        summary={
            "version": 3,
            "kind": "extractive",
            "style": "structured",
            "model": None,
            "text": "The customer asks for order 7341.",
            "sections": {"requests": ["Where is order 7341?"]},
            "ledger": ["order 7341"],
            "tokens": 24,
            "covers": {"first": "e1#0", "last": "e58#1", "messages": 118},
            "created_at": "2026-11-20T10:00:00.000Z",
        },
        messages=[{"role": "user", "content": "Has it left Ghent?"}],
        message_ids=["e59#0"],
        window={"tokens": 35, "budget_tokens": 8_000, "messages": 1, "model_window": 128_000},
        account={
            "total": 119,
            "shown": 1,
            "trimmed": 0,
            "folded": 0,
            "covered": 118,
            "pending_shown": 0,
            "pending_digested": 0,
            "recalled": 0,
            "synthesised": 0,
            "folded_told": 0,
            "untold": 0,
        },
        recall=None,
        pending={"messages": 0, "tokens": 0, "since": None},
    )

    fresh: bool = Field(description="Whether all events of the session up to `after` are ingested.")
    etag: Etag
    refused: Count = Field(
        description="How many events of the session up to `after` became dead letters and were not"
        " replayed; at most 10,000."
    )
    summary: ShownSummary | None = Field(description="Null before the first version.")
    system: str | None = Field(
        None,
        description="Only with `format: anthropic`: the system text; null if there is none.",
    )
    messages: list[ChatMessage | None] = Field(
        description="The messages, in the requested format, in the order to send them. Null only"
        " with `bodies: changed`: as published."
    )
    message_ids: list[MessageIds] = Field(
        description="Parallel to `messages`. Null: not a stored message, such as a digest. A list:"
        " several messages are merged."
    )
    entries: list[WindowEntry] | None = Field(
        None, description="Only with `entries: true`. Parallel to `messages`."
    )
    window: WindowSizes
    account: MessageAccount
    recall: RecalledBlock | None = Field(description="Null if nothing was recalled.")
    pending: PendingMessages


class UnchangedAnswer(ReadAnswer):
    """The window has not changed since the requested etag; over HTTP this is the status 304."""

    model_config = example(not_modified=True, etag="9f1c0b7a5d3e4f6a8b2c1d0e")

    not_modified: Literal[True]
    etag: Etag


class ToolDefinition(Answer):
    """A tool for a model; its schema is called as the model's interface calls it."""

    name: str
    description: str
    parameters: dict[str, Any] | None = Field(None, description="Only with `format: openai`.")
    input_schema: dict[str, Any] | None = Field(None, description="Only with `format: anthropic`.")


class ToolsAnswer(ReadAnswer):
    """The tools with which a model looks things up in its session."""

    model_config = example(
        tools=[
            {
                "name": "search_history",
                "description": "Search everything that was said in this conversation.",
                "parameters": {"type": "object", "properties": {"query": {"type": "string"}}},
            }
        ],
        format="openai",
    )

    tools: list[ToolDefinition]
    format: ToolFormat


class ToolAnswer(ReadAnswer):
    """The result of a tool, as data for the model."""

    model_config = example(content="No message matches.")

    content: str
