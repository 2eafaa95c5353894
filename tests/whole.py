"""A run is whole when each test that it collected has run and passed; ``--whole`` makes anything less a failure.

Without it, pytest ends well when tests were skipped, and a run that was cut short looks like one that was not. With
``--durations-to`` it also leaves a file with seconds and tests of each module, the longest first.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--whole", action="store_true", help="fail unless every collected test has run and passed")
    parser.addoption("--durations-to", type=Path, help="a file for the seconds that each module took")


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # with several test processes, the one that hears of all of them
        config.pluginmanager.register(Ledger(config.getoption("--whole"), config.getoption("--durations-to")))


def unproved(collected: Collection[str], outcomes: Mapping[str, Collection[str]]) -> dict[str, str]:
    """The tests that have not passed, each with what became of it.

    Args:
        collected: ids of the tests that the run was to run.
        outcomes: of each test that has begun, the outcomes of its phases: ``setup``, ``call``, ``teardown``.
    """
    left = {}
    for test in sorted(collected):
        found = outcomes.get(test, ())
        if not found:
            left[test] = "not begun"
        elif len(found) < 3 or set(found) != {"passed"}:
            left[test] = next((outcome for outcome in found if outcome != "passed"), "cut short")
    return left


class Ledger:
    """What was collected, and what became of it."""

    def __init__(self, whole: bool, durations: Path | None) -> None:
        self.whole, self.durations = whole, durations
        self.collected: set[str] = set()
        self.outcomes: dict[str, list[str]] = defaultdict(list)
        self.seconds: dict[str, float] = defaultdict(float)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.collected.update(item.nodeid for item in session.items)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: object, ids: Iterable[str]) -> None:
        self.collected.update(ids)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.outcomes[report.nodeid].append("xfailed" if hasattr(report, "wasxfail") else report.outcome)
        self.seconds[report.nodeid] += report.duration

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if session.config.option.collectonly:
            return
        if self.durations is not None:
            self.durations.parent.mkdir(parents=True, exist_ok=True)
            self.durations.write_text(table(self.seconds), encoding="utf-8")
        if self.whole and session.exitstatus == pytest.ExitCode.OK and unproved(self.collected, self.outcomes):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        left = unproved(self.collected, self.outcomes)
        if self.whole and left:
            terminalreporter.section("not proved: a whole run needs each test to pass")
            for test, why in left.items():
                terminalreporter.line(f"{why}: {test}")


def table(seconds: Mapping[str, float]) -> str:
    """Seconds and number of tests by module, the longest module first, as tab-separated lines."""
    modules: dict[str, list[float]] = defaultdict(list)
    for test, duration in seconds.items():
        modules[test.split("::")[0]].append(duration)
    rows = sorted(modules.items(), key=lambda item: -sum(item[1]))
    return "".join(f"{sum(each):.1f}\t{len(each)}\t{module}\n" for module, each in rows)
