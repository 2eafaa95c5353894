"""Two processes with one operation: the later one continues, and the earlier one has no more effect."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from fakes.rig import JOB, Rig, patient
from streamops.model.errors import OvertakenError
from streamops.settings import Settings
from streamops.store import jobs, locks
from streamops.store.object_store import ObjectStore

PATIENCE_S = 300


class Paused:
    """A process that is stopped when it comes to a point, and wakes up when it is told to."""

    def __init__(self, step: str) -> None:
        self.step, self.there, self.go_on = step, threading.Event(), threading.Event()

    def __call__(self, step: str, when: str) -> None:
        if (step, when) == (self.step, "before"):
            self.there.set()
            assert self.go_on.wait(PATIENCE_S)


@pytest.mark.parametrize("step", ["reserve", "submit"])
def test_a_try_that_wakes_up_after_another_one_did_its_work_does_nothing(rig: Rig, step: str) -> None:
    """Airflow takes it for dead and tries the task again; its state is *running*, so that does not tell them apart."""
    rig.run("deploy_job", version="v1")
    rig.run("cancel_job")
    first, owner, asked = Paused(step), rig.owner(), patient("start_job", job=JOB)
    with ThreadPoolExecutor(1) as pool:
        earlier = pool.submit(rig.tasks, rig.engine(first), asked, owner, "start")
        assert first.there.wait(PATIENCE_S)
        rig.tasks(rig.engine(adopt_wait_s=0.2), asked, owner, "start")  # nothing was submitted that could report
        assert rig.engine().find(JOB, "start").state == "succeeded"
        rig.run("cancel_job")
        drivers, record = len(rig.cluster.processes), rig.record()
        first.go_on.set()
        with pytest.raises(OvertakenError):
            earlier.result(PATIENCE_S)
    assert rig.record() == record
    assert len(rig.cluster.processes) == drivers
    assert rig.engine().find(JOB, "start").state == "succeeded"
    assert locks.read(rig.store, JOB).value.operation is None


def test_a_task_that_was_overtaken_is_tried_again_and_goes_on(rig: Rig) -> None:
    """Someone clears a task that is done, while a later one works: both run, one after the other."""
    rig.run("deploy_job", version="v1")
    rig.run("cancel_job")
    working, owner, asked = Paused("submit"), rig.owner(), patient("start_job", job=JOB)
    with ThreadPoolExecutor(1) as pool:
        earlier = pool.submit(rig.tasks, rig.engine(working), asked, owner, "start")
        assert working.there.wait(PATIENCE_S)
        assert rig.engine().run_task(JOB, "start", "prepare")["launch"] == "start"
        working.go_on.set()
        with pytest.raises(OvertakenError):
            earlier.result(PATIENCE_S)
    assert rig.engine().find(JOB, "start").state == "running"  # no one took it for failed
    rig.tasks(rig.engine(adopt_wait_s=0.2), asked, owner, "start")
    rig.commits_more()
    assert len([launch for launch, _ in rig.cluster.processes if launch == "start"]) == 1


def test_what_a_process_had_under_way_changes_the_record_no_more_once_another_has_the_job(bucket: Settings) -> None:
    store = ObjectStore(bucket)
    jobs.change(store, JOB, {"desired": "running"}, 3)
    jobs.claim(store, JOB, 4)
    with pytest.raises(OvertakenError):
        jobs.change(store, JOB, {"desired": "stopped"}, 3)
    assert jobs.change(store, JOB, {"paused": True}, 4).desired == "running"
