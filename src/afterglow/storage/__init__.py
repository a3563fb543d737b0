"""Object stores, and wrappers that count, slow, repeat and spoil what passes to them."""

from __future__ import annotations

from afterglow.storage.address import open_store
from afterglow.storage.counting import CountingStore, OperationCount
from afterglow.storage.doctor import Outcome, StoreCheck, check_store
from afterglow.storage.faults import Fault, FaultRule, FaultyStore, InjectedFault
from afterglow.storage.local import LocalStore
from afterglow.storage.memory import MemoryStore
from afterglow.storage.prefix import PrefixedStore
from afterglow.storage.retry import RetryingStore, RetryPolicy
from afterglow.storage.s3 import S3Store
from afterglow.storage.s3_options import S3Options
from afterglow.storage.store import Data, ObjectInfo, ObjectPage, ObjectStore, Part, StoreLimits, Upload
from afterglow.storage.throttle import ThrottledStore, TokenBucket

__all__ = [
    "CountingStore",
    "Data",
    "Fault",
    "FaultRule",
    "FaultyStore",
    "InjectedFault",
    "LocalStore",
    "MemoryStore",
    "ObjectInfo",
    "ObjectPage",
    "ObjectStore",
    "OperationCount",
    "Outcome",
    "Part",
    "PrefixedStore",
    "RetryPolicy",
    "RetryingStore",
    "S3Options",
    "S3Store",
    "StoreCheck",
    "StoreLimits",
    "ThrottledStore",
    "TokenBucket",
    "Upload",
    "check_store",
    "open_store",
]
