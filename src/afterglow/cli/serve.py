"""``afterglow serve``."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import shlex
import signal
import stat
import sys
import threading
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from afterglow import __version__
from afterglow.cli import parameters
from afterglow.cli.app import DONE, app
from afterglow.cli.logs import LogFormatOption, LogLevelOption, log_settings, log_setup
from afterglow.errors import ConfigError
from afterglow.events import log_event

if TYPE_CHECKING:
    from afterglow.config import BrokerConfig

log = logging.getLogger(__name__)

_GC_ALLOCATIONS: Final = 50_000
_SWITCH_S: Final = 0.002
"""Longest wait of the event loop for the interpreter, while a thread that plans or commits offloads has it."""
_PRIVATE: Final = 0o077
"""Permission bits of group and others, which files in a home do not have."""
_STREAMING: Final = {
    "streamingOffloadEnabled": "true",
    "maxOffloadSegmentSizeInBytes": "64M",
    "maxOffloadSegmentRolloverTimeInSeconds": "60",
    "defaultRetentionTimeInMinutes": "-1",
    "defaultRetentionSizeInMB": "-1",
}
"""Defaults of ``--streaming``."""


@app.command()
def serve(
    *,
    home: Annotated[Path, typer.Option(help="Directory of the server's data; created if it does not exist.")],
    streaming: Annotated[
        bool,
        typer.Option(
            "--streaming",
            help="Stream every topic to the tier in segments of 64 MiB or 1 minute, with unlimited retention.",
        ),
    ] = False,
    conf: Annotated[
        Path | None, typer.Option(help="Configuration file: a broker.conf, also one of Apache Pulsar.")
    ] = None,
    listen: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="Port of the binary protocol; 0 selects a free one.")] = None,
    http_port: Annotated[int | None, typer.Option(help="Port of the admin API; 0 selects a free one.")] = None,
    tier: Annotated[
        str | None,
        typer.Option(help="Tier: file:///path or s3://bucket[/prefix]. Default: HOME/tier."),
    ] = None,
    master: Annotated[str | None, typer.Option(help="Spark master that runs offloads. Default: local[*].")] = None,
    metadata: Annotated[
        str | None, typer.Option(help="sqlite:PATH or zk://HOST:2181[/CHROOT]. Default: SQLite in the home.")
    ] = None,
    settings: Annotated[
        list[Any] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            parser=parameters.read_pair,
            help="Setting by its name in broker.conf; overrides the file. Repeatable.",
        ),
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Listen beyond this machine without authentication and TLS.")
    ] = False,
    log_level: LogLevelOption = None,
    log_format: LogFormatOption = None,
) -> int:
    """Run a broker for stock Pulsar clients, with offload to a tier.

    Example: afterglow serve --home ./home --streaming
    """
    from afterglow.broker.auth import check_exposure  # noqa: PLC0415 - not needed for --help
    from afterglow.config import SETTINGS, Origin, OriginKind, load_conf  # noqa: PLC0415
    from afterglow.config.setting import DEFAULT  # noqa: PLC0415

    given = {
        "bindAddress": listen,
        "brokerServicePort": port,
        "webServicePort": http_port,
        "metadataStoreUrl": metadata,
        "sparkMaster": master,
        "logLevel": log_level,
        "logFormat": log_format,
    }
    overrides = {key: str(value) for key, value in given.items() if value is not None}
    for key, value in settings or ():
        if overrides.setdefault(key, value) != value:
            raise ConfigError(f"--set {key}: the command line sets it to two different values; remove one of them")
    with log_setup() as setup:
        config = load_conf(conf, environ=os.environ, overrides=overrides)
        if streaming:
            unset = {key: SETTINGS[key].value_type.parse(text) for key, text in _STREAMING.items()}
            unset = {key: value for key, value in unset.items() if config.origin(key) == DEFAULT}
            config = config.overridden(unset, Origin(OriginKind.ARGUMENT, "--streaming"))
        check_exposure(config, insecure=insecure)
        setup.begin(config)
    _keep_private(home)
    asyncio.run(_serve(home, config, tier))
    if any(not thread.daemon for thread in threading.enumerate() if thread is not threading.main_thread()):
        # Threads that wait for a tier which does not answer. Python would wait for them; everything else is closed.
        logging.shutdown()
        os._exit(DONE)
    return DONE


def _keep_private(home: Path) -> None:
    """Restrict new files of this process and its children to the user, and warn if others can access the home."""
    os.umask(_PRIVATE)
    try:
        mode = stat.S_IMODE(home.stat().st_mode)
    except OSError:
        return  # it will be created, or the start will fail with the reason
    if mode & _PRIVATE:
        log.warning(
            "other users of this machine can access the home: %s has mode %04o; run chmod -R go-rwx %s",
            home,
            mode,
            shlex.quote(str(home)),
        )


async def _serve(home: Path, config: BrokerConfig, tier: str | None) -> None:
    from afterglow.admin.app import start_admin  # noqa: PLC0415 - not needed for --help
    from afterglow.server.process import Server, summarize  # noqa: PLC0415

    stop = asyncio.Event()
    reasons: list[str] = []

    def end(reason: str) -> None:
        reasons.append(reason)
        stop.set()

    server = await Server.start(home, config, start_admin, tier=tier, on_shutdown=partial(end, "the admin API"))
    # Caches keep very many objects, and none of them in a cycle: the collector visits them seldom.
    gc.freeze()
    gc.set_threshold(_GC_ALLOCATIONS)
    sys.setswitchinterval(_SWITCH_S)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, end, number.name)
    url = server.service.service_url or server.service.service_url_tls
    typer.echo(f"ready {url} {server.admin_url}")
    typer.echo(summarize(config, server.tiering.target))
    if server.admin_url:
        typer.echo(f"console {server.admin_url}/console")
    addresses = {"service_url": url, "admin_url": server.admin_url, "tier": str(server.tiering.target)}
    log_event(log, "server started", version=__version__, home=str(home), pid=os.getpid(), **addresses)
    log_settings(config)
    await stop.wait()
    log_event(log, "server stopping", reason=reasons[0])
    await server.stop()
    log_event(log, "server stopped", reason=reasons[0])
