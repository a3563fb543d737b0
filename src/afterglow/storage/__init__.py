"""Object stores, and wrappers that count and retry their requests.

Entry points: :class:`~afterglow.storage.store.ObjectStore` is the protocol;
:func:`~afterglow.storage.address.open_store` opens the store of an address;
:class:`~afterglow.storage.health.TierHealth` monitors availability, and
:func:`~afterglow.storage.doctor.check_store` tests a store.
"""

from __future__ import annotations

from afterglow.storage.address import open_store
from afterglow.storage.doctor import StepStatus, StoreCheck, check_store
from afterglow.storage.local import LocalStore
from afterglow.storage.memory import MemoryStore
from afterglow.storage.retry import RetryingStore, RetryPolicy
from afterglow.storage.s3 import S3Store
from afterglow.storage.s3_client import S3Options
from afterglow.storage.store import Data, ObjectInfo, ObjectPage, ObjectStore, Part, StoreLimits, Upload
from afterglow.storage.wrapper import CountingStore, OperationCount, PrefixedStore

__all__ = [
    "CountingStore",
    "Data",
    "LocalStore",
    "MemoryStore",
    "ObjectInfo",
    "ObjectPage",
    "ObjectStore",
    "OperationCount",
    "Part",
    "PrefixedStore",
    "RetryPolicy",
    "RetryingStore",
    "S3Options",
    "S3Store",
    "StepStatus",
    "StoreCheck",
    "StoreLimits",
    "Upload",
    "check_store",
    "open_store",
]
