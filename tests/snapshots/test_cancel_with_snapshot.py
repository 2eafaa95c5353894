"""A job that is stopped for a snapshot which then fails: it comes back, and says so."""

from __future__ import annotations

import pytest

from fakes import checks
from fakes.rig import JOB, Rig
from streamops import snapshots
from streamops.model.errors import StreamOpsError, UnhealthyError
from streamops.operations.engine import list_operations


@pytest.mark.full
def test_a_job_whose_snapshot_fails_after_the_stop_runs_again(rig: Rig) -> None:
    rig.run("deploy_job", version="v1")
    rig.commits_more(windows=1)
    free = iter([None])  # the object store fills up between the check and the export
    with pytest.raises(StreamOpsError, match="at least twice the size must be free"):
        rig.run("snapshot_job", rig.engine(free_bytes=lambda: next(free, 0)), snapshot="s", cancel=True)
    left = list_operations(rig.store, JOB)[-1]
    assert left.state == "undone"
    assert snapshots.find(rig.store, JOB, "s") is None
    assert (rig.record().desired, rig.record().deployment, rig.record().launch) == ("running", 1, f"{left.id}-back")
    assert [line for line in rig.said if "works again after" in line]
    rig.commits_more()
    assert rig.recount("a") > 1
    checks.one_writer(rig, "v1", 1)
    checks.free(rig)
    assert rig.run("snapshot_job", snapshot="s", cancel=True).state == "succeeded"  # once the cause is gone
    assert rig.record().desired == "stopped-with-snapshot"


@pytest.mark.full
def test_a_driver_that_does_not_stop_in_time_is_replaced(rig: Rig) -> None:
    rig.run("deploy_job", version="v1")
    rig.commits_more(windows=1)
    rig.cluster.processes[0][1].kill()  # it will never say that it stopped
    with pytest.raises(UnhealthyError, match="took longer than 5 s"):
        rig.run("snapshot_job", snapshot="s", cancel=True, stop_timeout_s=5)
    rig.commits_more()
    assert rig.recount("a") > 1
    checks.one_writer(rig, "v1", 1)
    checks.free(rig)


@pytest.mark.full
def test_a_job_that_was_stopped_already_stays_stopped(rig: Rig) -> None:
    rig.run("deploy_job", version="v1")
    rig.commits_more(windows=1)
    rig.run("cancel_job")
    free = iter([None])
    with pytest.raises(StreamOpsError, match="must be free"):
        rig.run("snapshot_job", rig.engine(free_bytes=lambda: next(free, 0)), snapshot="s", cancel=True)
    assert rig.record().desired == "stopped"
    checks.free(rig)
