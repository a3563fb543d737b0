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
    ReadPriority,
    TopicType,
)
from afterglow.config.kinds import Kind, duration, size
from afterglow.config.load import ENVIRONMENT_PREFIX, Given, load_conf, parse_conf, resolve
from afterglow.config.properties import Property, parse_properties
from afterglow.config.setting import Origin, OriginKind, Scope, Setting
from afterglow.config.settings_offload import driver_keys

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
