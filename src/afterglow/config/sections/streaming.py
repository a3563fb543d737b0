"""Segments that flow while entries arrive (PIP-76)."""

from __future__ import annotations

from afterglow.config.kinds import flag
from afterglow.config.quantities import GIB, KIB, MIB, MINUTE_MS, SECOND_MS, duration, size
from afterglow.config.setting import Scope, section, setting


@section
class Streaming:
    """Streaming offload."""

    streaming_offload_enabled: bool = setting(
        flag(),
        default=False,
        doc="Whether entries stream to the tier while they are written. Otherwise whole ledgers go once they are "
        "closed.",
        scope=Scope.TOPIC,
    )
    max_offload_segment_size_in_bytes: int = setting(
        size(minimum=1),
        default=GIB,
        doc="Size in bytes at which a segment closes.",
        scope=Scope.TOPIC,
        aliases={"maxSizePerOffloadSegmentMbytes": size(plain=MIB, minimum=1)},
    )
    max_offload_segment_rollover_time_in_seconds: int = setting(
        duration(minimum=1),
        default=600,
        doc="Seconds after its first entry at which a segment closes.",
        scope=Scope.TOPIC,
        aliases={"maxOffloadSegmentRolloverTimeMinutes": duration(SECOND_MS, plain=MINUTE_MS, minimum=1)},
    )
    streaming_offload_block_size_in_bytes: int = setting(
        size(minimum=KIB, maximum=2 * GIB - 1),
        default=MIB,
        doc="Size in bytes of a segment's blocks (format V2): the step of its index, of its checksums, and of Spark's "
        "splits. A larger entry gets a block of its own.",
        scope=Scope.TOPIC,
    )
    streaming_offload_part_size_in_bytes: int = setting(
        size(minimum=5 * MIB, maximum=5 * GIB),
        default=8 * MIB,
        doc="Least bytes of whole blocks that are uploaded at a time, more for segments past 1,000 parts. Stores "
        "refuse less than 5 MiB.",
        scope=Scope.TOPIC,
    )
    offload_buffer_max_bytes: int = setting(
        size(),
        default=256 * MIB,
        doc="Memory in bytes for entries that wait for their upload, all topics together, where offload tasks read "
        "over the Pulsar protocol. A topic uses at most as much as it leaves free. What does not fit is read from the "
        "hot log. 0: no buffer.",
    )
