"""An export from beginning to end: what is asked for is checked before Spark starts, which takes seconds."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from afterglow.config import load_conf
from afterglow.engine.source import connect
from afterglow.engine.tiering import spark_properties
from afterglow.errors import ConfigError
from afterglow.format.schema import MESSAGES, choose
from afterglow.spark.export import ExportRecord, TopicExport
from afterglow.spark.export_files import HadoopFiles, LocalFiles
from afterglow.spark.session import QUIET, local_session

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from afterglow.spark.export import Exported
    from afterglow.spark.export_files import ExportFiles

_FORMAT: Final = "parquet:"


@dataclass(frozen=True, slots=True)
class ExportOrder:
    """What is to be exported, and where to."""

    source: str
    """The home of an engine, or an address."""
    topic: str
    to: str
    """``parquet:PATH``, where the path may be a URL that Spark knows."""
    columns: tuple[str, ...] | None = None
    """None: all of them."""
    decode: bool = False
    """Whether values are given as their schemas describe them."""
    tier: str | None = None
    """Where all objects are, whatever metadata says."""
    metadata: str | None = None
    """Where the metadata is, if not in the source."""
    fail_on_data_loss: bool = True
    """Whether it ends where entries are gone that were not exported yet."""


def export_topic(
    order: ExportOrder,
    *,
    master: str | None = None,
    every_s: float | None = None,
    stopped: Callable[[], bool] = lambda: False,
    progress: Callable[[Exported], None] = lambda _: None,
) -> Exported:
    """Write a topic's messages as Parquet; what an earlier run has written is not written again.

    Args:
        order: What is to be done.
        master: Where Spark's tasks run; else as ``sparkMaster`` says.
        every_s: Seconds from one look at the topic to the next, without end; None: what is there now.
        stopped: Whether to end at once, asked often.
        progress: Is told now and then how far this run has come.

    Raises:
        ConfigError: Something that was asked for makes no sense, or the directory holds something else.
        TopicMissing: There is no such topic.
        MissingDependency: PySpark or a Java is missing.
        AfterglowError: The topic cannot be read, or the files not written.
    """
    target = _target(order.to)
    if order.columns is not None and not order.decode:  # schemas add columns, which the source alone knows
        choose(MESSAGES, order.columns)
    with connect(order.source, order.tier, order.metadata) as source:
        topic = source.topic(order.topic).name
    config = load_conf(environ=os.environ)
    record = ExportRecord(_source(order.source), topic, order.columns, order.decode)
    given = {"tier": order.tier, "metadata": order.metadata}
    options = {name: value for name, value in given.items() if value is not None}
    options["failOnDataLoss"] = str(order.fail_on_data_loss).lower()
    with local_session(master or config.spark_master, **{**QUIET, **spark_properties(config)}) as session:
        export = TopicExport(session, _files(session, target), record, options)
        return export.run(every_s=every_s, stopped=stopped, progress=progress)


def _target(to: str) -> str:
    path = to.removeprefix(_FORMAT)
    if path == to or not path:
        raise ConfigError(f"--to {to!r} names no place; write --to parquet:PATH")
    return path


def _files(session: SparkSession, target: str) -> ExportFiles:
    scheme, separator, rest = target.partition("://")
    if not separator:
        return LocalFiles(Path(target))
    return LocalFiles(Path(unquote(rest))) if scheme == "file" else HadoopFiles(session, target)


def _source(source: str) -> str:
    """A source by a name that holds wherever a later run is started."""
    return source if "://" in source else str(Path(source).absolute())
