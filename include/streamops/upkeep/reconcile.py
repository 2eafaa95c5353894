"""What to do about one job so that what should run does run: a pure decision with its reason. Nothing here acts.

One healer at a time: the master starts a supervised driver again by itself, and only what it no longer holds is
started here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from streamops.cluster.presence import held, unclaimed
from streamops.cluster.record import ClusterRecord
from streamops.model.definitions import Definition
from streamops.model.names import SCRATCH
from streamops.model.records import FINAL, DriverStatus, JobRecord, State
from streamops.operations import runbooks
from streamops.operations.operation import OVER, Operation
from streamops.spark.master import Master, fits, with_driver, without

Kind = Literal["nothing", "wait", "finish", "undo", "start"]
Lock = Literal["free", "held", "abandoned"]


@dataclass(frozen=True)
class Action:
    """What to do, and why. *Wait* means: not now, and perhaps never, because something else heals it."""

    kind: Kind
    why: str


@dataclass(frozen=True)
class Look:
    """What is known of one job at one moment.

    Args:
        speaks: whether its driver's status changes, or is fresh.
        lock: of the job; *abandoned* when its owner is certainly gone.
        operation: the one that the lock names.
        others: what the drivers of other jobs said, because their drivers are not this job's.
    """

    record: JobRecord | None
    status: DriverStatus | None
    speaks: bool
    master: Master
    cluster: ClusterRecord
    lock: Lock = "free"
    operation: Operation | None = None
    others: tuple[DriverStatus | None, ...] = ()


def decide(look: Look) -> Action:
    """The action for one job."""
    status = look.status
    if look.lock == "held":
        return Action("nothing", "an operation works on it")
    if look.lock == "abandoned" and look.operation is not None:
        return settle(look.operation)
    if why := _left_alone(look.record, look.cluster) or _settled(status, look.speaks):
        return Action("nothing", why)
    if look.master.status != "ALIVE":
        return Action("wait", f"the master is {look.master.status}")
    if not any(worker.state == "ALIVE" for worker in look.master.workers):
        return Action("wait", "the cluster has no member")
    if held(look.master, status, look.others):
        return Action("wait", "the master holds its driver, and starts it again itself")
    if status is not None and status.state is State.STOPPED:
        return Action("start", f"its driver stopped ({status.reason}) and it should run")
    return Action("start", "its driver is gone, and the master does not hold it")


def _left_alone(record: JobRecord | None, cluster: ClusterRecord) -> str:
    """Why nothing is done for a job, whatever its driver does; empty when it should run."""
    if cluster.state != "running":
        return f"the cluster is {cluster.state}"
    if record is not None and record.job.startswith(SCRATCH):
        return "it is a restore test's, which looks after it"
    if record is None or record.desired != "running" or not record.deployment or record.launch is None:
        return "it should not run"
    return "it is paused" if record.paused else ""


def _settled(status: DriverStatus | None, speaks: bool) -> str:
    """Why a driver needs no one: it works, or starting it again would not help. Else empty."""
    if status is None:
        return ""
    if status.state is State.FAILED:
        return f"its driver failed for good: {status.reason}"
    return "its driver works" if speaks and status.state is not State.STOPPED else ""


def wants_second(look: Look, second: DriverStatus | None) -> bool:
    """Whether a job that works, and that shall have a second driver, must get one now.

    Args:
        second: what the second driver said last.
    """
    if not _works(look):
        return False
    if second is not None and any(driver.id == second.driver for driver in look.master.drivers):
        return False
    return not unclaimed(look.master, [look.status, second, *look.others])  # one that starts may be it


def shares_worker(look: Look, second: DriverStatus | None, definition: Definition) -> bool:
    """Whether a second driver is on the worker of the first, although another worker would have room for it.

    The master puts a driver on any worker with room, by chance; one that hosts both takes both along when it dies. The
    room may be what the second driver's own executors take: they end with it.
    """
    if not _works(look) or look.status is None or second is None or second.state in FINAL:
        return False
    host = look.master.worker_of(second.driver)
    if host is None or host != look.master.worker_of(look.status.driver):
        return False
    return fits(without(look.master, second.driver, second.app_id, definition), definition, apart_from=host)


def _works(look: Look) -> bool:
    """Whether a job does what it should, and no one else works on it or on the cluster."""
    record, status = look.record, look.status
    if look.lock != "free" or look.cluster.state != "running" or look.master.status != "ALIVE":
        return False
    if record is None or record.desired != "running" or record.paused:
        return False
    return status is not None and status.state is State.RUNNING and look.speaks and status.launch == record.launch


def side_by_side(master: Master, wanted: Mapping[str, Definition | None]) -> tuple[str, ...]:
    """Of the jobs to be started, those that have room beside each other; the others wait for these to work.

    Drivers that take all room before any has its executors would wait for each other for ever.
    """
    found = []
    for job, definition in wanted.items():
        after = with_driver(master, definition) if definition else None
        if after is not None:
            found.append(job)
            master = after
    return tuple(found)


def settle(operation: Operation) -> Action:
    """What becomes of an operation whose owner is gone: its end, where that is the safe way to what was asked for."""
    where = f"{operation.id} was abandoned at {runbooks.of(operation).at(operation) or 'its end'}"
    if operation.state in OVER:
        return Action("undo", f"{where}; only its lock is left")
    if operation.undo:
        return Action("undo", f"{where}, on the way back")
    if operation.state == "running" and operation.done("check") and runbooks.of(operation).forward(operation):
        return Action("finish", where)
    return Action("undo", where)


def programs(cluster: ClusterRecord, lock: Lock, wanted: Iterable[str], up: Iterable[str]) -> tuple[str, ...]:
    """Nodes (and ``master``) whose programs must be started: none while an operation works, or after a shutdown."""
    if lock != "free" or cluster.state != "running":
        return ()
    there = set(up)
    return tuple(name for name in wanted if name not in there)
