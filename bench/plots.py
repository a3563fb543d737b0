"""Draws results: ``bench/results/WORKLOAD.svg`` from ``WORKLOAD.json``.

The same results give the same bytes.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from bench.measure import RESULTS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from matplotlib.axes import Axes

OURS, YARDSTICK, OTHER = "#c8553d", "#b8b8b8", "#588b8b"
WIDTH = 0.38
PERCENTILES = ("p50", "p99")
READERS = (1, 2, 4)


def main() -> None:
    import matplotlib as mpl  # noqa: PLC0415 - only who draws needs it
    from matplotlib.figure import Figure  # noqa: PLC0415

    # Ids in the file are hashed with this, else at random; text stays text.
    with mpl.rc_context({"svg.hashsalt": "afterglow", "svg.fonttype": "none", "font.size": 8}):
        for workload, (panels, draw) in PLOTS.items():
            path = RESULTS / f"{workload}.json"
            if not path.is_file():
                print(f"plots: no results of {workload}: make bench WORKLOAD={workload}")
                continue
            result = json.loads(path.read_text())
            figure = Figure(figsize=(3.4 * panels, 2.8), layout="constrained")
            axes = list(figure.subplots(1, panels))
            for panel in axes:
                panel.spines[["top", "right"]].set_visible(False)
            draw(axes, result["figures"])
            figure.savefig(path.with_suffix(".svg"), metadata={"Date": None, "Creator": None})
            print(f"plots: {path.with_suffix('.svg').name}")


def scan(axes: Sequence[Axes], figures: Mapping[str, Any]) -> None:
    """Speed of scans beside their yardsticks, and of readers beside each other."""
    local, server, readers = axes
    kinds = ("unbatched", "unbatched LZ4", "batched", "batched LZ4")
    for panel, tier, yardstick in (
        (local, "local", "memcpy on all cores, MiB/s"),
        (server, "s3", "raw gets, MiB/s"),
    ):
        ours, others = ([figures[f"{kind}, {tier}: {name}"] for kind in kinds] for name in ("scan, MiB/s", yardstick))
        _pairs(panel, [kind.replace(" ", "\n") for kind in kinds], ("scan", ours), (yardstick.split(",")[0], others))
    local.set_title("scan, local tier")
    server.set_title("scan, S3 server")
    for kind, colour in (("unbatched", OURS), ("batched", OTHER)):
        speeds = [figures[f"{kind}, local: {count} readers of one segment, MiB/s"] for count in READERS]
        readers.plot(READERS, speeds, "o-", color=colour, label=kind)
    readers.set(title="readers of one segment", xticks=READERS, ylim=(0, None))
    readers.legend(frameon=False)
    local.set_ylabel("MiB/s of values")


def scan_spark(axes: Sequence[Axes], figures: Mapping[str, Any]) -> None:
    """Speed of Spark over topics, beside the transport alone and beside Parquet."""
    rows, lengths = axes
    kinds = ("unbatched", "batched")
    for panel, ours, yardstick in (
        (rows, "all columns", "transport"),
        (lengths, "sum(length(value))", "Parquet"),
    ):
        found, others = ([figures[f"{kind}: {name}, MiB/s"] for kind in kinds] for name in (ours, yardstick))
        _pairs(panel, kinds, ("topic", found), (yardstick, others))
        panel.set_title(ours)
    rows.set_ylabel("MiB/s of values")


def seek(axes: Sequence[Axes], figures: Mapping[str, Any]) -> None:
    """Milliseconds of a seek over the number of segments, by either path."""
    for panel, path in zip(axes, ("library", "stock client"), strict=True):
        end = f", {path}: cold, p50, ms"
        sizes = [name.removesuffix(end) for name in figures if name.endswith(end)]
        segments = [int(size.split()[0].replace(",", "")) for size in sizes]
        for state, style in (("cold", "o-"), ("warm", "o--")):
            for percentile, colour in zip(PERCENTILES, (OURS, OTHER), strict=True):
                times = [figures[f"{size}, {path}: {state}, {percentile}, ms"] for size in sizes]
                panel.plot(segments, times, style, color=colour, label=f"{state}, {percentile}")
        panel.set_xscale("log")
        panel.set_xticks(segments, [size.split()[0] for size in sizes])
        panel.minorticks_off()
        panel.set(title=f"seek by time, {path}", xlabel="segments", ylim=(0, None))
        panel.legend(frameon=False)
    axes[0].set_ylabel("ms")


def side_by_side(axes: Sequence[Axes], figures: Mapping[str, Any]) -> None:
    """Rates of both servers."""
    for panel, (title, unit) in zip(
        axes,
        (
            ("produce, Java", "msg/s"),
            ("offload", "MB/s"),
            ("cold read, Java", "MB/s"),
            ("cold read, Python", "MB/s"),
        ),
        strict=True,
    ):
        ours, others = (
            [figures[f"{kind}: {title}, {side}, {unit}"] for kind in ("unbatched", "batched")]
            for side in ("Afterglow", "Pulsar")
        )
        _pairs(panel, ("unbatched", "batched"), ("Afterglow", ours), ("Apache Pulsar", others))
        panel.set(title=title, ylabel=unit)


PLOTS: dict[str, tuple[int, Callable[[Sequence[Axes], Mapping[str, Any]], None]]] = {
    "scan": (3, scan),
    "scan_spark": (2, scan_spark),
    "seek": (2, seek),
    "side_by_side": (4, side_by_side),
}
"""Of each workload how many panels, and what draws them."""


def _pairs(
    panel: Axes, names: Sequence[str], ours: tuple[str, Sequence[float]], yardstick: tuple[str, Sequence[float]]
) -> None:
    """Bars two by two, ours with its part of the other above it."""
    locations = range(len(names))
    bars = panel.bar([at - WIDTH / 2 for at in locations], ours[1], WIDTH, color=OURS, label=ours[0])
    panel.bar([at + WIDTH / 2 for at in locations], yardstick[1], WIDTH, color=YARDSTICK, label=yardstick[0])
    panel.bar_label(bars, [f"{a / b:.2f}" for a, b in zip(ours[1], yardstick[1], strict=True)], fontsize=8)
    panel.set_xticks(locations, names)
    panel.set_ylim(0, 1.35 * max(*ours[1], *yardstick[1]))  # room for the legend
    panel.legend(frameon=False, fontsize=8)
