"""Where the admin API has namespaces and topics, below ``/admin/v2``."""

from __future__ import annotations

from afterglow.metadata.encoding import encode_name
from afterglow.metadata.names import NamespaceName, TopicName


def namespace_path(name: NamespaceName, *rest: str) -> str:
    """The path of a namespace, or of something below it."""
    return "/".join(("namespaces", str(name), *rest))


def topic_path(name: TopicName, *rest: str) -> str:
    """The path of a topic, or of something below it."""
    return "/".join((name.domain.value, str(name.namespace), encode_name(name.local_name), *rest))
