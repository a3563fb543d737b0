"""What a broker may send ahead, against a broker that sends as much as Pulsar's does."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from afterglow.hot.pulsar.raw_subscription import Permits

WINDOW = 4 << 20
LARGEST = 5 << 20


class Broker:
    """Sends up to a hundred entries at a time while it has a permit, however many messages they hold."""

    def __init__(self, entries: list[tuple[int, int]]) -> None:
        self.entries = entries
        self.sent = 0
        self.permits = 0

    def flow(self, permits: int) -> None:
        assert permits > 0
        self.permits += permits
        while self.permits > 0 and self.sent < len(self.entries):
            for messages, _ in self.entries[self.sent : self.sent + min(self.permits, 100)]:
                self.permits -= messages
                self.sent += 1


ENTRIES = st.lists(st.tuples(st.integers(1, 1000), st.integers(1, LARGEST)), min_size=1, max_size=300)


@given(ENTRIES, st.integers(0, 300), st.integers(1, 50))
def test_all_requested_entries_are_received_and_no_later_ones(
    entries: list[tuple[int, int]], more: int, at_once: int
) -> None:
    broker = Broker(entries + [(1, 100)] * more)
    permits = Permits(WINDOW, LARGEST)
    came = 0
    while came < len(entries):
        if granted := permits.grant(len(entries) - came):
            broker.flow(granted)
        assert came < broker.sent, "the broker waits for permits, and none are granted"
        batch = broker.entries[came : min(came + at_once, broker.sent)]
        permits.used(len(batch), sum(n for n, _ in batch), sum(size for _, size in batch))
        came += len(batch)
    assert broker.sent == len(entries)


@given(st.integers(1, 1000), st.integers(1, LARGEST), st.integers(1, 200))
def test_what_is_under_way_stays_within_the_window_where_sizes_do_not_change(
    messages: int, size: int, at_once: int
) -> None:
    broker = Broker([(messages, size)] * 5000)
    permits = Permits(WINDOW, LARGEST)
    came = most = 0
    while came < 3000:
        if granted := permits.grant(5000 - came):
            broker.flow(granted)
        most = max(most, broker.sent - came)
        assert (broker.sent - came) * size <= max(WINDOW, size)
        batch = min(at_once, broker.sent - came)
        permits.used(batch, batch * messages, batch * size)
        came += batch
    assert most * size > WINDOW // 4 or most >= 100, "the window is hardly used"


def test_as_long_as_no_size_is_known_the_largest_is_expected() -> None:
    assert Permits(WINDOW, LARGEST).grant(1000) == 1
    assert Permits(100 << 20, LARGEST).grant(1000) == 20
