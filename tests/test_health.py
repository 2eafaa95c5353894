"""When a driver counts as healthy, warm or stopped."""

from __future__ import annotations

import pytest

from streamops.model.records import DriverStatus, Lease, StageStatus, State, now
from streamops.operations.health import assess, assess_new, assess_standby, assess_stop

STAGES = ("a", "b")


def status(state: State = State.RUNNING, launch: str = "l", reason: str = "", **stages: StageStatus) -> DriverStatus:
    return DriverStatus(
        job="j",
        deployment=1,
        launch=launch,
        holder="h",
        state=state,
        reason=reason,
        started=now(),
        updated=now(),
        stages=stages,
    )


def lease(launch: str = "l", holder: str | None = "h") -> Lease:
    return Lease(job="j", epoch=3, launch=launch, deployment=1, holder=holder)


def test_healthy_is_the_lease_and_a_commit_or_silence_in_every_stage() -> None:
    works = status(a=StageStatus(commits=1), b=StageStatus(quiet=True))
    found = assess(works, lease(), "l", STAGES)
    assert found.done
    assert "no data yet for b" in found.why


@pytest.mark.parametrize(
    ("found", "held", "why"),
    [
        (None, lease(), "not reported"),
        (status(launch="other", a=StageStatus(commits=1), b=StageStatus(commits=1)), lease(), "not reported"),
        (status(a=StageStatus(commits=1), b=StageStatus(commits=1)), None, "does not hold the lease"),
        (status(a=StageStatus(commits=1), b=StageStatus(commits=1)), lease(holder=None), "does not hold the lease"),
        (status(a=StageStatus(commits=1), b=StageStatus(commits=1)), lease(launch="x"), "does not hold the lease"),
        (status(a=StageStatus(commits=1)), lease(), "first batch of b"),
        (status(a=StageStatus(commits=1), b=StageStatus(batch_id=9)), lease(), "first batch of b"),
    ],
)
def test_what_is_missing_is_waited_for(found: DriverStatus | None, held: Lease | None, why: str) -> None:
    verdict = assess(found, held, "l", STAGES)
    assert not verdict.done
    assert verdict.failed is None
    assert why in verdict.why


@pytest.mark.parametrize("state", [State.FAILED, State.STOPPED])
def test_a_driver_that_ended_is_not_waited_for(state: State) -> None:
    ended = status(state, reason="no such column", a=StageStatus(commits=1), b=StageStatus(commits=1))
    assert assess(ended, lease(), "l", STAGES).failed == "no such column"
    assert assess_standby(ended, "l").failed == "no such column"
    assert assess_stop(ended, "l").done


def test_standby_and_stop_wait_for_their_states_of_the_right_launch() -> None:
    assert assess_standby(status(State.STANDBY), "l").done
    assert not assess_standby(status(State.STARTING), "l").done
    assert "it practises" in assess_standby(status(State.STARTING, reason="it practises"), "l").why
    assert not assess_standby(status(State.STANDBY, launch="old"), "l").done
    assert not assess_stop(status(State.STOPPING), "l").done
    assert not assess_stop(status(State.STOPPED, launch="old"), "l").done


def test_a_new_version_whose_query_only_fails_is_not_waited_for() -> None:
    failing = status(State.RECOVERING, a=StageStatus(commits=1), b=StageStatus(failures=3))
    assert assess_new(failing, lease(), "l", STAGES).failed == "it fails repeatedly: stage b failed 3 times"
    assert assess(failing, lease(), "l", STAGES).failed is None  # what has worked before is waited for


@pytest.mark.parametrize(
    "hopeful",
    [
        None,
        status(State.RECOVERING, a=StageStatus(commits=1), b=StageStatus(failures=2)),
        status(State.RECOVERING, launch="other", b=StageStatus(failures=9)),
        status(State.RUNNING, a=StageStatus(commits=1), b=StageStatus(commits=1, failures=9)),
    ],
)
def test_a_new_version_that_may_yet_work_is_waited_for(hopeful: DriverStatus | None) -> None:
    assert assess_new(hopeful, lease(), "l", STAGES) == assess(hopeful, lease(), "l", STAGES)
