"""The process from which Spark forks its Python workers, with what tasks need imported already.

Spark forks a worker for every task slot, ends workers that were idle for a minute, and forks anew for the next job. A
worker that has to import this package first spends 0.7 s on it each time; one that is forked from here spends none, and
shares the memory of the modules and of the kernels' code with the others.

A fork copies no threads, so nothing is imported here that starts any: no Arrow, no SDK of a store.
"""

from __future__ import annotations

from pyspark.daemon import manager

from afterglow.format._kernels.native import kernels
from afterglow.offload import runner

assert runner  # what tasks call; imported for the workers

if __name__ == "__main__":
    kernels()
    manager()
