from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

import pytest

from afterglow.errors import StoreUnavailable
from afterglow.pipeline.upkeep import cancel_task, run_periodically, run_with_timeout

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.mark.parametrize("error", [StoreUnavailable("not today"), ZeroDivisionError("a fault")])
def test_periodic_work_continues_after_a_failure_and_logs_it(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> int:
        calls = 0
        enough = asyncio.Event()

        async def work() -> None:
            nonlocal calls
            calls += 1
            if calls == 3:
                enough.set()
            if calls == 1:
                raise error

        task = asyncio.create_task(run_periodically(0, "the work", work))
        await asyncio.wait_for(enough.wait(), 30)
        await cancel_task(task)
        return calls

    assert asyncio.run(run()) >= 3
    (record,) = (record for record in caplog.records if record.name == "afterglow.pipeline.upkeep")
    assert record.getMessage().startswith("the work failed, will retry")
    assert (record.exc_info is None) == isinstance(error, StoreUnavailable)


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def test_work_that_exceeds_its_timeout_is_abandoned(gate: threading.Event, caplog: pytest.LogCaptureFixture) -> None:
    assert not run_with_timeout(0.01, "the shutdown", gate.wait)
    assert "the shutdown did not end within 0.01 s, not waiting any longer" in caplog.text


def test_work_within_its_timeout_is_waited_for() -> None:
    done: list[int] = []
    assert run_with_timeout(30, "the shutdown", lambda: done.append(1))
    assert done == [1]
