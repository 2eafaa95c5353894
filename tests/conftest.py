"""Fixtures that several tests share. The one that matters: ``stack``, a whole stack of real servers."""

from __future__ import annotations

import logging
import os
import time
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import second_try
from fakes.fixtures import bucket, object_store_server, rig  # noqa: F401
from runbooks import paused
from stack import builds
from streamops.adapters.airflow import Airflow
from streamops.adapters.object_store import ObjectStore
from streamops.follow import Runbooks
from streamops.operations import RUNBOOKS
from streamops.settings import Settings

ROOT = Path(__file__).resolve().parents[1]
TEST_OFFSET = os.environ.get("STREAMOPS_TEST_PORT_OFFSET", "10000")
TEST_HOME = ROOT / "build" / ("test-stack" if TEST_OFFSET == "10000" else f"test-stack-{TEST_OFFSET}")
END = pytest.StashKey[float]()
GRACE_S = 600  # what a test that began just before --until may take


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seeds", type=int, default=1, help="seeds for each fault test")
    parser.addoption("--until", type=float, help="begin no more tests after this time (epoch seconds)")
    parser.addoption("--keep-stack", action="store_true", help="leave the test stack running at the end")


class FirstTries:
    """Writes down why a test needed its second try; if that fails too, it is shown with it."""

    path = ROOT / "build" / "first-tries.log"

    def __init__(self) -> None:
        self.why: dict[str, str] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.outcome == "rerun":  # type: ignore[comparison-overlap]
            self.why[report.nodeid] = report.longreprtext
            self.path.parent.mkdir(exist_ok=True)
            with self.path.open("a", encoding="utf-8") as log:
                log.write(f"{report.nodeid} ({report.when})\n{report.longreprtext}\n\n")
        elif report.failed and report.nodeid in self.why:
            report.sections.insert(0, (f"First try ({report.when})", self.why.pop(report.nodeid)))


def pytest_configure(config: pytest.Config) -> None:
    with suppress(builds.BuildError):  # tests that need no server run without a set-up as well
        os.environ.setdefault("SPARK_HOME", str(builds.spark_home()))  # local Spark starts sooner from there
    config.pluginmanager.register(second_try)
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(FirstTries())


def pytest_unconfigure() -> None:
    """pytest's summary is the last line: Kafka clients that end with the interpreter have nothing to add."""
    logging.disable(logging.CRITICAL)


@pytest.hookimpl(tryfirst=True)  # pytest-xdist reads the groups in this hook too
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests have deadlines, and the machine may be busy: each gets a second try, shown as RERUN.

    With several test processes the tests of the stack come last, all in one of them: there is one stack, and nothing
    else works beside it.

    Of tests marked ``sampled(n)`` one case in n is run, and those marked ``more`` are left out, so that the run stays
    under an hour; with more than one seed, all are run.
    """
    for item in items:
        item.add_marker(pytest.mark.flaky(reruns=1))
        if item.get_closest_marker("stack"):
            item.add_marker(pytest.mark.xdist_group("stack"))
    items.sort(key=lambda item: item.get_closest_marker("stack") is not None)
    if config.getoption("--seeds") > 1:
        return
    seen: Counter[str] = Counter()
    chosen, left = [], []
    for item in items:
        every, name = item.get_closest_marker("sampled"), item.nodeid.split("[")[0]
        in_turn = every is None or seen[name] % every.args[0] == 0
        (chosen if in_turn and not item.get_closest_marker("more") else left).append(item)
        seen[name] += 1
    config.hook.pytest_deselected(items=left)
    items[:] = chosen


def pytest_collection_finish(session: pytest.Session) -> None:
    """Two processes with tests of the one stack would stop it for each other, so then nothing is run."""
    if not hasattr(session.config, "workerinput"):
        return
    apart = [item for item in session.items if item.get_closest_marker("stack") and not item.nodeid.endswith("@stack")]
    if apart:
        raise pytest.UsageError(f"pytest-xdist does not keep the tests of the stack together ({apart[0].nodeid}).")


@pytest.hookimpl(wrapper=True, tryfirst=True)  # before pytest-timeout sets its clock
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Who may only run for so long gets a verdict: what was begun before ``--until`` has some minutes left, no more."""
    began, own, until = time.time(), item.get_closest_marker("timeout"), item.config.getoption("--until")
    end = began + float(own.args[0] if own else item.config.getini("timeout"))
    item.stash[END] = min(end, max(until, began) + GRACE_S) if until else end
    item.add_marker(pytest.mark.timeout(item.stash[END] - began), append=False)
    return (yield)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """After ``--until`` the rest is left out and counted; a second try is for a test that has time left for it."""
    until = item.config.getoption("--until")
    if getattr(item, "execution_count", 1) > 1:
        if time.time() > item.stash[END] - 60:
            pytest.fail("no time left for a second try", pytrace=False)
    elif until and time.time() > until:
        pytest.skip("no time left in this run (--until); 'make test' runs it")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that asks for ``seed`` runs once for each of them."""
    if "seed" in metafunc.fixturenames:
        metafunc.parametrize("seed", range(1, metafunc.config.getoption("--seeds") + 1))


@pytest.fixture(scope="session")
def stack(request: pytest.FixtureRequest) -> Iterator[Settings]:
    """The test stack's settings: its own home, ports and data, the generator stopped.

    For the whole session the environment points to it, so that commands and child processes find it as well.
    A test stack that is up already is used and left up.
    """
    from stack import lifecycle

    environment = {
        "STREAMOPS_HOME": str(TEST_HOME),
        "STREAMOPS_PORT_OFFSET": TEST_OFFSET,
        "STREAMOPS_ENV_FILE": str(TEST_HOME / "stack.env"),
    }
    with pytest.MonkeyPatch.context() as patch:
        for key, value in environment.items():
            patch.setenv(key, value)
        found = lifecycle.status(TEST_HOME).running
        try:
            settings = lifecycle.up(TEST_HOME, generator=False)
            for dag_id in ("reconcile", "verify_snapshots"):
                paused(settings, dag_id)
            yield settings
        finally:
            if not found and not request.config.getoption("--keep-stack"):
                lifecycle.down(TEST_HOME)


@pytest.fixture(scope="session")
def airflow(stack: Settings) -> Iterator[Airflow]:
    """A client of the stack's Airflow, which knows all runbooks."""
    with Airflow(stack, timeout_s=60) as airflow:
        Runbooks(airflow, ObjectStore(stack)).wait_ready(RUNBOOKS)
        yield airflow


@pytest.fixture
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No setting of the caller's own installation."""
    for key in [name for name in os.environ if name.startswith("STREAMOPS_")]:
        monkeypatch.delenv(key)
