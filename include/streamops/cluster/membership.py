"""Cluster membership: who is there, who should be, who leaves first, and whether the jobs still fit. Nothing here acts.

All sizes of memory are in MiB.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from streamops.cluster.nodes import Inventory, Node
from streamops.definitions import Definition, Resources
from streamops.errors import RefusedError
from streamops.submission import executor_cores, mebibytes

RUNNING = frozenset({"RUNNING", "STARTING"})  # supervisord's words for a program that should be up


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
    """What the master says. ``status`` is its own word, or DOWN when it does not answer."""

    status: str
    workers: tuple[Worker, ...] = ()
    drivers: tuple[Driver, ...] = ()
    applications: tuple[Application, ...] = ()

    def worker(self, node: Node) -> Worker | None:
        """The node's worker, dead ones of earlier starts left out."""
        here = [item for item in self.workers if item.page == node.page and item.state != "DEAD"]
        return next((item for item in here if item.state == "ALIVE"), here[-1] if here else None)

    def worker_of(self, driver: str) -> str | None:
        """The id of the worker that hosts a driver; None while none does."""
        return next((item.worker for item in self.drivers if item.id == driver and item.worker), None)

    def drivers_on(self, worker: Worker) -> tuple[Driver, ...]:
        """The drivers that a worker hosts."""
        return tuple(driver for driver in self.drivers if driver.worker == worker.id)


@dataclass(frozen=True)
class Program:
    """A supervised program: supervisord's word for its state, and its exit status once it has ended."""

    state: str
    exit_status: int = 0
    detail: str = ""

    @property
    def up(self) -> bool:
        return self.state in RUNNING


DOWN = Master("DOWN")


def present(inventory: Inventory, master: Master) -> tuple[str, ...]:
    """Names of the nodes whose worker has joined and takes work."""
    found = ((node.name, master.worker(node)) for node in inventory.nodes)
    return tuple(name for name, worker in found if worker is not None and worker.state == "ALIVE")


def missing(inventory: Inventory, master: Master, wanted: Iterable[str]) -> tuple[str, ...]:
    """Those of the wanted nodes that have not joined."""
    here = present(inventory, master)
    return tuple(name for name in wanted if name not in here)


@dataclass(frozen=True)
class Change:
    """What a scaling does: ``start`` and ``stop`` are names of nodes."""

    size: int
    start: tuple[str, ...] = ()
    stop: tuple[str, ...] = ()


def change(
    inventory: Inventory,
    wanted: Sequence[str],
    drivers: Mapping[str, int],
    size: int | None = None,
    by: int | None = None,
    named: Sequence[str] = (),
) -> Change:
    """Which nodes join or leave.

    Args:
        wanted: the nodes that should be members now.
        drivers: how many drivers each node hosts; those with the fewest leave first, the last of the inventory
            first among equals.
        size: the number of members to reach.
        by: or how many more, or fewer.
        named: these nodes join, when they are spare, or leave, when they are members.

    Raises:
        RefusedError: an unknown node, a size of 0 or above the inventory, or names that do not go with the size.
    """
    for name in named:
        inventory.node(name)
    if len(set(named)) != len(named):
        raise RefusedError(f"A node is named twice: {', '.join(named)}.")
    joining = [name for name in named if name not in wanted]
    leaving = [name for name in named if name in wanted]
    if joining and leaving:
        raise RefusedError(
            f"{', '.join(leaving)} would leave and {', '.join(joining)} would join; scale in two operations."
        )
    if size is None and by is None and not named:
        raise RefusedError("Say what to scale to: a size, +n or -n, or names of nodes.")
    if size is None:
        size = len(wanted) + (by if by is not None else len(joining) - len(leaving))
    if size < 1:
        raise RefusedError(
            f"A cluster of {size} nodes runs nothing; to stop it, use shutdown_cluster ('streamops cluster shutdown')."
        )
    if size > len(inventory.nodes):
        raise RefusedError(
            f"{size} members are asked for, but the inventory has {len(inventory.nodes)} nodes "
            f"({', '.join(inventory.names())}); add nodes to it first."
        )
    more = size - len(wanted)
    if named and len(named) != abs(more):
        raise RefusedError(f"{len(named)} nodes are named, but {abs(more)} would have to change for a size of {size}.")
    if named and (more > 0) != bool(joining):
        raise RefusedError(
            f"For a size of {size} nodes {'join' if more > 0 else 'leave'}, "
            f"but {', '.join(named)} {'are spare' if joining else 'are members'}."
        )
    if more >= 0:
        spare = joining or [name for name in inventory.names() if name not in wanted]
        return Change(size, start=tuple(spare[:more]))
    order = {name: at for at, name in enumerate(inventory.names())}
    first = sorted(wanted, key=lambda name: (drivers.get(name, 0), -order.get(name, len(order))))
    return Change(size, stop=tuple(leaving or first[:-more]))


@dataclass
class _Slot:
    cores: int
    memory: int


def fits(master: Master, definition: Definition, apart_from: str | None = None) -> bool:
    """Whether a driver of one core and executors for all cores of the definition find room beside what runs.

    Args:
        apart_from: id of a worker that may host executors, but not the driver.
    """
    slots = {item.id: _Slot(item.cores_free, item.memory_free) for item in master.workers if item.state == "ALIVE"}
    resources = definition.resources
    driver, executor = mebibytes(resources.driver_memory), mebibytes(resources.executor_memory)
    hosts = [slot for worker, slot in slots.items() if worker != apart_from]
    roomy = [slot for slot in hosts if slot.cores >= 1 and slot.memory >= driver]
    if not roomy:
        return False
    host = max(roomy, key=lambda slot: slot.memory)
    host.cores, host.memory = host.cores - 1, host.memory - driver
    each = executor_cores(resources, definition.spark_settings)
    wanted = max(1, resources.cores // each)
    for slot in slots.values():
        while wanted and slot.cores >= each and slot.memory >= executor:
            slot.cores, slot.memory, wanted = slot.cores - each, slot.memory - executor, wanted - 1
    return wanted == 0


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


@dataclass(frozen=True)
class Need:
    """What a running job needs at least: its driver and one executor. Its ``cores`` are the most that it takes."""

    job: str
    resources: Resources
    spark: Mapping[str, str | int | float | bool] = field(default_factory=dict)


def require_capacity(nodes: Sequence[Node], needs: Sequence[Need]) -> None:
    """Make sure that the running jobs fit on these nodes, each with its driver and one executor at least.

    Raises:
        RefusedError: they do not; the message has the numbers.
    """
    slots = [_Slot(node.cores, mebibytes(node.memory)) for node in nodes]
    total = _Slot(sum(slot.cores for slot in slots), sum(slot.memory for slot in slots))
    wanted = _Slot(0, 0)
    unplaced: list[str] = []
    parts: list[tuple[int, int, str]] = []
    for need in needs:
        each = executor_cores(need.resources, dict(need.spark))
        driver, executor = mebibytes(need.resources.driver_memory), mebibytes(need.resources.executor_memory)
        parts += [(1, driver, need.job), (each, executor, need.job)]
    for cores, memory, job in sorted(parts, reverse=True):
        wanted = _Slot(wanted.cores + cores, wanted.memory + memory)
        slot = next((item for item in slots if item.cores >= cores and item.memory >= memory), None)
        if slot is None:
            unplaced.append(job)
            continue
        slot.cores, slot.memory = slot.cores - cores, slot.memory - memory
    if unplaced:
        raise RefusedError(
            f"{len(nodes)} nodes ({', '.join(node.name for node in nodes)}) have {total.cores} cores and "
            f"{total.memory:,} MiB, and the running jobs need at least {wanted.cores} cores and {wanted.memory:,} MiB; "
            f"no place is left for {', '.join(sorted(set(unplaced)))}. Stop a job first, or keep more nodes."
        )
