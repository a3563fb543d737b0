"""How a process comes to the hot ledgers of a topic, by a description that travels."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from afterglow.errors import HotLogUnavailable
from afterglow.hot.local.shared import read_instance
from afterglow.hot.pulsar.address import PulsarAddress
from afterglow.metadata.cluster_proof import ClusterProof
from afterglow.read.handle import SharedHot
from afterglow.read.remote_hot import RemoteHot

if TYPE_CHECKING:
    from afterglow.read.copies import HotReader


@dataclass(frozen=True, slots=True)
class HotPlace:
    """Where the hot log of a topic is. Holds no secrets when it has come to another process."""

    home: str = ""
    """The engine's home, an absolute path on its machine; empty where there is none, or none is known."""
    topic: str = ""
    """Full name, with the partition."""
    service_url: str = ""
    """The brokers that serve it; empty where none is known."""
    instance: str = ""
    """Id of the hot log: another machine may have another engine's home at the same path. Empty: not known."""
    proof: ClusterProof | None = field(default=None, repr=False, compare=False)
    """What these brokers are shown. Stays in this process; others take theirs from their environment."""

    def __reduce__(self) -> tuple[type[HotPlace], tuple[str, str, str, str]]:
        return HotPlace, (self.home, self.topic, self.service_url, self.instance)

    def open(self, ledger_id: int | None = None, last: int = -1) -> HotReader:
        """The hot log, as it is reached from here.

        Args:
            ledger_id: The ledger that is to be read: brokers do not tell how far a ledger goes.
            last: Its last entry that may be asked for.

        Raises:
            HotLogUnavailable: It cannot be reached from this machine.
            ConfigError: The token's file cannot be read.
        """
        if self._is_here():
            return SharedHot(Path(self.home))
        if self.service_url:
            entries = {} if ledger_id is None else {ledger_id: last + 1}
            return RemoteHot(self.address(), self.topic, entries, instance=self.instance or None)
        raise HotLogUnavailable(
            f"the hot log in {self.home} cannot be reached from here: read it on the engine's machine, share its "
            "disk, let the engine run and be reached (service_url), or leave it out (hot=skip)"
        )

    def _is_here(self) -> bool:
        home = Path(self.home)
        if not self.home or not home.is_dir():
            return False
        return not self.instance or read_instance(home) == self.instance

    def address(self) -> PulsarAddress:
        """The brokers, and what they are shown.

        Raises:
            ConfigError: The service URL is not well-formed, or the token's file cannot be read.
        """
        proof = self.proof or ClusterProof.of()
        return PulsarAddress(self.service_url, token=proof.token, trust_certs=proof.ca_file)
