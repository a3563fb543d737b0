"""Names of topics and namespaces, as Pulsar spells and stores them.

A topic name has three forms for users (``persistent://tenant/namespace/name``, ``tenant/namespace/name``, and ``name``
for ``public/default/name``), a legacy form with a cluster (``persistent://tenant/cluster/namespace/name``), and the
managed-ledger name in metadata. Only the local name of a legacy topic may contain slashes: Pulsar would parse any other
name with more slashes as a legacy one.

In paths, names have the encoding of Java's ``URLEncoder`` in UTF-8, which Pulsar uses for topics and cursors: ASCII
letters, digits, ``.``, ``-``, ``*`` and ``_`` are unchanged, a space becomes ``+``, and every other byte ``%XX`` in
upper case.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache
from typing import Final
from urllib.parse import quote_plus, unquote_plus

from afterglow.errors import InvalidName

_ENCODED: Final = re.compile(r"(?:[^%]|%[0-9A-Fa-f]{2})*", re.DOTALL)


@lru_cache(maxsize=4096)
def encode_name(name: str) -> str:
    """Encode a topic's local name or a subscription name.

    Raises:
        InvalidName: The name is not valid Unicode text (a lone surrogate), is empty, or is ``.`` or ``..``, which the
            encoding does not change and a path cannot contain.
    """
    if name in {"", ".", ".."}:
        raise InvalidName(f"invalid name {name!r}; choose another")
    try:
        # Python keeps '~', Java does not; Java keeps '*', Python does not.
        return quote_plus(name, safe="*").replace("~", "%7E")
    except UnicodeEncodeError as error:
        raise InvalidName(f"name {name!r} is not valid Unicode text: {error.reason}") from error


def decode_name(encoded: str) -> str:
    """Decode a name encoded by :func:`encode_name` or any other valid URL encoding.

    Raises:
        InvalidName: A ``%`` is not followed by two hexadecimal digits, or the bytes are not UTF-8.
    """
    if _ENCODED.fullmatch(encoded) is None:
        raise InvalidName(f"encoded name {encoded!r} has a '%' without two hexadecimal digits")
    try:
        return unquote_plus(encoded, errors="strict")
    except UnicodeDecodeError as error:
        raise InvalidName(f"encoded name {encoded!r} is not UTF-8: {error.reason}") from error


DEFAULT_TENANT: Final = "public"
DEFAULT_NAMESPACE: Final = "default"

_ENTITY: Final = re.compile(r"[-=:.\w]+", re.ASCII)
_PARTITION: Final = re.compile(r"(?P<base>.+)-partition-(?P<index>0|[1-9][0-9]{0,9})", re.DOTALL)
_MAX_PARTITION: Final = 2**31 - 1  # a Java int
_FORMS: Final = "persistent://TENANT/NAMESPACE/NAME, TENANT/NAMESPACE/NAME or NAME"


class Domain(StrEnum):
    """Domain of a topic: the part of its name before ``://``."""

    PERSISTENT = "persistent"
    NON_PERSISTENT = "non-persistent"


def check_entity(kind: str, name: str) -> str:
    """Return the name of a tenant, cluster or namespace if it is well-formed.

    Raises:
        InvalidName: It is empty, a dot component, or has a character other than letters, digits and ``-=:._``.
    """
    if name in {".", ".."} or _ENTITY.fullmatch(name) is None:
        raise InvalidName(f"invalid {kind} {name!r}; use letters, digits and any of '-=:._'")
    return name


@dataclass(frozen=True, slots=True)
class NamespaceName:
    """A namespace: ``tenant/namespace``, or in the legacy form ``tenant/cluster/namespace``."""

    tenant: str
    namespace: str
    """The local part."""
    cluster: str | None = None
    """Cluster of a legacy name; None otherwise."""

    def __post_init__(self) -> None:
        check_entity("tenant", self.tenant)
        check_entity("namespace", self.namespace)
        if self.cluster is not None:
            check_entity("cluster", self.cluster)

    @classmethod
    def parse(cls, text: str) -> NamespaceName:
        """Parse ``tenant/namespace`` or ``tenant/cluster/namespace``.

        Raises:
            InvalidName: The text has another form.
        """
        match text.split("/"):
            case [tenant, namespace]:
                return cls(tenant, namespace)
            case [tenant, cluster, namespace]:
                return cls(tenant, namespace, cluster)
        raise InvalidName(f"invalid namespace {text!r}; write TENANT/NAMESPACE")

    def __str__(self) -> str:
        parts = (self.tenant, self.cluster, self.namespace)
        return "/".join(part for part in parts if part is not None)

    def topic(self, local_name: str, domain: Domain = Domain.PERSISTENT) -> TopicName:
        """Return a topic of this namespace."""
        return TopicName(self, local_name, domain)


@dataclass(frozen=True, slots=True)
class TopicName:
    """A topic, or one partition of a partitioned topic."""

    namespace: NamespaceName
    local_name: str
    """Not encoded; with ``-partition-N`` for a partition."""
    domain: Domain = Domain.PERSISTENT

    def __post_init__(self) -> None:
        encode_name(self.local_name)
        if "/" in self.local_name and self.namespace.cluster is None:
            raise InvalidName(f"topic name {self.local_name!r} in {self.namespace} must not contain '/'")

    @classmethod
    def parse(cls, text: str) -> TopicName:
        """Parse any form of a topic's name.

        Raises:
            InvalidName: The text is not a valid topic name.
        """
        head, separator, rest = text.partition("://")
        if not separator:
            match text.split("/"):
                case [name]:
                    return cls(NamespaceName(DEFAULT_TENANT, DEFAULT_NAMESPACE), name)
                case [tenant, namespace, name]:
                    return cls(NamespaceName(tenant, namespace), name)
            raise InvalidName(f"invalid topic {text!r}; write {_FORMS}")
        domain = _domain(head, text)
        match rest.split("/", 3):
            case [tenant, namespace, name]:
                return cls(NamespaceName(tenant, namespace), name, domain)
            case [tenant, cluster, namespace, name]:
                return cls(NamespaceName(tenant, namespace, cluster), name, domain)
        raise InvalidName(f"invalid topic {text!r}; write {_FORMS}")

    @classmethod
    @lru_cache(maxsize=4096)  # called in every pass over a topic
    def from_managed_ledger_name(cls, name: str) -> TopicName:
        """Return the topic of a :attr:`managed_ledger_name`.

        Raises:
            InvalidName: It is not the managed-ledger name of a persistent topic.
        """
        match name.split("/"):
            case [tenant, namespace, Domain.PERSISTENT.value, local_name]:
                return cls(NamespaceName(tenant, namespace), decode_name(local_name))
            case [tenant, cluster, namespace, Domain.PERSISTENT.value, local_name]:
                return cls(NamespaceName(tenant, namespace, cluster), decode_name(local_name))
        raise InvalidName(f"invalid managed-ledger name {name!r}; the form is TENANT/NAMESPACE/persistent/NAME")

    def __str__(self) -> str:
        return f"{self.domain}://{self.namespace}/{self.local_name}"

    @property
    def is_persistent(self) -> bool:
        """Whether the topic is persistent; a non-persistent one has no managed ledger."""
        return self.domain is Domain.PERSISTENT

    @property
    def managed_ledger_name(self) -> str:
        """The name in metadata: ``tenant/namespace/persistent/ENCODED`` (legacy: with the cluster second).

        Raises:
            InvalidName: The topic is not persistent.
        """
        if not self.is_persistent:
            raise InvalidName(f"{self} has no managed ledger; only persistent:// topics are stored")
        return f"{self.namespace}/{self.domain}/{encode_name(self.local_name)}"

    @property
    def partition_index(self) -> int | None:
        """The index of this partition from 0; None if the name is not that of a partition."""
        match = _PARTITION.fullmatch(self.local_name)
        if match is None or int(match["index"]) > _MAX_PARTITION:
            return None
        return int(match["index"])

    @property
    def base(self) -> TopicName:
        """The partitioned topic of this partition; the topic itself if it is not a partition."""
        if self.partition_index is None:
            return self
        return replace(self, local_name=self.local_name.rpartition("-partition-")[0])

    def partition(self, index: int) -> TopicName:
        """Return the name of one partition of this topic.

        Raises:
            InvalidName: The index is out of range, or this is a partition already.
        """
        if self.partition_index is not None:
            raise InvalidName(f"{self} is already a partition; use its partitioned topic")
        if not 0 <= index <= _MAX_PARTITION:
            raise InvalidName(f"invalid partition {index} of {self}; give an index from 0")
        return replace(self, local_name=f"{self.local_name}-partition-{index}")


def _domain(head: str, text: str) -> Domain:
    try:
        return Domain(head)
    except ValueError as error:
        known = " or ".join(f"{domain}://" for domain in Domain)
        raise InvalidName(f"topic {text!r} has the unknown domain {head!r}; write {known}") from error
