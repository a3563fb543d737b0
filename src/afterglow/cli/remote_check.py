"""A check that a running engine makes, asked for and followed by way of its admin API."""

from __future__ import annotations

import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from afterglow.cli.client import AdminClient, AdminFailed
from afterglow.cli.connection import Connection
from afterglow.errors import AfterglowError, NotSupported

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

_CHECKS: Final = "afterglow/checks"
_FIRST_LOOK_S: Final = 0.1
_LOOKS_S: Final = 1.0
"""Between two looks at a job: a small check is over after some tenths of a second, a large one takes minutes."""


class RemoteCheck:
    """A check under way. Made by :func:`begun`."""

    def __init__(self, client: AdminClient, job: str) -> None:
        self._client = client
        self._path = f"{_CHECKS}/{job}"

    def follow(self, show: Callable[[Mapping[str, Any]], None]) -> dict[str, Any]:
        """The job, once it has come to its end.

        Args:
            show: Is given the job at every look.

        Raises:
            AfterglowError: It failed or was cancelled, or is not to be had any more.
        """
        wait_s = _FIRST_LOOK_S
        while True:
            job = self._client.fields(self._path, "state", "endedMillis", "counts", "faults")
            show(job)
            if job["endedMillis"] is not None:
                break
            time.sleep(wait_s)
            wait_s = min(2 * wait_s, _LOOKS_S)
        if job["state"] != "done":
            raise AfterglowError(f"the check was {job['state']}" + (f": {job['error']}" if job.get("error") else ""))
        return job

    def findings(self) -> Iterator[tuple[dict[str, Any], bool]]:
        """Every finding that the engine has kept, and whether it is a fault that is still there.

        Raises:
            AfterglowError: They are not to be had any more.
        """
        start = 0
        while True:
            page = self._client.call("GET", f"{self._path}/findings", query={"from": str(start)})
            for finding in page["findings"]:
                yield finding, finding.pop("fault")
            if page["next"] == start:
                return
            start = page["next"]

    def cancel(self) -> None:
        """Have the engine end it."""
        with suppress(AfterglowError):  # whoever is about to leave can do no more
            self._client.call("DELETE", self._path)


@contextmanager
def begun(source: str, connection: Connection, request: Mapping[str, object]) -> Iterator[RemoteCheck]:
    """Begin a check; it is cancelled where this is left before its end, as by Ctrl-C.

    Args:
        source: Address of the admin API.
        connection: What proves who asks.
        request: The body of the call.

    Raises:
        ConfigError: The address is malformed.
        NotSupported: What answers there makes no checks, such as an Apache Pulsar.
        AdminFailed: The engine refused, or does not answer.
    """
    client = AdminClient(connection.overlaid(Connection(source)).resolved(), "SOURCE")
    try:
        job = client.fields(_CHECKS, "id", method="POST", body=request)
    except AdminFailed as error:
        if error.status in {404, 405}:
            raise NotSupported(
                f"what answers at {source} makes no checks: it is no Afterglow of this release; give the address of "
                "an `afterglow serve`, or the directory of its home"
            ) from error
        raise
    check = RemoteCheck(client, job["id"])
    try:
        yield check
    except BaseException:
        check.cancel()
        raise
