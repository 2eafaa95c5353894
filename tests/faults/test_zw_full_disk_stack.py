"""Fault 30: the disks on which workers keep their state are full, and later they are not."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from fresh_job import wait_for
from streamops import snapshots
from streamops.cluster import record as cluster_record
from streamops.model.records import FINAL, DriverStatus, State
from support import first_members, invariant, mark, on_cluster, wait_works

pytestmark = [
    pytest.mark.stack,
    pytest.mark.long,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount small disks"),
]
SIZE = "256m"


@pytest.fixture
def small_disks(operator, servers, job) -> Iterator[list[Path]]:
    """Each worker's local directory on a disk of its own, which a test can fill."""
    places = [servers.layout.node / f"local-{number}" for number in (1, 2)]
    mounted: list[Path] = []
    first_members(operator)
    on_cluster(operator, "shutdown_cluster")
    try:
        for place in places:
            place.mkdir(exist_ok=True)
            subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "streamops-test", str(place)], check=True)
            mounted.append(place)
        on_cluster(operator, "restart_cluster")
        yield places
    finally:
        for place in mounted:
            (place / "filler").unlink(missing_ok=True)
        if cluster_record.read(job.store).state == "running":
            on_cluster(operator, "shutdown_cluster")
        for place in mounted:
            subprocess.run(["umount", "-l", str(place)], check=True)
        first_members(operator)


def fill(place: Path) -> None:
    with (place / "filler").open("wb", buffering=0) as file:  # what a buffer holds would be written again at the end
        while free := shutil.disk_usage(place).free:
            try:
                file.write(b"\0" * min(free, 1 << 20))
            except OSError:
                return


def test_full_disks_of_workers_fail_loudly_and_the_job_goes_on_when_there_is_space(job, operator, small_disks):
    start = mark(job)
    kept = operator.run("snapshot_job", job.name).facts("check")["snapshot"]
    for place in small_disks:
        fill(place)
    said: list[DriverStatus] = []

    def complains() -> bool:
        said.append(job.status())
        return said[-1].state is not State.RUNNING and bool(said[-1].reason)

    wait_for(complains, 540, "a job that says why it does not work")
    assert said[-1].state not in FINAL or said[-1].state is State.FAILED
    snapshots.verify(job.store, snapshots.load(job.store, job.name, kept))
    for place in small_disks:
        (place / "filler").unlink()
    if job.status().state is State.FAILED:  # it gave up, and said so: someone has to start it
        operator.run("cancel_job", job.name)
        operator.run("start_job", job.name)
    wait_works(job, 720)
    invariant(job, start)
