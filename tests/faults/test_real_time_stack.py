"""Real-time stages: an event counts once through each change of mode, a killed driver, and a sink that is away."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from fresh_job import FreshJob, publish_quickly, wait_for
from streamops import snapshots
from streamops.clients.dashboard import Dashboard
from streamops.clients.kafka import Ledger
from streamops.model.records import State
from streamops.store import jobs, keys
from streamops.versions import artifacts
from support import drivers, invariant, mark, pythons

pytestmark = [pytest.mark.stack, pytest.mark.full]
LIVE = {"avg_1s": "live", "vol_1s": "live", "avg_1m": ""}


@pytest.fixture
def job(stack, operator, tmp_path) -> Iterator[FreshJob]:
    """v3, two of whose stages run in real time; ``batch`` is the same with all of them in batches. Under load."""
    job = FreshJob.publish(stack, tmp_path, versions=("v3",))
    text = (job.directory / "v3.yaml").read_text()
    text = text.replace("version: v3", "version: batch").replace("mode: realtime", "mode: batch")
    (job.directory / "batch.yaml").write_text(text)
    publish_quickly(job.store, job.directory, "batch", like="v3")
    with job.trades(1000, 20):
        operator.run("deploy_job", job.name, version="batch")
        yield job
        if job.record().version:
            operator.run("delete_job", job.name)
    wait_for(lambda: not pythons(job.name), 180, "the end of all drivers")


def publish_changed(job: FreshJob, version: str, *changes: tuple[str, str]) -> None:
    """Publish v3 with texts of its definition and code replaced, as a version with code of its own."""
    for name in ("v3.yaml", "trade_analyser.py"):
        text = (job.directory / name).read_text().replace("version: v3", f"version: {version}")
        for old, new in (*changes, ("code: trade_analyser.py", f"code: {version}.py")):
            text = text.replace(old, new)
        (job.directory / f"{version}.{name.split('.')[1]}").write_text(text)
    artifacts.publish(job.store, job.directory, version)


def phases(job: FreshJob) -> dict[str, str]:
    status = job.status()
    return {name: stage.phase for name, stage in status.stages.items()} if status else {}


def is_live(job: FreshJob) -> None:
    wait_for(lambda: phases(job) == LIVE, 300, "two stages in real time")


def test_stages_go_into_real_time_and_back_with_their_state(job, operator, servers):
    start = mark(job)
    done = operator.run("upgrade_job", job.name, version="v3", snapshot="into")
    assert set(done.facts("check")["outcomes"].values()) == {"kept"}
    is_live(job)

    before = mark(job)
    for process in drivers(job.name):
        process.kill()
    wait_for(lambda: (job.status().epoch or 0) > before.epoch, 300, "another driver")
    is_live(job)
    invariant(job, start)

    servers.stop("influxd")
    try:
        wait_for(lambda: job.status().state == State.RECOVERING, 120, "the job saying that it waits")
        assert "InfluxDB" in job.status().reason
    finally:
        servers.start("influxd")
    wait_for(lambda: job.status().state == State.RUNNING, 120, "the job at work again")
    assert phases(job) == LIVE  # results were kept in the topic; no query had to end for it
    invariant(job, start)

    operator.run("snapshot_job", job.name, snapshot="live")
    operator.run("upgrade_job", job.name, version="batch", snapshot="back")
    assert {manifest.name for manifest in snapshots.list(job.store, job.name)} == {"into", "live", "back"}
    invariant(job, start)

    ledger = Ledger(job.settings)
    assert ledger.end_offsets(keys.results_topic(job.name, "avg_1s"))["0"] > 0
    operator.run("delete_job", job.name)
    assert not ledger.delete_topics(keys.results_topics(job.name))  # it left none
    ledger.close()


def test_windows_of_another_shape_and_early_results_are_filled_again_from_the_ledger(job, operator):
    """Final results become early ones, and a minute becomes half of one: no point is missing, and none is partial."""
    publish_changed(job, "final", ("mode: realtime", "mode: batch"), ("output: update", "output: append"))
    publish_changed(job, "half", ("window: 1 minute", "window: 30 seconds"), ('size="60 seconds"', 'size="30 seconds"'))
    operator.run("upgrade_job", job.name, version="final", snapshot="final")
    wait_for(lambda: job.read() > 60_000, 180, "a minute of trades")
    start, from_ms = mark(job), int(time.time() * 1000)
    done = operator.run("upgrade_job", job.name, version="half", snapshot="half")
    assert done.facts("check")["outcomes"] == dict.fromkeys(("avg_1s", "avg_1m", "vol_1s"), "refilled")
    is_live(job)
    deployment = jobs.deployment(job.store, job.name, job.record().deployment)
    assert all(stage.whole_after_ms for stage in deployment.stages.values())
    invariant(job, start)
    assert not any(measured.partial for measured in job.recount().measurements)

    with closing(Dashboard(job.settings)) as dashboard:
        for measurement, symbol in (("avg_1s", "AAPL"), ("avg_1m", "AAPL"), ("vol_1s", None)):
            points = dashboard.series(
                f"{job.name.replace('-', '_')}_{measurement}", from_ms, int(time.time() * 1000), symbol
            )
            seconds = [at // 1000 for at, _ in points]
            assert seconds == list(range(seconds[0], seconds[-1] + 1)), measurement
            assert len(seconds) > 20
