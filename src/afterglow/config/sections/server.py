"""Ports, connections and what the process reports about itself."""

from __future__ import annotations

from afterglow.config.kinds import flag, integer, optional, port, text
from afterglow.config.quantities import KIB, MIB, duration, size
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
        "Nothing: SQLite in the engine's home.",
    )
    metadata_store_session_timeout_millis: int = setting(
        duration(1, minimum=1),
        default=30_000,
        doc="Time in milliseconds after which ZooKeeper gives up a session.",
        inert=True,
    )
    metadata_store_operation_timeout_seconds: int = setting(
        duration(minimum=1),
        default=30,
        doc="Deadline in seconds of one metadata operation; past it, its outcome is unknown.",
        inert=True,
    )
    keep_alive_interval_seconds: int = setting(
        duration(minimum=1),
        default=30,
        doc="Seconds between pings to a client; a connection silent for two intervals is closed.",
    )
    connection_liveness_check_timeout_millis: int = setting(
        duration(1, minimum=-1),
        default=5_000,
        doc="Milliseconds that an older connection has to answer a ping when another claims its producer name. -1: no "
        "check.",
        inert=True,
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
    max_pending_publish_requests_per_connection: int = setting(
        integer(1),
        default=1_000,
        doc="Publish requests of one connection without a receipt, past which its socket is not read.",
        aliases={"maxPendingPublishdRequestsPerConnection": integer(1)},
        inert=True,
    )
    max_pending_publish_bytes_per_connection: int = setting(
        size(minimum=1),
        default=16 * MIB,
        doc="Bytes of publish requests of one connection without a receipt, past which its socket is not read.",
        inert=True,
    )
    max_message_publish_buffer_size_in_mb: int = setting(
        size(MIB, minimum=-1),
        default=256,
        doc="Publish requests of all connections without a receipt, in MiB, past which no socket is read. -1: no "
        "limit. Pulsar takes half of its direct memory.",
        key="maxMessagePublishBufferSizeInMB",
    )
    pulsar_channel_write_buffer_high_water_mark: int = setting(
        size(minimum=1),
        default=64 * KIB,
        doc="Bytes queued towards a client, past which dispatch to it waits.",
        inert=True,
    )
    pulsar_channel_write_buffer_low_water_mark: int = setting(
        size(),
        default=32 * KIB,
        doc="Bytes queued towards a client, below which dispatch to it goes on.",
        inert=True,
    )
    http_max_request_size: int = setting(
        size(minimum=-1),
        default=5 * MIB,
        doc="Largest body of an admin request in bytes. Whatever is set, more than 256 KiB, or 512 KiB with a schema, "
        "is never taken: no call needs it. -1, Pulsar's default: nothing else limits it.",
    )
    broker_shutdown_timeout_ms: int = setting(
        duration(1),
        default=60_000,
        doc="Milliseconds that a clean shutdown may take before the process ends anyway.",
        inert=True,
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
