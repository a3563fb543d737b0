"""``python -m bench [WORKLOAD …]``: run all workloads, or those named; ``plots`` draws what they have found."""

from __future__ import annotations

import importlib
import sys

WORKLOADS = (
    "columns",
    "blocks",
    "startup",
    "fresh",
    "append",
    "broker",
    "scrape",
    "offload",
    "streaming",
    "latency",
    "handle",
    "scan",
    "scan_spark",
    "seek",
    "attach",
    "side_by_side",
    "plots",
)


def main(names: list[str]) -> int:
    unknown = [name for name in names if name not in WORKLOADS]
    if unknown:
        print(f"unknown workload {unknown[0]!r}; there are {', '.join(WORKLOADS)}", file=sys.stderr)
        return 2
    for name in names or WORKLOADS:
        importlib.import_module(f"bench.{name}").main()
    return 0


sys.exit(main(sys.argv[1:]))
