"""Strict reading of a JSON object, with the exact text of each member."""

import json
import re
from typing import Any, Final, NoReturn, cast

from turnfold.errors import BadEvent, EventFault

INTEGER_MAX_DIGITS = 4_000

_SPACE = re.compile(r"[ \t\n\r]*")


def wrong_shape(detail: str) -> BadEvent:
    """Return the error of an event that is JSON, but no event of its type."""
    return BadEvent(EventFault.WRONG_SHAPE, detail)


def _refuse(text: str) -> NoReturn:
    raise BadEvent(EventFault.NOT_JSON, f"{text[:12]} is not a JSON number")


def _finite(text: str) -> float:
    value = float(text)
    # 1e999 becomes infinity, and infinity minus itself is NaN.
    return value if value - value == 0 else _refuse(text)


def _bounded(text: str) -> int:
    # Python raises for more digits, and converting them takes quadratic time.
    return int(text) if len(text.lstrip("-")) <= INTEGER_MAX_DIGITS else _refuse(text)


STRICT: Final = json.JSONDecoder(parse_constant=_refuse, parse_float=_finite, parse_int=_bounded)
"""Decodes JSON without `NaN`, infinity and endless integers, for which it raises `BadEvent`."""

# Calling the C scanner directly also yields where a value ends. The type stubs lack it.
_scan = cast("Any", STRICT).scan_once
_opening = re.compile(r"[ \t\n\r]*([{\[])[ \t\n\r]*").match
_name = re.compile(r'"([^"\\\x00-\x1f]*)"[ \t\n\r]*:[ \t\n\r]*').match
_colon = re.compile(r"[ \t\n\r]*:[ \t\n\r]*").match
_more = re.compile(r"[ \t\n\r]*([,}\]])[ \t\n\r]*").match


Members = tuple[dict[str, Any], dict[str, str], list[str]]
"""An object's members as values and as texts, and the texts of `messages`."""


def read_members(payload: bytes, depth: int) -> Members:
    """Return an object's members as values and as texts, and the texts of `messages`.

    Raises:
        BadEvent: the payload is not a JSON object, or lists and objects nest deeper than `depth`.
    """
    try:
        text = payload.decode()
        fields, raw, elements = _object(text)
    except RecursionError:
        raise BadEvent(EventFault.TOO_DEEP, f"more than {depth} levels") from None
    # The scanner raises StopIteration where no value begins.
    except (ValueError, StopIteration, IndexError):
        raise BadEvent(EventFault.NOT_JSON, _fault_of(payload)) from None
    # Walking the values costs as much as parsing. Nearly no event has that many brackets.
    if text.count("[") + text.count("{") > depth and _depth(fields, depth) > depth:
        raise BadEvent(EventFault.TOO_DEEP, f"more than {depth} levels")
    return fields, raw, elements


def _fault_of(payload: bytes) -> str:
    """Say where a payload ceases to be JSON, without quoting it."""
    try:
        # Its errors say more than those of the scanner.
        json.loads(payload.decode())
    except UnicodeDecodeError as error:
        return f"not UTF-8, at byte {error.start}"
    except json.JSONDecodeError as error:
        return f"{error.msg}, at character {error.pos}"
    except (ValueError, RecursionError):
        pass
    return "not a JSON object"


def _object(text: str) -> Members:
    fields, raw, elements = dict[str, Any](), dict[str, str](), list[str]()
    opened = _opening(text)
    if opened is None or opened[1] != "{":
        _, end = _scan(text, _SPACE.match(text).end())  # type: ignore[union-attr]  # always matches
        _expect_nothing(text, end)
        raise wrong_shape("an event must be a JSON object")
    at = opened.end()
    closing = "" if text[at] != "}" else "}"
    at += bool(closing)
    while not closing:
        name, start = _member_name(text, at)
        if name == "messages" and text[start] == "[":
            value, end, elements = _elements(text, start)
        else:
            value, end = _scan(text, start)
        # The last member of a name counts, with its value and its text.
        fields[name], raw[name] = value, text[start:end]
        at, closing = _after(text, end, "}")
    _expect_nothing(text, at)
    return fields, raw, elements


def _expect_nothing(text: str, at: int) -> None:
    if text[at:].strip(" \t\n\r"):
        raise ValueError("unexpected text after the value")


def _member_name(text: str, at: int) -> tuple[str, int]:
    """Return the name of a member, and the position of its value."""
    plain = _name(text, at)
    if plain is not None:
        return plain[1], plain.end()
    if text[at] != '"':
        raise ValueError("a member must begin with its name")
    name, at = _scan(text, at)
    colon = _colon(text, at)
    if colon is None:
        raise ValueError("a name must be followed by a colon")
    return name, colon.end()


def _elements(text: str, start: int) -> tuple[list[Any], int, list[str]]:
    values: list[Any] = []
    texts: list[str] = []
    at = _opening(text, start).end()  # type: ignore[union-attr]  # the caller checked the bracket
    if text[at] == "]":
        return values, at + 1, texts
    closing = ""
    while not closing:
        value, end = _scan(text, at)
        values.append(value)
        texts.append(text[at:end])
        at, closing = _after(text, end, "]")
    return values, at, texts


def _after(text: str, at: int, bracket: str) -> tuple[int, str]:
    """Return the position after a comma, or after the closing bracket and that bracket."""
    sign = _more(text, at)
    if sign is None or (sign[1] != "," and sign[1] != bracket):
        raise ValueError("a comma or a closing bracket is missing")
    return sign.end(), "" if sign[1] == "," else bracket


def _depth(value: Any, most: int) -> int:
    """Return how deep lists and objects are nested, up to one level above the limit."""
    level: list[Any] = [value]
    depth = 0
    while level and depth <= most:
        inner: list[Any] = []
        for container in level:
            if isinstance(container, dict):
                inner.extend(
                    child for child in container.values() if isinstance(child, dict | list)
                )
            else:
                inner.extend(child for child in container if isinstance(child, dict | list))
        level, depth = inner, depth + 1
    return depth


def without_member(text: str, name: str) -> str:
    """Return the text of a valid JSON object without the members of this name."""
    at = end = _opening(text).end()  # type: ignore[union-attr]  # the caller parsed the object
    parts, closing = [text[:at]], ""
    while not closing:
        start, end_before = at, end
        member, at = _member_name(text, at)
        _, end = _scan(text, at)
        at, closing = _after(text, end, "}")
        if member != name:
            # The separator belongs to the later of two members.
            is_first = len(parts) == 1
            parts.append(text[start if is_first else end_before : end])
    return "".join(parts) + text[end:]


def member_texts(text: str) -> dict[str, str]:
    """Return the members of a valid JSON object as verbatim texts."""
    _, raw, _ = _object(text)
    return raw


def element_texts(text: str) -> list[str]:
    """Return the elements of a valid JSON list as verbatim texts."""
    _, _, texts = _elements(text, 0)
    return texts
