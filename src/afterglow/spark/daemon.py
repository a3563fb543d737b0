"""The daemon from which Spark forks its Python workers, with the modules that tasks need already imported.

Spark forks a worker for every task slot, ends workers that were idle for a minute, and forks again for the next job. A
worker that has to import this package first takes 0.7 s for it each time; one that is forked from here takes none, and
shares the memory of the modules and of the kernels' code with the others.

A fork copies no threads, so nothing is imported here that starts any: no Arrow, no SDK of a store.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING

from pyspark import daemon

from afterglow.format._kernels.native import kernels
from afterglow.offload import task

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

assert task  # tasks call it; imported for the workers


def work(worker: Callable[[socket.socket, bool], int], connection: socket.socket, *authenticated: bool) -> int:
    """Run a worker. PySpark would print a stack if the JVM closes the connection while the worker writes."""
    try:
        return worker(connection, *authenticated)
    except BrokenPipeError:
        return 1


def report_unraisable(unraisable: sys.UnraisableHookArgs) -> None:
    """Report an error of a finalizer, except for a closed connection: since Python 3.13 those of files are reported."""
    if not issubclass(unraisable.exc_type, BrokenPipeError):
        sys.__unraisablehook__(unraisable)


if __name__ == "__main__":
    sys.unraisablehook = report_unraisable
    kernels()
    daemon.worker = partial(work, daemon.worker)
    daemon.manager()
