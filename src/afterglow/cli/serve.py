"""``afterglow serve``."""

from __future__ import annotations

import asyncio
import logging
import os
import shlex
import signal
import stat
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from afterglow.cli import parameters
from afterglow.cli.app import DONE, app
from afterglow.cli.output import PrintableFormatter
from afterglow.errors import ConfigError

if TYPE_CHECKING:
    from afterglow.config import BrokerConfig

log = logging.getLogger(__name__)

_PRIVATE: Final = 0o077
"""Rights of group and others, which files of a home do not have."""
_STREAMING: Final = {
    "streamingOffloadEnabled": "true",
    "maxOffloadSegmentSizeInBytes": "64M",
    "maxOffloadSegmentRolloverTimeInSeconds": "60",
    "defaultRetentionTimeInMinutes": "-1",
    "defaultRetentionSizeInMB": "-1",
}
"""What ``--streaming`` sets, unless a configuration says otherwise."""


@app.command()
def serve(
    *,
    home: Annotated[Path, typer.Option(help="Directory that holds everything; made if absent.")],
    streaming: Annotated[
        bool,
        typer.Option(
            "--streaming", help="Stream every topic to the tier in segments of 64 MiB or 1 minute; retain all for ever."
        ),
    ] = False,
    conf: Annotated[Path | None, typer.Option(help="A broker.conf, Pulsar's own or ours.")] = None,
    listen: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="Port of the binary protocol; 0 picks a free one.")] = None,
    http_port: Annotated[int | None, typer.Option(help="Port of the admin API; 0 picks a free one.")] = None,
    tier: Annotated[
        str | None,
        typer.Option(help="The tier: file:///path or s3://bucket[/prefix]; else HOME/tier."),
    ] = None,
    master: Annotated[str | None, typer.Option(help="Spark master that runs offloads; else local[*].")] = None,
    metadata: Annotated[str | None, typer.Option(help="sqlite:PATH or zk://host:2181[/chroot].")] = None,
    settings: Annotated[
        list[Any] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            parser=parameters.read_pair,
            help="A setting by its name in broker.conf, which it wins over. Repeatable.",
        ),
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Listen beyond this machine without authentication and TLS.")
    ] = False,
) -> int:
    """Serve topics to stock Pulsar clients, durably, from one process.

    Example: afterglow serve --home ./home --streaming
    """
    from afterglow.broker.auth import check_exposure  # noqa: PLC0415 - not needed for --help
    from afterglow.config import load_conf  # noqa: PLC0415
    from afterglow.config.setting import DEFAULT  # noqa: PLC0415

    given = {
        "bindAddress": listen,
        "brokerServicePort": port,
        "webServicePort": http_port,
        "metadataStoreUrl": metadata,
        "sparkMaster": master,
    }
    overrides = {key: str(value) for key, value in given.items() if value is not None}
    for key, value in settings or ():
        if overrides.setdefault(key, value) != value:
            raise ConfigError(f"--set {key}: the command line gives it two different values; leave one of them out")
    config = load_conf(conf, environ=os.environ, overrides=overrides)
    if streaming:
        unset = {key: value for key, value in _STREAMING.items() if config.origin(key) == DEFAULT}
        config = load_conf(conf, environ=os.environ, overrides=overrides | unset)
    check_exposure(config, insecure=insecure)
    handler = logging.StreamHandler()
    handler.setFormatter(PrintableFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    logging.getLogger("py4j").setLevel(logging.WARNING)  # it tells of every connection that it closes
    _keep_private(home)
    asyncio.run(_serve(home, config, tier))
    if any(not thread.daemon for thread in threading.enumerate() if thread is not threading.main_thread()):
        # Threads that wait for a tier that does not answer. Python would wait for them; all else is closed by now.
        logging.shutdown()
        os._exit(DONE)
    return DONE


def _keep_private(home: Path) -> None:
    """Make what this process and its children create private to their user, and warn of a home that is not."""
    os.umask(_PRIVATE)
    try:
        mode = stat.S_IMODE(home.stat().st_mode)
    except OSError:
        return  # it is made, or refused with the reason
    if mode & _PRIVATE:
        log.warning(
            "other users of this machine can enter the home: %s has the mode %04o; run chmod -R go-rwx %s",
            home,
            mode,
            shlex.quote(str(home)),
        )


async def _serve(home: Path, config: BrokerConfig, tier: str | None) -> None:
    from afterglow.admin.app import start_admin  # noqa: PLC0415 - not needed for --help
    from afterglow.server.process import Server, summarize  # noqa: PLC0415

    stop = asyncio.Event()
    server = await Server.start(home, config, start_admin, tier=tier, on_shutdown=stop.set)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    url = server.service.service_url or server.service.service_url_tls
    typer.echo(f"ready {url} {server.admin_url}")
    typer.echo(summarize(config, server.tiering.target))
    await stop.wait()
    await server.stop()
