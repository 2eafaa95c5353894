"""When a version may take over while the old one runs, when it has read all there is, and what undoing it means."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from streamops.model.definitions import Definition, parse
from streamops.model.records import LEVEL, LIVE, SHADOW, DriverStatus, StageStatus, State
from streamops.operations.health import Health, assess_shadow
from streamops.operations.replacing import why_not_beside

LIVE_JOB = """
job: trades
version: v3
code: trades.py
sources:
  trades: {kafka: {topic: trades}, schema: "price bigint, time bigint", event_time: time}
stages:
  second: {mode: realtime, output: update, sinks: [{influxdb: {measurement: second}}]}
  minute: {mode: auto, output: update, sinks: [{influxdb: {measurement: minute}}]}
resources: {state_partitions: 2}
"""
READING = LIVE_JOB.replace(
    "event_time: time}\n",
    'event_time: time}\n  panes: {stage: {name: second, add: [n]}, schema: "n bigint, time bigint"}\n',
)
KEPT = {"second": "kept", "minute": "kept"}
AT = datetime(2026, 1, 1, tzinfo=UTC)


def why(
    old: str = LIVE_JOB, new: str = LIVE_JOB, outcomes: dict[str, str] = KEPT, room: bool = True, standby: bool = True
) -> str:
    def room_for(definition: Definition) -> bool:
        return room

    return why_not_beside(parse(old), parse(new), outcomes, room_for, standby=standby)


def test_stages_in_real_time_whose_state_is_kept_are_taken_over_without_a_gap() -> None:
    assert why() == ""
    assert why(old=READING, new=READING) == ""


def test_what_ran_in_batches_is_taken_over_also_where_its_state_is_filled_again() -> None:
    counted = LIVE_JOB.replace(
        "measurement: second}}]",
        "measurement: second}}], recount: {source: trades, aggregate: count, window: 1 second}",
    )
    batches = counted.replace("mode: realtime, output: update", "mode: batch, output: append")
    filled = KEPT | {"second": "refilled"}
    assert why(old=batches, new=counted) == ""
    assert why(old=batches, new=counted, outcomes=filled) == ""
    assert "second is not kept" in why(old=counted, new=counted, outcomes=filled)  # results wait, of the old state
    other = counted.replace("window: 1 second", "window: 2 seconds")
    assert "second is not kept" in why(old=batches, new=other, outcomes=filled)  # it would write others over the old


def test_a_stage_that_is_new_is_taken_in() -> None:
    old = LIVE_JOB[: LIVE_JOB.index("  minute:")] + LIVE_JOB[LIVE_JOB.index("resources:") :]
    assert why(old=old, outcomes={"second": "kept", "minute": "starts empty"}) == ""


def test_a_stage_that_fills_itself_does_so_in_shadow_where_that_is_short() -> None:
    old = LIVE_JOB[: LIVE_JOB.index("  minute:")] + LIVE_JOB[LIVE_JOB.index("resources:") :]
    outcomes = {"second": "kept", "minute": "refilled"}
    assert why(old=old, new=LIVE_JOB.replace("{mode: auto", "{fill: 15 minutes, mode: auto"), outcomes=outcomes) == ""
    long = LIVE_JOB.replace("{mode: auto", "{fill: 2 hours, mode: auto")
    assert "minute is filled from 2 hours before" in why(old=old, new=long, outcomes=outcomes)
    assert why(new=long) == ""  # it is there already


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"new": LIVE_JOB.replace("mode: auto", "mode: batch")}, "minute of v3 runs in batches"),
        ({"outcomes": KEPT | {"second": "refilled"}}, "state of second is not kept"),
        ({"old": LIVE_JOB.replace("minute:", "hour:"), "outcomes": KEPT}, "has no stage hour"),
        ({"new": LIVE_JOB.replace("state_partitions: 2", "state_partitions: 3")}, "another number of partitions"),
        ({"standby": False}, "no standby"),
        ({"room": False}, "no room"),
    ],
)
def test_what_stands_in_the_way_is_said(changed: dict[str, Any], says: str) -> None:
    assert says in why(**changed)


def status(state: State = State.STANDBY, **stages: StageStatus) -> DriverStatus:
    return DriverStatus(
        job="j", deployment=1, launch="l", holder="h", state=state, started=AT, updated=AT, stages=stages
    )


def test_a_shadow_has_read_all_there_is_once_each_stage_says_so() -> None:
    done, live = StageStatus(phase=LEVEL, commits=2), StageStatus(phase=SHADOW, commits=1, lag=30_000)
    assert assess_shadow(status(a=done, b=done), "l", ["a", "b"]).done
    behind = assess_shadow(status(a=done, b=live), "l", ["a", "b"])
    assert not behind.done
    assert "b (30,000 rows behind)" in behind.why
    assert not assess_shadow(status(a=done), "l", ["a", "b"]).done
    assert not assess_shadow(status(a=StageStatus(phase=LIVE, commits=5)), "l", ["a"]).done
    assert assess_shadow(status(State.FAILED, a=done), "l", ["a"]).failed


def test_a_shadow_ends_before_the_running_version_takes_harm() -> None:
    shadow, rate = status(a=StageStatus(phase=SHADOW, commits=1)), 10_000.0

    def beside(**stage: Any) -> Health:
        return assess_shadow(shadow, "l", ["a"], status(State.RUNNING, a=StageStatus(**stage)))

    assert not beside(lag=500_000, input_rate=rate).failed
    assert "a of the running one is 70 s behind" in (beside(lag=700_000, input_rate=rate).failed or "")
    assert not beside(lag=5_000, input_rate=0.0).failed  # nothing comes


def test_a_version_in_batches_is_behind_by_what_came_since_its_last_batch_was_planned() -> None:
    shadow = status(a=StageStatus(phase=SHADOW, commits=1))

    def ago(seconds: float, **stage: Any) -> bool:
        told = StageStatus(batch_ms=30_000, last_commit=AT - timedelta(seconds=seconds), input_rate=10_000.0, **stage)
        return bool(assess_shadow(shadow, "l", ["a"], status(State.RUNNING, a=told)).failed)

    assert not ago(20)
    assert ago(40)
    assert ago(20, lag=200_000)  # more than a batch may hold
    assert not ago(40, quiet=True)
    told = StageStatus(batch_ms=2_000, last_commit=AT - timedelta(seconds=80), input_rate=10_000.0)
    waits = assess_shadow(shadow, "l", ["a"], status(State.RUNNING, a=told), 90.0)
    assert not waits.failed  # for its next batch
