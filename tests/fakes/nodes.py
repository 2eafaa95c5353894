"""Nodes without supervisors: programs are words, and a worker's drivers are the rig's processes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess

from streamops.cluster.membership import Program
from streamops.cluster.nodes import Inventory, parse
from streamops.model.errors import StreamOpsError, UnreachableError
from streamops.spark.master import DOWN, Application, Driver, Master, Worker

PAGE = "http://127.0.0.1:{}"


def inventory(nodes: int = 3, spare: int = 1, cores: int = 4) -> Inventory:
    """Nodes node-1 to node-n, the last ones spare."""
    lines = "".join(
        f"  - {{name: node-{at}, supervisor: 'http://127.0.0.1:9010', program: spark-worker-{at}, "
        f"page: '{PAGE.format(8090 + at)}', cores: {cores}, memory: 4g, spare: {str(at > nodes - spare).lower()}}}\n"
        for at in range(1, nodes + 1)
    )
    return parse(f"master: {{supervisor: 'http://127.0.0.1:9010', program: spark-master}}\nnodes:\n{lines}")


@dataclass
class Nodes:
    """Three nodes, two of them members."""

    processes: list[tuple[str, BaseProcess]]
    inventory: Inventory = field(default_factory=inventory)
    up: set[str] = field(default_factory=lambda: {"master", "node-1", "node-2"})
    leaving: set[str] = field(default_factory=set)  # decommissioned
    lost: set[str] = field(default_factory=set)  # runs, and never joins
    silent: set[str] = field(default_factory=set)  # its supervisor does not answer
    broken: set[str] = field(default_factory=set)  # its program cannot be started
    status: str = "ALIVE"
    hosts: dict[str, str] = field(default_factory=dict)  # driver -> node
    did: list[str] = field(default_factory=list)
    relaunch: Callable[[str], None] = lambda launch: None  # what the master does with a supervised driver

    def program(self, name: str) -> Program:
        if name in self.silent:
            raise UnreachableError(f"The supervisor of {name} did not answer.")
        return Program("RUNNING") if name in self.up else Program("STOPPED", 143)

    def start(self, name: str) -> None:
        self.program(name)
        if name in self.broken:
            raise StreamOpsError(f"supervisord refused startProcess of {name}: SPAWN_ERROR; see its log.")
        if name not in self.up:
            self.did.append(f"start {name}")
        self.up.add(name)

    def stop(self, name: str) -> Program:
        if name in self.up:
            self.did.append(f"stop {name}")
        self.up.discard(name)
        self.leaving.discard(name)
        for driver, process in self._alive():
            if self.hosts.get(driver) == name:
                process.kill()
                process.join(30)
                if "master" in self.up and self.up - {"master"}:
                    self.relaunch(self.processes[int(driver.removeprefix("driver-")) - 1][0])
        return self.program(name)

    def decommission(self, name: str) -> None:
        self.did.append(f"decommission {name}")
        self.leaving.add(name)

    def master(self) -> Master:
        if "master" not in self.up:
            return DOWN
        here = [node for node in self.inventory.nodes if node.name in self.up - self.lost]
        alive = [node.name for node in here if node.name not in self.leaving]
        for driver, _ in self._alive():
            if self.hosts.get(driver) not in self.up and alive:
                hosted = list(self.hosts.values())
                self.hosts[driver] = min(alive, key=hosted.count)
        drivers = tuple(
            Driver(driver, f"worker-{self.hosts.get(driver, '')}", "RUNNING") for driver, _ in self._alive()
        )
        workers = tuple(
            Worker(
                id=f"worker-{node.name}",
                address="127.0.0.1:1",
                page=node.page,
                state="ALIVE" if node.name in alive else "DECOMMISSIONED",
                cores=node.cores,
                cores_used=0,
                memory=4096,
                memory_used=0,
            )
            for node in here
        )
        return Master(self.status, workers, drivers, (Application("app-1", "sums", 2),))

    def stateful_tasks(self, page: str, application: str) -> dict[str, int]:
        return {}

    def _alive(self) -> list[tuple[str, BaseProcess]]:
        return [(f"driver-{at}", process) for at, (_, process) in enumerate(self.processes, 1) if process.is_alive()]
