"""Faults 10 and 12: a driver dies, or wakes up after another one has taken its place."""

from __future__ import annotations

import contextlib
import random
import signal
import time
import uuid

import psutil
import pytest

from fresh_job import wait_for
from streamops.model.errors import UnhealthyError
from streamops.model.records import Control, State
from streamops.spark import jvm
from streamops.spark.submission import Submission
from streamops.store import documents, jobs, keys, leases
from streamops.versions import artifacts
from support import drivers, executors, invariant, mark, of_launch, pythons, wait_works

pytestmark = [pytest.mark.stack, pytest.mark.full]


PHASES = ("boot", "prepare", "restore", "repartition", "start", "first_commit")  # of a start, one after the other


def test_drivers_and_executors_share_the_archive_of_classes(job, stack):
    """Java passes over an archive that does not fit in silence, and every start is slow."""
    driver = next(item for item in drivers(job.name) if "bootstrap.py" not in item.info["cmdline"][1])
    tasks = executors(job)
    assert tasks
    archive = str(jvm.archive(stack.spark_home))
    for process in (driver, *tasks):
        assert archive in {part.path for part in process.memory_maps()}, process.info["cmdline"]


@pytest.mark.parametrize(
    "halves", [pytest.param(1, id="one-half", marks=pytest.mark.long), pytest.param(2, id="both-halves")]
)
def test_a_killed_driver_is_back_by_itself_in_less_than_twice_a_start(job, seed, halves, recovered):
    """With both halves killed, or one alone: that ends the other, so that nothing stays behind that could write.

    How many seconds a start takes is a matter of the machine and of what else it does; benchmarks measure it.
    That the relaunch begins at once shows in the ratio to the start before, which met the same machine.
    """
    start, before = mark(job), job.status()
    cold = sum(before.phases_ms[phase] for phase in PHASES) / 1000
    both = drivers(job.name)
    assert len(both) == 2, [item.info for item in both]  # the JVM and its Python
    victims = random.Random(seed).sample(both, halves)
    began = time.monotonic()
    for victim in victims:
        with contextlib.suppress(psutil.NoSuchProcess):  # one may take the other with it
            victim.kill()
    wait_works(job, 450, start.epoch)
    assert recovered(began) < 2 * cold
    assert not [item for item in both if alive(item)]
    assert jobs.lease(job.store, job.name).launch == before.launch  # relaunched by the master, not by a runbook
    wait_for(lambda: jobs.lease(job.store, job.name).fruitless == 0, 90, "a relaunch that counts as fruitful")
    invariant(job, start)


@pytest.mark.parametrize(
    "told",
    [pytest.param(False, id="failover"), pytest.param(True, id="cancelled-and-started", marks=pytest.mark.long)],
)
def test_a_paused_driver_that_wakes_up_after_a_takeover_does_not_write(job, operator, told, recovered):
    start = mark(job)
    old = job.record()
    before = jobs.status(job.store, job.name, old.launch)
    paused = of_launch(job.name, old.launch)
    assert len(paused) == 2
    for process in paused:
        process.send_signal(signal.SIGSTOP)
    began = time.monotonic()
    try:
        if told:
            with pytest.raises(UnhealthyError, match="took longer"):
                operator.run("cancel_job", job.name, stop_timeout_s=5)
            assert job.record().desired == "stopped"
            operator.run("start_job", job.name)
        else:
            take_over(job, operator)
        wait_works(job, 360, start.epoch)
        recovered(began)
        held = jobs.lease(job.store, job.name)
        batch = job.status().stages["avg_1s"].batch_id
    finally:
        for process in paused:
            process.send_signal(signal.SIGCONT)
    wait_for(lambda: not any(alive(item) for item in paused), 270, "the end of the old driver")
    final = jobs.status(job.store, job.name, old.launch)
    assert final.state == State.STOPPED, final
    assert (final.holder, final.epoch) == (before.holder, before.epoch)
    assert told or "holds the lease" in final.reason or "over" in final.reason, final.reason
    # The new driver was not disturbed: same lease, and it continues.
    now = jobs.lease(job.store, job.name)
    assert (now.epoch, now.holder) == (held.epoch, held.holder)
    wait_for(lambda: job.status().stages["avg_1s"].batch_id > batch + 2, 90, "more batches of the new driver")
    invariant(job, start)
    assert not of_launch(job.name, old.launch)  # ended with 0: the master does not start it again


def test_a_launch_whose_artifact_was_altered_says_so_and_works_once_it_is_put_back(job, operator):
    """Spark does not start it again and again, and neither does reconciliation."""
    start = mark(job)
    key = artifacts.load_manifest(job.store, job.name, job.record().version).archive
    published = job.store.get(key).body
    job.root.put(key, published + b" ")
    for process in drivers(job.name):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    wait_for(lambda: job.status().state == State.FAILED, 180, "the last words of the launch")
    assert "was altered" in job.status().reason
    wait_for(lambda: not pythons(job.name), 60, "the end of the driver")
    job.root.put(key, published)
    operator.run("start_job", job.name)
    invariant(job, start)


def take_over(job, operator) -> None:
    """What a failover does: a higher epoch for a new launch of the same deployment, without a word to the old one."""
    record = job.record()
    launch = f"takeover-{uuid.uuid4().hex[:8]}"
    deployment = jobs.deployment(job.store, job.name, record.deployment)
    version = artifacts.load_manifest(job.store, job.name, deployment.version)
    documents.write(job.store, keys.control(job.name, launch), Control(command="run", sequence=1), new=True)
    jobs.change(job.store, job.name, {"launch": launch, "changed_by": launch}, jobs.record(job.store, job.name).fence)
    leases.grant(job.store, job.name, launch, record.deployment)
    operator.ports().submitter.submit(
        Submission(
            job.name, deployment.version, deployment.number, launch, version.archive, deployment.artifact_sha256,
            deployment.runtime_sha256, version.definition.resources, dict(version.definition.spark),
        )
    )  # fmt: skip


def alive(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
