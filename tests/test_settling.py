"""An operation that nobody works on is finished, taken back, or left as it is, by a runbook that may die as well."""

from __future__ import annotations

import pytest

from fakes import checks
from fakes.rig import JOB, Killed, Rig, patient
from fakes.walk import killer
from streamops.model.errors import LockedError, RefusedError, StreamOpsError, UnhealthyError
from streamops.model.owner import Owner
from streamops.operations import receipts
from streamops.operations.engine import list_operations
from streamops.operations.follow import request as ask
from streamops.operations.operation import Operation, Request
from streamops.store import locks

WARM = ("check", "prepare", "submit_driver", "wait_standby")  # as far as the upgrade came


def asked(action: str, **more: object) -> Request:
    return ask("settle_operation", job=JOB, operation="left", action=action, **more)


def settled(rig: Rig, action: str, **more: object) -> Operation:
    return rig.engine().run(asked(action, **more), rig.owner(), f"settle-{rig.count}")


def state(rig: Rig, operation: str = "left") -> str:
    found = rig.engine().find(JOB, operation)
    assert found is not None
    return found.state


def forgotten(rig: Rig) -> Owner:
    """The upgrade ``left``, warm; its run was deleted in Airflow. Who it was."""
    rig.run("deploy_job", version="v1")
    rig.commits_more(windows=1)
    rig.leave(*WARM)
    found = rig.engine().find(JOB, "left")
    assert found is not None
    del rig.runs.over[found.owner.run_id]
    return found.owner


def test_what_airflow_no_longer_knows_is_settled_by_a_person_alone_and_what_lives_by_no_one(rig: Rig) -> None:
    owner = forgotten(rig)
    with pytest.raises(LockedError, match="left"):
        rig.run("cancel_job")
    rig.runs.over[owner.run_id] = False
    with pytest.raises(LockedError, match=r"left \(upgrade_job\) of DAG run runbook/run-2 of ada"):
        settled(rig, "abort")
    assert state(rig) == "running"
    del rig.runs.over[owner.run_id]
    done = settled(rig, "abort")
    assert done.facts("settle") == {"operation": "left", "state": "undone", "reason": "aborted by an operator"}
    left, receipt = (receipts.read(rig.store, JOB, name) for name in ("left", done.id))
    assert left is not None
    assert receipt is not None
    assert (left.state, receipt.state, receipt.inputs["action"]) == ("undone", "succeeded", "abort")
    checks.one_writer(rig, "v1", 1)
    checks.free(rig)
    for action in ("abort", "resume", "leave"):
        with pytest.raises(RefusedError, match=f"left is undone; there is nothing to {action}"):
            settled(rig, action)


@pytest.mark.full
def test_a_way_back_that_never_succeeds_is_left_by_a_person_and_the_job_can_be_operated_on(rig: Rig) -> None:
    rig.run("deploy_job", version="v1")
    rig.commits_more(windows=1)
    rig.cluster.behaviour |= {"v1": "dies", "v2": "dies"}
    owner = rig.owner()
    rig.runs.over[owner.run_id] = True
    with pytest.raises(UnhealthyError):
        rig.engine().run(patient("upgrade_job", job=JOB, version="v2", snapshot="s"), owner, "left")
    for settle in (lambda: rig.run("cancel_job"), lambda: settled(rig, "abort")):
        with pytest.raises(UnhealthyError):
            settle()
    with pytest.raises(RefusedError, match="is being undone"):
        settled(rig, "resume")
    settled(rig, "leave", reason="a poisoned row")
    left = receipts.read(rig.store, JOB, "left")
    assert left is not None
    assert (left.state, "left as it is by ada: a poisoned row; it had failed: " in left.reason) == ("aborted", True)
    assert any("undo step healthy is begun and not done" in line for line in rig.said)
    checks.free(rig)
    rig.run("cancel_job")
    rig.cluster.behaviour.clear()
    rig.run("restore_job", snapshot="s")
    checks.one_writer(rig, "v1")
    rig.run("delete_job")
    checks.gone(rig)


@pytest.mark.full
def test_of_two_that_settle_one_does_and_the_next_continues_where_that_one_died(rig: Rig) -> None:
    forgotten(rig)
    first = rig.owner()
    with pytest.raises(Killed):
        rig.tasks(rig.engine(killer("undo:dismiss", "after")), asked("abort"), first, "first")
    rig.runs.over[first.run_id] = False
    with pytest.raises(LockedError, match="first"):
        settled(rig, "leave")
    rig.runs.over[first.run_id] = True
    settled(rig, "abort")
    assert (state(rig), state(rig, "first")) == ("undone", "aborted")
    checks.one_writer(rig, "v1", 1)
    checks.free(rig)


@pytest.mark.full
def test_one_that_airflow_forgot_as_well_is_settled_like_any_other(rig: Rig) -> None:
    forgotten(rig)
    with pytest.raises(Killed):
        rig.tasks(rig.engine(killer("settle", "before")), asked("resume"), rig.owner(), "first")
    with pytest.raises(LockedError, match="first"):
        settled(rig, "abort")
    again = ask("settle_operation", job=JOB, operation="first", action="leave")
    rig.engine().run(again, rig.owner(), "second")  # what it was to settle is settled first, as always
    assert (state(rig), state(rig, "first")) == ("undone", "aborted")
    checks.one_writer(rig, "v1", 1)
    checks.free(rig)


@pytest.mark.full
@pytest.mark.parametrize("action", ["abort", "leave", "resume"])
def test_it_is_killed_at_every_point_of_both_operations_and_continued(rig: Rig, action: str) -> None:
    forgotten(rig)
    owner, points = rig.owner(), list[tuple[str, str]]()

    def at_point(step: str, when: str) -> None:
        if (step, when) not in points:
            points.append((step, when))
            raise Killed(f"{when} {step}")

    while True:
        try:
            rig.tasks(rig.engine(at_point, adopt_wait_s=0.2), asked(action), owner, "settle")
            break
        except Killed:
            held = locks.read(rig.store, JOB)
            assert held is not None
            assert held.value.operation == "settle"  # and nobody else comes in between
    own = [("check", when) for when in ("before", "after")] + [("settle", "before")]
    assert points[:3] == own
    assert ("settle", "after") in points
    assert ("undo:dismiss", "after") in points or action != "abort"
    assert ("recount", "after") in points or action != "resume"
    assert state(rig) == {"abort": "undone", "leave": "aborted", "resume": "succeeded"}[action]
    assert state(rig, "settle") == "succeeded"
    checks.free(rig)
    checks.one_writer(rig, "v2" if action == "resume" else "v1", 2 if action == "resume" else 1)
    rig.wait(lambda: rig.cluster.alive() == [rig.record().launch], "the end of the standby")
    checks.submitted_once(rig)


@pytest.mark.full
def test_one_that_cannot_be_finished_is_taken_back_and_says_why(rig: Rig) -> None:
    rig.run("deploy_job", version="v1")
    rig.commits_more(windows=1)
    rig.cluster.behaviour["v2"] = "dies"
    rig.leave("check")
    with pytest.raises(StreamOpsError, match="the first batch failed"):
        settled(rig, "resume")
    assert state(rig) == "undone"
    assert list_operations(rig.store, JOB)[-1].state == "failed"
    checks.one_writer(rig, "v1")
    checks.free(rig)
