"""What tests on the real servers end with, ``support.invariant``: each thing that it looks at can make it fail."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from fakes.manifests import manifest
from fresh_job import FreshJob, wait_for
from streamops.model.manifest import ManifestObject, ManifestStage
from streamops.model.owner import Owner
from streamops.model.records import DriverStatus, JobRecord, Lease, StageStart, State, now
from streamops.recount.report import Report
from streamops.settings import Settings
from streamops.store import documents, keys, locks
from streamops.store.object_store import ObjectStore
from support import pythons, uncounted, violations

DATA = b"state"
NAME = f"watched-{uuid.uuid4().hex[:8]}"  # processes are found by it, also those of a run beside this one
STATUS = DriverStatus(job=NAME, deployment=1, launch="one", holder="h", state=State.RUNNING, started=now(),
                      updated=now())  # fmt: skip


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[list[str]]:
    """A process that looks like the job's driver; how it was started."""
    script = tmp_path / "bootstrap.py"
    script.write_text("input()")
    command = [sys.executable, str(script), "--job", NAME, "--launch", "one"]
    with running(command):
        yield command


class running:
    """A process during a block."""

    def __init__(self, command: list[str]) -> None:
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE)

    def __enter__(self) -> None:
        wait_for(lambda: self.process.pid in [item.pid for item in pythons(NAME)], 60, "the process")

    def __exit__(self, *exc: object) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def job(bucket: Settings, driver: list[str], tmp_path: Path) -> FreshJob:
    """A job's objects as they are after a snapshot, while its one driver works."""
    store = ObjectStore(bucket)
    job = FreshJob(NAME, bucket, store, tmp_path, NAME)
    documents.write(
        store, keys.record(NAME), JobRecord(job=NAME, desired="running", version="v1", deployment=1,
                                                 launch="one")
    )  # fmt: skip
    documents.write(store, keys.lease(NAME), Lease(job=NAME, epoch=1, launch="one", deployment=1, holder="h"))
    say(job)
    data = f"{keys.snapshot_data(NAME, 'try', 'a')}state/0"
    store.put("copied-from", DATA)
    store.copy("copied-from", data, 1)  # which notes its hash, as an export does
    copied = ManifestObject(
        stage="a", path="state/0", key=data, size=len(DATA), sha256=hashlib.sha256(DATA).hexdigest()
    )
    stages = {"a": ManifestStage(start=StageStart(since_deployment=1))}
    found = manifest(NAME, "good", attempt="try", stages=stages, objects=(copied,))
    documents.write(store, keys.manifest(NAME, "good"), found.signed(store.keyring))
    return job


def say(job: FreshJob, **changes: object) -> None:
    status = STATUS.model_copy(update={"updated": now(), **changes})
    documents.write(job.store, keys.status(NAME, status.launch), status)


def change_record(job: FreshJob, **changes: object) -> None:
    documents.write(job.store, keys.record(NAME), job.record().model_copy(update=changes))


def test_a_job_as_it_must_be_violates_nothing(job: FreshJob) -> None:
    assert not violations(job)


def test_a_second_driver_is_noticed(job: FreshJob, driver: list[str]) -> None:
    with running([*driver[:-1], "two"]):
        assert violations(job) == ["drivers: not one"]


def test_no_driver_is_noticed(job: FreshJob) -> None:
    pythons(NAME)[0].kill()
    wait_for(lambda: not pythons(NAME), 60, "the end of the driver")
    assert violations(job) == ["drivers: not one"]


@pytest.mark.parametrize("changes", [{"desired": "stopped"}, {"standby": "two"}])
def test_a_record_that_does_not_say_what_runs_is_noticed(job: FreshJob, changes: dict[str, str]) -> None:
    change_record(job, **changes)
    assert violations(job) == ["record: not running, or with a standby"]


@pytest.mark.parametrize("changes", [{"holder": "another"}, {"holder": None}, {"launch": "two"}])
def test_a_lease_that_another_driver_has_is_noticed(job: FreshJob, changes: dict[str, str | None]) -> None:
    lease = Lease(job=NAME, epoch=1, launch="one", deployment=1, holder="h").model_copy(update=changes)
    documents.write(job.store, keys.lease(NAME), lease)
    assert violations(job) == ["lease: not with the driver of the record"]


def test_a_driver_of_another_deployment_is_noticed(job: FreshJob) -> None:
    change_record(job, deployment=2)
    assert violations(job) == ["deployment: not the one of the record"]


def test_another_launch_that_still_speaks_is_noticed_and_one_that_has_ended_is_not(job: FreshJob) -> None:
    say(job, launch="two", state=State.STOPPED)
    assert not violations(job)
    say(job, launch="two")
    assert violations(job) == ["launch two: running"]


def test_a_lock_that_was_left_is_noticed(job: FreshJob) -> None:
    locks.acquire(job.store, NAME, "left", "deploy_job", Owner(kind="cli", run_id="c", user="bob"),
                  lambda owner: None, now())  # fmt: skip
    assert violations(job) == ["lock: held by left"]


@pytest.mark.parametrize("damage", ["altered", "missing"])
def test_a_damaged_snapshot_is_noticed(job: FreshJob, damage: str) -> None:
    key = f"{keys.snapshot_data(NAME, 'try', 'a')}state/0"
    if damage == "missing":
        ObjectStore(job.settings.for_retention()).delete([key])
    else:
        job.store.put(key, b"other state")
    (wrong,) = violations(job)
    assert wrong.startswith(f"snapshot: Snapshot {NAME}/good is not intact")


def test_a_recount_that_is_not_clean_is_noticed() -> None:
    """Which damage makes it unclean: ``test_recount.py``, and on real points ``stack/test_recount_stack.py``."""
    report = Report(job=NAME, version="v1", deployment=1, events=1, malformed=0, ahead=0, offsets={},
                    measurements=(), seconds=0, clean=True, reason="all 1 points")  # fmt: skip
    assert not uncounted(report)
    assert uncounted(report.model_copy(update={"clean": False, "reason": "nothing was compared"}))
