"""Metadata store in ZooKeeper, Pulsar's own included.

Gives the guarantees of :mod:`afterglow.metadata.store`, with ZooKeeper's own versions. Each call has a deadline. A
change is sent once and never retried by this module: a missing response is ``CommitUnknown``, because the request may
have been applied or may still be in transit. The session is restored, or replaced, in the background, and its watches
are set again.

A change and the check of its guard are one transaction. Implicit parents are created before the node, each in its own
transaction with the guard, and stay if its creation fails. Importing this module requires kazoo.
"""

from __future__ import annotations

import logging
import struct
import threading
import time
from contextlib import suppress
from functools import partial
from operator import methodcaller
from typing import TYPE_CHECKING, Any, Final

from afterglow.errors import (
    CommitFailed,
    CommitUnknown,
    MetadataError,
    MetadataUnavailable,
    MissingDependency,
    VersionConflict,
)
from afterglow.metadata.store import (
    DEFAULT_MAX_VALUE_BYTES,
    FIRST_VERSION,
    MUST_NOT_EXIST,
    Versioned,
    ancestors_of,
    check_delete,
    check_path,
    check_put,
    does_not_exist,
    guard_missing,
    has_children,
)
from afterglow.metadata.watches import Notifier

try:
    from kazoo.client import KazooClient, KazooState
    from kazoo.exceptions import (
        AuthFailedError,
        BadVersionError,
        KazooException,
        NoAuthError,
        NodeExistsError,
        NoNodeError,
        NotEmptyError,
        RolledBackError,
        SessionExpiredError,
        SessionMovedError,
    )
    from kazoo.handlers.threading import KazooTimeoutError
except ImportError as error:
    raise MissingDependency.of_extra("metadata in ZooKeeper needs kazoo", "zookeeper") from error

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from kazoo.client import TransactionRequest

    from afterglow.metadata.watches import Watch, WatchCallback

_log = logging.getLogger(__name__)

# All errors that kazoo raises for a request; the last three if it cannot parse the response.
_ERRORS: Final = (KazooException, KazooTimeoutError, RuntimeError, ValueError, struct.error)

# ZooKeeper's codes from here down mean that a server rejected the request; after those above the effect is unknown.
_FIRST_REFUSAL: Final = -100

# Their codes are rejections, but kazoo raises them also for requests whose response was lost with the session.
_SESSION_LOST: Final = (AuthFailedError, SessionExpiredError, SessionMovedError)

_ANY_VERSION: Final = -1

# Kazoo's own backoff between attempts to connect: 0.1 s, doubling to 2 s, without end. Each call has its own deadline.
_CONNECTION_RETRY: Final = {"max_tries": -1, "delay": 0.1, "backoff": 2, "max_delay": 2.0}


class ZooKeeperMetadataStore:
    """A :class:`~afterglow.metadata.store.MetadataStore` over a ZooKeeper ensemble.

    Args:
        hosts: ``host:port`` of one or several servers, separated by commas.
        chroot: Parent of all paths, such as ``/pulsar``; created with the first put.
        operation_timeout_s: Deadline of each call, including the wait for a connection, and of the first connection
            (``metadataStoreOperationTimeoutSeconds``).
        session_timeout_s: Time without contact after which ZooKeeper ends the session
            (``metadataStoreSessionTimeoutMillis``).
        max_value_bytes: Largest value accepted; raise it only together with ``jute.maxbuffer`` of every server.
        auth: Pairs of scheme and credential, such as ``("digest", "user:password")``.
        client_options: Further arguments of ``kazoo.client.KazooClient``: TLS, SASL, default access list.

    Raises:
        MetadataUnavailable: No server responded within ``operation_timeout_s``.
    """

    def __init__(
        self,
        hosts: str,
        *,
        chroot: str = "",
        operation_timeout_s: float = 10.0,
        session_timeout_s: float = 10.0,
        max_value_bytes: int = DEFAULT_MAX_VALUE_BYTES,
        auth: Sequence[tuple[str, str]] = (),
        client_options: Mapping[str, Any] | None = None,
    ) -> None:
        self._chroot = check_path(chroot) if chroot else ""
        self._hosts = hosts
        self._timeout_s = operation_timeout_s
        self._max_value_bytes = max_value_bytes
        self._closed = False
        self._connected = threading.Event()
        self._lock = threading.Lock()
        self._unknowns = 0
        """Number of changes with an unknown outcome."""
        self._settled = 0
        """Number of these that a later sync has settled."""
        self._notifier = Notifier("afterglow-metadata-zookeeper", prepare=self._arm)
        self._client = KazooClient(
            hosts=hosts,
            timeout=session_timeout_s,
            auth_data=list(auth),
            connection_retry=_CONNECTION_RETRY,
            **(client_options or {}),
        )
        self._client.add_listener(self._on_state)
        try:
            self._client.start(timeout=operation_timeout_s)
        except KazooTimeoutError as error:
            raise MetadataUnavailable(
                f"no response from ZooKeeper at {hosts} within {operation_timeout_s:g} s; check the address and that "
                "the server runs, or raise metadataStoreOperationTimeoutSeconds"
            ) from error

    @property
    def max_value_bytes(self) -> int:
        """Largest value that ``put`` accepts."""
        return self._max_value_bytes

    def get(self, path: str) -> Versioned | None:
        """Return the node at ``path``, or None if it does not exist."""
        node = self._node(check_path(path))
        try:
            value, stat = self._read(f"get of {path}", node, partial(self._client.get_async, node))
        except NoNodeError:
            return None
        # A Java client may store null, which kazoo returns as None.
        return Versioned(value or b"", stat.version, stat.ctime, stat.mtime)

    def children(self, path: str) -> tuple[str, ...]:
        """Return the names below ``path``, sorted."""
        node = self._node(check_path(path, allow_root=True))
        try:
            names = self._read(f"children of {path}", node, partial(self._client.get_children_async, node))
        except NoNodeError:
            return ()
        # /zookeeper is ZooKeeper's own node.
        return tuple(sorted(name for name in names if node != "/" or name != "zookeeper"))

    def put(self, path: str, value: bytes, expected_version: int, *, guard: str | None = None) -> int:
        """Create the node or replace its value; see the protocol."""
        check_put(path, value, expected_version, self._max_value_bytes, guard)
        node, deadline = self._node(path), self._deadline()
        if expected_version != MUST_NOT_EXIST:
            try:
                self._write("put", path, guard, methodcaller("set_data", node, value, expected_version), deadline)
            except NoNodeError as error:
                raise does_not_exist(path, expected_version) from error
            return expected_version + 1
        while True:
            try:
                self._write("put", path, guard, methodcaller("create", node, value), deadline)
            except NoNodeError:
                self._create_parents(path, guard, deadline)
            else:
                return FIRST_VERSION

    def create_ephemeral(self, path: str, value: bytes) -> str:
        """Create a node that ends with the session of this store; returns its path, which ends with a number.

        The numbers of nodes with one parent increase, also if their names differ. The session ends when the store is
        closed, or has had no contact for the session timeout; the store then works in a new session, without the node.

        Args:
            path: The path before the number.
            value: Its value.

        Raises:
            MetadataError: As from :meth:`put`.
        """
        check_put(path, value, MUST_NOT_EXIST, self._max_value_bytes, None)
        node, deadline = self._node(path), self._deadline()
        create = methodcaller("create", node, value, ephemeral=True, sequence=True)
        while True:
            try:
                created = self._write("creation", path, None, create, deadline)
            except NoNodeError:
                self._create_parents(path, None, deadline)
            else:
                return str(created).removeprefix(self._chroot)

    def delete(self, path: str, expected_version: int, *, guard: str | None = None) -> None:
        """Remove the node; see the protocol."""
        check_delete(path, expected_version, guard)
        change = methodcaller("delete", self._node(path), expected_version)
        try:
            self._write("delete", path, guard, change, self._deadline())
        except NoNodeError as error:
            raise does_not_exist(path, expected_version) from error
        except NotEmptyError as error:
            raise has_children(path) from error

    def watch(self, path: str, callback: WatchCallback) -> Watch:
        """Call back after changes of the node or of its list of children; see the protocol."""
        check_path(path)
        watch = self._notifier.add(path, callback)
        try:
            self._arm(path)
        except BaseException:
            watch.cancel()
            raise
        return watch

    def close(self) -> None:
        """End the session and the watches; takes at most the session timeout if the server does not respond."""
        if self._closed:
            return
        self._closed = True
        self._connected.set()  # wakes threads that wait for a connection: they find the store closed
        try:
            self._client.stop()
            self._client.close()
        except Exception:  # noqa: BLE001  kazoo raises bare Exception here, and close() must not fail
            _log.warning("the ZooKeeper session at %s did not end cleanly", self._hosts, exc_info=True)
        self._notifier.close()

    def _node(self, path: str) -> str:
        if path == "/":
            return self._chroot or "/"
        return self._chroot + path

    def _deadline(self) -> float:
        return time.monotonic() + self._timeout_s

    def _create_parents(self, path: str, guard: str | None, deadline: float) -> None:
        """Create the missing parents of ``path``; after a failure here the put itself was certainly not applied.

        From the nearest upwards to one that exists, and down again: access to nodes further up may be denied.
        """
        parents = ancestors_of(self._node(path))
        level = 0
        while 0 <= level < len(parents):
            what = f"creation of the parent {parents[level]}"
            try:
                self._commit(what, path, guard, methodcaller("create", parents[level]), deadline)
            except NodeExistsError:
                level -= 1
            except NoNodeError:
                level += 1
            except NoAuthError as error:
                raise CommitFailed(_denied(what)) from error
            except _ERRORS as error:
                raise MetadataUnavailable(f"{what} at {self._hosts} was not confirmed: {error!r}") from error
            else:
                level -= 1

    def _commit(
        self, what: str, path: str, guard: str | None, change: Callable[[TransactionRequest], None], deadline: float
    ) -> Any:
        """Send a change in one transaction with the check of its guard, and return its result.

        Raises:
            Fenced: The guard does not exist.
            KazooException: As from :meth:`_call`, or the error of the change itself.
        """
        transaction = self._client.transaction()
        if guard is not None:
            transaction.check(self._node(guard), _ANY_VERSION)
        change(transaction)
        results = self._call(what, transaction.commit_async, deadline)
        # Operations before the one that failed have the result RolledBackError, those after it RuntimeInconsistency.
        errors = [result for result in results if isinstance(result, Exception)]
        causes = [error for error in errors if not isinstance(error, RolledBackError)]
        if guard is not None and causes and results[0] is causes[0] and isinstance(causes[0], NoNodeError):
            raise guard_missing(path, guard) from causes[0]
        if errors:
            raise (causes or errors)[0]
        if len(results) != len(transaction.operations):
            raise RuntimeError(f"{len(transaction.operations)} operations have {len(results)} results")
        return results[-1]

    def _write(
        self,
        name: str,
        path: str,
        guard: str | None,
        change: Callable[[TransactionRequest], None],
        deadline: float,
    ) -> Any:
        """Send a change once, and return its result; the caller handles ``NoNodeError`` and ``NotEmptyError``."""
        what = f"{name} of {path}"
        try:
            return self._commit(what, path, guard, change, deadline)
        except (NoNodeError, NotEmptyError):
            raise
        except (NodeExistsError, BadVersionError) as error:
            raise VersionConflict(f"{what} found another version than expected; read it again") from error
        except NoAuthError as error:
            raise CommitFailed(_denied(what)) from error
        except _ERRORS as error:
            if _is_refusal(error):
                raise CommitFailed(f"{what} was rejected by ZooKeeper at {self._hosts}: {error!r}") from error
            with self._lock:
                self._unknowns += 1
            raise CommitUnknown(
                f"{what} was sent to ZooKeeper at {self._hosts} and got no response ({error!r}); read it again"
            ) from error

    def _read(self, what: str, node: str, request: Callable[[], Any]) -> Any:
        """Send a read; the caller handles ``NoNodeError``."""
        deadline = self._deadline()
        try:
            if (unknowns := self._unknowns) != self._settled:
                # After an unknown outcome this client may be connected to a server that lags behind the one that
                # received the change. Sync passes through the leader, after all requests of this client that have
                # reached it, and waits for this server to catch up. Requests that have not reached the leader by then
                # are never applied: on one connection requests keep their order, and those of an older connection are
                # rejected, since its session has moved to this connection or has ended.
                self._call(what, partial(self._client.sync_async, node), deadline)
                self._settled = unknowns
            return self._call(what, request, deadline)
        except NoNodeError:
            raise
        except NoAuthError as error:
            raise MetadataError(_denied(what)) from error
        except _ERRORS as error:
            if _is_refusal(error):
                raise MetadataError(f"{what} was rejected by ZooKeeper at {self._hosts}: {error!r}") from error
            raise MetadataUnavailable(f"{what}: no response from ZooKeeper at {self._hosts} ({error!r})") from error

    def _call(self, what: str, request: Callable[[], Any], deadline: float) -> Any:
        """Wait for a connection, send a request, and wait for its response.

        Raises:
            MetadataUnavailable: No connection, so nothing was sent.
            KazooException: The server rejected the request, or the connection was lost.
            KazooTimeoutError: The deadline passed after the request was sent.
            RuntimeError: The response could not be parsed; also ValueError and struct.error.
        """
        connected = self._connected.wait(max(0.0, deadline - time.monotonic()))
        if self._closed:
            raise MetadataUnavailable(f"{what}: the metadata store at {self._hosts} is closed; open it again")
        if not connected or time.monotonic() >= deadline:
            raise MetadataUnavailable(
                f"{what}: no connection to ZooKeeper at {self._hosts} within {self._timeout_s:g} s; check that it "
                "runs, or raise metadataStoreOperationTimeoutSeconds"
            )
        return request().get(timeout=max(0.001, deadline - time.monotonic()))

    def _arm(self, path: str) -> None:
        """Set ZooKeeper's one-time watches of the node and, if it exists, of its list of children."""
        node = self._node(path)
        stat = self._read(f"watch of {path}", node, partial(self._client.exists_async, node, watch=self._on_event))
        if stat is not None:
            children = partial(self._client.get_children_async, node, watch=self._on_event)
            # Deleted in between: the first watch has fired, and the watches are then set again.
            with suppress(NoNodeError):
                self._read(f"watch of {path}", node, children)

    def _on_event(self, event: Any) -> None:
        # Bound methods of one object are equal, so kazoo keeps this watcher once per node however often it is set.
        # An event without a path means that all watches were lost with the connection.
        lost = event.path is None
        self._notifier.changed(self._notifier.paths() if lost else (event.path.removeprefix(self._chroot),))

    def _on_state(self, state: str) -> None:
        if state == KazooState.CONNECTED:
            self._connected.set()
        elif not self._closed:
            self._connected.clear()


def _is_refusal(error: Exception) -> bool:
    return getattr(error, "code", 0) <= _FIRST_REFUSAL and not isinstance(error, _SESSION_LOST)


def _denied(what: str) -> str:
    return (
        f"{what} is denied by the access list of the ZooKeeper node; grant access to clients without auth credentials, "
        "which is how Afterglow connects"
    )
