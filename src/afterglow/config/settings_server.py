"""Settings of the server: ports, connections, metrics, authentication and TLS."""

from __future__ import annotations

from dataclasses import replace

from afterglow.config.choices import AuthenticationProvider, LogFormat, LogLevel
from afterglow.config.setting import section, setting
from afterglow.config.value_types import (
    KIB,
    MIB,
    choice,
    duration,
    flag,
    integer,
    names,
    optional,
    pairs,
    port,
    several,
    size,
    text,
)

_LARGEST_MESSAGE = 2**31 - 1 - 10 * KIB
"""Frame lengths are signed 32-bit numbers, and Pulsar reserves 10 KiB of a frame for the command."""

_LEVELS = frozenset(LogLevel)
_LOG_LEVELS = replace(
    pairs(),
    description="a comma-separated list of LOGGER=LEVEL, as in afterglow.offload=debug,kazoo=error",
    accepts=lambda value: (
        pairs().accepts(value) and isinstance(value, tuple) and all(level.lower() in _LEVELS for _, level in value)
    ),
)


@section
class ServerSettings:
    """Server and connections."""

    # fmt: off
    cluster_name: str = setting(
        text(), default="standalone", doc="Name of the cluster in the admin API and in metadata paths."
    )
    bind_address: str = setting(
        text(), default="127.0.0.1",
        doc="Address on which all ports listen. Pulsar's default is 0.0.0.0; here any address but a loopback address "
        "requires authentication and TLS, or `--insecure`.",
    )
    advertised_address: str | None = setting(
        optional(text()), default=None,
        doc="Host name or address that lookups return to clients. Empty: the bind address, or for a wildcard such as "
        "0.0.0.0 the address of this machine's default route. With TLS it must be named in the certificate.",
    )
    broker_service_port: int | None = setting(
        optional(port()), default=6650, doc="Port of the Pulsar binary protocol. 0 selects a free port; empty: no port."
    )
    broker_service_port_tls: int | None = setting(
        optional(port()), default=None, doc="Port of the Pulsar binary protocol over TLS. Empty: no port."
    )
    web_service_port: int | None = setting(
        optional(port()), default=8080,
        doc="Port of the admin API, metrics and console. 0 selects a free port; empty: no port.",
    )
    web_service_port_tls: int | None = setting(
        optional(port()), default=None, doc="Port of the admin API over TLS. Empty: no port."
    )
    metadata_store_url: str | None = setting(
        optional(text()), default=None,
        doc="Metadata store: `sqlite:PATH`, `zk://host:2181[/chroot]`, or Pulsar's `zk:host:2181[/chroot]`. Empty: "
        "SQLite in the server's home.",
    )
    metadata_store_session_timeout_millis: int = setting(
        duration(1, minimum=1), default=30_000,
        doc="Milliseconds without contact after which ZooKeeper expires the session.",
    )
    metadata_store_operation_timeout_seconds: int = setting(
        duration(minimum=1), default=30,
        doc="Deadline in seconds of one metadata operation, and of the first connection to ZooKeeper. The outcome of a "
        "change that was sent but not answered in time is unknown. SQLite: maximum wait for a locked file.",
    )
    keep_alive_interval_seconds: int = setting(
        duration(minimum=1), default=30,
        doc="Seconds between pings to a client; a connection that is silent for two intervals is closed.",
    )
    max_message_size: int = setting(
        size(minimum=1, maximum=_LARGEST_MESSAGE), default=5 * MIB,
        doc="Maximum message size in bytes, including metadata.",
    )
    broker_max_connections: int = setting(integer(0), default=0, doc="Maximum number of connections. 0: no limit.")
    broker_max_connections_per_ip: int = setting(
        integer(0), default=0, doc="Maximum number of connections from one address. 0: no limit."
    )
    tls_handshake_timeout_seconds: int = setting(
        duration(minimum=1), default=10, doc="Timeout in seconds of the TLS handshake, on both TLS ports."
    )
    max_http_server_connections: int = setting(
        integer(0), default=2_048,
        doc="Maximum number of connections to the admin API; further ones are closed immediately. 0: no limit.",
    )
    max_http_server_connections_per_ip: int = setting(
        integer(0), default=512,
        doc="Maximum number of connections to the admin API from one address. Raise it behind a proxy. 0: no limit.",
    )
    http_request_timeout_seconds: int = setting(
        duration(minimum=1), default=30,
        doc="Timeout in seconds for an HTTP client to send the headers of a request, again for its body, and again to "
        "resume reading a response.",
    )
    max_message_publish_buffer_size_in_mb: int = setting(
        size(MIB, minimum=-1), default=256, key="maxMessagePublishBufferSizeInMB",
        doc="Size in MiB of unacknowledged publish requests of all connections above which no socket is read. -1: no "
        "limit. Pulsar's default is half of its direct memory.",
    )
    http_max_request_size: int = setting(
        size(minimum=-1), default=5 * MIB,
        doc="Maximum size in bytes of the body of an admin request. Independently of this setting a body must not "
        "exceed 256 KiB, or 512 KiB with a schema. -1, Pulsar's default: no other limit.",
    )
    stats_update_frequency_in_secs: int = setting(
        duration(minimum=1), default=60, doc="Seconds over which rates in topic statistics are averaged."
    )
    managed_ledger_stats_period_seconds: int = setting(
        duration(minimum=1), default=60, doc="Seconds over which rates of managed ledgers and offloaders are averaged."
    )
    expose_topic_level_metrics_in_prometheus: bool = setting(
        flag(), default=True, doc="Whether metrics carry a topic label."
    )
    expose_managed_ledger_metrics_in_prometheus: bool = setting(
        flag(), default=True, doc="Whether metrics of managed ledgers and offloaders are exposed."
    )
    metrics_max_topics: int = setting(
        integer(0), default=1000,
        doc="Number of topics with separate metrics, and likewise of subscriptions; the metrics of all others are "
        "summed under the name `other`.",
    )
    log_level: LogLevel = setting(
        choice(LogLevel), default=LogLevel.INFO, doc="Lowest level of records in the log, which is standard error."
    )
    log_format: LogFormat = setting(
        choice(LogFormat), default=LogFormat.TEXT,
        doc="Form of records in the log: `text`, or `json` for one object per line.",
    )
    log_levels: tuple[tuple[str, str], ...] = setting(
        _LOG_LEVELS, default=(),
        doc="Levels of single loggers, in place of logLevel: `afterglow.offload=debug,kazoo=error`. A logger is named "
        "by its package, and its level applies to all below it.",
    )
    # fmt: on


_PROVIDERS = several(
    choice(
        AuthenticationProvider,
        {"org.apache.pulsar.broker.authentication.AuthenticationProviderToken": AuthenticationProvider.TOKEN},
    ),
    "`token` (also as `org.apache.pulsar.broker.authentication.AuthenticationProviderToken`)",
)

PULSAR_AUTHORIZATION = "org.apache.pulsar.broker.authorization.PulsarAuthorizationProvider"
"""Name of the one authorization provider whose rules are enforced."""


@section
class SecuritySettings:
    """Authentication and TLS."""

    # fmt: off
    authentication_enabled: bool = setting(
        flag(), default=False, doc="Whether clients must authenticate, on every port."
    )
    authentication_providers: tuple[AuthenticationProvider, ...] = setting(
        _PROVIDERS, default=(), doc="Authentication methods that clients may use; an unsupported one is an error."
    )
    authorization_enabled: bool = setting(
        flag(), default=False,
        doc="Whether a role needs permission to produce, consume, look up and administer; requires authentication.",
    )
    authorization_provider: str = setting(
        text(), default=PULSAR_AUTHORIZATION,
        doc="Class whose authorization rules apply. With authorization enabled, any class but Pulsar's default is an "
        "error.",
    )
    authorization_allow_wildcards_matching: bool = setting(
        flag(), default=False, doc="Whether a grant to `prefix*` or `*suffix` applies to every matching role."
    )
    super_user_roles: tuple[str, ...] = setting(names(), default=(), doc="Roles with all permissions.")
    allowed_tiers: tuple[str, ...] = setting(
        names(), default=(),
        doc="Tiers that roles other than superusers may name in offload policies, in addition to the server's own: "
        "`file:///path`, `s3://bucket[/prefix][?endpoint=URL&region=NAME]`, each including everything below it; see "
        "[security](security.md).",
    )
    anonymous_user_role: str | None = setting(
        optional(text()), default=None, doc="Role of clients without credentials. Empty: they are refused."
    )
    authenticate_metrics_endpoint: bool = setting(
        flag(), default=False, doc="Whether `/metrics` requires authentication."
    )
    token_secret_key: str | None = setting(
        optional(text()), default=None, secret=True,
        doc="Symmetric key of tokens: `file:///path`, `data:;base64,…`, or base64.",
    )
    token_public_key: str | None = setting(
        optional(text()), default=None,
        doc="Public key that verifies tokens: `file:///path`, `data:;base64,…`, or base64.",
    )
    token_public_alg: str = setting(text(), default="RS256", doc="Signature algorithm of the public key.")
    token_auth_claim: str = setting(text(), default="sub", doc="Claim of the token that names the role.")
    token_audience_claim: str | None = setting(
        optional(text()), default=None, doc="Claim that must contain the audience."
    )
    token_audience: str | None = setting(
        optional(text()), default=None, doc="Audience that the audience claim must contain."
    )
    token_allowed_clock_skew_seconds: int = setting(
        duration(), default=0, doc="Tolerated clock skew in seconds when the times of a token are checked."
    )
    tls_certificate_file_path: str | None = setting(
        optional(text()), default=None, doc="PEM file with the server's certificate chain."
    )
    tls_key_file_path: str | None = setting(
        optional(text()), default=None, doc="PEM file with the server's private key."
    )
    tls_trust_certs_file_path: str | None = setting(
        optional(text()), default=None,
        doc="PEM file with the certificate authorities that are trusted for client certificates.",
    )
    tls_require_trusted_client_cert_on_connect: bool = setting(
        flag(), default=False, doc="Whether clients must present a trusted certificate."
    )
    tls_protocols: tuple[str, ...] = setting(
        names(), default=(), doc="TLS versions to offer, such as `TLSv1.3`. Empty: the platform's default."
    )
    tls_ciphers: tuple[str, ...] = setting(
        names(), default=(), doc="Cipher suites to offer. Empty: the platform's default."
    )
    tls_cert_refresh_check_duration_sec: int = setting(
        duration(), default=300, doc="Seconds between checks for a renewed certificate. 0: at every connection."
    )
    broker_client_authentication_plugin: str | None = setting(
        optional(text()), default=None,
        doc="Authentication of offload tasks that read over the Pulsar protocol: "
        "`org.apache.pulsar.client.impl.auth.AuthenticationToken`, or empty. If parameters are set, empty means a "
        "token too.",
    )
    broker_client_authentication_parameters: str | None = setting(
        optional(text()), default=None, secret=True,
        doc="Token of those tasks: `token:…` or `file:///path`. Its role needs permission to consume the topics, as "
        "the roles of superUserRoles have.",
    )
    broker_client_tls_enabled: bool = setting(
        flag(), default=False, doc="Whether those tasks use brokerServicePortTls even if the plain port is open."
    )
    broker_client_trust_certs_file_path: str | None = setting(
        optional(text()), default=None,
        doc="PEM file with the certificate authorities that those tasks trust; its content is sent to the tasks. "
        "Empty: the system's trust store.",
    )
    tls_hostname_verification_enabled: bool = setting(
        flag(), default=True,
        doc="Whether those tasks verify that the server's certificate names the advertised address. Pulsar's default "
        "is false.",
    )
    # fmt: on
