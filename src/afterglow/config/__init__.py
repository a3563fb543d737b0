"""One table of settings, and everything that comes from it.

:class:`BrokerConfig` has a typed attribute per row; :func:`load_conf` reads a Pulsar ``broker.conf``, environment and
arguments into one and remembers where each value came from; ``docs/configuration.md`` is printed from the same rows.
What namespaces and topics override is resolved elsewhere.
"""

from __future__ import annotations

from afterglow.config.broker import SECTIONS, SETTINGS, BrokerConfig
from afterglow.config.choices import (
    AuthenticationProvider,
    CompressionType,
    DamagePolicy,
    EntryInterceptor,
    InactiveTopicDeleteMode,
    ReadPriority,
    TopicType,
)
from afterglow.config.kinds import Kind
from afterglow.config.load import ENVIRONMENT_PREFIX, Given, load_conf, parse_conf, resolve
from afterglow.config.origin import Origin, OriginKind
from afterglow.config.properties import Property, parse_properties
from afterglow.config.quantities import duration, size
from afterglow.config.sections.tier import driver_keys
from afterglow.config.setting import Scope, Setting

__all__ = [
    "ENVIRONMENT_PREFIX",
    "SECTIONS",
    "SETTINGS",
    "AuthenticationProvider",
    "BrokerConfig",
    "CompressionType",
    "DamagePolicy",
    "EntryInterceptor",
    "Given",
    "InactiveTopicDeleteMode",
    "Kind",
    "Origin",
    "OriginKind",
    "Property",
    "ReadPriority",
    "Scope",
    "Setting",
    "TopicType",
    "driver_keys",
    "duration",
    "load_conf",
    "parse_conf",
    "parse_properties",
    "resolve",
    "size",
]
