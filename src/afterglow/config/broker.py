"""Validated configuration of one server.

A ``BrokerConfig`` cannot hold a value out of range or two settings that contradict each other. It is the broker level
of every policy; :meth:`BrokerConfig.overridden` applies the policies of namespaces and topics to it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from afterglow.config.choices import AuthenticationProvider
from afterglow.config.setting import DEFAULT, declared
from afterglow.config.settings_offload import (
    OffloadSettings,
    ReadSettings,
    SparkSettings,
    StreamingSettings,
    TierSettings,
)
from afterglow.config.settings_server import PULSAR_AUTHORIZATION, SecuritySettings, ServerSettings
from afterglow.config.settings_topics import LedgerSettings, TopicSettings
from afterglow.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from afterglow.config.setting import Origin, Setting


@dataclass(frozen=True, kw_only=True, repr=False)
class BrokerConfig(
    ServerSettings,
    SecuritySettings,
    TopicSettings,
    LedgerSettings,
    OffloadSettings,
    StreamingSettings,
    TierSettings,
    ReadSettings,
    SparkSettings,
):
    """Every setting with its value.

    Raises:
        ConfigError: A value is out of range, or two settings contradict each other.
    """

    origins: Mapping[str, Origin] = field(default_factory=dict, compare=False)
    """Origin of each value by key; a missing key has its default value."""

    def __post_init__(self) -> None:
        self._check(SETTINGS.values())

    def _check(self, rows: Iterable[Setting]) -> None:
        for row in rows:
            value = getattr(self, row.attribute)
            if not row.value_type.accepts(value):
                shown = "the value" if row.secret else repr(value)
                raise ConfigError(f"{self._name(row.key)}: {shown} is not {row.value_type.description}")
        for problem in self._contradictions():
            raise ConfigError(problem)

    def __repr__(self) -> str:
        given = (f"{row.key}={row.show(value)}" for row, value, _ in self.rows() if value != row.default)
        return f"BrokerConfig({', '.join(given)})"

    def origin(self, key: str) -> Origin:
        """Return the origin of a setting's value."""
        return self.origins.get(key, DEFAULT)

    def rows(self) -> Iterator[tuple[Setting, Any, Origin]]:
        """Iterate over the settings with value and origin, in the order of the table."""
        for row in SETTINGS.values():
            yield row, getattr(self, row.attribute), self.origin(row.key)

    def overridden(self, values: Mapping[str, Any], origin: Origin) -> BrokerConfig:
        """Return a copy with other values for some settings.

        Args:
            values: Values by key. A map is merged into the present one; its pairs take precedence.
            origin: Origin of the values.

        Raises:
            ConfigError: A value is out of range, or contradicts another setting.
        """
        changed: dict[str, Any] = {}
        for key, value in values.items():
            row = SETTINGS[key]
            merged = {**dict(getattr(self, row.attribute)), **dict(value)} if row.prefix else None
            changed[row.attribute] = value if merged is None else tuple(sorted(merged.items()))
        changed["origins"] = {**self.origins, **dict.fromkeys(values, origin)}
        # dataclasses.replace() would validate every setting again; the unchanged ones have passed already.
        made = object.__new__(type(self))
        vars(made).update(vars(self))
        vars(made).update(changed)
        made._check([SETTINGS[key] for key in values])
        return made

    def _name(self, key: str) -> str:
        return f"{key} ({self.origin(key)})"

    def _contradictions(self) -> Iterator[str]:
        minimum, maximum = (f"managedLedger{bound}LedgerRolloverTimeMinutes" for bound in ("Min", "Max"))
        if (
            0
            < self.managed_ledger_max_ledger_rollover_time_minutes
            < self.managed_ledger_min_ledger_rollover_time_minutes
        ):
            yield f"{self._name(minimum)} is greater than {self._name(maximum)}; lower the first or raise the second"
        if self.offload_retry_min_backoff_millis > self.offload_retry_max_backoff_millis:
            low, high = "offloadRetryMinBackoffMillis", "offloadRetryMaxBackoffMillis"
            yield f"{self._name(low)} is greater than {self._name(high)}; lower the first or raise the second"
        if self.streaming_offload_block_size_in_bytes > self.streaming_offload_part_size_in_bytes:
            low, high = "streamingOffloadBlockSizeInBytes", "streamingOffloadPartSizeInBytes"
            yield f"{self._name(low)} is greater than {self._name(high)}: a part holds whole blocks; raise the second"
        yield from self._security_contradictions()

    def _security_contradictions(self) -> Iterator[str]:
        for key, port in (
            ("brokerServicePortTls", self.broker_service_port_tls),
            ("webServicePortTls", self.web_service_port_tls),
        ):
            if port is not None and not (self.tls_certificate_file_path and self.tls_key_file_path):
                yield f"{self._name(key)} needs both tlsCertificateFilePath and tlsKeyFilePath"
        if self.authorization_enabled and self.authorization_provider != PULSAR_AUTHORIZATION:
            yield (
                f"{self._name('authorizationProvider')} is not supported: {self.authorization_provider}; "
                f"leave it unset, or set {PULSAR_AUTHORIZATION}"
            )
        if self.authorization_enabled and not self.authentication_enabled:
            yield f"{self._name('authorizationEnabled')} needs authenticationEnabled=true"
        if self.authentication_enabled and not self.authentication_providers:
            yield f"{self._name('authenticationEnabled')} needs authenticationProviders, such as token"
        uses_tokens = self.authentication_enabled and AuthenticationProvider.TOKEN in self.authentication_providers
        if uses_tokens and not (self.token_secret_key or self.token_public_key):
            yield f"{self._name('authenticationProviders')} names token, which needs tokenSecretKey or tokenPublicKey"


SECTIONS: tuple[type, ...] = BrokerConfig.__bases__
SETTINGS: Mapping[str, Setting] = {row.key: row for section in SECTIONS for row in declared(section)}
"""The configuration table: every setting by its key, in the order of the documentation."""
