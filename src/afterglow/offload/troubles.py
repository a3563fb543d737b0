"""What failed for the ledgers of one topic, and when each is tried again."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from afterglow.offload.explain import Trouble
from afterglow.offload.outages import failure_level

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from afterglow.errors import AfterglowError
    from afterglow.offload.environment import OffloadEnvironment

_log = logging.getLogger(__name__)


class Troubles:
    """Failures by ledger, with waits that double. Guarded by the environment's lock.

    Args:
        name: The managed-ledger name.
        environment: Time, the agenda, and how long to wait.
    """

    def __init__(self, name: str, environment: OffloadEnvironment) -> None:
        self._name = name
        self._env = environment
        self._by_ledger: dict[int, Trouble] = {}
        self.last_ms = 0
        """When something last failed, epoch milliseconds; 0: nothing has."""

    def __len__(self) -> int:
        return len(self._by_ledger)

    def snapshot(self) -> dict[int, Trouble]:
        """All, by ledger."""
        with self._env.lock:
            return dict(self._by_ledger)

    def ripe(self, ledger_id: int, now_ms: int) -> bool:
        """Whether a ledger may be tried now."""
        with self._env.lock:
            trouble = self._by_ledger.get(ledger_id)
            return trouble is None or trouble.next_try_ms <= now_ms

    def note(self, ledger_id: int, error: AfterglowError, what: str, tiers: Iterable[str]) -> None:
        """Something failed: try again after a while, each time a longer one.

        Args:
            ledger_id: Whose copy it was about.
            error: Why.
            what: What has become of the ledger, for the log.
            tiers: Where its copy is, or was to be.
        """
        now_ms = self._env.clock.now_ms()
        with self._env.lock:
            known = self._by_ledger.get(ledger_id)
            tries = 1 if known is None else known.attempts + 1
            trouble = Trouble(str(error), tries, now_ms + self.wait_ms(tries))
            self._by_ledger[ledger_id] = trouble
            self.last_ms = now_ms
        self._env.agenda.put(self._name, trouble.next_try_ms)
        level = failure_level(self._env.tiers.health, error, tiers)
        _log.log(level, "ledger %d of %s %s, try %d: %s", ledger_id, self._name, what, tries, error)

    def retry_now(self) -> None:
        """End all backoffs; how often each ledger has failed is not forgotten."""
        with self._env.lock:
            self._by_ledger = {id_: replace(trouble, next_try_ms=0) for id_, trouble in self._by_ledger.items()}

    def forget(self, ledger_id: int) -> None:
        """It went well, or does not matter any more."""
        with self._env.lock:
            self._by_ledger.pop(ledger_id, None)

    def keep(self, ledger_ids: Collection[int]) -> None:
        """Forget all but these: the others are in the tier, or have left the list."""
        with self._env.lock:
            for ledger_id in self._by_ledger.keys() - set(ledger_ids):
                del self._by_ledger[ledger_id]

    def clear(self) -> None:
        """Forget all."""
        with self._env.lock:
            self._by_ledger.clear()

    def wait_ms(self, tries: int) -> int:
        """How long to wait after so many failures in a row."""
        config = self._env.policies.config
        least, most = config.offload_retry_min_backoff_millis, config.offload_retry_max_backoff_millis
        return min(least << min(tries - 1, 40), most)
