"""Constants of the typed kernels: layout of growing columns, instructions of programs, and error codes."""

from __future__ import annotations

# --- a column: one per node of the target type -----------------------------------------------------------------------
KIND = 0
CHILD = 1  # of LIST: the column of its items, or of its keys
COUNT = 2  # slots written
CAPACITY = 3  # slots allocated
VALUES = 4  # address: numbers, or 32-bit offsets of TEXT and LIST (one more than slots)
VALID = 5  # address: a bit per slot
USED = 6  # of TEXT: bytes written
TEXT_CAPACITY = 7  # of TEXT: bytes allocated
DATA = 8  # of TEXT: address
COUNT_COMMITTED = 9  # COUNT and USED after the last committed row, for rollback
USED_COMMITTED = 10
WORDS = 11

# Kinds of columns.
BITS = 0
W1 = 1
W2 = 2
W4 = 4
W8 = 8
W16 = 16
TEXT = 3
LIST = 5
STRUCT = 6

# --- state of a run --------------------------------------------------------------------------------------------------
AT = 0  # instruction or node that was started last
FULL_COLUMN = 1  # the full column, or SLOW
FULL_BYTES = 2  # bytes of text that it must hold; 0: it needs a slot
SLOW_COUNT = 3  # numbers left to a library; their capacity, and the address of their notes
SLOW_CAPACITY = 4
SLOW_NOTES = 5
SLOW_COMMITTED = 6
STATE = 7

SLOW = -1
NOTE = 4  # words of a note: column, slot, place of the text, its length

# --- Avro and plain values: instructions of four words, (operation, column, x, y) -------------------------------------
INSTRUCTION = 4

END = 0
STRUCT_BEGIN = 1
NULLS = 2  # x: words with the columns, y: how many
JUMP = 3  # x: instruction
UNION = 4  # x: words with an instruction per branch, y: how many
ITEMS = 5  # x: first instruction of the body, y: instruction after it
NEXT = 6
FAIL = 7
BOOLEAN = 8
INT = 9  # into W4
LONG = 10  # into W8; times x, divided by y
LONG_AS_FLOAT = 11
LONG_AS_DOUBLE = 12
FLOAT = 13
FLOAT_AS_DOUBLE = 14
DOUBLE = 15
BYTES = 16
STRING = 17
FIXED = 18  # x: length
ENUM = 19  # x: words with place and length of each symbol, y: how many
DECIMAL = 20  # x: words with the bounds, y: length, or -1 if the value is length-prefixed
UUID = 21
# Values of primitive schemas: all bytes of the message, big-endian.
PLAIN_BOOLEAN = 22
PLAIN_NUMBER = 23  # x: length; into a column of any width
PLAIN_TIME = 24  # eight bytes; times x, divided by y
PLAIN_FLOAT = 25
PLAIN_DOUBLE = 26
PLAIN_BYTES = 27
PLAIN_STRING = 28
PLAIN_INSTANT = 29
PLAIN_LOCAL = 30
PLAIN_DATE = 31
# Times of day, as LONG and PLAIN_TIME, in nanoseconds.
CLOCK = 32
PLAIN_CLOCK = 33

# --- JSON: nodes of six words, (operation, column, x, y, nulls, how many) ---------------------------------------------
NODE = 6

J_RECORD = 0  # x: words with the fields, y: how many
J_ARRAY = 1  # x: node of the items
J_MAP = 2
J_UNION = 3  # x: words with the members, y: how many
J_BOOLEAN = 4
J_INT = 5
J_LONG = 6
J_FLOAT = 7
J_DOUBLE = 8
J_STRING = 9
J_TEXT_BYTES = 10
J_BASE64 = 11
J_WORD = 12  # a string, or a number as it is written
J_FAIL = 13
J_CLOCK = 14

FIELD = 5  # words of a field: offset and length of its name, node, nulls, how many; of a member: what fits, 0, the same

FITS_OBJECT = 1
FITS_ARRAY = 2
FITS_STRING = 4
FITS_INTEGER = 8
FITS_FRACTION = 16
FITS_BOOLEAN = 32

MAX_DEPTH = 128
"""Maximum nesting of arrays and objects in JSON; definitions have fewer levels."""
FRAME = 4  # words of a level

DAY_NANOS = 86_400_000_000_000

# --- error codes of a value ------------------------------------------------------------------------------------------
GOOD = 0
TRUNCATED = 1
TRAILING_BYTES = 2
OUT_OF_RANGE = 3
UNKNOWN_BRANCH = 4
UNKNOWN_SYMBOL = 5
INVALID_UTF8 = 6
TOO_MANY_ITEMS = 7
TYPE_MISMATCH = 8
WRONG_LENGTH = 9
INVALID_JSON = 10
DUPLICATE_FIELD = 11
TOO_DEEP = 12
INVALID_ESCAPE = 13
INVALID_BASE64 = 14
TOO_LARGE = 15

FULL = -1
"""A column is full: grow it, and decode the row again."""

# --- the decoder of a row --------------------------------------------------------------------------------------------
NULL_ROW = -1
"""The row is null. Otherwise the value is twice an instruction, or twice a node plus one."""
