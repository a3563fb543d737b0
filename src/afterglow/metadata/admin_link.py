"""Calls to an admin API, Afterglow's or Pulsar's, over the standard library; each on a connection of its own.

A call is made once: what fails may have happened, and whoever asked decides whether to ask again.
"""

from __future__ import annotations

import http.client
import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from afterglow.errors import ConfigError, MetadataUnavailable

if TYPE_CHECKING:
    from email.message import Message
    from urllib.parse import SplitResult

    from afterglow.metadata.cluster_proof import ClusterProof

_REDIRECTS: Final = (307, 308)
_MOST_REDIRECTS: Final = 5


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back."""

    status: int
    content: bytes
    call: str
    """What was asked, and of whom, for messages."""
    headers: Message
    """By names in any case."""


def parse_admin_url(url: str) -> SplitResult:
    """The parts of an admin API's address.

    Raises:
        ValueError: It is none.
    """
    parts = urlsplit(url.rstrip("/"))
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.port == 0:
        raise ValueError(url)
    return parts


class AdminLink:
    """The way to one admin API. Thread-safe.

    Args:
        base: Its address.
        proof: What it is shown.

    Raises:
        ConfigError: The authorities to trust cannot be read.
    """

    def __init__(self, base: SplitResult, proof: ClusterProof) -> None:
        self._base = base
        self._token = proof.token
        self._tls = _context(proof.ca_file) if base.scheme == "https" else None

    def exchange(self, method: str, target: str, data: bytes | None, timeout_s: float) -> Answer:
        """Make a call, wherever the cluster sends it on to.

        Args:
            method: Of HTTP.
            target: Path and query, behind the path of the base.
            data: JSON to be sent; None sends no body.
            timeout_s: Longest silence.

        Raises:
            OSError: It cannot be reached; ``ssl.SSLError`` where it is not trusted.
            HTTPException: What it says is no HTTP.
            MetadataUnavailable: It sends the call in circles, or to where it would not be protected.
        """
        at, target = self._base, f"{self._base.path}{target}"
        for _ in range(_MOST_REDIRECTS):
            status, content, headers = self._once(at, method, target, data, timeout_s)
            location = headers["Location"]
            if status not in _REDIRECTS or location is None:
                return Answer(status, content, f"{method} {at.scheme}://{at.netloc}{target}", headers)
            # Another broker of the cluster has the topic.
            try:
                moved = parse_admin_url(location)
            except ValueError as error:
                raise MetadataUnavailable(f"{at.netloc} sends the call on to {location!r}, which is no URL") from error
            if at.scheme == "https" and moved.scheme != "https":
                raise MetadataUnavailable(f"{at.netloc} sends the call on to {location}, which is not protected by TLS")
            at, target = moved, f"{moved.path}?{moved.query}" if moved.query else moved.path
        raise MetadataUnavailable(f"{self._base.netloc} and others send the call from one to another")

    def _once(
        self, at: SplitResult, method: str, target: str, data: bytes | None, timeout_s: float
    ) -> tuple[int, bytes, Message]:
        assert at.hostname is not None
        link: http.client.HTTPConnection
        if at.scheme == "https":
            tls = self._tls or _context(None)
            link = http.client.HTTPSConnection(at.hostname, at.port, timeout=timeout_s, context=tls)
        else:
            link = http.client.HTTPConnection(at.hostname, at.port, timeout=timeout_s)
        headers = {"Accept": "application/json", "Content-Type": "application/json"}
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        try:
            link.request(method, target, data, headers)
            answer = link.getresponse()
            return answer.status, answer.read(), answer.headers
        finally:
            link.close()


def _context(ca_file: str | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_file)
    except OSError as error:
        raise ConfigError(f"--ca-file {ca_file!r} holds no certificates that can be read: {error}") from error
