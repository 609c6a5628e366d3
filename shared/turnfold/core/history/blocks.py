"""Blocks: messages that stay or leave together, in the order in which a model may be sent them."""

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import NamedTuple

from turnfold.messages import JOINED, TOOL, USER, Message, Role, place_of_slot


class Block(NamedTuple):
    """A message with the results of its calls, one place a call; an open call's place is None.

    A message without calls is a block of its own. `joined` are the other items of a response
    whose first item is the head.
    """

    head: Message
    results: tuple[Message | None, ...] = ()
    joined: tuple[Message, ...] = ()

    @property
    def position(self) -> int:
        """The position of the block in its history: that of its first message."""
        return self.head.position

    @property
    def stored(self) -> tuple[Message, ...]:
        """The messages of the block that exist, the calling one first."""
        if not self.results:
            return (self.head, *self.joined)
        return (self.head, *self.joined, *(result for result in self.results if result is not None))

    @property
    def tokens(self) -> int:
        """The tokens of the stored messages."""
        return sum(message.tokens for message in self.stored)


class Grouped(NamedTuple):
    """A history in blocks, and the messages outside of blocks.

    `pinned` is the newest system message that begins its event. `loose` are, in order: older ones,
    copies of results, results that wait for their call, and results whose call is not among these
    messages.
    """

    pinned: Message | None
    blocks: tuple[Block, ...]
    loose: tuple[Message, ...]


def group(messages: Sequence[Message]) -> Grouped:
    """Group messages, given in order of position, into blocks.

    Nothing is lost: pinned, blocks and loose messages together are the input.
    """
    systems: list[Message] = []
    heads: list[Message] = []
    results: list[Message] = []
    calling: dict[int, Message] = {}
    joined: dict[int, list[Message]] = {}
    for message in messages:
        # Collected first: a result may precede its call.
        if message.role is TOOL:
            results.append(message)
        elif message.role.is_system and message.is_pinnable:
            systems.append(message)
        elif message.element is JOINED and heads and is_one_event(heads[-1], message):
            joined.setdefault(heads[-1].position, []).append(message)
        else:
            heads.append(message)
            if message.calls:
                calling[message.position] = message
    answered, unmatched = _matched(results, calling)
    loose = sorted([*systems[:-1], *unmatched], key=attrgetter("position"))
    blocks = tuple(
        [
            Block(
                head,
                tuple([answered.get((head.position, call.slot)) for call in head.calls]),
                tuple(joined.get(head.position, ())) if joined else (),
            )
            if head.calls or joined
            else Block(head)
            for head in heads
        ]
    )
    return Grouped(systems[-1] if systems else None, blocks, tuple(loose))


def _matched(
    results: Sequence[Message], calling: Mapping[int, Message]
) -> tuple[dict[tuple[int, int], Message], list[Message]]:
    """Return the results by their calls, and those whose call is not there."""
    answered: dict[tuple[int, int], Message] = {}
    unmatched: list[Message] = []
    for message in results:
        # Which call a result answers was decided once, by `pairing`. Here it only finds that call
        # among these messages, if it is there.
        answer = message.answers
        owner = calling.get(answer.position) if answer is not None else None
        if answer is None or owner is None or place_of_slot(owner.calls, answer.slot) is None:
            unmatched.append(message)
        else:
            # A named tuple equals the plain pair by which `group` looks it up.
            answered[answer] = message
    return answered, unmatched


def is_one_event(message: Message, later: Message) -> bool:
    """Return whether two messages were published together."""
    return message.event_id == later.event_id


def pinned_message(messages: Sequence[Message]) -> Message | None:
    """Return the pinned system message, which is the first message of every window."""
    return next((message for message in reversed(messages) if message.is_pinnable), None)


def newest_request(messages: Sequence[Message]) -> Message | None:
    """Return the newest message that a user wrote; otherwise the newest one in the user's role."""
    newest = None
    for message in reversed(messages):
        if message.role is USER:
            if not message.is_meta:
                return message
            newest = newest or message
    return newest


def is_turn_boundary(message: Message) -> bool:
    """Return whether a message begins a turn, or ends one: an answer without calls."""
    return message.is_request or (
        message.role is Role.ASSISTANT and not message.calls and message.element is not JOINED
    )
