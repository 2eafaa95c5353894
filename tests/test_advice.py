"""What limits a job and what to do next, from looks at it."""

from datetime import UTC, datetime, timedelta

import pytest

from streamops.cli.advice import Advice, Look, advise
from streamops.model.records import LIVE, DriverStatus, StageStatus, State

T = datetime(2026, 1, 1, 12, tzinfo=UTC)


def stage(offset: int, *, at: float = 0.0, **more) -> StageStatus:
    values = {"offsets": {"trades": {"0": offset}}, "last_commit": T + timedelta(seconds=at), "commits": 1}
    rates = {"input_rate": 10_000.0, "processed_rate": 20_000.0}
    return StageStatus(**(values | rates | more))


def look(end: int, seconds: float = 0.0, state: State = State.RUNNING, holder: str = "h", **stages) -> Look:
    at = T + timedelta(seconds=seconds)
    status = DriverStatus(
        job="j",
        version="v1",
        deployment=1,
        launch="l",
        holder=holder,
        state=state,
        started=T,
        updated=at,
        stages=stages,
    )
    return Look(at, status, {"trades": {"0": end}})


def flow(advice: Advice, name: str):
    return next(item for item in advice.flows if item.stage == name)


def test_rates_are_measured_between_two_looks():
    before = look(100_000, a=stage(90_000))
    after = look(130_000, 3, a=stage(115_000, at=2.5))
    found = flow(advise(after, before), "a")
    assert found.rate_in == 10_000
    assert found.rate_out == 10_000
    assert found.lag == 15_000


def test_a_lag_of_a_batch_or_two_is_keeping_up():
    found = advise(look(130_000, 3, a=stage(115_000, at=3)), look(100_000, a=stage(85_000)))
    assert flow(found, "a").catch_up_s == 0
    assert (found.next_step, found.limiting) == ("Nothing to do.", None)  # where all keep up, none limits


def test_what_comes_while_a_long_batch_is_under_way_is_no_falling_behind():
    """Two commits, one of a batch that had less to read: what it shows in between says nothing."""
    long = {"batch_ms": 3200, "processed_rate": 7_000.0}
    before = look(200_000, a=stage(137_000, **long))
    found = advise(look(230_000, 3, a=stage(157_000, at=3, **long)), before)
    assert flow(found, "a").rate_out < flow(found, "a").rate_in
    assert flow(found, "a").catch_up_s == 0
    more = advise(look(270_000, 3, a=stage(157_000, at=3, **long)), look(240_000, a=stage(137_000, **long)))
    assert flow(more, "a").catch_up_s is None  # more than any batches explain


def test_a_stage_in_real_time_is_not_busy_for_as_long_as_its_batch_lasts():
    live = {"phase": LIVE, "processed_rate": 10_000.0}
    found = advise(look(230_000, 3, a=stage(100_000, at=3, **live)), look(200_000, a=stage(100_000, **live)))
    assert (flow(found, "a").busy, flow(found, "a").catch_up_s) == (None, 0.0)  # 13 s since its last commit
    assert found.next_step == "Nothing to do."


def test_a_stage_whose_batches_follow_each_other_at_once_is_not_told_to_take_more_cores():
    """It is inside one all the time, however little there is to read."""
    few = {"unpaced": True, "input_rate": 90.0, "processed_rate": 90.0, "batch_ms": 400}
    found = advise(look(1_090, 1, a=stage(1_060, at=0.9, **few)), look(1_000, a=stage(970, **few)))
    assert flow(found, "a").busy is None
    assert found.next_step == "Nothing to do."


def test_a_stage_that_falls_behind_limits_and_never_catches_up():
    slow = {"processed_rate": 5_000.0, "durations_ms": {"addBatch": 900, "walCommit": 50, "triggerExecution": 1000}}
    before = look(100_000, a=stage(95_000), slow=stage(10_000, **slow))
    after = look(130_000, 3, a=stage(125_000, at=3), slow=stage(25_000, at=3, **slow))
    found = advise(after, before)
    assert found.limiting == "slow"
    assert flow(found, "slow").catch_up_s is None
    assert "streamops upgrade j v1 --cores N" in found.next_step
    assert any("90% of a batch is computing" in reason for reason in found.reasons)


def test_batches_that_wait_for_the_object_store_are_not_cured_by_cores():
    slow = {"processed_rate": 5_000.0, "durations_ms": {"addBatch": 200, "walCommit": 400, "commitOffsets": 350}}
    found = advise(look(130_000, 3, a=stage(25_000, at=3, **slow)), look(100_000, a=stage(10_000, **slow)))
    assert "object store" in found.next_step
    assert "--cores" not in found.next_step


def test_time_to_catch_up_is_the_lag_over_the_surplus():
    before = look(200_000, a=stage(0))
    after = look(210_000, 1, a=stage(30_000, at=1, processed_rate=30_000.0))
    assert flow(advise(after, before), "a").catch_up_s == pytest.approx(180_000 / 20_000)


def test_another_driver_in_between_makes_the_first_look_useless():
    found = advise(look(130_000, 3, holder="new", a=stage(125_000)), look(0, holder="old", a=stage(0)))
    assert flow(found, "a").rate_in == 10_000  # what Spark reported


def test_rejected_and_late_rows_are_told():
    found = advise(look(100, a=stage(100, late_rows=7, malformed_rows=2)))
    assert any("7 rows of a came too late" in reason for reason in found.reasons)
    assert any("2 rows of a could not be read" in reason for reason in found.reasons)


def test_a_silent_driver_is_pointed_out():
    quiet = look(100, a=stage(100))
    found = advise(Look(T + timedelta(seconds=40), quiet.status, quiet.ends))
    assert "said nothing for 40 s" in found.reasons[0]
    assert "starts it again" in found.next_step  # nobody has to cancel it at once


@pytest.mark.parametrize(
    ("state", "word"),
    [(State.FAILED, "mend the cause, then run 'streamops start j'"), (State.STOPPED, "streamops start j")],
)
def test_an_ended_driver_has_its_next_step(state, word):
    assert word in advise(look(100, state=state)).next_step


def test_a_driver_that_has_not_committed_is_waited_for_and_not_called_fast():
    found = advise(look(100, state=State.STARTING, a=StageStatus(), b=stage(50)))
    assert found.limiting is None
    assert "first batch" in found.next_step
    assert "a has not committed" in found.reasons[0]
