"""The process from which Spark forks its Python workers, with what tasks need imported already.

Spark forks a worker for every task slot, ends workers that were idle for a minute, and forks anew for the next job. A
worker that has to import this package first spends 0.7 s on it each time; one that is forked from here spends none, and
shares the memory of the modules and of the kernels' code with the others.

A fork copies no threads, so nothing is imported here that starts any: no Arrow, no SDK of a store.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from pyspark import daemon

from afterglow.format._kernels.native import kernels
from afterglow.offload import task

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

assert task  # what tasks call; imported for the workers


def work(worker: Callable[[socket.socket, bool], int], connection: socket.socket, *authenticated: bool) -> int:
    """Work until Spark ends. PySpark prints a stack where that comes amid a word, though nobody is left to be told."""
    try:
        return worker(connection, *authenticated)
    except BrokenPipeError:
        return 1


if __name__ == "__main__":
    kernels()
    daemon.worker = partial(work, daemon.worker)
    daemon.manager()
