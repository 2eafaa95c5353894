"""What the Spark master says: its workers, drivers and applications, and whether a job finds room beside them.

All sizes of memory are in MiB.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from streamops.model.definitions import Definition
from streamops.spark.submission import SLOTS_PER_CORE, executor_cores, mebibytes


@dataclass(frozen=True)
class Driver:
    """A driver that the master holds; ``since_ms`` is when it was submitted or relaunched, by the master's clock."""

    id: str
    worker: str  # id of the worker that hosts it; empty while it waits for one
    state: str
    since_ms: int = 0


@dataclass(frozen=True)
class Worker:
    """A worker as the master sees it; ``executors`` are (application id, executor id) pairs, where they are known."""

    id: str
    address: str
    page: str
    state: str
    cores: int
    cores_used: int
    memory: int
    memory_used: int
    executors: tuple[tuple[str, str], ...] = ()

    @property
    def host(self) -> str:
        return self.address.rpartition(":")[0]

    @property
    def cores_free(self) -> int:
        return self.cores - self.cores_used

    @property
    def memory_free(self) -> int:
        return self.memory - self.memory_used


@dataclass(frozen=True)
class Application:
    """A driver's application, whose name is the job's."""

    id: str
    name: str
    cores: int


@dataclass(frozen=True)
class Master:
    """What the master says. ``status`` is its own word, or DOWN when it does not answer.

    ``at_ms`` is when it said so, by its own clock; 0 if that is not known.
    """

    status: str
    workers: tuple[Worker, ...] = ()
    drivers: tuple[Driver, ...] = ()
    applications: tuple[Application, ...] = ()
    at_ms: int = 0

    def worker(self, page: str) -> Worker | None:
        """The worker with this page, dead ones of earlier starts left out."""
        here = [item for item in self.workers if item.page == page and item.state != "DEAD"]
        return next((item for item in here if item.state == "ALIVE"), here[-1] if here else None)

    def worker_of(self, driver: str) -> str | None:
        """The id of the worker that hosts a driver; None while none does."""
        return next((item.worker for item in self.drivers if item.id == driver and item.worker), None)

    def drivers_on(self, worker: Worker) -> tuple[Driver, ...]:
        """The drivers that a worker hosts."""
        return tuple(driver for driver in self.drivers if driver.worker == worker.id)


DOWN = Master("DOWN")


def parse_master(data: dict[str, Any], executors: dict[str, tuple[tuple[str, str], ...]] | None = None) -> Master:
    """The master's JSON page as a value."""
    known = executors or {}
    workers = tuple(
        Worker(
            id=item["id"],
            address=f"{item['host']}:{item['port']}",
            page=str(item.get("webuiaddress", "")).rstrip("/"),
            state=item["state"],
            cores=item["cores"] // SLOTS_PER_CORE,
            cores_used=item["coresused"] // SLOTS_PER_CORE,
            memory=item["memory"],
            memory_used=item["memoryused"],
            executors=known.get(item["id"], ()),
        )
        for item in data.get("workers", ())
    )
    drivers = tuple(
        Driver(
            id=item["id"],
            worker="" if item.get("worker") in (None, "None") else item["worker"],
            state=item["state"],
            since_ms=int(item.get("starttime", 0) or 0),
        )
        for item in data.get("activedrivers", ())
    )
    applications = tuple(
        Application(item["id"], item["name"], int(item.get("cores", 0)) // SLOTS_PER_CORE)
        for item in data.get("activeapps", ())
    )
    return Master(str(data.get("status", "UNKNOWN")), workers, drivers, applications)


@dataclass
class Slot:
    """What is free on one machine."""

    cores: int
    memory: int


def fits(master: Master, definition: Definition, apart_from: str | None = None) -> bool:
    """Whether a driver of one core and executors for all cores of the definition find room beside what runs.

    Args:
        apart_from: id of a worker that may host executors, but not the driver.
    """
    return with_driver(master, definition, apart_from) is not None


def with_driver(master: Master, definition: Definition, apart_from: str | None = None) -> Master | None:
    """What the master would say with one more driver and all its executors, as ``fits``; None without room."""
    slots = {item.id: Slot(item.cores_free, item.memory_free) for item in master.workers if item.state == "ALIVE"}
    resources = definition.resources
    driver, executor = mebibytes(resources.driver_memory), mebibytes(resources.executor_memory)
    hosts = [slot for worker, slot in slots.items() if worker != apart_from]
    roomy = [slot for slot in hosts if slot.cores >= 1 and slot.memory >= driver]
    if not roomy:
        return None
    host = max(roomy, key=lambda slot: slot.memory)
    host.cores, host.memory = host.cores - 1, host.memory - driver
    each = executor_cores(resources, definition.spark_settings)
    wanted = max(1, resources.cores // each)
    for slot in slots.values():
        while wanted and slot.cores >= each and slot.memory >= executor:
            slot.cores, slot.memory, wanted = slot.cores - each, slot.memory - executor, wanted - 1
    if wanted:
        return None
    used = {name: (slot.cores, slot.memory) for name, slot in slots.items()}

    def filled(worker: Worker) -> Worker:
        cores, memory = used.get(worker.id, (worker.cores_free, worker.memory_free))
        return replace(worker, cores_used=worker.cores - cores, memory_used=worker.memory - memory)

    return replace(master, workers=tuple(filled(worker) for worker in master.workers))


def without(master: Master, driver: str, application: str, definition: Definition) -> Master:
    """What the master would say once a driver and its application's executors were gone."""
    resources = definition.resources
    cores = executor_cores(resources, definition.spark_settings)
    memory = mebibytes(resources.executor_memory)
    host = master.worker_of(driver)

    def rest(worker: Worker) -> Worker:
        gone = sum(owner == application for owner, _ in worker.executors)
        here = worker.id == host
        return replace(
            worker,
            cores_used=worker.cores_used - gone * cores - here,
            memory_used=worker.memory_used - gone * memory - here * mebibytes(resources.driver_memory),
            executors=tuple(item for item in worker.executors if item[0] != application),
        )

    return replace(
        master,
        workers=tuple(rest(worker) for worker in master.workers),
        drivers=tuple(item for item in master.drivers if item.id != driver),
        applications=tuple(item for item in master.applications if item.id != application),
    )
