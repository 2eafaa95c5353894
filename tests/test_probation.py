"""When a version passes its probation: four ways to fail, and what must not be taken for one."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta

import pytest

from fakes.rig import JOB, Rig
from streamops.model import records
from streamops.model.errors import UnhealthyError
from streamops.model.records import DriverStatus, StageStatus, State
from streamops.operations import receipts
from streamops.operations.engine import list_operations
from streamops.operations.health import Health
from streamops.operations.probation import Sample, StageWatch, expected_writes, judge
from streamops.store import clock, jobs

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
HOUR = timedelta(hours=1)


def lags(*events: int, every_s: float = 3.0, ago_s: float = 1.0) -> tuple[Sample, ...]:
    """Samples that end ``ago_s`` before now."""
    last = len(events) - 1
    return tuple(Sample(NOW - timedelta(seconds=ago_s + (last - at) * every_s), lag) for at, lag in enumerate(events))


def judged(stage: StageWatch, *, relaunches: int = 0, over: bool = True, obstacle: str = "") -> Health:
    return judge({"a": stage}, relaunches=relaunches, over=over, obstacle=obstacle, moment=NOW, seconds=30)


@pytest.mark.parametrize(
    ("stage", "relaunches", "says"),
    [
        (StageWatch(), 2, "its driver was started again 2 times"),
        (StageWatch(failures=3), 0, "stage a failed 3 times"),
        (StageWatch(samples=lags(1000, 4000, 8000, 11000), lag=12000, rate=1000), 0, "falls behind: stage a was 1,000"),
        # one long batch after the other, each longer than the one before
        (StageWatch(samples=lags(2000, 20000), lag=21000, rate=1000, batch_s=18), 0, "falls behind"),
        # only one commit, and the batch in flight takes far longer than that one
        (StageWatch(samples=lags(900, ago_s=28), lag=28900, rate=1000, batch_s=1), 0, "falls behind"),
        (StageWatch(expected=30.0, rate=1000), 0, "produces nothing: stage a has written no row in 30 s"),
    ],
)
def test_each_way_to_fail_is_named(stage: StageWatch, relaunches: int, says: str) -> None:
    found = judged(stage, relaunches=relaunches)
    assert found.failed is not None
    assert says in found.failed


@pytest.mark.parametrize(
    "stage",
    [
        StageWatch(samples=lags(9000, 6000, 3000, 500), lag=700, rate=1000, rows=5, expected=30.0),  # catches up
        StageWatch(samples=lags(900, 1200, 800, 1100), lag=3000, rate=1000, rows=5),  # goes up and down
        StageWatch(samples=lags(4000, 7000, 3900), lag=9000, rate=1000, batch_s=7, rows=5),  # long, even batches
        StageWatch(samples=lags(0, 0), rate=0.0),  # no traffic
        StageWatch(expected=None),  # new, or wrote too rarely before
        StageWatch(expected=1.2),  # a window an hour: silence means nothing
        StageWatch(failures=1, rows=1, expected=30.0),  # once is not repeatedly
    ],
)
def test_what_is_no_failure_passes(stage: StageWatch) -> None:
    found = judged(stage)
    assert (found.done, found.failed) == (True, None)


def test_lag_and_output_are_judged_at_the_end_and_failures_at_once() -> None:
    behind = StageWatch(samples=lags(1000, 4000, 8000, 11000), lag=12000, rate=1000, expected=30.0)
    early = judged(behind, over=False)
    assert (early.done, early.failed) == (False, None)
    assert judged(StageWatch(failures=3), over=False).failed


def test_a_sink_that_does_not_answer_is_waited_for_beyond_the_time() -> None:
    found = judged(StageWatch(expected=30.0), obstacle="its driver is recovering (a: InfluxDB did not answer)")
    assert (found.done, found.failed) == (False, None)
    assert "InfluxDB" in found.why


def old(**changes: object) -> DriverStatus:
    stage = StageStatus(outputs=100, last_output=NOW - timedelta(seconds=1), input_rate=1000.0)
    return DriverStatus(
        job="j", deployment=1, launch="l", holder="h", state=State.STOPPED, started=NOW - timedelta(seconds=200),
        updated=NOW, stages={"a": stage.model_copy(update=changes)},
    )  # fmt: skip


def test_what_the_old_version_would_have_written_follows_from_what_it_did() -> None:
    assert expected_writes(old(), "a", 30, 1000) == pytest.approx(15)
    assert expected_writes(old(), "a", 30, 100) == pytest.approx(1.5)  # a tenth of the traffic
    assert expected_writes(old(), "a", 30, 0) == 0
    assert expected_writes(old(), "b", 30, 1000) is None
    assert expected_writes(old(last_output=NOW - timedelta(minutes=5)), "a", 30, 1000) is None
    assert expected_writes(old(outputs=0), "a", 30, 1000) is None  # a runner that did not count
    assert expected_writes(None, "a", 30, 1000) is None


@pytest.mark.full
@pytest.mark.parametrize(
    ("behaviour", "says"),
    [
        ("fails", "fails repeatedly"),
        ("falls behind", "falls behind"),
        # Judged by what the old version wrote: too little, where other work leaves it next to no processor.
        pytest.param("silent", "produces nothing", marks=pytest.mark.long),
    ],
)
def test_a_version_that_does_not_pass_is_taken_back_with_the_cost_said_before_and_after(
    rig: Rig, behaviour: str, says: str
) -> None:
    rig.run("deploy_job", version="v1")
    rig.commits_more(windows=4)
    rig.cluster.behaviour["v2"] = behaviour
    with pytest.raises(UnhealthyError, match=says):
        rig.run("upgrade_job", version="v2", snapshot="s", probation_s=20)
    operation = list_operations(rig.store, JOB)[-1]
    assert operation.state == "undone"
    assert says in operation.reason
    record = rig.record()
    assert (record.version, record.deployment, record.desired) == ("v1", 3, "running")
    assert operation.undo["dismiss"].facts["cost"]["snapshot"] == f"{JOB}/s"
    assert operation.undo["healthy"].facts["events_again"] == operation.undo["dismiss"].facts["events_again"] > 0
    said = "\n".join(rig.said)
    assert said.rindex("a processes") < said.rindex("Undo step dismiss") < said.rindex("It cost:")
    receipt = receipts.read(rig.store, JOB, operation.id)
    assert receipt is not None
    assert receipt.facts["undo:dismiss"]["cost"]["again"]["a"] > 0
    rig.commits_more()
    assert rig.recount("a")


@pytest.mark.full
def test_a_host_whose_clock_is_ahead_does_not_pass_what_falls_behind(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.run("deploy_job", version="v1")
    rig.commits_more(windows=4)
    rig.cluster.behaviour["v2"] = "falls behind"

    def ahead() -> datetime:
        return right() + HOUR

    right = records.now
    read = clock.get_current_datetime
    monkeypatch.setattr(clock, "get_current_datetime", lambda remove_tzinfo=True: read(remove_tzinfo) + HOUR)
    ours = [module for name, module in [*sys.modules.items()] if name.startswith("streamops")]
    for module in ours:
        if vars(module).get("now") is right:
            monkeypatch.setattr(module, "now", ahead)
    with pytest.raises(UnhealthyError, match="falls behind"):
        rig.run("upgrade_job", version="v2", snapshot="s", probation_s=20)


@pytest.mark.full
def test_a_good_version_passes_and_stays(rig: Rig) -> None:
    rig.run("deploy_job", version="v1")
    rig.commits_more()
    operation = rig.run("upgrade_job", version="v2", snapshot="s", probation_s=2)
    assert "passed" in operation.facts("probation")["why"]
    assert jobs.record(rig.store, JOB).version == "v2"
    rig.commits_more("b")
