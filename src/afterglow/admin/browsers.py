"""What a browser does in the name of pages that are not ours.

It sends calls for any page that is open in it, also to a broker that listens on its own machine alone and asks nobody
for proof. Two ways lead there:

- A page sends a call to our address. The browser then says that it came from elsewhere: nothing may be changed so.
- A page has its own name lead to this machine, and for the browser we are where the page came from. But the call names
  that host, and nobody calls a loopback address by a name like that: nothing is answered.
"""

from __future__ import annotations

from http import HTTPStatus
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from afterglow.admin.errors import AdminError
from afterglow.broker.auth import is_loopback

if TYPE_CHECKING:
    from starlette.requests import Request

    from afterglow.config import BrokerConfig

_SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})


class Pages:
    """Keeps out pages of others.

    Args:
        config: The broker's settings.
    """

    def __init__(self, config: BrokerConfig) -> None:
        # Beyond this machine a broker has whatever names its network gives it, and asks for proof, or is meant not to.
        self._by_any_name = config.authentication_enabled or not is_loopback(config.bind_address)
        self._names = {"localhost", config.bind_address.lower(), (config.advertised_address or "").lower()}

    def check(self, request: Request) -> None:
        """Return if no page of others makes the call, as far as can be known.

        Raises:
            AdminError: One does.
        """
        host = request.headers.get("host", "")
        if not self._by_any_name and not self._is_ours(host):
            raise AdminError(
                HTTPStatus.FORBIDDEN,
                f"this broker is not called {host!r}: use 127.0.0.1, or name it so by advertisedAddress",
            )
        if request.method not in _SAFE and _from_another_page(request, host):
            raise AdminError(HTTPStatus.FORBIDDEN, "a page of another origin may change nothing here: use /console")

    def _is_ours(self, host: str) -> bool:
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        return not host or name in self._names or _is_address(name)


def _from_another_page(request: Request, host: str) -> bool:
    """Whether a browser says so; whoever is no browser says nothing of it."""
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        return site not in {"same-origin", "none"}
    origin = request.headers.get("origin")
    return origin is not None and origin.partition("://")[2] != host


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True
