"""Taking an operation on the cluster back: at the end a working cluster, whatever was interrupted."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from streamops.cluster import record as cluster_record
from streamops.cluster.membership import missing
from streamops.operations import cluster_jobs
from streamops.operations.cluster_jobs import checked
from streamops.operations.cluster_steps import stop
from streamops.operations.context import Facts, Work
from streamops.operations.health import Health
from streamops.operations.operation import Operation
from streamops.operations.ports import NodesPort
from streamops.operations.undo import NOT_NEEDED


def route(operation: Operation) -> tuple[str, tuple[str, ...]]:
    """What must be done to leave a working cluster, decided from what is recorded: a sentence, and the steps."""
    runbook = operation.request.runbook
    if runbook == "shutdown_cluster":
        if operation.started("stop_workers"):
            return (
                "all state is saved and the cluster is partly stopped; 'streamops cluster restart' brings it back",
                (),
            )
        if operation.started("stop_jobs"):
            return "the jobs that were stopped run again", ("resume_jobs", "jobs_healthy", "put_record_back")
        if operation.started("record_set"):
            return "no job was asked to stop", ("put_record_back",)
    if runbook == "scale_cluster":
        if operation.facts("check").get("start") and operation.started("start_nodes"):
            if operation.done("members"):
                return "the new members have joined and stay", ("keep_members",)
            return "the workers that were started are stopped again", ("stop_started",)
        if operation.started("decommission"):
            if operation.started("stop_jobs"):
                return "the leaving nodes stay, and the jobs run", ("rejoin", "resume_jobs", "jobs_healthy")
            return "the leaving nodes stay", ("rejoin",)
    if runbook == "restart_cluster" and operation.started("start_master"):
        return "what has come up stays up; trigger restart_cluster again", ()
    return NOT_NEEDED, ()


def resume_jobs(work: Work) -> Facts:
    again = work.operation.undo["resume_jobs"].tries > 1 or work.operation.started("resume_jobs")
    return cluster_jobs.resume(work, again=again)


def jobs_healthy(work: Work) -> Facts:
    look = lambda: cluster_jobs.look(work, work.operation.undo["resume_jobs"].facts)  # noqa: E731
    return {"why": work.wait(look, work.request.healthy_timeout_s, "Health of the jobs").why}


def put_record_back(work: Work) -> Facts:
    cluster_record.change(work.ports.store, {"state": "running", "jobs": (), "changed_by": work.operation.id})
    return {}


def keep_members(work: Work) -> Facts:
    names = tuple(checked(work)["nodes"])
    cluster_record.change(work.ports.store, {"nodes": names, "changed_by": work.operation.id})
    return {"nodes": list(names)}


def stop_started(work: Work) -> Facts:
    return stop(work, checked(work)["start"])


def rejoin(work: Work) -> Facts:
    """A worker that was decommissioned takes work again only after a restart."""
    port = work.ports.nodes()
    back = []
    for name in checked(work)["stop"]:
        worker = port.master().worker(port.inventory.node(name).page)
        if worker is not None and worker.state == "ALIVE":
            continue
        stop(work, (name,))
        port.start(name)
        back.append(name)
    look = lambda: _joined(port, checked(work)["stop"])  # noqa: E731
    work.wait(look, work.request.members_timeout_s, "Members")
    return {"nodes": back}


def _joined(port: NodesPort, wanted: Iterable[str]) -> Health:
    absent = missing(port.inventory, port.master(), wanted)
    return Health(not absent, None, f"waiting for {', '.join(absent)}" if absent else "all are members again")


BODIES: dict[str, Callable[[Work], Facts]] = {
    "resume_jobs": resume_jobs,
    "jobs_healthy": jobs_healthy,
    "put_record_back": put_record_back,
    "keep_members": keep_members,
    "stop_started": stop_started,
    "rejoin": rejoin,
}
