"""Enumerations that settings choose from. Values are spelt as in ``broker.conf`` and on the command line."""

from __future__ import annotations

from enum import StrEnum


class ReadPriority(StrEnum):
    """The copy that serves a read while both exist (PIP-73). The JSON of Pulsar's admin API has the member names."""

    BOOKKEEPER_FIRST = "bookkeeper-first"
    TIERED_STORAGE_FIRST = "tiered-storage-first"


class EntryPath(StrEnum):
    """Where entries of a Pulsar cluster are read that are in no tier."""

    AUTO = "auto"
    """From bookies, and from brokers where bookies cannot be read."""
    BOOKKEEPER = "bookkeeper"
    BROKER = "broker"


class DamagePolicy(StrEnum):
    """Reaction of a reader to damaged or missing data."""

    FAIL = "fail"
    SKIP_AND_REPORT = "skip-and-report"


class CompressionType(StrEnum):
    """Compression of a metadata value."""

    NONE = "NONE"
    LZ4 = "LZ4"
    ZLIB = "ZLIB"
    ZSTD = "ZSTD"
    SNAPPY = "SNAPPY"


class TopicType(StrEnum):
    """Type of an automatically created topic."""

    PARTITIONED = "partitioned"
    NON_PARTITIONED = "non-partitioned"


class SubscriptionType(StrEnum):
    """Distribution of messages among the consumers of a subscription. Key_Shared is recognised and not supported."""

    EXCLUSIVE = "Exclusive"
    SHARED = "Shared"
    FAILOVER = "Failover"
    KEY_SHARED = "Key_Shared"


class SchemaCompatibilityStrategy(StrEnum):
    """Rule that a new schema must satisfy with respect to the existing versions of a topic."""

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
    """Broker entry metadata that precedes each entry (PIP-70)."""

    BROKER_TIMESTAMP = "broker-timestamp"
    INDEX = "index"


class AuthenticationProvider(StrEnum):
    """Authentication method of clients."""

    TOKEN = "token"  # noqa: S105 - the name of a method, not a secret


class LogLevel(StrEnum):
    """Lowest level of log records that are written."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LogFormat(StrEnum):
    """Form of log records on standard error."""

    TEXT = "text"
    JSON = "json"
