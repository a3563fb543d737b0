"""Constants shared by kernels and their callers: columns, codes and bounds."""

from __future__ import annotations

# Columns of an entry's row.
STATUS = 0
META_AT = 1
META_LEN = 2
PAYLOAD_AT = 3
PAYLOAD_LEN = 4
BROKER_TIME = 5
INDEX = 6
PUBLISH_TIME = 7
SEQUENCE = 8
EVENT_TIME = 9
PRODUCER_AT = 10
PRODUCER_LEN = 11
KEY_AT = 12
KEY_LEN = 13
ORDERING_AT = 14
ORDERING_LEN = 15
SCHEMA_AT = 16
SCHEMA_LEN = 17
CODEC = 18
UNCOMPRESSED = 19
MESSAGES = 20
PROPERTIES = 21
FLAGS = 22
EXPANDED_AT = 23
REPLICATED_AT = 24
REPLICATED_LEN = 25
SCHEMA_ID_AT = 26
SCHEMA_ID_LEN = 27
CHECKSUM_AT = 28  # offset of the checksum if it is still to be verified, else -1
COLUMNS = 29

# Bits of FLAGS.
ENCRYPTED = 1
NULL_VALUE = 2
KEY_BASE64 = 4
NULL_KEY = 8
CHUNK = 16
MARKER = 32
TRANSACTION = 64

MARKED = CHUNK | MARKER | TRANSACTION
"""Flags of entries that are not complete messages by themselves, or depend on a transaction."""

# When checksums of entries are verified.
CHECK_NEVER = 0
CHECK_NOW = 1
CHECK_LATER = 2
"""By ``fill_rows``, right before it copies the value: the bytes are then fetched from memory only once."""

# Columns of a mark: further fields of such an entry.
MARK_ENTRY_ID = 0
MARK_FLAGS = 1
MARK_MARKER = 2  # the type of marker, -1 if it is not a marker
MARK_TXN_MOST = 3
MARK_TXN_LEAST = 4
MARK_UUID_AT = 5
MARK_UUID_LEN = 6
MARK_CHUNK = 7
MARK_CHUNKS = 8
MARK_TOTAL = 9  # bytes of all chunks, before encryption
MARK_PAYLOAD_AT = 10
MARK_PAYLOAD_LEN = 11
MARK_CODEC = 12
MARK_UNCOMPRESSED = 13
MARK_COLUMNS = 14

# Values of STATUS; ``REASONS`` in afterglow.format.columns has their messages.
GOOD = 0
TORN_BROKER_METADATA = 1
CORRUPT_BROKER_METADATA = 2
TORN_CHECKSUM = 3
WRONG_CHECKSUM = 4
TORN_METADATA = 5
CORRUPT_METADATA = 6
MISSING_FIELD = 7
INVALID_BATCH_SIZE = 8
UNKNOWN_CODEC = 9
CORRUPT_COMPRESSION = 10
TORN_BATCH = 11
CORRUPT_MESSAGE_METADATA = 12
INVALID_KEY = 13
INVALID_PROPERTY = 14

SMALLEST_MESSAGE = 6
"""Bytes of the smallest message in a batch: its metadata's size (4) and the required payload size (2)."""

# The table of outputs: the address of each buffer, 0 if it is not requested.
OUT_ENTRY_ID = 0
OUT_BATCH_INDEX = 1
OUT_SEQUENCE_ID = 2
OUT_PUBLISH_TIME = 3
OUT_EVENT_TIME = 4
OUT_EVENT_VALID = 5
OUT_BROKER_TIME = 6
OUT_BROKER_VALID = 7
OUT_INDEX = 8
OUT_INDEX_VALID = 9
OUT_ENCRYPTED = 10
OUT_PROPERTIES = 11  # int32: properties before the row
OUT_PROPERTY_SPANS = 12  # per row: offset and length of the metadata, tag of its properties
# Texts and bytes: int32 offsets, then the source offsets, then validity.
OUT_PRODUCER = 13
OUT_PRODUCER_PLACES = 14
OUT_KEY = 15
OUT_KEY_PLACES = 16
OUT_KEY_VALID = 17
OUT_KEY_CODED = 18  # a byte per row: 1 if the source is base64
OUT_ORDERING = 19
OUT_ORDERING_PLACES = 20
OUT_ORDERING_VALID = 21
OUT_SCHEMA = 22
OUT_SCHEMA_PLACES = 23
OUT_SCHEMA_VALID = 24
OUT_VALUE = 25
OUT_VALUE_PLACES = 26
OUT_VALUE_VALID = 27
OUT_REPLICATED = 28
OUT_REPLICATED_PLACES = 29
OUT_REPLICATED_VALID = 30
OUT_SCHEMA_ID = 31
OUT_SCHEMA_ID_PLACES = 32
OUT_SCHEMA_ID_VALID = 33
TEXTS = 34
"""Added to the number of a column of texts: the address of a buffer for them, and next to it the buffer's size.

Values are copied to it as soon as their entry is verified. Other texts are where their entries are plain messages; the
source offsets of their column are not written then.
"""
OUTPUTS = 2 * TEXTS

TOO_LONG = -1
"""Returned if a column would exceed 2 GiB, which Arrow's 32-bit offsets cannot address: decode fewer entries."""

# End of a scan of frames.
WHOLE = 0
"""The bytes end with the last frame, or with valid padding."""
TORN_FRAME = 1
"""A frame exceeds the end of the bytes."""
WRONG_ID = 2
"""The id of a frame does not follow the previous one."""
INVALID_PADDING = 3
"""Bytes after the last frame are neither a frame nor padding."""

# End of a scan of a broker's frames, besides TORN_FRAME.
ENOUGH = 4
"""The last requested entry was converted."""
OTHER_FRAME = 5
"""A whole frame that is not the MESSAGE with the next entry."""
INVALID_FRAME = 6
"""Sizes contradict each other, or exceed the limit."""

# Columns of a producer's SEND. The first three are also those of its receipt.
SEND_PRODUCER = 0
SEND_SEQUENCE = 1
SEND_HIGHEST = 2
SEND_MESSAGES = 3
SEND_AT = 4  # offset of the message in the receive buffer
SEND_LEN = 5
SEND_COLUMNS = 6

# Further columns of a receipt.
RECEIPT_LEDGER = 3
RECEIPT_ENTRY = 4
RECEIPT_COLUMNS = 5

NO_INDEX = -2
"""In place of an index: entries are written without one."""

FRAMED_BYTES = 42
"""Most bytes that a frame takes beyond the message: its header (12), and broker entry metadata (30)."""

RECEIPT_BYTES = 70
"""Most bytes of a receipt."""

MESSAGE_BYTES = 80
"""Most bytes of a MESSAGE without its message."""

# Encodings of texts.
ASCII = 0
UTF8 = 1
NOT_UTF8 = 2

LZ4 = 1
"""The only codec that kernels expand themselves."""

SLACK = 64
"""Writable bytes required after every expanded payload: copies work in steps of sixteen bytes."""

MAX_MESSAGES = 1 << 21
"""Maximum number of messages of an entry, and of a record batch.

A row takes up to 166 bytes in all columns before any text, a message in a batch as little as six: two million rows take
350 MB, and are twice as many as fit in an uncompressed batch of 5 MiB. Without a limit, ten kilobytes of ZSTD would
require six gigabytes.
"""

# Largest number of bytes that one compressed byte can expand to, by the codec's number on the wire.
MAX_EXPANSION = (
    1,
    255,  # LZ4: each byte that lengthens a match or literal adds at most 255
    1032,  # zlib: a match of 258 bytes takes at least two bits
    32768,  # zstd: a run of one byte: 128 KiB from four bytes
    22,  # Snappy: a copy of 64 bytes takes at least three
)
