"""Fixtures that several tests share. The one that matters: ``stack``, a whole stack of real servers."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Generator, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import psutil
import pytest

from evidence import evidence, told
from fakes.fixtures import bucket, object_store_server, rig, spark  # noqa: F401
from runbooks import ACTS_BY_ITSELF, paused
from stack import builds
from streamops.clients.airflow import Airflow
from streamops.operations.follow import Runbooks
from streamops.operations.runbooks import RUNBOOKS
from streamops.settings import Settings
from streamops.store.object_store import ObjectStore

pytest_plugins = ["whole"]

ROOT = Path(__file__).resolve().parents[1]
TEST_OFFSET = os.environ.get("STREAMOPS_TEST_PORT_OFFSET", "10000")
TEST_HOME = ROOT / "build" / ("test-stack" if TEST_OFFSET == "10000" else f"test-stack-{TEST_OFFSET}")
UNDER_WAY = TEST_HOME / "tests-under-way"
STACK = pytest.StashKey[Settings]()
BESIDE = pytest.StashKey[bool]()
EVERY = pytest.StashKey[dict[str, frozenset[str]]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seeds", type=int, default=1, help="seeds for each fault test")
    parser.addoption("--seed", type=int, help="this one seed instead, to see again what a run has found")
    parser.addoption("--nemesis-minutes", type=float, default=3, help="how long a run of random faults lasts")
    parser.addoption("--nemesis-jobs", type=int, choices=(1, 2), default=1, help="how many jobs it meets")
    parser.addoption("--keep-stack", action="store_true", help="leave the test stack running at the end")


def pytest_configure(config: pytest.Config) -> None:
    with suppress(builds.BuildError):  # tests that need no server run without a set-up as well
        os.environ.setdefault("SPARK_HOME", str(builds.spark_home()))  # local Spark starts sooner from there
    config.stash[EVERY] = {}


def pytest_unconfigure() -> None:
    """pytest's summary is the last line: Kafka clients that end with the interpreter have nothing to add."""
    logging.disable(logging.CRITICAL)


@pytest.hookimpl(tryfirst=True)  # pytest-xdist reads the groups in this hook too, and -m deselects in it
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With several test processes the tests of the stack are all in one of them, the first: there is one stack.

    The other processes take the other tests meanwhile, because a stack leaves the processor idle most of the time. One
    of them has all that need the local Spark, which takes ten seconds of a core to start and is quick after a while.
    """
    for item in items:
        config.stash[EVERY][item.nodeid] = frozenset(mark.name for mark in item.iter_markers())
        if item.get_closest_marker("stack"):
            item.add_marker(pytest.mark.xdist_group("stack"))
        elif "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("spark"))
    items.sort(key=lambda item: item.get_closest_marker("stack") is None)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Two processes with tests of the one stack would stop it for each other, so then nothing is run."""
    of_the_stack = [item for item in session.items if item.get_closest_marker("stack")]
    session.config.stash[BESIDE] = bool(of_the_stack) and hasattr(session.config, "workerinput")
    if not session.config.stash[BESIDE]:
        return
    apart = [item for item in of_the_stack if not item.nodeid.endswith("@stack")]
    if apart:
        raise pytest.UsageError(f"pytest-xdist does not keep the tests of the stack together ({apart[0].nodeid}).")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> None:
    """What runs beside the stack gives way to it: each test process that does is one session beside the stack's many.

    Its share is that of each of them. With less, Spark's Python workers took longer to start than the ten seconds that
    Spark waits for them (``PythonWorkerFactory``): with a tenth as checks have, and on a slow machine with half.
    """
    if item.config.stash[BESIDE] and not item.get_closest_marker("stack"):
        os.setsid()
    item.config.stash[BESIDE] = False  # decided by the first test of each process


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failed test of the stack shows its operations, the states of its jobs, and their logs."""
    report = yield
    if report.failed and item.get_closest_marker("stack") and (settings := item.config.stash.get(STACK, None)):
        since = datetime.fromtimestamp(report.start, UTC)
        sections: list[tuple[str, str]] = []
        why = told(lambda: sections.extend(evidence(settings, since)) or "")
        report.sections += [*sections, ("evidence", why)] if why else sections
    return report


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that asks for ``seed`` runs once for each of them."""
    if "seed" in metafunc.fixturenames:
        one = metafunc.config.getoption("--seed")
        metafunc.parametrize("seed", [one] if one else range(1, metafunc.config.getoption("--seeds") + 1))


@pytest.fixture
def every_test(request: pytest.FixtureRequest) -> dict[str, frozenset[str]]:
    """The marks of each test that was collected, also of those that this run leaves out."""
    return request.config.stash[EVERY]


@pytest.fixture(scope="session")
def stack(request: pytest.FixtureRequest) -> Iterator[Settings]:
    """The test stack's settings: its own home, ports and data, the generator stopped.

    For the whole session the environment points to it, so that commands and child processes find it as well.
    A test stack that is up already is used and left up. One of a run that was killed is not used: the jobs that it
    left would hold the cores that this run needs.
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
        if UNDER_WAY.exists():
            lifecycle.down(TEST_HOME)
            end_leftovers()
            shutil.rmtree(TEST_HOME)
        found = lifecycle.status(TEST_HOME).running
        try:
            settings = lifecycle.up(TEST_HOME, generator=False)
            UNDER_WAY.touch()
            for dag_id in ACTS_BY_ITSELF:
                paused(settings, dag_id)
            request.config.stash[STACK] = settings
            yield settings
        finally:
            if not found and not request.config.getoption("--keep-stack"):
                lifecycle.down(TEST_HOME)
            UNDER_WAY.unlink(missing_ok=True)


def end_leftovers() -> None:
    """End what tests of a killed run had started beside their stack, such as generators."""
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.ppid() == 1 and process.environ().get("STREAMOPS_HOME") == str(TEST_HOME):
                process.kill()


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
