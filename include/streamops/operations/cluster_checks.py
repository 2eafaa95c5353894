"""The first step of every operation on the cluster: refuse what must not be, before anything is touched."""

from __future__ import annotations

from typing import Any

from streamops import snapshots
from streamops.cluster import record as cluster_record
from streamops.cluster.capacity import Need, require_capacity
from streamops.cluster.membership import change, missing, present
from streamops.cluster.record import ClusterRecord
from streamops.model.errors import DefinitionError, RefusedError, StreamOpsError
from streamops.model.records import JobRecord
from streamops.operations.operation import Request
from streamops.operations.ports import NodesPort, Ports
from streamops.store import jobs
from streamops.store.object_store import ObjectStore
from streamops.versions import artifacts, compatibility, libraries, verdicts

Facts = dict[str, Any]
MASTER = "master"


def check(ports: Ports, request: Request) -> Facts:
    """Facts of an accepted request: the names that every later step goes by.

    Raises:
        RefusedError, UnreachableError, NotFoundError: what is wrong and what to do instead; nothing was touched.
    """
    nodes, record = ports.nodes(), cluster_record.read(ports.store)
    running = {"shutdown_cluster": _shutdown, "restart_cluster": _restart, "scale_cluster": _scale}
    return running[request.runbook](ports, nodes, record, request)


def known(store: ObjectStore) -> list[JobRecord]:
    """The records of all jobs that were ever deployed."""
    found = (jobs.record(store, name) for name in jobs.names(store))
    return [record for record in found if record is not None and record.deployment]


def should_run(store: ObjectStore) -> list[JobRecord]:
    """The records of the jobs that should run."""
    return [record for record in known(store) if record.desired == "running"]


def _shutdown(ports: Ports, nodes: NodesPort, record: ClusterRecord, request: Request) -> Facts:
    up = [name for name in (MASTER, *nodes.inventory.names()) if nodes.program(name).up]
    if not up:
        raise RefusedError(
            "The cluster is stopped already; nothing was done. Start it with restart_cluster "
            "('streamops cluster restart')."
        )
    running = should_run(ports.store)
    if running and nodes.master().status != "ALIVE":
        raise RefusedError(
            f"The master is {nodes.master().status}, and {', '.join(item.job for item in running)} should run; wait "
            "until it is ALIVE, so that every job can save its state."
        )
    if request.snapshot:
        for item in running:
            snapshots.require_free_name(ports.store, item.job, request.snapshot)
    told = library_verdicts(ports.store, request.library, running) if request.library else {}
    return {**told, "jobs": [item.job for item in running], "programs": up, "stopped_nodes": len(up) - (MASTER in up)}


def _restart(ports: Ports, nodes: NodesPort, record: ClusterRecord, request: Request) -> Facts:
    wanted = record.wanted(nodes.inventory)
    silent = {}
    for name in (MASTER, *wanted):
        try:
            nodes.program(name)
        except StreamOpsError as error:
            if name == MASTER or not request.without_missing:
                raise
            silent[name] = str(error)
    if record.state == "running":
        master = nodes.master()
        if master.status == "ALIVE" and not missing(nodes.inventory, master, wanted):
            raise RefusedError(
                f"The cluster runs already ({len(wanted)}/{len(wanted)} members); nothing was done. To stop it first, "
                "use shutdown_cluster ('streamops cluster shutdown')."
            )
        coming = [item.job for item in should_run(ports.store)]
    else:
        coming = list(record.jobs)
    told: Facts = {"library": record.library} if record.library else {}
    if request.library:
        told = library_verdicts(
            ports.store, request.library, [item for item in known(ports.store) if item.job in coming]
        )
    return {**told, "nodes": [name for name in wanted if name not in silent], "silent": silent, "jobs": coming}


def library_verdicts(store: ObjectStore, library: str, coming: list[JobRecord]) -> Facts:
    """What becomes of the state of each job that uses the library; their plans are built with the new version.

    Raises:
        RefusedError: the state of a job could not be continued; NotFoundError: there is no such version.
    """
    name, version = library.split("/")
    new = libraries.load(store, name, version).use
    found = {}
    for record in coming:
        deployment = jobs.deployment(store, record.job, record.deployment)
        artifact = artifacts.load_manifest(store, record.job, deployment.version)
        old = deployment.library
        if old is None or old.name != name or old == new:
            continue
        try:
            before, after = (artifacts.plans_with(store, artifact, use) for use in (old, new))
            told = verdicts.require(compatibility.verdicts(before, after, version=f"{record.job} on {library}"), ())
        except (RefusedError, DefinitionError) as error:
            raise RefusedError(f"{record.job} cannot go on with library {library}: {error}") from None
        found[record.job] = told["verdicts"]
    if not found:
        raise RefusedError(f"No running job would get another library with {library}; leave it out.")
    return {"library": library, "library_verdicts": found}


def _scale(ports: Ports, nodes: NodesPort, record: ClusterRecord, request: Request) -> Facts:
    inventory, wanted = nodes.inventory, record.wanted(nodes.inventory)
    if record.state != "running":
        raise RefusedError(
            f"The cluster is {record.state}; start it with restart_cluster ('streamops cluster restart'), then scale."
        )
    master = nodes.master()
    hosted = {}
    for node in inventory.nodes:
        worker = master.worker(node.page)
        hosted[node.name] = len(master.drivers_on(worker)) if worker else 0
    decided = change(inventory, wanted, hosted, request.size, request.change, request.nodes)
    if master.status != "ALIVE":
        raise RefusedError(f"The master is {master.status}; wait until it is ALIVE, then scale.")
    for name in (*decided.start, *decided.stop):
        nodes.program(name)  # its supervisor answers and accepts the password
    if not decided.start and not decided.stop:
        return {"unchanged": True, "size": decided.size, "nodes": list(wanted)}
    rest = [name for name in wanted if name not in decided.stop]
    if decided.stop:
        here = present(inventory, master)
        require_capacity([inventory.node(name) for name in rest if name in here], needs(ports))
    return {
        "from": len(wanted),
        "size": decided.size,
        "start": list(decided.start),
        "stop": list(decided.stop),
        "nodes": [name for name in inventory.names() if name in rest or name in decided.start],
        "drivers": {name: hosted[name] for name in decided.stop},
    }


def needs(ports: Ports) -> list[Need]:
    """What the jobs that should run need."""
    found = []
    for record in should_run(ports.store):
        deployment = jobs.deployment(ports.store, record.job, record.deployment)
        definition = artifacts.load_manifest(ports.store, record.job, deployment.version).definition
        found.append(Need(record.job, definition.resources, definition.spark_settings))
    return found
