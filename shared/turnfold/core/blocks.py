"""Blocks: messages that stay or leave together, in the order in which a model may be sent them."""

from collections.abc import Sequence
from dataclasses import dataclass

from turnfold.messages import Call, Message, Role


@dataclass(frozen=True, slots=True)
class Block:
    """A message with the results of its calls, one place a call; an open call's place is None.

    A message that calls nothing is a block of its own.
    """

    head: Message
    results: tuple[Message | None, ...] = ()

    @property
    def position(self) -> int:
        """Where the block stands in its history: with its first message."""
        return self.head.position

    @property
    def stored(self) -> tuple[Message, ...]:
        """The messages of the block that exist, the calling one first."""
        if not self.results:
            return (self.head,)
        return (self.head, *(result for result in self.results if result is not None))

    @property
    def open_calls(self) -> tuple[Call, ...]:
        """The calls nobody has answered yet."""
        return tuple(call for call, result in zip(self.head.calls, self.results, strict=True) if result is None)

    @property
    def tokens(self) -> int:
        """What the stored messages count together."""
        return sum(message.tokens for message in self.stored)

    @property
    def is_tool_block(self) -> bool:
        """Whether tools are called here."""
        return bool(self.head.calls)


@dataclass(frozen=True, slots=True)
class Grouped:
    """A history in blocks, and the messages that stand in no block.

    `pinned` is the newest system message. `loose` are, in order: older system messages, copies of results, results that
    wait for their call, and results whose call is not among these messages.
    """

    pinned: Message | None
    blocks: tuple[Block, ...]
    loose: tuple[Message, ...]


def group(messages: Sequence[Message]) -> Grouped:
    """Put messages, given in order of position, into blocks. Nothing is lost: pinned + blocks + loose are the input."""
    pinned = newest_system(messages)
    calling = {message.position: message for message in messages if message.calls and _leads(message)}
    answered: dict[tuple[int, int], Message] = {}
    loose: list[Message] = []
    heads: list[Message] = []
    for message in messages:
        if message is pinned:
            continue
        if message.role.is_system:
            loose.append(message)
        elif not _leads(message):
            answer = message.answers
            owner = calling.get(answer.position) if answer is not None else None
            if answer is None or owner is None or all(call.slot != answer.slot for call in owner.calls):
                loose.append(message)
            else:
                answered[answer] = message
        else:
            heads.append(message)
    blocks = tuple(Block(head, tuple(answered.get((head.position, call.slot)) for call in head.calls)) for head in heads)
    return Grouped(pinned, blocks, tuple(loose))


def _leads(message: Message) -> bool:
    """Whether a message begins a block; calls that stand anywhere else have no place for results."""
    return message.role is not Role.TOOL and not message.role.is_system


def newest_system(messages: Sequence[Message]) -> Message | None:
    """The system message that stands first in every window."""
    return next((message for message in reversed(messages) if message.role.is_system), None)


def newest_request(messages: Sequence[Message]) -> Message | None:
    """What the user wants now: the newest user message that no machine made, else the newest user message."""
    users = [message for message in messages if message.role is Role.USER]
    return next((message for message in reversed(users) if message.is_request), users[-1] if users else None)
