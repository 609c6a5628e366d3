"""What the contract asks of a window, checked on what a caller is told alone; shares no code with what it checks."""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

Json = dict[str, Any]

SYSTEMS = ("system", "developer")
MEDIA = (
    "image_url",
    "image",
    "input_image",
    "input_audio",
    "audio",
    "output_audio",
    "file",
    "input_file",
    "video",
    "video_url",
    "audio_url",
    "audio_embeds",
    "image_embeds",
)
TEXTS = ("text", "input_text", "output_text")
MESSAGE_TOKENS, IMAGE_TOKENS = 3, 1_200
REQUEST_BEGINS = 64
DIGEST_BEGINS = "# Earlier messages, shortened"
DIGEST_NAMES, DIGEST_LISTS, FRAMED = "Calls made so far", ", by tool: ", "These messages"
NAMED_FROM = 1_500
"""Raw tokens of a budget of which names take a share that holds some of every turn."""
CUT = re.compile(r"\n\[\.\.\. (\d+) lines, \d+ tokens left out \.\.\.\]\n")
PREVIEW = re.compile(r"\n?\[TRUNCATED original~\d+ tokens\]\n?")
TIMES = re.compile(r" ×(\d+)\)?$")
BETWEEN = re.compile(r", | · ")
REASONING = ("reasoning_content", "thinking_blocks", "reasoning", "reasoning_details")
FREE = ("content", "tool_calls", *REASONING)
"""What a window may shorten or leave out."""


class Told(NamedTuple):
    """A message as it was published, and what the service was told or has decided about it since."""

    message_id: str
    text: str
    body: Json
    is_meta: bool = False
    is_pending: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """What `context.get` answers, as texts and numbers; `asked` tokens are what it may take."""

    messages: Sequence[str]
    message_ids: Sequence[Any]
    account: Mapping[str, int]
    tokens: int
    asked_tokens: int | None = None
    asked_messages: int | None = None
    beside: Sequence[str] = ()
    """Texts of the summary that stand in fields of their own."""

    is_appended: bool = False
    """Whether the summary was asked for at the end of the system text."""


class Owner(NamedTuple):
    """A call: the place of its message in the session, and its place among the calls that may be sent."""

    head: int
    place: int


class Session:
    """A session as its publisher knows it, paired anew as `states.md` says."""

    def __init__(
        self,
        told: Sequence[Told],
        *,
        covered: int = 0,
        factor: float = 1.0,
        has_covered_requests: bool = False,
    ) -> None:
        self.told = tuple(told)
        self.covered = covered
        self.has_covered_requests = has_covered_requests
        self.factor = factor
        self.places = {one.message_id: place for place, one in enumerate(self.told)}
        self.calls = [sendable_calls(one.body) for one in self.told]
        self.answers = self._paired()
        self.results = {owner: place for place, owner in self.answers.items()}

    def _paired(self) -> dict[int, Owner]:
        """Which call each result answers: the nearest earlier unanswered one of its id, else the next one."""
        unanswered: defaultdict[str, list[Owner]] = defaultdict(list)
        waiting: defaultdict[str, list[int]] = defaultdict(list)
        given: dict[str, Any] = {}
        answers: dict[int, Owner] = {}
        for place, one in enumerate(self.told):
            for slot, call in enumerate(self.calls[place]):
                owner = Owner(place, slot)
                if waiting[call["id"]]:
                    answers[waiting[call["id"]].pop(0)] = owner
                else:
                    unanswered[call["id"]].append(owner)
            if one.body["role"] != "tool":
                continue
            call_id, content = (
                str(one.body.get("tool_call_id")),
                json.dumps(one.body.get("content")),
            )
            if unanswered[call_id]:
                answers[place] = unanswered[call_id].pop()
            elif given.get(call_id) != content:
                waiting[call_id].append(place)
            given[call_id] = content
        return answers

    @cached_property
    def pinnable(self) -> list[int]:
        """System messages that begin their event; later ones keep their place."""
        return [
            place
            for place, one in enumerate(self.told)
            if one.body["role"] in SYSTEMS and one.message_id.endswith("#0")
        ]

    @cached_property
    def newest_system(self) -> int | None:
        """The message that is pinned."""
        return max(self.pinnable, default=None)

    @cached_property
    def request(self) -> int | None:
        """The newest request: the newest user message that no machine made, else the newest."""
        users = [place for place, one in enumerate(self.told) if one.body["role"] == "user"]
        return max(
            [place for place in users if not self.told[place].is_meta],
            default=max(users, default=None),
        )

    @cached_property
    def rounds(self) -> list[int | None]:
        """The request that each message belongs to: the newest user message up to it that no machine made.

        Until there is one, machine-made ones count.
        """
        requests: list[int | None] = []
        request: int | None = None
        for place, one in enumerate(self.told):
            if one.body["role"] == "user" and (
                request is None or not one.is_meta or self.told[request].is_meta
            ):
                request = place
            requests.append(request)
        return requests

    def result_of(self, owner: Owner) -> int | None:
        """The result that belongs beside a call: the one that answers it, if both are live or both are not."""
        place = self.results.get(owner)
        return (
            place
            if place is not None and self.told[place].is_pending == self.told[owner.head].is_pending
            else None
        )

    @cached_property
    def loose(self) -> frozenset[int]:
        """Messages that stand in no window: superseded system messages, and results beside no call."""
        found = {*self.pinnable} - {self.newest_system}
        beside = {self.result_of(owner) for owner in self.results}
        return frozenset(
            found
            | {
                place
                for place, one in enumerate(self.told)
                if one.body["role"] == "tool" and place not in beside
            }
        )


def sendable_calls(body: Json) -> list[Json]:
    """The calls of a message that providers take: an id, a name, and no id twice."""
    found: list[Json] = []
    calls = body.get("tool_calls") if body["role"] == "assistant" else None
    for call in calls if isinstance(calls, list) else ():
        named = tool_of(call).get("name") if isinstance(call, dict) else None
        if (
            named
            and isinstance(named, str)
            and isinstance(call.get("id"), str)
            and call["id"]
            and call["id"] not in [one["id"] for one in found]
        ):
            found.append(call)
    return found


def tool_of(call: Json) -> Json:
    """The part of a call that names its tool and says what it is given."""
    part = call.get("custom" if call.get("type") == "custom" else "function")
    return part if isinstance(part, dict) else {}


def faults(
    session: Session,
    answer: Answer,
    count: Callable[[str], int],
    weights: dict[str, int] | None = None,
) -> list[str]:
    """Every law that an answer breaks, a sentence each. `weights` keeps what messages were counted to be."""
    return Checker(session, answer, count, weights if weights is not None else {}).faults()


class Checker:
    """One answer beside the session it tells of."""

    def __init__(
        self, session: Session, answer: Answer, count: Callable[[str], int], weights: dict[str, int]
    ) -> None:
        self._session = session
        self._answer = answer
        self._count = count
        self._weights = weights
        self._found: list[str] = []
        self._changed: set[int] = set()
        self._messages: list[Json] = []
        for text, message_id in zip(answer.messages, answer.message_ids, strict=False):
            place = session.places.get(message_id) if message_id is not None else None
            if place is not None and session.told[place].text == text:
                self._messages.append(session.told[place].body)
                continue
            self._messages.append(json.loads(text))
            if place is not None:
                self._changed.add(place)

    def faults(self) -> list[str]:
        """All of them."""
        if len(self._answer.messages) != len(self._answer.message_ids):
            return [
                f"{len(self._answer.messages)} messages and {len(self._answer.message_ids)} ids"
            ]
        self._sendable()
        self._present()
        self._fits()
        self._adds_up()
        self._names_calls()
        self._honest()
        return self._found

    def _fault(self, text: str) -> None:
        self._found.append(text)

    def _place(self, index: int) -> int | None:
        message_id = self._answer.message_ids[index]
        return None if message_id is None else self._session.places.get(message_id)

    # --- L5

    def _sendable(self) -> None:
        """Each call is followed directly by exactly one result per call id, in call order; no result is alone."""
        index, messages, stand_ins = 0, self._messages, set[str]()
        while index < len(messages):
            message, head = messages[index], self._place(index)
            index += 1
            if message["role"] == "tool":
                self._fault(f"L5: message {index - 1} is a result without its call")
                continue
            calls = message.get("tool_calls") if message["role"] == "assistant" else None
            ids = [call.get("id") for call in calls or ()]
            if len(set(ids)) != len(ids) or len(sendable_calls(message)) != len(ids):
                self._fault(f"L5: message {index - 1} holds calls that no provider takes")
            for slot, call_id in enumerate(ids):
                result = messages[index] if index < len(messages) else {"role": "nothing"}
                if result["role"] != "tool" or result.get("tool_call_id") != call_id:
                    self._fault(
                        f"L5: {result['role']} stands where the result of {call_id!r} belongs"
                    )
                    break
                expected = None if head is None else self._session.result_of(Owner(head, slot))
                if self._place(index) != expected:
                    self._fault(
                        f"L5: the result of {call_id!r} is {self._answer.message_ids[index]}"
                    )
                if self._answer.message_ids[index] is None:
                    stand_ins.add(str(result.get("content")))
                index += 1
        if len(stand_ins) > 1:
            self._fault(f"E4: {len(stand_ins)} texts close open calls")

    def _present(self) -> None:
        """Never empty, the newest system message first, the newest request there, and all in order."""
        session, ids = self._session, self._answer.message_ids
        if not ids and any(place not in session.loose for place in range(len(session.told))):
            self._fault("L5: the window is empty")
        if session.newest_system is not None and (
            not ids or self._place(0) != session.newest_system
        ):
            self._fault("W4: the newest system message is not the first")
        heads = [
            place
            for index, message in enumerate(self._messages)
            if message["role"] != "tool" and (place := self._place(index)) is not None
        ]
        heads = [place for place in heads if place != session.newest_system]
        if heads != sorted(set(heads)):
            self._fault(f"L3: out of order: {heads}")
        if session.request is not None:
            if session.request not in heads:
                self._fault("L5: the newest request is gone")
                return
            shown = text_of(self._messages[ids.index(session.told[session.request].message_id)])
            if not shown.startswith(text_of(session.told[session.request].body)[:REQUEST_BEGINS]):
                self._fault(f"W4: the newest request begins with {shown[:40]!r}")
        self._rounds_are_whole(heads)

    def _rounds_are_whole(self, heads: Sequence[int]) -> None:
        """W11: no answer stands without the request it answers, nor where a summary covers it."""
        shown, session = set(heads), self._session
        for place in heads:
            request = session.rounds[place]
            is_gone = session.has_covered_requests if request is None else request not in shown
            if is_gone:
                self._fault(f"W11: {session.told[place].message_id} stands without its request")

    # --- L6

    def _fits(self) -> None:
        """Counted tokens are within what is reported, and that is within the budget."""
        answer, counted = self._answer, sum(map(self._count, self._answer.beside))
        for text, message in zip(answer.messages, self._messages, strict=True):
            weight = self._weights.get(text)
            if weight is None:
                weight = self._weights[text] = tokens_of(message, self._count)
            counted += weight
        if counted * self._session.factor > answer.tokens:
            self._fault(
                f"L6: {counted} tokens x {self._session.factor} are reported as {answer.tokens}"
            )
        if answer.asked_tokens is not None and answer.tokens > answer.asked_tokens:
            self._fault(f"L6: {answer.tokens} tokens for a budget of {answer.asked_tokens}")
        counting = len(answer.messages) - (self._session.newest_system is not None)
        if answer.asked_messages is not None and counting > answer.asked_messages:
            self._fault(f"W2: {counting} messages of {answer.asked_messages}")

    # --- L7

    def _adds_up(self) -> None:
        """Every message of the session is in one place, and each number is what can be seen."""
        session, account = self._session, self._answer.account
        named = [one for one in self._answer.message_ids if one is not None]
        if len(set(named)) != len(named) or not set(named) <= session.places.keys():
            self._fault("L7: a message is shown twice, or is none of the session's")
            return
        live = [
            place
            for place in map(session.places.__getitem__, named)
            if not session.told[place].is_pending
        ]
        pending = sum(one.is_pending for one in session.told)
        expected = {
            "total": len(session.told) + session.covered,
            "shown": len(live),
            "trimmed": len(
                [
                    place
                    for place in live
                    if place in self._changed and not self._is_appended_to(place)
                ]
            ),
            "folded": len(session.told) - pending - len(live),
            "covered": session.covered,
            "pending_shown": len(named) - len(live),
            "pending_digested": pending - (len(named) - len(live)),
            "recalled": 0,
            "synthesised": sum(
                message["role"] == "tool" and one is None
                for message, one in zip(self._messages, self._answer.message_ids, strict=True)
            ),
            **self._told(len(live), pending, len(named) - len(live)),
        }
        self._found += [
            f"L7: {name} is said to be {account.get(name)}, and is {number}"
            for name, number in expected.items()
            if account.get(name) != number
        ]

    def _told(self, live: int, pending: int, pending_shown: int) -> dict[str, int]:
        """W9: what is left out is told by a digest, but for messages that stand in no window."""
        session = self._session
        loose = Counter(
            session.told[place].is_pending
            for place in session.loose
            if session.told[place].message_id not in self._answer.message_ids
        )
        folded = len(session.told) - pending - live - loose[False]
        digested = pending - pending_shown - loose[True]
        has_digest = any(
            one is None and message["role"] == "user" and text_of(message).startswith(DIGEST_BEGINS)
            for message, one in zip(self._messages, self._answer.message_ids, strict=True)
        )
        return {
            "folded_told": folded if has_digest else 0,
            "untold": 0 if has_digest else folded + digested,
        }

    def _names_calls(self) -> None:
        """W10: a digest that names anything names or counts the running turn's calls that it stands for."""
        session, asked = self._session, self._answer.asked_tokens
        if session.request is None or (asked or 0) < NAMED_FROM * session.factor:
            return
        left_out = sum(
            len(calls)
            for one, calls in zip(
                session.told[session.request + 1 :],
                session.calls[session.request + 1 :],
                strict=True,
            )
            if one.message_id not in self._answer.message_ids
        )
        digests = [
            text_of(message)
            for one, message in zip(self._answer.message_ids, self._messages, strict=True)
            if one is None and text_of(message).startswith(f"{DIGEST_BEGINS}\n{FRAMED}")
        ]
        # To the end of the digest, because a command may hold a line end.
        told = [
            named.partition(DIGEST_LISTS)[2]
            for digest in digests
            for named in digest.rpartition("\n</")[0].split(f"\n{DIGEST_NAMES}")[1:]
        ]
        # A name may hold a comma, and then counts twice.
        times = [TIMES.search(name) for named in told for name in BETWEEN.split(named)]
        named = sum(int(found[1]) if found else 1 for found in times)
        if digests and named < left_out:
            self._fault(f"W10: {left_out} calls of the running turn are left out, {named} are told")

    def _is_appended_to(self, place: int) -> bool:
        return self._answer.is_appended and place == self._session.newest_system

    def _honest(self) -> None:
        """What is not as it was published says so, exactly."""
        for index, message in enumerate(self._messages):
            place = self._place(index)
            if place is None or place not in self._changed or self._is_appended_to(place):
                continue
            original = self._session.told[place].body
            if place == self._session.newest_system:
                self._fault("W4: the pinned message was changed")
            others = [
                {key: value for key, value in body.items() if key not in FREE}
                for body in (original, message)
            ]
            if others[0] != others[1] and not self._is_line(index, message):
                self._fault(f"L7: {self._answer.message_ids[index]} was changed beyond its text")
            if any(key in message and message[key] != original.get(key) for key in REASONING):
                self._fault(
                    f"W4: the reasoning of {self._answer.message_ids[index]} was changed, and not left out whole"
                )
            if message.get("content") != original.get("content"):
                self._text_is_honest(index, message, original)
            self._calls_are_honest(index, message, place)

    def _is_line(self, index: int, message: Json) -> bool:
        """Whether a result became one line that names where its original is."""
        content = message.get("content")
        return (
            isinstance(content, str)
            and "\n" not in content
            and content.endswith(f"original: {self._answer.message_ids[index]}]")
        )

    def _text_is_honest(self, index: int, message: Json, original: Json) -> None:
        name, shown, whole = (
            self._answer.message_ids[index],
            message.get("content"),
            text_of(original),
        )
        if self._is_line(index, message) or (shown == "" and original.get("content") is None):
            return
        if not isinstance(shown, str):
            self._fault(f"L7: the content of {name} became {type(shown).__name__}")
            return
        marks = [(mark, int(mark[1])) for mark in CUT.finditer(shown)] + [
            (mark, None) for mark in PREVIEW.finditer(shown)
        ]
        for mark, lines in marks:
            head, tail = shown[: mark.start()], shown[mark.end() :]
            if (
                len(head) + len(tail) <= len(whole)
                and whole.startswith(head)
                and whole.endswith(tail)
            ):
                omitted = whole[len(head) : len(whole) - len(tail)]
                if lines is None or lines == (
                    len(omitted.split("\n")) - omitted.endswith("\n") if omitted else 0
                ):
                    return
        self._fault(f"C15: the text of {name} is not what its mark says: {shown[:80]!r}")

    def _calls_are_honest(self, index: int, message: Json, place: int) -> None:
        originals, shown = self._session.calls[place], message.get("tool_calls") or []
        if [call["id"] for call in originals] != [call["id"] for call in shown]:
            self._fault(f"C9: the calls of {self._answer.message_ids[index]} are others")
            return
        for call, original in zip(shown, originals, strict=True):
            if call == original:
                continue
            if call["type"] == "custom":
                self._input_is_honest(call["custom"]["input"], original["custom"]["input"])
                continue
            arguments = call["function"].get("arguments")
            try:
                if not isinstance(json.loads(arguments), dict):
                    self._fault(f"C19: the arguments of {call['id']!r} became {arguments[:40]!r}")
            except (TypeError, ValueError):
                self._fault(
                    f"C19: the arguments of {call['id']!r} are no JSON: {str(arguments)[:40]!r}"
                )

    def _input_is_honest(self, shown: str, whole: str) -> None:
        """The text given to a custom tool stays text: its beginning and a mark."""
        kept, mark, _ = shown.partition("[TRUNCATED original~")
        if shown and not (mark and whole.startswith(kept)):
            self._fault(f"C19: the input of a custom tool became {shown[:80]!r}")


def text_of(body: Json) -> str:
    """The text of a message."""
    content = body.get("content")
    if isinstance(content, list):
        return "\n".join(text for part in content if (text := _part_text(part)) is not None)
    return content if isinstance(content, str) else ""


def _part_text(part: Any) -> str | None:
    if isinstance(part, dict) and part.get("type", "text") in TEXTS:
        part = part.get("text")
    return part if isinstance(part, str) else None


def opaque_texts(body: Json) -> list[str]:
    """The long texts in fields that no window understands, also beside a call."""
    calls = body.get("tool_calls")
    holders = [body, *(calls if isinstance(calls, list) else ())]
    fields = [
        one.get(key)
        for one in holders
        if isinstance(one, dict)
        for key in ("reasoning_details", "extra_content")
    ]
    texts: list[str] = []
    while fields:
        field = fields.pop()
        if isinstance(field, str):
            texts += [field] if len(field) > 100 else []
        elif isinstance(field, dict | list):
            fields.extend(field.values() if isinstance(field, dict) else field)
    return texts


def tokens_of(body: Json, count: Callable[[str], int]) -> int:
    """What a model counts for a message at least: each text whole, media at their flat price."""
    content = body.get("content")
    tokens = MESSAGE_TOKENS + count(text_of(body))
    if isinstance(content, list):
        media = [part for part in content if isinstance(part, dict) and part.get("type") in MEDIA]
        tokens += IMAGE_TOKENS * len(media)
    for call in sendable_calls(body):
        tool = tool_of(call)
        given = tool.get("input" if call.get("type") == "custom" else "arguments")
        tokens += count(tool["name"]) + (count(given) if isinstance(given, str) else 0)
    for field in ("reasoning_content", "reasoning"):
        tokens += count(body[field]) if isinstance(body.get(field), str) else 0
    tokens += sum(count(value) for value in opaque_texts(body))
    blocks = body.get("thinking_blocks")
    for block in blocks if isinstance(blocks, list) else ():
        tokens += (
            count(block["thinking"])
            if isinstance(block, dict) and isinstance(block.get("thinking"), str)
            else 0
        )
    return tokens
