"""The one error tree.

Every error raised on purpose is an :class:`AfterglowError`. A message names the object, the setting and the cure.

A class also inherits ``ValueError``, ``OSError`` or a subclass of ``OSError`` (``ConnectionError``,
``FileNotFoundError``, ``FileExistsError``, ``PermissionError``) where that helps callers. No class inherits a built-in
exception that some caller interprets as something other than a failure:

- ``NotImplementedError``: raised from ``partitions()``, PySpark takes it for a source without partitions and reads
  nothing.
- ``ImportError``: an optional module is missing; ``try: import …`` continues without it.
- ``LookupError``, ``KeyError``, ``IndexError``: the default applies, or the sequence has ended.
- ``TimeoutError``: the wait of ``asyncio.timeout`` or ``Future.result(timeout)`` has ended.
- ``StopIteration``, ``EOFError``, ``AttributeError``, ``TypeError``, ``RuntimeError``, ``BrokenPipeError`` and others.

``tests/test_errors.py`` enforces it. asyncio treats an ``OSError`` from a protocol callback as a lost connection and
does not log it, so protocol callbacks must catch every error.

Errors travel from Spark workers and between processes: every class can be pickled, whatever arguments it takes.

*Failed* and *unknown* must never be confused. *Failed*: the effect did not happen, and the call may be retried.
*Unknown*: the effect may have happened; the caller re-reads and then decides, and never deletes.
"""

from __future__ import annotations

import re
from typing import Any, Final, Self

DISTRIBUTION: Final = "pulsar-afterglow"
"""Name of the package in indexes and wheels. ``afterglow`` alone is the package of another project there."""


class AfterglowError(Exception):
    """Root of all errors raised by Afterglow."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the state instead of a call: subclasses take other arguments than the message."""
        return _restored, (type(self), self.args, vars(self))


def _restored(kind: type[AfterglowError], args: tuple[object, ...], state: dict[str, object]) -> AfterglowError:
    error = kind.__new__(kind, *args)
    error.args = args
    vars(error).update(state)
    return error


# --- invalid input -------------------------------------------------------------------------------------------------


class ConfigError(AfterglowError, ValueError):
    """A setting is unknown, malformed, or contradicts another."""


class InvalidName(AfterglowError, ValueError):
    """A topic, subscription, key or path is not well-formed."""


class TierNotAllowed(AfterglowError):
    """An offload policy names a tier that the caller's role is not allowed to use."""


class MissingDependency(AfterglowError):
    """An optional package is not installed; the message gives the pip command."""

    @classmethod
    def of_extra(cls, problem: str, extra: str) -> Self:
        """Make the error for a package that an extra of this distribution installs.

        The command in the message lists the requirements of the extra, taken from the metadata of the installed
        distribution. It works whether Afterglow was installed from an index, a wheel or a clone.

        Args:
            problem: The missing package, or the operation that needs it.
            extra: Name of the extra in ``pyproject.toml``.
        """
        from importlib import metadata  # noqa: PLC0415 - slower to import than the rest of this module

        try:
            lines = metadata.requires(DISTRIBUTION) or []
        except metadata.PackageNotFoundError:  # running from a source tree
            lines = []
        marker = re.compile(rf"extra == ['\"]{re.escape(extra)}['\"]")
        requirements = [line.partition(";")[0].strip() for line in lines if marker.search(line)]
        target = f"{DISTRIBUTION}[{extra}]"
        if not requirements:
            return cls(f"{problem}; install {target} from its wheel or a clone")
        command = " ".join(f"'{requirement}'" for requirement in requirements)
        return cls(f"{problem}; install the requirements of {target}: pip install {command}")


class NotSupported(AfterglowError):
    """The operation is valid but this implementation does not offer it."""


# --- bytes that do not parse ---------------------------------------------------------------------------------------


class FormatError(AfterglowError, ValueError):
    """Bytes do not have the expected format."""


class CorruptEntry(FormatError):
    """An entry's envelope, metadata, batch or payload is corrupt."""


class IncompleteMessage(CorruptEntry):
    """Chunks of a message are missing from the topic: the producer stopped early, or they were trimmed."""


class CorruptBlock(FormatError):
    """A data block's header, framing, padding or checksum is corrupt."""


class DamagedStripe(CorruptBlock):
    """A part of a block is damaged, and the rest can be read.

    Args:
        message: What is damaged, and where.
        until: First entry behind the damage: it and those behind it in the block do not touch it.
    """

    def __init__(self, message: str, until: int) -> None:
        super().__init__(message)
        self.until = until


class WrongLength(FormatError):
    """The length of a data object differs from the one in its index: it was truncated or replaced."""


class CorruptIndex(FormatError):
    """An index object is corrupt or contradicts its data object."""


class CorruptMetadata(FormatError):
    """A metadata value does not parse."""


class WrongVersion(FormatError):
    """An object has a format version that this release does not read."""


class InvalidFrame(FormatError):
    """A peer sent bytes that are not a valid frame; the rest of its stream cannot be parsed."""


class EntryTooLarge(FormatError):
    """An entry does not fit in a block of the configured size."""


# --- object storage ------------------------------------------------------------------------------------------------


class StorageError(AfterglowError, OSError):
    """An object store rejected or failed a request; nothing was changed unless a subclass says otherwise."""


class ObjectMissing(StorageError, FileNotFoundError):
    """No object found under the key."""


class IndexMissing(ObjectMissing):
    """The index object of a data object is missing."""


class ObjectExists(StorageError, FileExistsError):
    """A put-if-absent found an existing object."""


class UploadMissing(StorageError, FileNotFoundError):
    """The store does not know the multipart upload: completed, aborted, expired or lost."""


class PartMismatch(StorageError):
    """The parts in the store differ from the recorded ones."""


class BucketMissing(StorageError, FileNotFoundError):
    """The bucket, container or root directory does not exist."""


class AccessDenied(StorageError, PermissionError):
    """The store rejected the credentials, or they do not permit the request."""


class RangeInvalid(StorageError, ValueError):
    """A byte range lies outside the object."""


class StoreUnavailable(StorageError, ConnectionError):
    """The store could not be reached or had an internal error; retry."""


class StoreThrottled(StoreUnavailable):
    """The store throttled the request; retry later."""


class StoreTimeout(StoreUnavailable):
    """A request or its retries exceeded the deadline; the effect is unknown."""


class ChecksumMismatch(StorageError):
    """Received bytes differ from the bytes that were sent."""


# --- the hot log ----------------------------------------------------------------------------------------------------


class HotLogError(AfterglowError, OSError):
    """A hot log rejected or failed an operation."""


class LedgerClosed(HotLogError):
    """A ledger accepts no more entries: it was closed, or fenced after a failure. Append to a new one."""


class LedgerMissing(HotLogError, FileNotFoundError):
    """No ledger found with that id: it never existed, or was deleted."""


class EntriesMissing(HotLogError):
    """Entries are missing from the log: trimmed, deleted with their topic, or never written."""


class DataLost(HotLogError):
    """Entries are gone from every copy; they are recorded as lost."""


class DiskFull(HotLogError):
    """The disk is full; appends succeed again once space is freed."""


class HotLogUnavailable(HotLogError, ConnectionError):
    """The server of the log could not be reached, or does not serve it now; retry."""


class HotLogTimeout(HotLogUnavailable):
    """A call or its retries exceeded the deadline."""


class SubscriptionBusy(HotLogUnavailable):
    """Another consumer is connected to the subscription; retry once it is closed."""


# --- metadata ------------------------------------------------------------------------------------------------------


class MetadataError(AfterglowError):
    """A metadata store rejected or failed an operation."""


class MetadataUnavailable(MetadataError, ConnectionError):
    """The metadata store could not be reached; nothing was changed."""


class MetadataInUse(MetadataError):
    """Another process owns these records and runs; stop it first."""


class ValueTooLarge(MetadataError, ValueError):
    """A value exceeds the store's ``max_value_bytes``."""


class CommitFailed(MetadataError):
    """A change was certainly not applied."""


class VersionConflict(CommitFailed):
    """A compare-and-set found another version: re-read, decide, retry."""


class Fenced(CommitFailed):
    """An owner with a newer epoch has taken over; stop."""


class CommitUnknown(MetadataError):
    """A change was sent and may or may not have been applied: re-read, then decide. Never delete on this."""


# --- tenants, namespaces, topics by name ----------------------------------------------------------------------------


class NotFound(AfterglowError):
    """No tenant, namespace, topic or subscription found with that name."""


class AlreadyExists(AfterglowError, FileExistsError):
    """A tenant, namespace, topic or subscription of that name exists already."""


class NotEmpty(AfterglowError):
    """A tenant, namespace or topic still has children; delete them first."""


# --- topics and cursors ---------------------------------------------------------------------------------------------


class TopicMissing(NotFound):
    """No topic found with that name, or it is being deleted."""


class TopicClosed(AfterglowError):
    """The topic was closed in this process, or is being deleted: open it again."""


class TopicTerminated(AfterglowError):
    """The topic was terminated and accepts no more entries; it remains readable."""


class TopicChanged(AfterglowError):
    """A pinned range of a topic is in neither copy any more: trimmed, moved or deleted since. Read it again."""


class OutOfReach(AfterglowError):
    """A message depends on entries outside the range that the reader can access."""


class CursorMissing(NotFound):
    """No cursor found with that name."""


class InvalidPosition(AfterglowError, ValueError):
    """A position lies outside the range that the operation accepts."""


# --- offload --------------------------------------------------------------------------------------------------------


class OffloadInProgress(AfterglowError):
    """A running offload of the topic conflicts with the request; wait for it to end."""


class WouldLoseData(AfterglowError):
    """The request would lose entries, and the caller has not permitted that."""


class OffloadConflict(AfterglowError):
    """The ledger list no longer names this attempt, or cannot hold it: its objects must be deleted."""


class HandleClosed(AfterglowError, ValueError):
    """The segment accepts no more entries: its result was requested, it was abandoned, or it failed."""


class UploadLost(AfterglowError):
    """The store lost an unfinished upload: the segment starts again from its first entry, under a new key."""
