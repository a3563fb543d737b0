"""The main job, from an engine on an empty directory to a topic that Spark has read back from the tier alone.

1. An engine starts: ``afterglow serve --streaming``, with segments and ledgers small enough to see several.
2. A stock Pulsar client sends messages. While it does, segments flow to the tier, ledgers roll over, and hot copies go
   once the tier has them whole.
3. A manual offload closes the last segment at the end of the log.
4. The client seeks by time, served by the engine from the tier. Then the engine is stopped: nothing runs any more.
5. A Spark job reads the objects, and every message is held against what was sent; so are further seeks by time.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Final

from afterglow.engine.demo_messages import MEAN_BYTES
from afterglow.engine.demo_read_back import read_back
from afterglow.engine.demo_stream import stream
from afterglow.engine.demo_traffic import entries_of, stock_client
from afterglow.metadata.names import TopicName
from afterglow.spark.java import find_java

if TYPE_CHECKING:
    from pathlib import Path

    from afterglow.engine.demo_read_back import DemoResult
    from afterglow.engine.demo_watch import Show

_LEDGERS: Final = 2.6
"""That the entries fill: two roll-overs, and not at the very end."""
_SEGMENTS: Final = 5
_LEAST_SEGMENT_BYTES: Final = 64 << 10
_PART_BYTES: Final = 5 << 20
"""The least that stores take: then a segment of 12 MB leaves in parts while it fills."""


def run_demo(home: Path, messages: int, show: Show) -> DemoResult:
    """Do the main job and check it.

    Args:
        home: The engine's home, made if absent. One of an earlier demo may be used again.
        messages: How many to send.
        show: Is told of every step.

    Raises:
        MissingDependency: The stock client, Spark or a Java is missing.
        AfterglowError: A step failed.
        OSError: The home cannot be written.
    """
    stock_client()
    find_java()  # before anything is started, since nothing goes to the tier without it
    home.mkdir(parents=True, exist_ok=True)
    conf = home / "demo.conf"
    conf.write_text(_settings(messages), encoding="utf-8")
    topic = TopicName.parse(f"demo-{secrets.token_hex(3)}")
    streamed = stream(home, conf, topic, messages, show)
    return read_back(home, topic, streamed, show)


def _settings(messages: int) -> str:
    """Of an engine that shows in a minute what others show in hours."""
    settings = {
        "maxOffloadSegmentSizeInBytes": max(messages * MEAN_BYTES // _SEGMENTS, _LEAST_SEGMENT_BYTES),
        "streamingOffloadPartSizeInBytes": _PART_BYTES,
        "managedLedgerMaxEntriesPerLedger": int(entries_of(messages) / _LEDGERS) + 1,
        "managedLedgerMinLedgerRolloverTimeMinutes": 0,
        "managedLedgerOffloadDeletionLagInMillis": 0,
        "offloadTickIntervalMillis": 250,
    }
    return "".join(f"{key}={value}\n" for key, value in settings.items())
