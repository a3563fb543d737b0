"""Starting the admin API of a broker on the ports that its settings name."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from afterglow.admin.app import admin_app
from afterglow.admin.server import HttpLimits, serve_http
from afterglow.engine.server import host_in_address

if TYPE_CHECKING:
    import ssl
    from collections.abc import Awaitable, Callable

    from afterglow.broker.service import BrokerService
    from afterglow.engine.check_jobs import CheckJobs
    from afterglow.offload.service import OffloadService


async def start_admin(
    service: BrokerService, offload: OffloadService | None, checks: CheckJobs | None, tls: ssl.SSLContext | None
) -> tuple[str, Callable[[], Awaitable[None]]]:
    """Serve the admin API, plain, protected, or both.

    Args:
        service: The broker.
        offload: Who offloads; None: nobody does.
        checks: Checks of the tiers; None: nobody makes any.
        tls: What protects connections, where a port wants it.

    Returns:
        The address of the first port that is open, and what stops all of them.

    Raises:
        ConfigError: A port cannot be had.
    """
    config = service.config
    app = admin_app(service, service.authenticator, offload, checks)
    host = host_in_address(config.advertised_address or config.bind_address)
    limits = HttpLimits.of(config)
    urls: list[str] = []
    async with AsyncExitStack() as stack:
        for port, scheme, context in (
            (config.web_service_port, "http", None),
            (config.web_service_port_tls, "https", tls),
        ):
            if port is not None:
                running = await serve_http(app, config.bind_address, port, limits, context)
                stack.push_async_callback(running.stop)
                urls.append(f"{scheme}://{host}:{running.port}")
        return (urls[0] if urls else "", stack.pop_all().aclose)
    raise AssertionError("unreachable: the block returns or raises")
