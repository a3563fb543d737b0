"""Leases: which of several processes may become the owner of a metadata tree.

A lease decides who runs, and :mod:`afterglow.metadata.ownership` who writes: a lease may end without its holder's
knowledge, as the session in ZooKeeper does, so that the new holder deletes the guard of the former one. Today one lease
covers all topics of a cluster; nothing here depends on that.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Protocol
from uuid import uuid4

from afterglow.errors import ConfigError, Fenced
from afterglow.metadata.file_lease import FileLease
from afterglow.metadata.ownership import take_ownership

if TYPE_CHECKING:
    from collections.abc import Callable
    from threading import Event

    from afterglow.metadata.ownership import OwnedMetadataStore
    from afterglow.metadata.store import MetadataStore


class Lease(Protocol):
    """The right to become the owner of a tree. Held by one process at a time."""

    @property
    def node(self) -> str | None:
        """Node of the store that exists while this process holds the lease; None: no other process can take it."""
        ...

    def holder(self) -> str | None:
        """Description of the process that holds the lease; None: none does.

        Raises:
            MetadataUnavailable: The store cannot be reached.
        """
        ...

    def acquire(self, stop: Event, on_standby: Callable[[str], None]) -> bool:
        """Wait until this process holds the lease; returns whether it does.

        Args:
            stop: Ends the wait.
            on_standby: Called with the description of the process that holds the lease, whenever that is another one.

        Raises:
            MetadataInUse: Another process holds the lease, and a wait for it is not supported.
            MetadataError: The store failed.
        """
        ...

    def keep(self, guard: str, on_lost: Callable[[Fenced], None]) -> None:
        """Keep the lease in the background once this process is the owner.

        Args:
            guard: Guard of this process.
            on_lost: Called once another process has become the owner.
        """
        ...

    def release(self) -> None:
        """Release the lease at once, so that a standby can take it. A second call does nothing."""
        ...


def open_lease(address: str, store: MetadataStore, path: str) -> Lease:
    """The lease of a tree in a metadata store.

    Args:
        address: Address of the store; see :func:`afterglow.metadata.address.open_metadata`.
        store: The store, opened with it.
        path: Node of the lease. It identifies the tree, also beside an SQLite file.

    Raises:
        ConfigError: The store is neither SQLite nor ZooKeeper.
    """
    scheme, _, rest = address.partition(":")
    if scheme == "sqlite":
        database = Path(rest).resolve()  # two names of a file are one
        name = path.strip("/").replace("/", ".")
        return FileLease(database.with_name(f"{database.name}.{name}"), f"metadata {address}", describe_process())
    from afterglow.metadata.zookeeper import ZooKeeperMetadataStore  # noqa: PLC0415 - kazoo is optional
    from afterglow.metadata.zookeeper_lease import ZooKeeperLease  # noqa: PLC0415

    if not isinstance(store, ZooKeeperMetadataStore):
        raise ConfigError(f"metadata {address} ends with its process; give sqlite:PATH or zk://HOST:2181")
    return ZooKeeperLease(store, path, describe_process())


def describe_process() -> str:
    """Describe this process for the message of another one."""
    return f"process {os.getpid()} on {socket.gethostname()}"


def become_owner(
    store: MetadataStore, lease: Lease, owners: str, stop: Event, on_standby: Callable[[str], None]
) -> OwnedMetadataStore | None:
    """Wait for a lease, and become the owner of what is written under guards below ``owners``.

    1. Wait for the lease. *Crash: the lease ends with the file lock or the session of this process.*
    2. Take ownership, on condition that the lease still exists; steps of
       :func:`afterglow.metadata.ownership.take_ownership`. If it has ended, begin again with 1.

    Returns:
        The store; None if ``stop`` was set first.

    Raises:
        MetadataInUse: Another process holds the lease, and a wait for it is not supported.
        MetadataError: The store failed; earlier owners may be fenced.
    """
    while lease.acquire(stop, on_standby):
        try:
            return take_ownership(store, owners, uuid4(), lease=lease.node)
        except Fenced:
            if lease.node is None:
                raise
    return None
