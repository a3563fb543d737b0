"""Checks of values that came as JSON.

Pulsar drops what it does not know and reads what it cannot parse as nothing. Here either is an error that names the
field: whoever set it would otherwise believe that it holds.
"""

from __future__ import annotations

import json
import math
import re
from typing import TYPE_CHECKING, Any, Final, NoReturn

from afterglow.admin.errors import bad_request, precondition_failed

if TYPE_CHECKING:
    from collections.abc import Collection

INT_MAX: Final = 2**31 - 1
"""The largest Java ``int``."""
LONG_MAX: Final = 2**63 - 1
"""The largest Java ``long``."""

_SURROGATE: Final = re.compile(rb"\\u[dD][89a-fA-F]")
_SHOWN: Final = 80
"""Characters of a value in a message."""
_ENCODER: Final = json.JSONEncoder()


def parse(body: bytes) -> Any:
    """The value of a JSON body; None for an empty one.

    Raises:
        AdminError: It is no JSON, or has text that is no Unicode, or a number that is none to Java.
    """
    if not body.strip():
        return None
    try:
        value = json.loads(body.decode("utf-8-sig"), parse_constant=_no_constant, parse_float=_finite)
        if _SURROGATE.search(body):
            json.dumps(value, ensure_ascii=False).encode()  # a lone one parses, and nothing could store it
    except UnicodeError as error:
        raise bad_request("the body is no Unicode text") from error
    except ValueError as error:
        raise bad_request(f"the body is no JSON: {error}") from error
    except RecursionError as error:
        raise bad_request("the body is nested too deeply") from error
    return value


def integer(value: object, name: str, low: int, high: int = INT_MAX) -> int:
    """A whole number within bounds, both inclusive.

    Raises:
        AdminError: It is none, or out of bounds.
    """
    # True is an int to Python.
    if isinstance(value, bool) or not isinstance(value, int):
        raise bad_request(f"{name} must be a whole number, not {shown(value)}")
    if not low <= value <= high:
        raise precondition_failed(f"{name} must be from {low} to {high}, not {shown(value)}")
    return value


def whole_number(value: str, name: str, low: int, high: int) -> int:
    """A whole number that came as text, within bounds, both inclusive.

    Raises:
        AdminError: It is none, or out of bounds.
    """
    digits = value.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 19):
        raise bad_request(f"{name} must be a whole number, not {shown(value)}")
    return integer(int(value), name, low, high)


def number(value: object, name: str, low: float = -1, high: float = INT_MAX) -> float:
    """A number within bounds, both inclusive.

    Raises:
        AdminError: It is none, or out of bounds.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise bad_request(f"{name} must be a number, not {shown(value)}")
    if not low <= value <= high:
        raise precondition_failed(f"{name} must be from {low} to {high}, not {shown(value)}")
    return value


def boolean(value: object, name: str) -> bool:
    """True or false.

    Raises:
        AdminError: It is neither.
    """
    if not isinstance(value, bool):
        raise bad_request(f"{name} must be true or false, not {shown(value)}")
    return value


def text(value: object, name: str) -> str:
    """A string.

    Raises:
        AdminError: It is none.
    """
    if not isinstance(value, str):
        raise bad_request(f"{name} must be a string, not {shown(value)}")
    return value


def texts(value: object, name: str) -> list[str]:
    """A list of strings, each once.

    Raises:
        AdminError: It is none.
    """
    if not isinstance(value, list):
        raise bad_request(f"{name} must be a list of strings, not {shown(value)}")
    return list(dict.fromkeys(text(item, f"every item of {name}") for item in value))


def text_map(value: object, name: str) -> dict[str, str]:
    """An object whose values are strings; nothing is an empty one.

    Raises:
        AdminError: It is none.
    """
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise bad_request(f"{name} must be an object of strings, not {shown(value)}")
    return {key: text(item, f"{name}.{key}") for key, item in value.items()}


def fields(value: object, what: str, known: Collection[str]) -> dict[str, Any]:
    """An object with no other than the known fields; fields that are null are left out.

    Raises:
        AdminError: It is none, or has others.
    """
    if not isinstance(value, dict):
        raise bad_request(f"{what} must be an object, not {shown(value)}")
    unknown = [name for name in value if name not in known]
    if unknown:
        raise bad_request(f"{what} has no field {shown(unknown[0])}; there are {', '.join(known)}")
    return {name: item for name, item in value.items() if item is not None}


def with_field(fields: dict[str, Any], name: str, value: object) -> dict[str, Any]:
    """A copy of an object with another value of one field, or without the field where the value is None."""
    rest = {other: kept for other, kept in fields.items() if other != name}
    return rest if value is None else {**rest, name: value}


def shown(value: object) -> str:
    """A value for a message, cut where it is long: no more of it is encoded than that needs."""
    image = ""
    for piece in _ENCODER.iterencode(value[:_SHOWN] if isinstance(value, str) else value):
        image += piece
        if len(image) > _SHOWN:
            return f"{image[: _SHOWN - 3]}..."
    return image


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def _finite(digits: str) -> float:
    """A number with a fraction or an exponent; one that is too large is infinite to Python, which no JSON can say."""
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError(f"{digits[:40]} is too large for a number")
    return value
