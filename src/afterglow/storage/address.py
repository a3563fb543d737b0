"""Opening of the store that a tier address names.

============================  =========================================================
``file:///path``              a directory
``s3://bucket[/prefix]``      a bucket of S3 or of an S3-compatible service
``memory://name[/prefix]``    memory of this process; the same name, the same objects
``az://``, ``gs://``          reserved
============================  =========================================================

Options are keywords; strings are converted, since options come from command lines and from Spark. ``None`` means not
given. Network stores retry failed requests for ``retry_deadline_s``; the wrapper ``wrap`` sees each attempt.
"""

from __future__ import annotations

import dataclasses
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, get_type_hints
from urllib.parse import unquote

from afterglow.errors import ConfigError, NotSupported
from afterglow.storage.local import LocalStore
from afterglow.storage.memory import MemoryStore
from afterglow.storage.retry import RetryingStore, RetryPolicy
from afterglow.storage.s3 import S3Store
from afterglow.storage.s3_client import S3Options
from afterglow.storage.wrapper import PrefixedStore

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import TypeAlias

    from afterglow.storage.store import ObjectStore

    Wrap: TypeAlias = Callable[[ObjectStore], ObjectStore]

__all__ = ["open_store"]

_BOOLEANS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


@dataclasses.dataclass(frozen=True, slots=True)
class _LocalOptions:
    create: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class _NoOptions:
    pass


@dataclasses.dataclass(frozen=True, slots=True)
class _RetryOptions:
    retry_deadline_s: float = RetryPolicy().deadline_s


def open_store(url: str, wrap: Wrap | None = None, /, **options: str | float | None) -> ObjectStore:
    """Open the store that an address names. No request is sent yet.

    Args:
        url: The address.
        wrap: Wraps the store itself, inside the retries.
        **options: ``create`` for a directory; those of :class:`~afterglow.storage.s3_client.S3Options` and
            ``retry_deadline_s`` (seconds, 0 for no retries) for a bucket.

    Raises:
        ConfigError: The address is malformed, its scheme or an option unknown, or options contradict each other.
        NotSupported: The scheme is reserved.
        MissingDependency: The store's SDK is not installed.
    """
    scheme, separator, rest = url.partition("://")
    opener = _OPENERS.get(scheme) if separator else None
    if opener is None:
        raise ConfigError(_unknown("tier address", url, scheme, _OPENERS, "://"))
    given = {name: value for name, value in options.items() if value is not None}
    return opener(rest, given, wrap or (lambda store: store))


def _open_local(rest: str, options: Mapping[str, Any], wrap: Wrap) -> ObjectStore:
    path = unquote(rest)  # only here: a bucket's prefix may hold a percent sign as it is
    if not rest.startswith("/"):
        raise ConfigError(f"tier address file://{rest} is not an absolute path; write file:///path")
    return wrap(LocalStore(path, create=_parse(_LocalOptions, options).create))


def _open_s3(rest: str, options: Mapping[str, Any], wrap: Wrap) -> ObjectStore:
    deadline = {name: value for name, value in options.items() if name == "retry_deadline_s"}
    others = {name: value for name, value in options.items() if name not in deadline}
    policy = RetryPolicy(deadline_s=_parse(_RetryOptions, deadline).retry_deadline_s)
    bucket, prefix = _split("s3", rest)
    store = wrap(S3Store(bucket, _parse(S3Options, others, known=("retry_deadline_s",))))
    if policy.deadline_s > 0:
        store = RetryingStore(store, policy)
    return PrefixedStore(store, prefix) if prefix else store


def _open_memory(rest: str, options: Mapping[str, Any], wrap: Wrap) -> ObjectStore:
    _parse(_NoOptions, options)
    name, _, prefix = rest.partition("/")
    store = wrap(MemoryStore(name))
    return PrefixedStore(store, prefix) if prefix.strip("/") else store


def _open_reserved(rest: str, _: Mapping[str, Any], _wrap: Wrap) -> ObjectStore:
    raise NotSupported(f"tier {rest!r}: az:// and gs:// are not available in this release; use s3:// or file://")


_OPENERS: dict[str, Callable[[str, Mapping[str, Any], Wrap], ObjectStore]] = {
    "file": _open_local,
    "s3": _open_s3,
    "memory": _open_memory,
    "az": _open_reserved,
    "gs": _open_reserved,
}


def _split(scheme: str, rest: str) -> tuple[str, str]:
    bucket, _, prefix = rest.partition("/")
    if not bucket or set(bucket) & set("?#@:"):
        raise ConfigError(f"tier address {scheme}://{bucket} has no valid bucket; write {scheme}://bucket[/prefix]")
    return bucket, prefix.strip("/")


def _parse(kind: type[Any], options: Mapping[str, Any], known: tuple[str, ...] = ()) -> Any:
    """Build an options record from loosely typed values.

    Raises:
        ConfigError: An option is unknown, or a value has another type.
    """
    hints = get_type_hints(kind)
    for name in options:
        if name not in hints:
            raise ConfigError(_unknown("tier option", name, name, [*hints, *known]))
    return kind(**{name: _convert(name, value, str(hints[name])) for name, value in options.items()})


def _convert(name: str, value: Any, hint: str) -> Any:
    text = str(value).strip()
    wanted = ""
    try:
        if "bool" in hint:
            wanted = "true or false"
            return _BOOLEANS[text.lower()]
        if "float" in hint:
            wanted = "a number"
            return float(text)
        if "int" in hint:
            wanted = "a whole number"
            return int(text)
    except (KeyError, ValueError):
        raise ConfigError(f"tier option {name}={text!r} must be {wanted}") from None
    return text


def _unknown(what: str, given: str, word: str, known: Mapping[str, Any] | list[str], suffix: str = "") -> str:
    near = get_close_matches(word, list(known), n=1, cutoff=0.5)
    if near:
        hint = f"did you mean {near[0]}{suffix}?"
    elif known:
        hint = f"use one of {', '.join(name + suffix for name in known)}"
    else:
        hint = "this tier has no options"
    return f"unknown {what} {given!r}; {hint}"
