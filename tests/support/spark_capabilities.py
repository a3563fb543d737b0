"""Tests of what a release of Spark supports: skipped where the release lacks it, and counted for the table of releases.

A test names the capabilities that it shows by ``@pytest.mark.spark("filter-pushdown")``, by the names of
:data:`afterglow.spark.datasource.releases.CAPABILITIES`.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator


_PROPERTY: Final = "capability of Spark"


def missing_capability(name: str) -> str | None:
    """The reason to skip a test that needs a capability; None if the installed release supports it."""
    from afterglow.spark.datasource.releases import CAPABILITIES, release

    (capability,) = [capability for capability in CAPABILITIES if capability.name == name]
    if capability.is_present():
        return None
    return f"Spark {release()} has no {capability.name}, which Spark {capability.since} has"


class SparkCapabilities:
    """Plugin of pytest: skips tests, and writes the outcomes of each capability to a file.

    Args:
        report: The file, in JSON: numbers of tests by capability and outcome; None: not written.
    """

    def __init__(self, report: str | None) -> None:
        self._report = report
        self._outcomes: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        for name in _names(item):
            if (reason := missing_capability(name)) is not None:
                pytest.skip(reason)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        report.user_properties += [(_PROPERTY, name) for name in _names(item)]
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count an outcome; of a run on several processes, the first one gets the reports of all."""
        if report.when == "call" or not report.passed:
            for name in {str(text) for key, text in report.user_properties if key == _PROPERTY}:
                self._outcomes[name][report.outcome] += 1

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self._report is not None and not hasattr(session.config, "workerinput"):
            Path(self._report).write_text(json.dumps(self._outcomes, indent=1))


def _names(item: pytest.Item) -> Iterator[str]:
    for mark in item.iter_markers("spark"):
        yield from mark.args
