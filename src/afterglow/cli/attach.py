"""``afterglow attach``: stream topics of an Apache Pulsar cluster to a tier."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from afterglow.cli import parameters
from afterglow.cli.app import DONE, FAILED, app
from afterglow.cli.logs import LogFormatOption, LogLevelOption, log_settings, log_setup
from afterglow.errors import ConfigError

if TYPE_CHECKING:
    from types import FrameType

    from afterglow.attach.process import AttachProcess
    from afterglow.config import BrokerConfig

_HTTP_PORT: Final = 8081
"""Default of ``--http-port``: 8080 is that of a broker, perhaps on the same machine."""
_NO_BROKER: Final = {"brokerServicePort": "", "brokerServicePortTls": ""}
"""Ports that this process does not open."""


@app.command()
def attach(
    cluster: Annotated[str, typer.Argument(help="Admin API of the cluster: http://HOST:8080.")],
    *,
    topics: Annotated[str, typer.Option(help="Regular expression of topics, such as 'public/default/.*'.")],
    tier: Annotated[str, typer.Option(help="Tier: s3://bucket[/prefix] or file:///path.")],
    metadata: Annotated[str, typer.Option(help="Our own metadata: zk://HOST:2181[/CHROOT] or sqlite:PATH.")],
    master: Annotated[str | None, typer.Option(help="Spark master that runs offloads. Default: local[*].")] = None,
    zookeeper: Annotated[
        str | None, typer.Option(help="Metadata of the cluster, zk://HOST:2181. Default: as its brokers report.")
    ] = None,
    cluster_name: Annotated[
        str | None, typer.Option(help="Name of the cluster. Default: as its brokers report.")
    ] = None,
    subscription: Annotated[
        str, typer.Option(help="Subscription that keeps the cluster from trimming what is not in the tier.")
    ] = "afterglow",
    policies: Annotated[
        Path | None, typer.Option(help="File with policies of topics, attach.toml.", exists=True, dir_okay=False)
    ] = None,
    max_segment_size: Annotated[
        Any,
        typer.Option(metavar="SIZE", parser=parameters.read_bytes, help="Segments are closed at this size."),
    ] = None,
    max_segment_time: Annotated[
        Any,
        typer.Option(metavar="TIME", parser=parameters.read_seconds, help="Or at this age of their first entry."),
    ] = None,
    entries: Annotated[
        str,
        typer.Option(
            help="Where entries are read: bookkeeper, broker, or auto: from bookies, and from brokers where bookies "
            "cannot be reached or require authentication."
        ),
    ] = "auto",
    max_read_rate: Annotated[
        Any,
        typer.Option(
            metavar="SIZE",
            parser=parameters.read_bytes,
            help="Bytes per second that each Spark worker reads from all bookies together.",
        ),
    ] = "100M",
    tier_retention_time: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Keep data in the tier for this long, such as 90d. Default: for ever."),
    ] = None,
    tier_retention_size: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Keep this much of each topic in the tier, such as 500G. Default: all."),
    ] = None,
    when_behind: Annotated[
        str, typer.Option(help="hold, or release: give up the hold before a backlog quota blocks producers.")
    ] = "hold",
    accept_risk: Annotated[
        bool, typer.Option("--accept-risk", help="Attach although policies of the cluster endanger entries.")
    ] = False,
    token: Annotated[str | None, typer.Option(help="Token, or file:///PATH. Default: AFTERGLOW_TOKEN.")] = None,
    ca_file: Annotated[str | None, typer.Option(help="Trusted certificate authorities for TLS.")] = None,
    http_port: Annotated[
        int | None,
        typer.Option(help=f"Port of the admin API, metrics and console; 0 selects a free one. Default: {_HTTP_PORT}."),
    ] = None,
    listen: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Listen beyond this machine without authentication and TLS.")
    ] = False,
    conf: Annotated[Path | None, typer.Option(help="Configuration file in the format of broker.conf.")] = None,
    settings: Annotated[
        list[Any] | None,
        typer.Option(
            "--set", metavar="NAME=VALUE", parser=parameters.read_pair, help="Setting by its name. Repeatable."
        ),
    ] = None,
    log_level: LogLevelOption = None,
    log_format: LogFormatOption = None,
) -> int:
    """Stream live topics of a Pulsar cluster to a tier, until interrupted.

    Example: afterglow attach http://pulsar:8080 --topics 'public/default/.*' --tier s3://bucket --metadata sqlite:a.db
    """
    from afterglow.attach.cluster_checks import WhenBehind  # noqa: PLC0415 - not needed for --help
    from afterglow.attach.policies import PolicyFile, read_policy_file  # noqa: PLC0415
    from afterglow.attach.process import AttachOptions, AttachProcess  # noqa: PLC0415
    from afterglow.broker.auth import check_exposure  # noqa: PLC0415
    from afterglow.config.choices import EntryPath  # noqa: PLC0415
    from afterglow.metadata.cluster_credentials import ClusterCredentials  # noqa: PLC0415

    if when_behind not in set(WhenBehind):
        raise ConfigError(f"--when-behind {when_behind!r} is unknown; use {' or '.join(WhenBehind)}")
    if entries not in set(EntryPath):
        raise ConfigError(f"--entries {entries!r} is unknown; use {', '.join(EntryPath)}")
    given = {
        "sparkMaster": ("--master", master),
        "bindAddress": ("--listen", listen),
        "webServicePort": ("--http-port", http_port),
        "maxOffloadSegmentSizeInBytes": ("--max-segment-size", max_segment_size),
        "maxOffloadSegmentRolloverTimeInSeconds": ("--max-segment-time", max_segment_time),
        "tierRetentionTimeInMinutes": ("--tier-retention-time", tier_retention_time),
        "tierRetentionSizeInMB": ("--tier-retention-size", tier_retention_size),
        "logLevel": ("--log-level", log_level),
        "logFormat": ("--log-format", log_format),
    }
    with log_setup() as setup:
        config = _load(conf, dict(settings or ()), {key: flag for key, flag in given.items() if flag[1] is not None})
        check_exposure(config, insecure=insecure)
        setup.begin(config)
    options = AttachOptions(
        admin_url=cluster,
        pattern=topics,
        tier=tier,
        metadata=metadata,
        credentials=ClusterCredentials.of(token, ca_file),
        zookeeper=zookeeper,
        cluster=cluster_name,
        subscription=subscription,
        when_behind=WhenBehind(when_behind),
        entries=EntryPath(entries),
        accept_risk=accept_risk,
        read_rate=max_read_rate,
    )
    ended = threading.Event()

    def end(number: int, _frame: FrameType | None) -> None:
        ended.set()
        signal.signal(number, signal.SIG_DFL)  # a second signal does not wait

    signal.signal(signal.SIGINT, end)
    signal.signal(signal.SIGTERM, end)
    started = AttachProcess.start(
        options,
        config,
        PolicyFile() if policies is None else read_policy_file(policies),
        ended=ended,
        on_standby=lambda holder: typer.echo(f"standby: {holder} is attached; this process takes over when it ends"),
    )
    if started is None:
        return DONE
    log_settings(config)
    with started as run:
        asyncio.run(_serve(run))
    if run.fenced is not None:
        typer.echo(f"afterglow: {run.fenced}", err=True)
        return FAILED
    return DONE


def _load(conf: Path | None, settings: dict[str, str], flags: dict[str, tuple[str, object]]) -> BrokerConfig:
    """The settings of the process; the origin of a flag's value is the flag.

    Raises:
        ConfigError: A setting is not valid, or is also given as a flag with another value.
    """
    from afterglow.config import SETTINGS, Origin, OriginKind, load_conf  # noqa: PLC0415 - not needed for --help
    from afterglow.config.setting import DEFAULT  # noqa: PLC0415

    for key, (flag, value) in flags.items():
        if settings.get(key, str(value)) != str(value):
            raise ConfigError(f"--set {key}: {flag} sets it to another value; remove one of them")
    overrides = {"streamingOffloadEnabled": "true", **settings, **_NO_BROKER}
    overrides |= {key: str(value) for key, (_, value) in flags.items()}
    config = load_conf(conf, environ=os.environ, overrides=overrides)
    for key, (flag, _) in flags.items():
        config = config.overridden({key: getattr(config, SETTINGS[key].attribute)}, Origin(OriginKind.ARGUMENT, flag))
    if config.origin("webServicePort") == DEFAULT:
        config = config.overridden({"webServicePort": _HTTP_PORT}, DEFAULT)
    return config


async def _serve(run: AttachProcess) -> None:
    """Serve the admin API until the process is to end."""
    from afterglow.admin.attached_app import start_attached_admin  # noqa: PLC0415 - not needed for --help
    from afterglow.broker.tls import server_context  # noqa: PLC0415

    url, stop = await start_attached_admin(run.server, server_context(run.server.service.config))
    try:
        typer.echo(f"ready {url}".rstrip())
        typer.echo(run.summarize())
        await run.wait_for_end()
    finally:
        await stop()
