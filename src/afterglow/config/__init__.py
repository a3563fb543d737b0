"""Configuration: one table of settings, and a loader that records the origin of every value.

:class:`BrokerConfig` has a typed attribute for each setting. :func:`load_conf` reads a Pulsar ``broker.conf``, the
environment and arguments into one. ``docs/configuration.md`` is generated from the same table. :mod:`afterglow.policy`
resolves the settings that namespaces and topics override.
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
from afterglow.config.load import ENVIRONMENT_PREFIX, load_conf, parse_conf
from afterglow.config.properties import Property, parse_properties
from afterglow.config.setting import Origin, OriginKind, Scope, Setting
from afterglow.config.settings_offload import driver_keys
from afterglow.config.value_types import ValueType, duration, size

__all__ = [
    "ENVIRONMENT_PREFIX",
    "SECTIONS",
    "SETTINGS",
    "AuthenticationProvider",
    "BrokerConfig",
    "CompressionType",
    "DamagePolicy",
    "EntryInterceptor",
    "Origin",
    "OriginKind",
    "Property",
    "ReadPriority",
    "Scope",
    "Setting",
    "TopicType",
    "ValueType",
    "driver_keys",
    "duration",
    "load_conf",
    "parse_conf",
    "parse_properties",
    "size",
]
