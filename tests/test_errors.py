"""The error tree: no class is taken for something else on its way, and every one arrives as it was raised."""

from __future__ import annotations

import builtins
import importlib
import pickle
import pkgutil
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

import pytest

import afterglow
from afterglow import errors
from afterglow.admin.errors import AdminError
from afterglow.errors import AfterglowError, DamagedStripe
from afterglow.format.proto import pulsar_api_pb2 as wire
from afterglow.format.wire import Refused

if TYPE_CHECKING:
    from collections.abc import Iterator

HELPFUL: Final = {
    ValueError,
    OSError,
    ConnectionError,
    FileNotFoundError,
    FileExistsError,
    PermissionError,
}
"""Built-ins that an error of ours may be. Any other has a meaning to some caller; see the docstring of ``errors``."""

CLASSES: Final = sorted(
    (value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, AfterglowError)),
    key=lambda kind: kind.__name__,
)


def every_class() -> set[type[AfterglowError]]:
    """Those of every module of the package."""
    for module in pkgutil.walk_packages(afterglow.__path__, "afterglow."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    return {kind for kind in below(AfterglowError) if kind.__module__.startswith(f"{afterglow.__name__}.")}


def below(kind: type[AfterglowError]) -> Iterator[type[AfterglowError]]:
    yield kind
    for sub in kind.__subclasses__():
        yield from below(sub)


def test_no_error_derives_from_a_built_in_that_a_caller_interprets() -> None:
    plain = {object, BaseException, Exception}
    for kind in every_class():
        built_in = {base for base in kind.__mro__ if base.__module__ == builtins.__name__}
        assert built_in <= plain | HELPFUL, f"{kind.__qualname__}: {built_in - plain - HELPFUL}"


@pytest.mark.parametrize("kind", CLASSES)
def test_an_error_of_the_tree_survives_a_process_border(kind: type[AfterglowError]) -> None:
    arguments: tuple[Any, ...] = ("what happened: t; cure", 7) if kind is DamagedStripe else ("what happened: t; cure",)
    sent = kind(*arguments)
    sent.add_note("seen on the way")
    received = pickle.loads(pickle.dumps(sent))
    assert type(received) is kind
    assert str(received) == str(sent) == "what happened: t; cure"
    assert vars(received) == vars(sent)


@pytest.mark.parametrize(
    "sent",
    [
        DamagedStripe("a piece is damaged", 7),
        AdminError(HTTPStatus.CONFLICT, "it is in use"),
        Refused(wire.ServiceNotReady, "not yet"),
    ],
)
def test_what_an_error_carries_beside_its_message_survives_too(sent: AfterglowError) -> None:
    received = pickle.loads(pickle.dumps(sent))
    assert (type(received), str(received), vars(received)) == (type(sent), str(sent), vars(sent))
