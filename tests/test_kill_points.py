"""Kill every operation at every point of its plan, continue it, and look at what is left.

The points are made from the plans themselves, so a new step gets its kill points here by itself; a step that the engine
carries out without them fails its runbook's walk.
"""

from __future__ import annotations

from functools import partial

import pytest

from fakes import checks
from fakes.rig import JOB, Killed, Rig, patient
from fakes.walk import Point, Walk, killer, points_of
from streamops import snapshots
from streamops.model.definitions import Keep, Snapshots
from streamops.model.errors import StreamOpsError
from streamops.model.owner import Owner
from streamops.model.records import FINAL
from streamops.operations import receipts, rehearsals, runbooks
from streamops.operations.operation import Request
from streamops.operations.runbooks import UPGRADE_JOB
from streamops.store import jobs, keys

ASKED: dict[str, dict[str, object]] = {
    "deploy_job": {"version": "v1"},
    "start_job": {},
    "recover_job": {},
    "snapshot_job": {"snapshot": "s", "cancel": True},
    "cancel_job": {},
    "delete_job": {},
    "pause_job": {"action": "pause"},
    "schedule_job": {"every": "1 hour", "keep": {"last": 2}},
    "set_log_levels": {"logging": {"source.events": "TRACE"}},
    "upgrade_job": {"version": "v2", "snapshot": "s"},
    "rehearse_job": {"version": "live2", "observe_s": 1},
    "rollback_job": {},
    "restore_job": {"snapshot": "kept"},
}
full = partial(pytest.param, marks=pytest.mark.full)
UNDO = [(name, when) for name in UPGRADE_JOB.undo for when in ("before", "after")]
# One point of each way in which a run that is marked failed ends; ``full`` has all of them.
GOING_BACK = ("rollback_job", "restore_job")
KINDS: dict[str, list[Point]] = {
    "upgrade_job": [("check", "after"), ("standby", "after"), ("await_stop", "before"), ("hand_over", "after"),
                    ("recount", "before")],
    "rollback_job": [("standby", "after"), ("hand_over", "after"), ("recount", "before")],
    "restore_job": [("hand_over", "after")],
}  # fmt: skip
PARTS = {"early": slice(0, 9), "in the switch": slice(9, 17), "late": slice(17, None)}


def asked(runbook: str, **more: object) -> Request:
    return patient(runbook, job=JOB, **{**ASKED[runbook], **more})


def prepare(rig: Rig, runbook: str) -> None:
    """The job as the runbook expects it."""
    if runbook == "rehearse_job":
        rig.go_live()
    elif runbook != "deploy_job":
        rig.run("deploy_job", version="v1")
        rig.commits_more(windows=1)
    if runbook == "start_job":
        rig.run("cancel_job")
    if runbook == "recover_job":
        rig.cluster.end()
    if runbook == "rollback_job":
        rig.run("upgrade_job", version="v2", snapshot="s")
        rig.commits_more("b", windows=1)
    if runbook == "restore_job":
        rig.run("snapshot_job", snapshot="kept")
        rig.commits_more(windows=1)


@pytest.mark.parametrize("runbook", [name if name == "upgrade_job" else full(name) for name in ASKED])
def test_an_operation_killed_at_every_point_continues_where_it_was(rig: Rig, runbook: str, seed: int) -> None:
    prepare(rig, runbook)
    owner, request, walk = rig.owner(), asked(runbook), Walk(rig, seed)
    walk.run(lambda engine: rig.tasks(engine, request, owner, "op"))
    assert walk.points == points_of(request)
    operation = rig.engine().find(JOB, "op")
    assert operation is not None
    assert operation.state == "succeeded"
    assert receipts.read(rig.store, JOB, "op") is not None
    checks.free(rig)
    if runbook == "upgrade_job":
        checks.one_writer(rig, "v2", 2)
    elif runbook == "rehearse_job":
        checks.one_writer(rig, "live", 1)
        checks.untouched_by(rig, 2)
        assert rehearsals.find(rig.store, [JOB], "op").points
    elif runbook in ("deploy_job", "start_job", "recover_job"):
        checks.one_writer(rig, "v1", 1)
    elif runbook in GOING_BACK:
        checks.one_writer(rig, "v1", 3 if runbook == "rollback_job" else 2)
    elif runbook == "delete_job":
        checks.gone(rig)
    elif runbook == "schedule_job":
        assert rig.record().snapshots.plan == Snapshots(every="1 hour", keep=Keep(last=2))
        checks.one_writer(rig, "v1", 1)
    elif runbook == "pause_job":
        assert rig.record().paused
        checks.one_writer(rig, "v1", 1)
    elif runbook == "set_log_levels":
        told = jobs.told(rig.store, JOB, str(rig.record().launch))
        assert told is not None
        assert (told.command, told.logging) == ("run", {"source.events": "TRACE"})
        checks.one_writer(rig, "v1", 1)
    else:
        checks.stopped(rig, "stopped" if runbook == "cancel_job" else "stopped-with-snapshot")
    checks.snapshot_whole(rig, operation.request.model_dump().get("snapshot"))
    checks.submitted_once(rig)


@pytest.mark.full
@pytest.mark.parametrize("runbook", ["upgrade_job", "rollback_job"])
def test_a_cold_start_killed_at_every_point_is_submitted_once_after_the_stop(rig: Rig, runbook: str, seed: int) -> None:
    prepare(rig, runbook)
    rig.cluster.room = False
    owner, request, walk = rig.owner(), asked(runbook), Walk(rig, seed)
    walk.run(lambda engine: rig.tasks(engine, request, owner, "op"))
    assert walk.points == points_of(request)
    operation = rig.engine().find(JOB, "op")
    assert operation is not None
    assert operation.facts("submit")["cold"] is True
    assert operation.facts("submit_cold")["launch"] == "op"
    rig.engine().run_task(JOB, "op", "submit_after_stop")  # cleared
    checks.one_writer(rig, "v2" if runbook == "upgrade_job" else "v1")
    checks.submitted_once(rig)


@pytest.mark.full
def test_a_run_marked_failed_before_or_after_a_cold_submission_leaves_one_version_running(rig: Rig) -> None:
    prepare(rig, "upgrade_job")
    rig.cluster.room = False
    for number, when in enumerate(("before", "after")):
        begun(rig, asked("upgrade_job", snapshot=f"s{number}"), f"op-{number}", ("submit_cold", when))
        assert "the old version runs again" in mark_failed(rig, f"op-{number}").lower()
        checks.one_writer(rig, "v1")
        checks.free(rig)
    checks.submitted_once(rig)


def test_an_upgrade_marked_failed_leaves_one_version_running(rig: Rig) -> None:
    upgrades_marked_failed(rig, KINDS["upgrade_job"])


@pytest.mark.full
@pytest.mark.parametrize("part", PARTS)
def test_an_upgrade_marked_failed_anywhere_leaves_one_version_running(rig: Rig, part: str) -> None:
    upgrades_marked_failed(rig, points_of(asked("upgrade_job"))[PARTS[part]])


def upgrades_marked_failed(rig: Rig, points: list[Point]) -> None:
    """One upgrade after the other on the same job, each marked failed at another point.

    Each adds a stage, so that where one stays the next is to a version of its own.
    """
    prepare(rig, "upgrade_job")
    runs, newest = "v1", 2
    for number, point in enumerate(points):
        begun(rig, asked("upgrade_job", version=f"v{newest}", snapshot=f"s{number}"), f"op-{number}", point)
        said = mark_failed(rig, f"op-{number}")
        operation = rig.engine().find(JOB, f"op-{number}")
        assert operation is not None
        new = operation.done("probation")
        assert ("new version" in said) == new
        if new:
            runs, newest = f"v{newest}", newest + 1
            rig.publish(f"v{newest}", tuple("abcdefgh"[:newest]))
        checks.one_writer(rig, runs)
        checks.free(rig)
        if snapshots.find(rig.store, JOB, f"s{number}"):
            snapshots.verify(rig.store, snapshots.load(rig.store, JOB, f"s{number}"))
        rig.run("snapshot_job", snapshot=f"next-{number}")


@pytest.mark.full
def test_a_gapless_upgrade_killed_at_every_point_continues_where_it_was(rig: Rig, seed: int) -> None:
    rig.go_live()
    owner, request, walk = rig.owner(), asked("upgrade_job", version="live2", strategy="gapless"), Walk(rig, seed)
    walk.run(lambda engine: rig.tasks(engine, request, owner, "op"))
    assert walk.points == points_of(request)
    checks.free(rig)
    checks.one_writer(rig, "live2", 2)
    checks.snapshot_whole(rig, "s")
    checks.submitted_once(rig)


@pytest.mark.full
@pytest.mark.parametrize("part", PARTS)
def test_a_gapless_upgrade_marked_failed_anywhere_leaves_one_version_running(rig: Rig, part: str) -> None:
    """Before the new version may write, nothing has happened; from then on the old one runs again from its end."""
    rig.go_live()
    versions = ["live", "live2"]
    for number, point in enumerate(points_of(asked("upgrade_job", strategy="gapless"))[PARTS[part]]):
        request = asked("upgrade_job", version=versions[1], snapshot=f"s{number}", strategy="gapless")
        before = rig.record()
        begun(rig, request, f"op-{number}", point)
        mark_failed(rig, f"op-{number}")
        operation = rig.engine().find(JOB, f"op-{number}")
        assert operation is not None
        if operation.done("probation"):
            versions.reverse()
        checks.one_writer(rig, versions[0])
        if not operation.started("hand_over"):
            assert (rig.record().launch, rig.record().deployment) == (before.launch, before.deployment)
            assert not list(rig.store.list(keys.checkpoints(JOB, before.last_deployment + 1)))
        else:
            snapshots.verify(rig.store, snapshots.load(rig.store, JOB, f"s{number}"))
        checks.free(rig)


@pytest.mark.full
def test_a_rehearsal_marked_failed_anywhere_has_touched_nothing(rig: Rig) -> None:
    """After the effect of each step; before it, where the effect is the first or the last that can be seen."""
    rig.go_live()
    request = asked("rehearse_job")
    seen = [(step, when) for step, when in points_of(request) if when == "after" or step in ("reserve", "dismiss")]
    for number, point in enumerate(seen):
        before = rig.record()
        begun(rig, request, f"op-{number}", point)
        mark_failed(rig, f"op-{number}")
        checks.one_writer(rig, "live", 1)
        assert rig.record().launch == before.launch
        checks.untouched_by(rig, before.last_deployment + 1)
        checks.free(rig)


@pytest.mark.full
@pytest.mark.parametrize("runbook", GOING_BACK)
def test_going_back_marked_failed_leaves_one_version_running(rig: Rig, runbook: str) -> None:
    going_back_marked_failed(rig, runbook, KINDS[runbook])


@pytest.mark.full
@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("runbook", ["rollback_job", pytest.param("restore_job", marks=pytest.mark.long)])
def test_going_back_marked_failed_anywhere_leaves_one_version_running(rig: Rig, runbook: str, part: str) -> None:
    going_back_marked_failed(rig, runbook, points_of(asked(runbook))[PARTS[part]])


def going_back_marked_failed(rig: Rig, runbook: str, points: list[Point]) -> None:
    """Once after the other on the same job; where it stays, the job is upgraded again before the next."""
    prepare(rig, runbook)
    for number, point in enumerate(points):
        before = rig.record()
        begun(rig, asked(runbook), f"op-{number}", point)
        mark_failed(rig, f"op-{number}")
        operation = rig.engine().find(JOB, f"op-{number}")
        assert operation is not None
        if operation.done("healthy"):
            checks.one_writer(rig, "v1", before.last_deployment + 1)
            if runbook == "rollback_job":
                rig.run("upgrade_job", version="v2", snapshot=f"again-{number}")
        else:
            checks.one_writer(rig, str(before.version), before.deployment)
        checks.free(rig)
        rig.run("snapshot_job", snapshot=f"next-{number}")


def begun(rig: Rig, request: Request, name: str, point: Point) -> None:
    """An operation whose process dies at a point."""
    with pytest.raises(Killed):
        rig.tasks(rig.engine(killer(*point)), request, rig.owner(), name)


def mark_failed(rig: Rig, name: str = "op") -> str:
    """The teardowns, as Airflow runs them."""
    engine = rig.engine()
    engine.fail(JOB, name, "the run was marked failed")
    engine.undo(JOB, name, before=runbooks.of(engine.find(JOB, name)).submits_again)
    engine = rig.engine()  # the next task is another process
    said = engine.undo(JOB, name)
    engine.release(JOB, name)
    return said


@pytest.mark.full
def test_a_way_back_killed_at_every_point_is_walked_to_its_end(rig: Rig, seed: int) -> None:
    prepare(rig, "upgrade_job")
    rig.cluster.behaviour["v2"] = "dies"
    with pytest.raises(StreamOpsError):
        rig.tasks(rig.engine(), asked("upgrade_job"), rig.owner(), "op")
    rig.engine().fail(JOB, "op", "not healthy")
    said: list[str] = []
    walk = Walk(rig, seed, undo=True)
    walk.run(lambda engine: said.append(engine.undo(JOB, "op")))
    assert walk.points == [(f"undo:{name}", when) for name, when in UNDO]
    rig.engine().release(JOB, "op")
    assert "from the snapshot" in said[-1]
    checks.one_writer(rig, "v1", 3)
    checks.free(rig)
    snapshots.verify(rig.store, snapshots.load(rig.store, JOB, "s"))
    checks.submitted_once(rig)


@pytest.mark.full
def test_a_job_that_was_found_stopped_is_left_stopped(rig: Rig, seed: int) -> None:
    prepare(rig, "rollback_job")
    rig.run("cancel_job")
    before = rig.record()
    rig.cluster.behaviour["v1"] = "dies"
    with pytest.raises(StreamOpsError):
        rig.tasks(rig.engine(), asked("rollback_job"), rig.owner(), "op")
    rig.engine().fail(JOB, "op", "not healthy")
    said: list[str] = []
    walk = Walk(rig, seed, undo=True)
    walk.run(lambda engine: said.append(engine.undo(JOB, "op")))
    assert walk.points == [(f"undo:{name}", when) for name in ("dismiss", "leave") for when in ("before", "after")]
    rig.engine().release(JOB, "op")
    assert "nothing of it runs" in said[-1]
    checks.stopped(rig, "stopped")
    assert rig.record().model_copy(update={"changed_by": "", "last_deployment": 0}) == before.model_copy(
        update={"changed_by": "", "last_deployment": 0}
    )
    rig.cluster.behaviour.clear()
    rig.run("start_job")
    checks.one_writer(rig, "v2", 2)


@pytest.mark.full
def test_a_driver_that_died_before_the_stop_does_not_block_the_way_back(rig: Rig) -> None:
    prepare(rig, "upgrade_job")
    rig.cluster.end()
    request = asked("upgrade_job").model_copy(update={"stop_timeout_s": 5})
    with pytest.raises(StreamOpsError, match="Stop of sums took longer"):
        rig.engine().run(request, Owner(kind="cli", run_id="c", user="ada"), "op")
    checks.one_writer(rig, "v1", 1)
    old = jobs.status(rig.store, JOB, "deploy_job-1")
    assert old is not None
    assert old.state not in FINAL
