"""Which stages start first and when, what is remembered of their failures, and when a live one is too far behind."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

from streamops.model.records import StageStatus
from streamops_runtime.stages import (
    MOST_RESTARTS,
    LastCommit,
    Phase,
    RunningStage,
    at_once,
    far,
    first,
    forgive,
    pause_s,
)

NO_GATE: Any = None


def test_a_stage_that_keeps_failing_is_not_forgiven_because_another_one_works() -> None:
    healthy, failing = RunningStage("healthy", NO_GATE), RunningStage("failing", NO_GATE)
    for turn in range(1, 7):
        failing.failed(commits=2)
        forgive([healthy, failing], {"healthy": 10 * turn, "failing": 2})
    assert (failing.restarts, failing.failures) == (6, 6)


def test_a_stage_that_has_committed_since_is_forgiven() -> None:
    stage = RunningStage("stage", NO_GATE)
    stage.failed(commits=2)
    forgive([stage], {"stage": 3})
    assert (stage.restarts, stage.failures) == (0, 1)


def test_a_source_that_is_away_is_waited_for_however_long_and_anything_else_is_not() -> None:
    stage, asked = RunningStage("stage", NO_GATE), []

    def away() -> str:
        asked.append(stage.restarts)
        return "Kafka does not answer" if len(asked) < 1000 else ""

    pauses = []
    for _ in range(MOST_RESTARTS + 1000):
        stage.failed(commits=2)
        pauses.append(pause_s(stage, away))
    assert pauses[: MOST_RESTARTS + 1] == [1, 2, 4, 8, 8, 8]
    assert set(pauses[MOST_RESTARTS:-1]) == {8}
    assert asked[0] == MOST_RESTARTS + 1  # nobody asks before it has failed again and again
    assert (pauses[-1], stage.away) == (None, "")  # it answers, and the stage fails all the same


def test_a_live_stage_is_far_behind_when_it_reads_half_a_minute_to_get_there() -> None:
    assert not far(lag=0, rate=0.0)
    assert not far(lag=200_000, rate=10_000)
    assert far(lag=400_000, rate=10_000)


def test_marks_of_transactions_and_a_quiet_source_are_no_reason_to_leave_real_time() -> None:
    assert not far(lag=2, rate=0.0)
    assert not far(lag=1_000, rate=0.2)


class Works:
    isActive = True


def reads(name: str, phase: Phase | None) -> RunningStage:
    return RunningStage(name, NO_GATE, phase, query=Works())  # type: ignore[arg-type]


def known(seconds: int, minutes: int) -> dict[str, StageStatus]:
    told = {"seconds": (seconds, 10_000.0), "minutes": (minutes, 100.0)}
    return {name: StageStatus(commits=commits, input_rate=rate) for name, (commits, rate) in told.items()}


def test_a_job_stops_after_a_commit_of_the_live_stage_that_reads_most() -> None:
    stages = [reads("minutes", Phase.LIVE), reads("seconds", Phase.LIVE)]
    last = LastCommit.of(stages, known(3, 7), moment=100.0)
    assert not last.over(stages, known(3, 8), moment=105.0)
    assert last.over(stages, known(4, 7), moment=105.0)
    assert last.over(stages, known(3, 7), moment=116.0)  # it waits for a server


def test_a_stop_waits_for_no_stage_that_is_not_live() -> None:
    stages = [reads("seconds", None), reads("minutes", Phase.CATCHING_UP)]
    assert LastCommit.of(stages, known(3, 7), moment=100.0).over(stages, known(3, 7), moment=100.0)
    live = [reads("seconds", Phase.LIVE)]
    last = LastCommit.of(live, known(3, 7), moment=100.0)
    live[0].phase = Phase.SETTLING  # it failed meanwhile
    assert last.over(live, known(3, 7), moment=101.0)


def test_a_warm_driver_starts_the_stages_first_that_go_on() -> None:
    stages = [RunningStage("new", NO_GATE), RunningStage("old", NO_GATE), RunningStage("older", NO_GATE)]
    assert first(stages, {"old": 7, "older": 3}, warm=True) == {"old", "older"}
    assert first(stages, {}, warm=True) == {"new", "old", "older"}
    assert first(stages, {"old": 7}, warm=False) == {"new"}


def test_a_shadow_that_may_write_goes_on_with_all_its_stages() -> None:
    query: Any = object()
    stages = [RunningStage("old", NO_GATE, query=query), RunningStage("refilled", NO_GATE, query=query)]
    assert first(stages, {"old": 7}, warm=True) == {"old", "refilled"}


def test_a_stage_starts_while_the_next_one_is_still_asked_whether_it_is_ready() -> None:
    """Each is asked about at several servers; nobody's first result waits for what concerns the others."""
    seconds, minutes = RunningStage("seconds", NO_GATE), RunningStage("minutes", NO_GATE)
    starts, started = threading.Event(), list[str]()

    def ready() -> Iterator[RunningStage]:
        yield seconds
        assert starts.wait(10)
        yield minutes

    def start(stage: RunningStage) -> None:
        started.append(stage.name)
        starts.set()

    at_once(start, ready())
    assert started == ["seconds", "minutes"]
