"""The one error tree.

Every error raised on purpose is an :class:`AfterglowError`. A message names the object, the setting and the cure.

A class also inherits a built-in where that only helps callers: ``ValueError``, ``OSError``, or one of the fitting ones
below it (``ConnectionError``, ``FileNotFoundError``, ``FileExistsError``, ``PermissionError``). No class inherits a
built-in that some caller takes for something else than a failure:

- ``NotImplementedError``: PySpark takes it from ``partitions()`` for a source without partitions, and reads nothing.
- ``ImportError``: "an optional module is absent"; ``try: import …`` goes on without it.
- ``LookupError``, ``KeyError``, ``IndexError``: "the default applies", "the sequence ends here".
- ``TimeoutError``: "the wait has ended", to whoever uses ``asyncio.timeout`` or ``Future.result(timeout)``.
- ``StopIteration``, ``EOFError``, ``AttributeError``, ``TypeError``, ``RuntimeError``, ``BrokenPipeError`` and others.

``tests/test_errors.py`` enforces it. asyncio treats even ``OSError`` as a lost connection, which it does not log, where
a callback of a protocol raises it: such callbacks let no error out.

Errors travel from Spark's workers and between processes: every class can be pickled, whatever arguments it takes.

Two pairs must never be confused: *failed* means that the effect did not happen and may be tried again; *unknown* means
that it may have happened. Code that meets an unknown outcome re-reads and decides; it never deletes.
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


# --- what the caller gave us ---------------------------------------------------------------------------------------


class ConfigError(AfterglowError, ValueError):
    """A setting is unknown, malformed, or contradicts another."""


class InvalidName(AfterglowError, ValueError):
    """A topic, subscription, key or path is not well-formed."""


class TierNotAllowed(AfterglowError):
    """An offload policy names a tier that the role which sets it may not name."""


class MissingDependency(AfterglowError):
    """An optional package is not installed; the message gives the pip command."""

    @classmethod
    def of_extra(cls, problem: str, extra: str) -> Self:
        """Make the error for a package that an extra of this distribution brings.

        The command installs what the extra asks for, by the metadata of the installed package. It works wherever
        Afterglow itself came from: an index, a wheel or a clone.

        Args:
            problem: What is missing, or what fails without it.
            extra: Name of the extra in ``pyproject.toml``.
        """
        from importlib import metadata  # noqa: PLC0415 - takes longer to import than all else here

        try:
            lines = metadata.requires(DISTRIBUTION) or []
        except metadata.PackageNotFoundError:  # run from its sources
            lines = []
        asked = re.compile(rf"extra == ['\"]{re.escape(extra)}['\"]")
        wanted = [line.partition(";")[0].strip() for line in lines if asked.search(line)]
        named = f"{DISTRIBUTION}[{extra}]"
        if not wanted:
            return cls(f"{problem}; install {named}, from its wheel or a clone")
        command = " ".join(f"'{name}'" for name in wanted)
        return cls(f"{problem}; install what {named} asks for: pip install {command}")


class NotSupported(AfterglowError):
    """The operation is valid but this implementation does not offer it."""


# --- bytes that do not parse ---------------------------------------------------------------------------------------


class FormatError(AfterglowError, ValueError):
    """Bytes do not have the form they claim."""


class CorruptEntry(FormatError):
    """An entry's envelope, metadata, batch or payload is damaged."""


class IncompleteMessage(CorruptEntry):
    """A message came in chunks of which not all are in the topic: its producer gave up, or they were trimmed."""


class CorruptBlock(FormatError):
    """A data block's header, framing, padding or checksum is damaged."""


class DamagedPiece(CorruptBlock):
    """A part of a block is damaged, and the rest can be read.

    Args:
        message: What is damaged, and where.
        until: First entry behind the damage: it and those behind it in the block do not touch it.
    """

    def __init__(self, message: str, until: int) -> None:
        super().__init__(message)
        self.until = until


class WrongLength(FormatError):
    """A data object is not as long as its index says: truncated, or another object."""


class CorruptIndex(FormatError):
    """An index object is damaged or contradicts its data object."""


class CorruptMetadata(FormatError):
    """A metadata value does not parse."""


class WrongVersion(FormatError):
    """An object carries a format version that this release cannot read."""


class InvalidFrame(FormatError):
    """A peer sent bytes that are no frame; nothing behind them can be understood."""


class EntryTooLarge(FormatError):
    """An entry cannot be placed in a block of the configured size."""


# --- object storage ------------------------------------------------------------------------------------------------


class StorageError(AfterglowError, OSError):
    """An object store refused or failed an operation; nothing was changed unless a subclass says otherwise."""


class ObjectMissing(StorageError, FileNotFoundError):
    """No object has that key."""


class IndexMissing(ObjectMissing):
    """A data object has no index beside it."""


class ObjectExists(StorageError, FileExistsError):
    """A put-if-absent met an object that is already there."""


class UploadMissing(StorageError, FileNotFoundError):
    """The store does not know the multipart upload: completed, aborted, expired or lost."""


class PartMismatch(StorageError):
    """The store's parts are not the ones that were recorded."""


class BucketMissing(StorageError, FileNotFoundError):
    """The bucket, container or root directory does not exist."""


class AccessDenied(StorageError, PermissionError):
    """The store knows us and says no, or does not accept the credentials."""


class RangeInvalid(StorageError, ValueError):
    """A byte range lies outside the object."""


class StoreUnavailable(StorageError, ConnectionError):
    """The store could not be reached or failed inside; worth trying again."""


class StoreThrottled(StoreUnavailable):
    """The store asks to be called less often; worth trying again later."""


class StoreTimeout(StoreUnavailable):
    """A call or a series of retries passed its deadline; the effect is unknown."""


class ChecksumMismatch(StorageError):
    """Bytes that arrived are not the bytes that were sent."""


# --- the hot log ----------------------------------------------------------------------------------------------------


class HotLogError(AfterglowError, OSError):
    """A hot log refused or failed an operation."""


class LedgerClosed(HotLogError):
    """A ledger takes no more entries: it was closed, or fenced after a failure. Go on in a new one."""


class LedgerMissing(HotLogError, FileNotFoundError):
    """No ledger has that id: it was never there, or was deleted."""


class EntriesMissing(HotLogError):
    """Entries that should be in the log are not: trimmed, deleted with their topic, or never written."""


class DiskFull(HotLogError):
    """The disk has no room; appends work again once it has."""


class HotLogUnavailable(HotLogError, ConnectionError):
    """Whoever serves the log could not be reached, or does not serve it now; worth trying again."""


class HotLogTimeout(HotLogUnavailable):
    """A call or a series of retries passed its deadline."""


# --- metadata ------------------------------------------------------------------------------------------------------


class MetadataError(AfterglowError):
    """A metadata store refused or failed an operation."""


class MetadataUnavailable(MetadataError, ConnectionError):
    """The metadata store could not be reached; nothing was changed."""


class ValueTooLarge(MetadataError, ValueError):
    """A value passes the store's ``max_value_bytes``."""


class CommitFailed(MetadataError):
    """A change was certainly not applied."""


class VersionConflict(CommitFailed):
    """A compare-and-set met another version: re-read, decide, try again."""


class Fenced(CommitFailed):
    """Another owner with a newer epoch has taken over; stop."""


class CommitUnknown(MetadataError):
    """A change was sent and may or may not have been applied: re-read, then decide. Never delete on this."""


# --- tenants, namespaces, topics by name ----------------------------------------------------------------------------


class NotFound(AfterglowError):
    """No tenant, namespace, topic or subscription has that name."""


class AlreadyExists(AfterglowError, FileExistsError):
    """Something of that name exists already."""


class NotEmpty(AfterglowError):
    """It still holds others, which must go first."""


# --- topics and cursors ---------------------------------------------------------------------------------------------


class TopicMissing(NotFound):
    """No topic has that name, or it is being deleted."""


class TopicClosed(AfterglowError):
    """The topic was closed in this process, or is being deleted: open it again."""


class TopicTerminated(AfterglowError):
    """The topic was ended for good and takes no more entries; reading goes on."""


class TopicChanged(AfterglowError):
    """What was pinned of a topic is in no copy any more: trimmed, moved or deleted since. Read it again."""


class OutOfReach(AfterglowError):
    """A message needs entries that stand further away than can be seen from where it is read."""


class CursorMissing(NotFound):
    """The topic has no cursor of that name."""


class InvalidPosition(AfterglowError, ValueError):
    """A position does not lie where the operation needs it."""


# --- offload --------------------------------------------------------------------------------------------------------


class OffloadInProgress(AfterglowError):
    """An offload still runs on that topic that is in the way of what was asked for; wait for it to end."""


class WouldLoseData(AfterglowError):
    """What was asked for would lose entries, and nobody said that they may be lost."""


class OffloadConflict(AfterglowError):
    """The list of ledgers does not name this attempt any more, or has no room for it: what it wrote is to go."""


class HandleClosed(AfterglowError, ValueError):
    """The segment takes no more entries: its result was asked for, it was given up, or it failed."""


class UploadLost(AfterglowError):
    """The store has forgotten an unfinished upload: the segment starts again from its begin, under another name."""
