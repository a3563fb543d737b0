"""Checks of JSON values in requests.

Pulsar ignores unknown fields and reads values that it cannot parse as null. Here both are errors that name the field:
the caller would otherwise believe that the value takes effect.
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
_MAX_SHOWN: Final = 80
"""Characters of a value in an error message."""
_ENCODER: Final = json.JSONEncoder()


def parse(body: bytes) -> Any:
    """The value of a JSON body; None for an empty one.

    Raises:
        AdminError: It is not valid JSON, or has text that is not Unicode, or a number that Java cannot represent.
    """
    if not body.strip():
        return None
    try:
        value = json.loads(body.decode("utf-8-sig"), parse_constant=_refuse_constant, parse_float=_finite)
        if _SURROGATE.search(body):
            json.dumps(value, ensure_ascii=False).encode()  # a lone surrogate parses, and cannot be stored
    except UnicodeError as error:
        raise bad_request("the body is not valid Unicode") from error
    except ValueError as error:
        raise bad_request(f"the body is not valid JSON: {error}") from error
    except RecursionError as error:
        raise bad_request("the body is nested too deeply") from error
    return value


def integer(value: object, name: str, low: int, high: int = INT_MAX) -> int:
    """An integer within bounds, both inclusive.

    Raises:
        AdminError: It is not an integer, or out of bounds.
    """
    # In Python, True is an int.
    if isinstance(value, bool) or not isinstance(value, int):
        raise bad_request(f"{name} must be a whole number, not {shown(value)}")
    if not low <= value <= high:
        raise precondition_failed(f"{name} must be from {low} to {high}, not {shown(value)}")
    return value


def parse_integer(value: str, name: str, low: int, high: int) -> int:
    """An integer that came as text, within bounds, both inclusive.

    Raises:
        AdminError: It is not an integer, or out of bounds.
    """
    digits = value.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 19):
        raise bad_request(f"{name} must be a whole number, not {shown(value)}")
    return integer(int(value), name, low, high)


def number(value: object, name: str, low: float = -1, high: float = INT_MAX) -> float:
    """A number within bounds, both inclusive.

    Raises:
        AdminError: It is not a number, or out of bounds.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise bad_request(f"{name} must be a number, not {shown(value)}")
    if not low <= value <= high:
        raise precondition_failed(f"{name} must be from {low} to {high}, not {shown(value)}")
    return value


def boolean(value: object, name: str) -> bool:
    """A Boolean.

    Raises:
        AdminError: It is not a Boolean.
    """
    if not isinstance(value, bool):
        raise bad_request(f"{name} must be true or false, not {shown(value)}")
    return value


def text(value: object, name: str) -> str:
    """A string.

    Raises:
        AdminError: It is not a string.
    """
    if not isinstance(value, str):
        raise bad_request(f"{name} must be a string, not {shown(value)}")
    return value


def texts(value: object, name: str) -> list[str]:
    """A list of strings, without duplicates.

    Raises:
        AdminError: It is not a list of strings.
    """
    if not isinstance(value, list):
        raise bad_request(f"{name} must be a list of strings, not {shown(value)}")
    return list(dict.fromkeys(text(item, f"every item of {name}") for item in value))


def text_map(value: object, name: str) -> dict[str, str]:
    """An object of strings; empty for null.

    Raises:
        AdminError: It is not an object of strings.
    """
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise bad_request(f"{name} must be an object of strings, not {shown(value)}")
    return {key: text(item, f"{name}.{key}") for key, item in value.items()}


def fields(value: object, what: str, known: Collection[str]) -> dict[str, Any]:
    """The fields of an object that are not null.

    Raises:
        AdminError: It is not an object, or has unknown fields.
    """
    if not isinstance(value, dict):
        raise bad_request(f"{what} must be an object, not {shown(value)}")
    unknown = [name for name in value if name not in known]
    if unknown:
        raise bad_request(f"{what} has no field {shown(unknown[0])}; known fields: {', '.join(known)}")
    return {name: item for name, item in value.items() if item is not None}


def with_field(fields: dict[str, Any], name: str, value: object) -> dict[str, Any]:
    """A copy of an object with another value of one field, or without the field where the value is None."""
    rest = {other: kept for other, kept in fields.items() if other != name}
    return rest if value is None else {**rest, name: value}


def shown(value: object) -> str:
    """A value for an error message, truncated; the rest of a long value is not even encoded."""
    text = ""
    for token in _ENCODER.iterencode(value[:_MAX_SHOWN] if isinstance(value, str) else value):
        text += token
        if len(text) > _MAX_SHOWN:
            return f"{text[: _MAX_SHOWN - 3]}..."
    return text


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):  # Python reads 1e999 as infinity, which JSON cannot express
        raise ValueError(f"{digits[:40]} is too large")
    return value
