"""What is remembered of a stage's failures."""

from __future__ import annotations

from typing import Any

from streamops_runtime.stages import RunningStage, forgive

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
