"""The words that settings choose from. Values are the words of ``broker.conf`` and of the command line."""

from __future__ import annotations

from enum import StrEnum


class ReadPriority(StrEnum):
    """Which copy serves a read while both exist (PIP-73). The JSON of Pulsar's admin API carries the names."""

    BOOKKEEPER_FIRST = "bookkeeper-first"
    TIERED_STORAGE_FIRST = "tiered-storage-first"


class DamagePolicy(StrEnum):
    """What a reader does when bytes are damaged or gone."""

    FAIL = "fail"
    SKIP_AND_REPORT = "skip-and-report"


class CompressionType(StrEnum):
    """How a metadata value is compressed."""

    NONE = "NONE"
    LZ4 = "LZ4"
    ZLIB = "ZLIB"
    ZSTD = "ZSTD"
    SNAPPY = "SNAPPY"


class TopicType(StrEnum):
    """What auto-creation creates."""

    PARTITIONED = "partitioned"
    NON_PARTITIONED = "non-partitioned"


class SubscriptionType(StrEnum):
    """How the consumers of a subscription share its messages. Key_Shared is known, and not served."""

    EXCLUSIVE = "Exclusive"
    SHARED = "Shared"
    FAILOVER = "Failover"
    KEY_SHARED = "Key_Shared"


class SchemaCompatibilityStrategy(StrEnum):
    """What a schema must be able to read, and be read by, to follow those that a topic has."""

    UNDEFINED = "UNDEFINED"
    ALWAYS_INCOMPATIBLE = "ALWAYS_INCOMPATIBLE"
    ALWAYS_COMPATIBLE = "ALWAYS_COMPATIBLE"
    BACKWARD = "BACKWARD"
    FORWARD = "FORWARD"
    FULL = "FULL"
    BACKWARD_TRANSITIVE = "BACKWARD_TRANSITIVE"
    FORWARD_TRANSITIVE = "FORWARD_TRANSITIVE"
    FULL_TRANSITIVE = "FULL_TRANSITIVE"


class EntryInterceptor(StrEnum):
    """What the broker writes in front of each entry (PIP-70)."""

    BROKER_TIMESTAMP = "broker-timestamp"
    INDEX = "index"


class AuthenticationProvider(StrEnum):
    """How a client proves who it is."""

    TOKEN = "token"  # noqa: S105 - the name of a method, no secret
