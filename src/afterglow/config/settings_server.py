"""Settings of the server: ports, connections, metrics, authentication and TLS."""

from __future__ import annotations

from afterglow.config.choices import AuthenticationProvider
from afterglow.config.kinds import KIB, MIB, choice, duration, flag, integer, names, optional, port, several, size, text
from afterglow.config.setting import section, setting

_LARGEST_MESSAGE = 2**31 - 1 - 10 * KIB
"""Frame lengths are signed 32-bit numbers, and Pulsar adds 10 KiB to the message size for the command."""


@section
class Server:
    """Server and connections."""

    cluster_name: str = setting(
        text(), default="standalone", doc="Name of the cluster, as the admin API and the metadata paths show it."
    )
    bind_address: str = setting(
        text(),
        default="127.0.0.1",
        doc="Address on which all ports listen. Pulsar's default is 0.0.0.0; here anything but a loopback address is "
        "refused without authentication and TLS, unless `--insecure` is given.",
    )
    advertised_address: str | None = setting(
        optional(text()),
        default=None,
        doc="Host name or address that lookups give to clients. Nothing: the bind address, or for a wildcard such as "
        "0.0.0.0 the address of this machine's default route. With TLS the certificate must name it.",
    )
    broker_service_port: int | None = setting(
        optional(port()),
        default=6650,
        doc="Port of the Pulsar binary protocol. 0 picks a free port, nothing opens none.",
    )
    broker_service_port_tls: int | None = setting(
        optional(port()), default=None, doc="Port of the Pulsar binary protocol over TLS. Nothing opens none."
    )
    web_service_port: int | None = setting(
        optional(port()),
        default=8080,
        doc="Port of the admin API, metrics and console. 0 picks a free port, nothing opens none.",
    )
    web_service_port_tls: int | None = setting(
        optional(port()), default=None, doc="Port of the admin API over TLS. Nothing opens none."
    )
    metadata_store_url: str | None = setting(
        optional(text()),
        default=None,
        doc="Where metadata lives: `sqlite:PATH`, `zk://host:2181[/chroot]`, or Pulsar's `zk:host:2181[/chroot]`. "
        "Nothing: SQLite in the server's home.",
    )
    metadata_store_session_timeout_millis: int = setting(
        duration(1, minimum=1),
        default=30_000,
        doc="Milliseconds without contact after which ZooKeeper ends the session.",
    )
    metadata_store_operation_timeout_seconds: int = setting(
        duration(minimum=1),
        default=30,
        doc="Deadline in seconds of one metadata operation, and of the first connection to ZooKeeper. The outcome of a "
        "change that was sent and not answered in time is unknown. SQLite: longest wait for a locked file.",
    )
    keep_alive_interval_seconds: int = setting(
        duration(minimum=1),
        default=30,
        doc="Seconds between pings to a client; a connection silent for two intervals is closed.",
    )
    max_message_size: int = setting(
        size(minimum=1, maximum=_LARGEST_MESSAGE), default=5 * MIB, doc="Largest message in bytes, metadata included."
    )
    broker_max_connections: int = setting(integer(0), default=0, doc="Most connections in all. 0: no limit.")
    broker_max_connections_per_ip: int = setting(
        integer(0), default=0, doc="Most connections from one address. 0: no limit."
    )
    tls_handshake_timeout_seconds: int = setting(
        duration(minimum=1),
        default=10,
        doc="Seconds that a client has for the TLS handshake, on both TLS ports.",
    )
    max_http_server_connections: int = setting(
        integer(0),
        default=2_048,
        doc="Most connections to the admin API in all; further ones are closed at once. 0: no limit.",
    )
    max_http_server_connections_per_ip: int = setting(
        integer(0),
        default=512,
        doc="Most connections to the admin API from one address. Raise it where a proxy stands in front. 0: no limit.",
    )
    http_request_timeout_seconds: int = setting(
        duration(minimum=1),
        default=30,
        doc="Seconds that a client of the admin API has to send the headers of a request, as many again for its body, "
        "and as many to read on where it stops reading an answer.",
    )
    max_message_publish_buffer_size_in_mb: int = setting(
        size(MIB, minimum=-1),
        default=256,
        doc="Publish requests of all connections without a receipt, in MiB, past which no socket is read. -1: no "
        "limit. Pulsar takes half of its direct memory.",
        key="maxMessagePublishBufferSizeInMB",
    )
    http_max_request_size: int = setting(
        size(minimum=-1),
        default=5 * MIB,
        doc="Largest body of an admin request in bytes. Whatever is set, more than 256 KiB, or 512 KiB with a schema, "
        "is never taken: no call needs it. -1, Pulsar's default: nothing else limits it.",
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
        integer(0),
        default=1000,
        doc="Topics that have metrics of their own, and likewise subscriptions; the figures of further ones are summed "
        "under the name `other`.",
    )


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
class Security:
    """Authentication and TLS."""

    authentication_enabled: bool = setting(
        flag(), default=False, doc="Whether clients must prove who they are, on every port."
    )
    authentication_providers: tuple[AuthenticationProvider, ...] = setting(
        _PROVIDERS, default=(), doc="Ways in which a client may prove who it is; one that is not supported is an error."
    )
    authorization_enabled: bool = setting(
        flag(),
        default=False,
        doc="Whether a role needs permission to produce, consume, look up and administer; needs authentication.",
    )
    authorization_provider: str = setting(
        text(),
        default=PULSAR_AUTHORIZATION,
        doc="The rules by which roles have permission. Another class than Pulsar's own is an error where "
        "authorization is enabled.",
    )
    authorization_allow_wildcards_matching: bool = setting(
        flag(),
        default=False,
        doc="Whether a grant to `prefix*` or `*suffix` counts for every role that matches.",
    )
    super_user_roles: tuple[str, ...] = setting(names(), default=(), doc="Roles that may do everything.")
    allowed_tiers: tuple[str, ...] = setting(
        names(),
        default=(),
        doc="Tiers that roles other than superusers may name in offload policies, besides the server's own: "
        "`file:///path`, `s3://bucket[/prefix][?endpoint=URL&region=NAME]`, each with all below it; see "
        "[security](security.md).",
    )
    anonymous_user_role: str | None = setting(
        optional(text()), default=None, doc="Role of clients that present no credentials. Nothing: they are refused."
    )
    authenticate_metrics_endpoint: bool = setting(
        flag(), default=False, doc="Whether `/metrics` asks for credentials too."
    )
    token_secret_key: str | None = setting(
        optional(text()),
        default=None,
        doc="Symmetric key that signs tokens: `file:///path`, `data:;base64,…`, or the base64 text itself.",
        secret=True,
    )
    token_public_key: str | None = setting(
        optional(text()),
        default=None,
        doc="Public key that checks tokens: `file:///path`, `data:;base64,…`, or the base64 text itself.",
    )
    token_public_alg: str = setting(text(), default="RS256", doc="Signature algorithm of the public key.")
    token_auth_claim: str = setting(text(), default="sub", doc="Claim of the token that names the role.")
    token_audience_claim: str | None = setting(
        optional(text()), default=None, doc="Claim that must hold the audience, if any."
    )
    token_audience: str | None = setting(
        optional(text()), default=None, doc="Audience that the audience claim must name."
    )
    token_allowed_clock_skew_seconds: int = setting(
        duration(), default=0, doc="Seconds by which clocks may differ when a token's times are checked."
    )
    tls_certificate_file_path: str | None = setting(
        optional(text()), default=None, doc="PEM file with the server's certificate chain."
    )
    tls_key_file_path: str | None = setting(
        optional(text()), default=None, doc="PEM file with the server's private key."
    )
    tls_trust_certs_file_path: str | None = setting(
        optional(text()), default=None, doc="PEM file with the authorities that may have signed a client's certificate."
    )
    tls_require_trusted_client_cert_on_connect: bool = setting(
        flag(), default=False, doc="Whether a client without a trusted certificate is refused."
    )
    tls_protocols: tuple[str, ...] = setting(
        names(), default=(), doc="TLS versions to offer, such as `TLSv1.3`. Nothing: what the platform holds safe."
    )
    tls_ciphers: tuple[str, ...] = setting(
        names(), default=(), doc="Cipher suites to offer. Nothing: what the platform holds safe."
    )
    tls_cert_refresh_check_duration_sec: int = setting(
        duration(), default=300, doc="Seconds between looks for a renewed certificate. 0: at every connection."
    )
    broker_client_authentication_plugin: str | None = setting(
        optional(text()),
        default=None,
        doc="How offload tasks that read over the protocol prove who they are: "
        "`org.apache.pulsar.client.impl.auth.AuthenticationToken` or nothing. Nothing together with parameters means a "
        "token too.",
    )
    broker_client_authentication_parameters: str | None = setting(
        optional(text()),
        default=None,
        doc="The token of those tasks: `token:…` or `file:///path`. Its role must be allowed to consume the topics; "
        "one of superUserRoles is.",
        secret=True,
    )
    broker_client_tls_enabled: bool = setting(
        flag(), default=False, doc="Whether those tasks use brokerServicePortTls also where a plain port is open."
    )
    broker_client_trust_certs_file_path: str | None = setting(
        optional(text()),
        default=None,
        doc="PEM file with the authorities that those tasks trust; its content travels with them. Nothing: those that "
        "the system trusts.",
    )
    tls_hostname_verification_enabled: bool = setting(
        flag(),
        default=True,
        doc="Whether the server's certificate must name the advertised address, for those tasks. Pulsar's default is "
        "false.",
    )
