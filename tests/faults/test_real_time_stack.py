"""Real-time stages: an event counts once through each change of mode, and with any process or server gone."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import datetime

import confluent_kafka
import psutil
import pytest

from fresh_job import SMALL, FreshJob, wait_for
from streamops import snapshots
from streamops.cli.logs import Executors, shown
from streamops.clients.dashboard import Dashboard
from streamops.clients.kafka import Ledger
from streamops.model.records import State, now
from streamops.operations import rehearsals
from streamops.store import joblogs, keys
from streamops.versions import artifacts
from support import drivers, executors, invariant, mark, pythons

pytestmark = [pytest.mark.stack, pytest.mark.full]
ALL = ("avg_1s", "avg_1m", "vol_1s")
COLD = {"standby": False}  # how soon a version is at work is not asked here
TWO = (
    (re.compile(r"  panes:.*?(?=stages:)", re.DOTALL), ""),
    (re.compile(r"  avg_1m:.*?(?=  vol_1s:)", re.DOTALL), ""),
    (re.compile(r"code: real_time.py"), "code: trade_analyser.py"),
)


def begun(stack, operator, tmp_path, versions: dict[str, tuple[str, tuple]]) -> Iterator[FreshJob]:
    """A job under load that runs the first of some versions.

    Args:
        versions: name -> the version of trade-analyser that it is made of, and what is replaced in its definition.
    """
    job = FreshJob.publish(stack, tmp_path, versions=tuple(dict.fromkeys(like for like, _ in versions.values())))
    for name, (like, changes) in versions.items():
        job.vary(name, like, changes)
    with job.trades(500, 20):
        operator.run("deploy_job", job.name, version=next(iter(versions)))
        yield job
        if job.record().version:
            operator.run("delete_job", job.name)
    wait_for(lambda: not pythons(job.name), 180, "the end of all drivers")


@pytest.fixture
def two(stack, operator, tmp_path) -> Iterator[FreshJob]:
    """``avg_1s`` and ``vol_1s`` in batches; ``live`` has them in real time."""
    batch = (*TWO, (re.compile("mode: auto"), "mode: batch"))
    yield from begun(stack, operator, tmp_path, {"batch": ("v3", batch), "live": ("v3", TWO)})


@pytest.fixture
def final(stack, operator, tmp_path) -> Iterator[FreshJob]:
    """v2, all of whose results are final; ``v3`` has them in real time, ``mixed`` one of them in batches."""
    mixed = ((re.compile("vol_1s:\n    mode: auto"), "vol_1s:\n    mode: batch"),)
    yield from begun(stack, operator, tmp_path, {"final": ("v2", ()), "v3": ("v3", ()), "mixed": ("v3", mixed)})


@pytest.fixture
def lasting(stack, operator, tmp_path) -> Iterator[FreshJob]:
    """v3, for faults that meet its servers."""
    yield from begun(stack, operator, tmp_path, {"v3": ("v3", ())})


@pytest.fixture
def small(stack, operator, tmp_path) -> Iterator[FreshJob]:
    """``avg_1s`` and ``avg_1m``, which reads it, so small that a second driver has room; ``again`` is the same."""
    yield from begun(stack, operator, tmp_path, {"small": ("v3", SMALL), "again": ("v3", SMALL)})


@pytest.fixture
def batches(stack, operator, tmp_path) -> Iterator[FreshJob]:
    """The same in batches, made of the trades; ``small`` and ``again`` are live."""
    versions = {"final": ("v2", SMALL), "small": ("v3", SMALL), "again": ("v3", SMALL)}
    yield from begun(stack, operator, tmp_path, versions)


@pytest.fixture
def real_time(stack, operator, tmp_path) -> Iterator[FreshJob]:
    """v3; ``again`` is the same."""
    yield from begun(stack, operator, tmp_path, {"v3": ("v3", ()), "again": ("v3", ())})


def phases(job: FreshJob) -> dict[str, str]:
    status = job.status()
    return {name: stage.phase for name, stage in status.stages.items()} if status else {}


def is_live(job: FreshJob) -> None:
    wait_for(lambda: set(phases(job).values()) == {"live"}, 300, "all stages in real time")


def kill(job: FreshJob) -> None:
    before = job.status().epoch or 0
    for process in drivers(job.name):
        process.kill()
    wait_for(lambda: (job.status().epoch or 0) > before, 300, "another driver")


@pytest.mark.long
def test_stages_go_into_real_time_and_back_with_their_state(two, operator):
    job = two
    start = mark(job)
    done = operator.run("upgrade_job", job.name, version="live", snapshot="into", **COLD)
    assert set(done.facts("check")["outcomes"].values()) == {"kept"}
    is_live(job)

    kill(job)
    is_live(job)
    invariant(job, start)

    operator.run("snapshot_job", job.name, snapshot="live")
    operator.run("upgrade_job", job.name, version="batch", snapshot="back", **COLD)
    assert {manifest.name for manifest in snapshots.list(job.store, job.name)} == {"into", "live", "back"}
    invariant(job, start)

    ledger = Ledger(job.settings)
    assert ledger.end_offsets(keys.results_topic(job.name, "avg_1s"))["0"] > 0
    operator.run("delete_job", job.name)
    assert not ledger.delete_topics(keys.results_topics(job.name))  # it left none
    ledger.close()


def test_a_stage_that_reads_another_counts_each_event_once_through_kills_and_stops(final, operator, servers):
    """Final results become early ones, those of the minute of those of the second; then one goes back to batches."""
    job = final
    wait_for(lambda: job.read() > 30_000, 180, "a minute of trades")
    start, from_ms = mark(job), int(time.time() * 1000)
    done = operator.run("upgrade_job", job.name, version="v3", snapshot="final", **COLD)
    assert done.facts("check")["outcomes"] == dict.fromkeys(ALL, "refilled")
    is_live(job)
    invariant(job, start)
    assert not any(measured.partial for measured in job.recount().measurements)
    gapless(job, from_ms)

    servers.stop("influxd")
    try:
        wait_for(lambda: job.status().state == State.RECOVERING, 120, "the job saying that it waits")
        assert "InfluxDB" in job.status().reason
    finally:
        servers.start("influxd")
    wait_for(lambda: job.status().state == State.RUNNING, 120, "the job at work again")
    assert set(phases(job).values()) == {"live"}  # results were kept in the topic; no query had to end for it
    invariant(job, start)

    kill(job)
    is_live(job)
    stopping = now()
    operator.run("snapshot_job", job.name, snapshot="stopped", cancel=True)
    assert alarms(job, stopping) == []
    operator.run("start_job", job.name)
    is_live(job)
    invariant(job, start)

    operator.run("restore_job", job.name, snapshot="stopped")  # what came after that was handed on already
    is_live(job)
    invariant(job, start)

    done = operator.run("upgrade_job", job.name, version="mixed", snapshot="live", **COLD)
    assert done.facts("check")["outcomes"] == dict.fromkeys(ALL, "kept")
    beside = {"avg_1s": "live", "avg_1m": "live"}
    wait_for(lambda: {**phases(job), **beside} == phases(job), 300, "the two others in real time")
    assert phases(job)["vol_1s"] != "live"
    invariant(job, start)
    gapless(job, from_ms)


def alarms(job: FreshJob, since: datetime) -> list[str]:
    """What drivers and executors have logged as an error."""
    lines = [*joblogs.Reader(job.store, job.name).more(), *Executors(job.settings, job.store, job.name).more()]
    return [shown(line) for line in joblogs.keep(lines, "ERROR", since=since)]


@pytest.mark.long
def test_live_stages_outlive_each_process_and_server_and_catch_up_in_batches(lasting, servers, seed):
    job = lasting
    is_live(job)
    start, from_ms = mark(job), int(time.time() * 1000)

    executor = random.Random(seed).choice(executors(job))
    executor.kill()
    wait_for(lambda: not executor.is_running() or executor.status() == psutil.STATUS_ZOMBIE, 60, "its end")
    goes_on(job)
    invariant(job, start)

    servers.kill("kafka")
    goes_on(job)
    servers.stop("minio")
    servers.start("minio")
    goes_on(job)
    invariant(job, start)

    paused = executors(job)
    for executor in paused:
        executor.suspend()
    burst(job, 1_500_000)
    for executor in paused:
        executor.resume()
    wait_for(lambda: "catching up" in phases(job).values(), 300, "a stage that has gone back to batches")
    goes_on(job)
    invariant(job, start)
    gapless(job, from_ms)


def burst(job: FreshJob, trades: int) -> None:
    """Trades as fast as they can be written; until they can be read."""
    producer = confluent_kafka.Producer({"bootstrap.servers": job.settings.kafka_bootstrap_servers, "linger.ms": 20})
    for number in range(trades):
        at = int(time.time() * 1000)
        trade = f'{{"symbol":"AAPL","price":{100 + number % 7},"quantity":1,"time":{at}}}'
        while True:
            try:
                producer.produce(job.name, trade)
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(60) == 0


def goes_on(job: FreshJob) -> None:
    """Each stage gives results of what comes from now on, in real time."""
    present = job.end()
    wait_for(
        lambda: all(
            stage.phase == "live" and stage.offsets.get("trades", {}).get("0", present) >= present
            for stage in job.status().stages.values()
        ),
        300,
        "all stages in real time, beyond what was there",
    )


def test_a_version_takes_over_without_a_gap(small, operator):
    """It has run beside the old one on a copy of its state, with stages that read each other."""
    job = small
    is_live(job)
    start, from_ms = mark(job), int(time.time() * 1000)
    done = operator.run("upgrade_job", job.name, version="again", snapshot="switch", strategy="gapless")
    assert job.runs("again")
    assert done.facts("keep")["snapshot"] == "switch"
    is_live(job)
    invariant(job, start)
    gapless(job, from_ms, ("avg_1s", "avg_1m"))

    kill(job)  # what the version gave before it took over is counted once, also by the next driver
    is_live(job)
    invariant(job, start)
    operator.run("rollback_job", job.name, snapshot="switch", **COLD)
    is_live(job)
    invariant(job, start)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_version_in_batches_is_taken_over_and_the_next_one_is_rehearsed(batches, operator):
    """State that does not fit is filled again beside the old version; the next upgrade demands the rehearsal."""
    job = batches
    wait_for(lambda: job.read() > 30_000, 180, "a minute of trades")
    start, from_ms = mark(job), int(time.time() * 1000)
    done = operator.run("upgrade_job", job.name, version="small", snapshot="final", strategy="gapless")
    assert set(done.facts("check")["outcomes"].values()) == {"refilled"}
    is_live(job)
    invariant(job, start)
    assert not any(measured.partial for measured in job.recount().measurements)

    launch = job.record().launch
    tried = operator.run("rehearse_job", job.name, version="again", observe_s=5, demand_equal=True)
    found = rehearsals.find(job.store, [job.name], tried.id)
    assert {name: stage.compared.differing for name, stage in found.stages.items()} == {"avg_1s": 0, "avg_1m": 0}
    assert min(stage.compared.equal for stage in found.stages.values()) > 0
    assert found.new.driver_bytes
    assert all(side.lateness and side.rows_per_s for stage in found.stages.values() for side in (stage.old, stage.new))
    assert (job.record().launch, job.record().standby) == (launch, None)
    assert not list(job.store.list(keys.checkpoints(job.name, found.new.deployment)))
    asked = {"version": "again", "snapshot": "switch", "strategy": "gapless", "rehearsed_within_h": 1}
    operator.run("upgrade_job", job.name, **asked)
    assert job.runs("again")
    invariant(job, start)
    gapless(job, from_ms, ("avg_1s", "avg_1m"))


@pytest.mark.long
def test_a_stage_that_reads_another_is_kept_taken_back_and_filled_again(real_time, operator):
    job = real_time
    is_live(job)
    wait_for(lambda: job.read() > 45_000, 180, "a minute and a half of trades")
    start, from_ms = mark(job), int(time.time() * 1000)
    operator.run("snapshot_job", job.name, snapshot="running")
    done = operator.run("upgrade_job", job.name, version="again", snapshot="kept")
    assert done.facts("check")["outcomes"] == dict.fromkeys(ALL, "kept")
    is_live(job)
    invariant(job, start)

    operator.run("rollback_job", job.name, snapshot="running")  # taken while results were on their way
    is_live(job)
    invariant(job, start)

    changed = {"code: real_time.py": "code: half.py", "version: v3": "version: half", "1 minute": "30 seconds"}
    for old, new, changes in (
        ("v3.yaml", "half.yaml", changed),
        ("real_time.py", "half.py", {'"60 seconds"': '"30 seconds"'}),
    ):
        text = (job.directory / old).read_text()
        for before, after in changes.items():
            text = text.replace(before, after)
        (job.directory / new).write_text(text)
    artifacts.publish(job.store, job.directory, "half")
    done = operator.run("upgrade_job", job.name, version="half", snapshot="minute")
    assert done.facts("check")["outcomes"] == dict.fromkeys(
        ALL, "refilled"
    )  # with what it reads, and with those that read it
    is_live(job)
    invariant(job, start)
    assert not any(measured.partial for measured in job.recount().measurements)
    gapless(job, from_ms)


def gapless(job: FreshJob, from_ms: int, measurements: Sequence[str] = ALL) -> None:
    """No second without a point, in any of the measurements."""
    with closing(Dashboard(job.settings)) as dashboard:

        def seconds(measurement: str) -> list[int]:
            symbol = None if measurement == "vol_1s" else "AAPL"
            name = f"{job.name.replace('-', '_')}_{measurement}"
            return [at // 1000 for at, _ in dashboard.series(name, from_ms, int(time.time() * 1000), symbol)]

        for measurement in measurements:
            wait_for(lambda of=measurement: len(seconds(of)) > 20, 120, f"twenty seconds of {measurement}")
            found = seconds(measurement)
            missing = sorted(set(range(found[0], found[-1] + 1)) - set(found))
            assert not missing, f"{measurement} from {found[0]} to {found[-1]}, at {time.time():.1f}"
