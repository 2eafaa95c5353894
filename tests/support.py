"""What fault tests share: engines in this process, the processes of a driver, the invariant, and the servers."""

from __future__ import annotations

import itertools
import os
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import psutil

from asking import fitting
from fresh_job import FreshJob, wait_for
from stack import ready, supervision
from stack.layout import Layout
from streamops import snapshots
from streamops.clients.supervisor import Supervisor
from streamops.cluster import record as cluster_record
from streamops.cluster.membership import missing
from streamops.cluster.supervised_nodes import SupervisedNodes
from streamops.cluster.view import host_of
from streamops.model import records
from streamops.model.errors import SnapshotRefusedError
from streamops.model.owner import Owner
from streamops.model.records import FINAL, DriverStatus, Offsets
from streamops.operations.engine import Engine
from streamops.operations.follow import request
from streamops.operations.operation import Operation, Request
from streamops.operations.ports import Ports
from streamops.recount.recounting import recount_job
from streamops.recount.report import Report
from streamops.settings import Settings
from streamops.store import documents, jobs, keys, locks
from streamops.store.object_store import ObjectStore
from streamops.store.waiting import until
from streamops.wiring import ports

READY: dict[str, Callable[[Layout], str]] = {
    "kafka": ready.kafka,
    "minio": ready.minio,
    "influxd": ready.influxd,
    "airflow-api-server": ready.airflow,
}


class Killed(BaseException):
    """The process that carries out an operation is gone: nothing of it may run any more, no handler either."""


class Owners:
    """Stands for Airflow's word on DAG runs: a run lives until the test ends it."""

    def __init__(self) -> None:
        self.dead: set[str] = set()

    def finished(self, owner: Owner) -> bool | None:
        return owner.run_id in self.dead

    def forgotten(self, owner: Owner) -> bool:
        return False


@dataclass
class Operator:
    """Runs operations in this process, on the real servers."""

    settings: Settings
    owners: Owners = field(default_factory=Owners)
    said: list[str] = field(default_factory=list)

    def ports(self, **changes: Any) -> Ports:
        return replace(
            ports(self.settings, self.owners, ObjectStore(self.settings)), **{"adopt_wait_s": 60.0, **changes}
        )

    def engine(self, at_point: Callable[[str, str], None] = lambda step, when: None, **changes: Any) -> Engine:
        return Engine(self.ports(**changes), self._say, at_point)

    def run(self, runbook: str, job: str, **values: Any) -> Operation:
        """One operation to its end, as a DAG run of its own."""
        asked, owner, name = self.request(runbook, job, **values)
        return self.engine().run(asked, owner, name)

    def request(self, runbook: str, job: str, **values: Any) -> tuple[Request, Owner, str]:
        name = f"{runbook.split('_')[0]}-{uuid.uuid4().hex[:8]}"
        patient: dict[str, Any] = {"healthy_timeout_s": 400, "stop_timeout_s": 150, "probation_s": 0}
        if runbook == "upgrade_job":
            patient["accept_loss"] = ("avg_1s", "avg_1m", "vol_1s")  # back and forth, and to what has no fingerprints
        asked = request(runbook, **{"job": job, **fitting(runbook, patient), **values})
        return asked, Owner(kind="airflow", dag_id=runbook, run_id=name, user="tester"), name

    def _say(self, line: str) -> None:
        self.said.append(line)
        print(f"{time.strftime('%H:%M:%S')} {line}", flush=True)


def on_cluster(operator: Operator, runbook: str, **asked: Any) -> Operation:
    """One operation on the cluster to its end, in this process."""
    patient = {"healthy_timeout_s": 400, "stop_timeout_s": 150, "members_timeout_s": 200}
    values = {**fitting(runbook, patient), **asked}
    name = f"{runbook}-{time.time_ns():x}"
    _, owner, _ = operator.request("cancel_job", "any")
    return operator.engine().run(request(runbook, **values), owner, name)


def first_members(operator: Operator) -> None:
    """The cluster as every stack begins with it, whatever a test left: it is up, and its spare nodes are spare.

    Its size alone does not say that: which of three nodes leaves depends on where the drivers are.
    """
    ports = operator.ports()
    nodes, first = ports.nodes(), ports.nodes().inventory.initial()
    if cluster_record.read(ports.store).state != "running":
        on_cluster(operator, "restart_cluster")
    wanted = cluster_record.read(ports.store).wanted(nodes.inventory)
    if joining := [name for name in first if name not in wanted]:
        on_cluster(operator, "scale_cluster", nodes=joining)
    if leaving := [name for name in wanted if name not in first]:
        on_cluster(operator, "scale_cluster", nodes=leaving)
    wait_for(lambda: not missing(nodes.inventory, nodes.master(), first), 300, "the first members")


def drivers(job: str) -> list[psutil.Process]:
    """The JVM and the Python process of every driver of a job, standbys included."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        line = process.info["cmdline"] or []
        if any(a == "--job" and b == job for a, b in itertools.pairwise(line)):
            found.append(process)
    return found


def pythons(job: str, launch: str | None = None) -> list[psutil.Process]:
    """The Python half of the drivers: one for each."""
    found = [item for item in drivers(job) if any(part.endswith("bootstrap.py") for part in item.info["cmdline"][:3])]
    return [item for item in found if launch is None or launch in item.info["cmdline"]]


def of_launch(job: str, launch: str) -> list[psutil.Process]:
    """All processes of one launch's driver."""
    return [item for item in drivers(job) if launch in item.info["cmdline"]]


def executors(job: FreshJob, launch: str | None = None) -> list[psutil.Process]:
    """The processes that run a job's tasks, or those of another of its launches."""
    status = jobs.status(job.store, job.name, launch) if launch else job.status()
    application = status.app_id if status else None
    return [
        item
        for item in psutil.process_iter(["cmdline"])
        if application and "--app-id" in (line := item.info["cmdline"] or ()) and application in line
    ]


@dataclass(frozen=True)
class Mark:
    """Where a test began: the recount of its part starts here."""

    since: Offsets
    epoch: int
    launch: str
    began: float


def mark(job: FreshJob) -> Mark:
    """The present: what the job has not read yet belongs to the test's part already."""
    read = job.read() or job.end()
    lease = jobs.lease(job.store, job.name)
    assert lease is not None
    return Mark({"trades": {"0": read}}, lease.epoch, lease.launch, time.monotonic())


def works_again(job: FreshJob, epoch_above: int = -1) -> bool:
    """The driver named in the record holds the lease, in a new epoch if asked, and commits."""
    status, lease, record = job.status(), jobs.lease(job.store, job.name), job.record()
    if status is None or lease is None or record.version is None:
        return False
    held = lease.holder is not None and lease.holder == status.holder and lease.launch == record.launch
    return held and lease.epoch > epoch_above and job.runs(record.version) and working(status)


def wait_works(job: FreshJob, seconds: float, epoch_above: int = -1, read: int = 0) -> None:
    """Wait until the job works, and has read its topic up to an offset; say what there is instead."""
    try:
        wait_for(lambda: works_again(job, epoch_above) and job.read() >= read, seconds, f"{job.name} working")
    except AssertionError as error:
        processes = {item.pid: item.info["cmdline"][:1] for item in drivers(job.name)}
        seen = (job.record(), jobs.lease(job.store, job.name), job.status(), processes)
        raise AssertionError("\n".join(map(str, (error, *seen)))) from error


def working(status: DriverStatus) -> bool:
    return bool(status.stages) and all(stage.commits > 0 for stage in status.stages.values())


def invariant(job: FreshJob, start: Mark, seconds: float = 360) -> Report:
    """Invariant I: every event counted once, one driver at most, a true record, the last snapshot intact."""
    wait_works(job, seconds)
    job.caught_up(seconds)
    report = until(  # a stage that has just begun has no closed window yet
        lambda: recount_job(job.settings, job.store, job.name, since=start.since),
        seconds,
        1.0,
        lambda found: found.clean or found.wrong,
    )
    wait_for(lambda: len(pythons(job.name)) == 1, 180, "one driver only")
    assert not (wrong := [*violations(job), *uncounted(report)]), wrong
    return report


def uncounted(report: Report) -> list[str]:
    """What of a recount says that an event does not count exactly once."""
    return [] if report.clean else [f"recount: {report.reason} {[item.examples for item in report.measurements]}"]


def violations(job: FreshJob) -> list[str]:
    """What of a working job, its record, lease, lock, drivers and last snapshot is not as it must be."""
    record, status, lease = job.record(), job.status(), jobs.lease(job.store, job.name)
    lock = locks.read(job.store, job.name)
    wrong = []
    if len(pythons(job.name)) != 1:
        wrong.append("drivers: not one")
    if (record.desired, record.standby) != ("running", None):
        wrong.append("record: not running, or with a standby")
    if status is None or lease is None or (lease.launch, lease.holder) != (record.launch, status.holder):
        wrong.append("lease: not with the driver of the record")
    if status is None or status.deployment != record.deployment:
        wrong.append("deployment: not the one of the record")
    wrong += [
        f"launch {other.launch}: {other.state}"
        for other in launches(job)
        if other.launch != record.launch and other.state not in FINAL and not silent(other)
    ]
    if lock is not None and lock.value.operation is not None:
        wrong.append(f"lock: held by {lock.value.operation}")
    for manifest in snapshots.list(job.store, job.name)[-1:]:
        try:
            snapshots.verify(job.store, manifest)
        except SnapshotRefusedError as error:
            wrong.append(f"snapshot: {error}")
    return wrong


def launches(job: FreshJob) -> list[DriverStatus]:
    """What every driver of the job said last."""
    prefix = f"jobs/{job.name}/launches/"
    named = [entry.removeprefix(prefix).rstrip("/") for entry in job.store.prefixes(prefix)]
    found = [documents.read(job.store, keys.status(job.name, launch), DriverStatus) for launch in named]
    return [item.value for item in found if item]


def attempts(job: FreshJob) -> tuple[set[str], set[str]]:
    """Export attempts that have objects, and those that are snapshots."""
    root = f"snapshots/{job.name}/data/"
    found = {info.key.removeprefix(root).split("/")[0] for info in job.store.list(root)}
    return found, {manifest.attempt for manifest in snapshots.list(job.store, job.name)}


def hosting(job: FreshJob, nodes: SupervisedNodes) -> str:
    """The node that hosts the job's driver."""
    status = job.status()
    assert status is not None
    node = host_of(nodes.inventory, nodes.master(), status.driver)
    assert node is not None
    return node


def silent(status: DriverStatus) -> bool:
    return (records.now() - status.updated).total_seconds() > 15


class Servers:
    """The stack's servers, to be stopped, killed and waited for."""

    def __init__(self) -> None:
        self.layout = Layout.find(os.environ["STREAMOPS_HOME"])

    @property
    def supervisor(self) -> Supervisor:
        return supervision.connect(self.layout)

    def stop(self, name: str) -> None:
        self.supervisor.stop(name)

    def start(self, name: str) -> None:
        """Start and wait until the server answers."""
        self.supervisor.start(name)
        ready.wait(name, READY[name], self.layout, 120)

    def kill(self, name: str) -> None:
        """kill -9; comes back by its supervisor."""
        before = self.supervisor.program(name).pid
        self.supervisor.signal(name, "KILL")
        wait_for(lambda: self.supervisor.program(name).pid not in (0, before), 180, f"a new {name}")
        ready.wait(name, READY[name], self.layout, 120)
