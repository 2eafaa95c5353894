"""The cluster as a person sees it: state, size and members, put together from inventory, record and master."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from streamops.cluster.membership import present
from streamops.cluster.nodes import Inventory
from streamops.cluster.record import ClusterRecord
from streamops.model.definitions import Definition
from streamops.model.records import DriverStatus
from streamops.spark.master import Master
from streamops.spark.submission import executor_cores, mebibytes


@dataclass(frozen=True)
class Member:
    """One node. Memory in MiB; ``state`` is the master's word for its worker, or what the node is without one."""

    node: str
    address: str
    id: str
    state: str
    cores_used: int
    cores_free: int
    memory_used: int
    memory_free: int
    drivers: tuple[str, ...]
    executors: tuple[str, ...]


@dataclass(frozen=True)
class Share:
    """What one member has of a job; ``cores`` are those of its executors there."""

    driver: bool
    executors: int
    cores: int

    def __str__(self) -> str:
        executors = f"{self.executors} executor{'s' * (self.executors > 1)} with {self.cores} cores"
        return ", ".join(["driver"] * self.driver + [executors] * (self.executors > 0))


Shares = Mapping[str, Share]  # by member


@dataclass(frozen=True)
class View:
    """``state``: running, incomplete, recovering, starting, stopping, stopped (by a shutdown), or down."""

    state: str
    version: str
    ready: int
    desired: int
    members: tuple[Member, ...]
    jobs: Mapping[str, Shares]  # that run
    waiting: tuple[str, ...]  # jobs that a restart would bring back


def host_of(inventory: Inventory, master: Master, driver: str) -> str | None:
    """The node that hosts a driver, by Spark's id of it; None when the master does not hold it."""
    worker = master.worker_of(driver)
    return next((node.name for node in inventory.nodes if (one := master.worker(node.page)) and one.id == worker), None)


def shares(inventory: Inventory, master: Master, status: DriverStatus, definition: Definition) -> dict[str, Share]:
    """The nodes that a job runs on; the driver's may have none of its executors."""
    host = host_of(inventory, master, status.driver)
    each = executor_cores(definition.resources, definition.spark_settings)
    found = {}
    for node in inventory.nodes:
        worker = master.worker(node.page)
        executors = sum(application == status.app_id for application, _ in worker.executors) if worker else 0
        if executors or node.name == host:
            found[node.name] = Share(node.name == host, executors, executors * each)
    return found


def view(
    inventory: Inventory,
    record: ClusterRecord,
    master: Master,
    running: Mapping[str, tuple[DriverStatus, Definition | None]],
) -> View:
    """Put together what there is.

    Args:
        running: by job, what its driver says and what it runs, as far as either can be read.
    """
    drivers = {status.driver: job for job, (status, _) in running.items()}
    wanted = record.wanted(inventory)
    here = [name for name in present(inventory, master) if name in wanted]
    names = {application.id: application.name for application in master.applications}
    members = []
    for node in inventory.nodes:
        worker = master.worker(node.page)
        if worker is None:
            state = "missing" if node.name in wanted and record.state == "running" else "spare"
            state = "stopped" if node.name in wanted and record.state == "stopped" else state
            size = mebibytes(node.memory)
            members.append(Member(node.name, "-", "-", state, 0, node.cores, 0, size, (), ()))
            continue
        hosted = [drivers.get(driver.id, driver.id) for driver in master.drivers_on(worker)]
        executors = [names.get(application, application) for application, _ in worker.executors]
        members.append(
            Member(
                node.name,
                worker.address,
                worker.id,
                worker.state,
                worker.cores_used,
                worker.cores - worker.cores_used,
                worker.memory_used,
                worker.memory - worker.memory_used,
                tuple(sorted(hosted)),
                tuple(sorted(executors)),
            )
        )
    state = _state(record, master, len(here) == len(wanted))
    placed = {job: shares(inventory, master, told, runs) for job, (told, runs) in running.items() if runs}
    version = f"Spark {inventory.spark}" if inventory.spark else ""
    return View(state, version, len(here), len(wanted), tuple(members), placed, record.jobs)


def _state(record: ClusterRecord, master: Master, complete: bool) -> str:
    if master.status == "DOWN":
        return "down" if record.state == "running" else record.state
    if record.state != "running":
        return record.state
    if master.status != "ALIVE":
        return "recovering"
    return "running" if complete else "incomplete"
