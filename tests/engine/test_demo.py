from __future__ import annotations

import pyarrow as pa

from afterglow.engine.demo import compare
from afterglow.engine.sample import sample_entries, sample_messages
from afterglow.format.columns import decode_messages
from afterglow.format.frames import frame_entries, scan_frames


def table(count: int) -> pa.Table:
    data = frame_entries(sample_entries(sample_messages(count, 4), 4))
    return pa.Table.from_batches([messages.batch for messages in decode_messages(data, scan_frames(data, 0), 1)])


def test_equal_messages_show_no_difference() -> None:
    assert compare(sample_messages(40, 4), table(40)) == []


def test_a_missing_message_is_noticed() -> None:
    assert compare(sample_messages(40, 4), table(40).slice(1)) == ["40 messages were sent, 39 came back"]


def test_a_changed_value_is_noticed() -> None:
    sent = table(40)
    values = sent.column("value").to_pylist()
    values[7] = b"other"
    changed = sent.set_column(sent.schema.get_field_index("value"), "value", pa.array(values, pa.binary()))
    assert compare(sample_messages(40, 4), changed) == ["message 7 came back changed"]


def test_the_sample_has_batches_and_single_messages() -> None:
    indexes = table(400).column("batch_index").to_pylist()
    assert -1 in indexes
    assert max(indexes) > 5
