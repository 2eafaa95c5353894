"""The bodies of the steps of operations on the cluster. Each can be run again after a kill, and then has one effect."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from datetime import timedelta

from streamops.cluster import record as cluster_record
from streamops.cluster.membership import missing, present
from streamops.cluster.nodes import Node
from streamops.model import records
from streamops.model.errors import StreamOpsError
from streamops.model.names import SCRATCH
from streamops.model.records import FINAL
from streamops.operations import cluster_checks, cluster_jobs, receipts, settling
from streamops.operations.cluster_jobs import checked, claimed
from streamops.operations.context import Facts, Work
from streamops.operations.health import Health
from streamops.operations.ports import NodesPort
from streamops.operations.steps import clear_leftovers
from streamops.spark.master import Master
from streamops.store import jobs, keys

MASTER = cluster_checks.MASTER
_MASTER_S = 90.0
_GRACE_S = 30.0
_DRIVERS_S = 20.0  # for drivers that have saved their state to end: a second or two is usual


def check(work: Work) -> Facts:
    return cluster_checks.check(work.ports, work.request)


# --- shutdown


def record_set(work: Work) -> Facts:
    # A restore test does not outlive the cluster: what is left of it is removed by the next one.
    lasting = [record for record in claimed(work) if not record.job.startswith(SCRATCH)]
    running = [record.job for record in lasting if record.desired == "running"]
    update = {"state": "stopping", "jobs": tuple(running), "library": checked(work).get("library")}
    update["changed_by"] = work.operation.id
    cluster_record.change(work.ports.store, update)
    work.say(f"Recorded as running: {', '.join(running) or 'no job'}")
    return {"jobs": running}


def stop_workers(work: Work) -> Facts:
    if work.request.runbook == "scale_cluster":
        return stop(work, checked(work).get("stop") or ())
    _await_drivers(work)
    return stop(work, work.ports.nodes().inventory.names())


def _await_drivers(work: Work) -> None:
    """Let drivers end, for a while: their last word comes some seconds before their process is gone.

    The master would take one that goes down with its worker for lost, remember it, and start it again with the
    cluster, beside the one that the restart submits.
    """
    port, deadline = work.ports.nodes(), time.monotonic() + _DRIVERS_S
    while drivers := port.master().drivers:
        if time.monotonic() > deadline:
            work.say(f"The master still holds {', '.join(driver.id for driver in drivers)}; the workers are stopped")
            return
        work.tick()
        time.sleep(work.ports.look_s)


def stop_master(work: Work) -> Facts:
    facts = stop(work, (MASTER,))
    cluster_record.change(work.ports.store, {"state": "stopped", "changed_by": work.operation.id})
    return facts


def stop(work: Work, names: Iterable[str]) -> Facts:
    """Stop the programs of these nodes, and say how each ended."""
    port, ended = work.ports.nodes(), {}
    for name in names:
        if not port.program(name).up:
            continue
        found = port.stop(name)
        ended[name] = found.exit_status
        work.say(f"{name}: {found.state}, exit status {found.exit_status}{_meaning(found.exit_status)}")
        if found.up:
            raise StreamOpsError(f"{name} does not stop ({found.state}: {found.detail}); see its log, then try again.")
    return {"exit": ended}


def _meaning(status: int) -> str:
    """A Java process that is asked to end does so with 143, which is no failure."""
    return " (ended as asked)" if status == 143 else ""


# --- start, members


def start_master(work: Work) -> Facts:
    port = work.ports.nodes()
    cluster_record.change(work.ports.store, {"state": "starting", "changed_by": work.operation.id})
    began = time.monotonic()
    port.start(MASTER)
    # A recovering master waits for workers that are not there yet: its word is enough, whatever it is.
    look = lambda: _master_answers(port)  # noqa: E731
    work.wait(look, _MASTER_S, "Master")
    return {"seconds": round(time.monotonic() - began, 1)}


def _master_answers(port: NodesPort) -> Health:
    status = port.master().status
    return Health(status != "DOWN", None, f"the master is {status}")


def start_nodes(work: Work) -> Facts:
    port = work.ports.nodes()
    names = checked(work).get("start", ()) if work.request.runbook == "scale_cluster" else checked(work)["nodes"]
    started = []
    for name in names:
        if not port.program(name).up:
            port.start(name)
            work.say(f"{name}: its worker is started")
        started.append(name)
    return {"nodes": started}


def look_members(work: Work) -> Health:
    port = work.ports.nodes()
    master, wanted = port.master(), checked(work).get("nodes", ())
    absent = missing(port.inventory, master, wanted)
    shown = f"{len(wanted) - len(absent)}/{len(wanted)} members, the master is {master.status}"
    if master.status == "ALIVE" and not absent:
        return Health(True, None, shown)
    late = work.request.runbook == "restart_cluster" and work.request.without_missing and _late(work, "start_nodes")
    if late and master.status == "ALIVE" and present(port.inventory, master):
        return Health(True, None, f"{shown}; it goes on without {', '.join(absent)}")
    return Health(False, None, f"{shown}; waiting for {', '.join(absent) or 'the master'}")


def _late(work: Work, step: str) -> bool:
    since = work.operation.steps.get(step)
    patience = timedelta(seconds=work.request.members_timeout_s)
    return since is not None and records.now() - since.started > patience


def members(work: Work) -> Facts:
    if checked(work).get("unchanged"):
        return {}
    grace = _GRACE_S if work.request.without_missing else 0  # to look once more after those that came in time
    found = work.wait(lambda: look_members(work), work.request.members_timeout_s + grace, "Members")
    port = work.ports.nodes()
    master = port.master()
    absent = missing(port.inventory, master, checked(work)["nodes"])
    if absent or checked(work).get("silent"):
        work.say(f"Missing members: {', '.join([*absent, *checked(work).get('silent', {})])}")
    return {"why": found.why, "missing": [*absent, *checked(work).get("silent", {})]}


def look_in_use(work: Work) -> Health:
    """Proof that jobs use new members: stateful tasks there, for each job that had fewer cores than it may take."""
    started = checked(work).get("start", ())
    if not started:
        return Health(True, None, "no member was added")
    port, store = work.ports.nodes(), work.ports.store
    master = port.master()
    fresh = {
        pair
        for name in started
        if (worker := master.worker(port.inventory.node(name).page))
        for pair in worker.executors
    }
    by_job = {application.name: application.id for application in master.applications}
    waiting, used = [], []
    for need in cluster_checks.needs(work.ports):
        application = by_job.get(need.job)
        theirs = {executor for owner, executor in fresh if owner == application}
        if not theirs:
            continue  # it has all the cores that its definition allows, or no driver
        record = jobs.record(store, need.job)
        status = jobs.status(store, need.job, record.launch) if record and record.launch else None
        if status is None or status.state in FINAL:
            continue
        tasks = port.stateful_tasks(status.ui, status.app_id)
        if any(tasks.get(executor) for executor in theirs):
            used.append(need.job)
        else:
            waiting.append(need.job)
    if waiting:
        return Health(False, None, f"{', '.join(waiting)}: executors have joined, no stateful task ran there yet")
    if used:
        return Health(True, None, f"{', '.join(used)}: stateful tasks run on {', '.join(started)}")
    if _grows(work, master):
        return Health(False, None, "waiting for executors on the new members")
    return Health(True, None, "no running job may take more cores than it has")


def _grows(work: Work, master: Master) -> bool:
    """Whether a running job has fewer cores than its definition allows, so that executors will come."""
    has = {application.name: application.cores for application in master.applications}
    return any(need.job in has and has[need.job] < need.resources.cores for need in cluster_checks.needs(work.ports))


def in_use(work: Work) -> Facts:
    if checked(work).get("unchanged"):
        return {}
    return {"why": work.wait(lambda: look_in_use(work), work.request.healthy_timeout_s, "New members").why}


# --- jobs come back


def resume_jobs(work: Work) -> Facts:
    return cluster_jobs.resume(work, again=work.operation.steps["resume_jobs"].tries > 1)


def look_jobs(work: Work) -> Health:
    return cluster_jobs.look(work, work.operation.facts("resume_jobs"))


def jobs_healthy(work: Work) -> Facts:
    return {"why": work.wait(lambda: look_jobs(work), work.request.healthy_timeout_s, "Health of the jobs").why}


def caught_up(work: Work) -> Facts:
    found = work.wait(lambda: cluster_jobs.look_caught_up(work), work.request.healthy_timeout_s, "Catching up")
    return {"why": found.why, **cluster_jobs.caught_up(work)}


# --- scale in


def decommission(work: Work) -> Facts:
    port, told = work.ports.nodes(), []
    for name in checked(work).get("stop", ()):
        node, master = port.inventory.node(name), port.master()
        worker = master.worker(node.page)
        if worker is None or worker.state != "ALIVE":
            continue
        port.decommission(name)
        told.append(name)
        look = lambda node=node: _leaves(port, node)  # noqa: E731
        work.wait(look, _MASTER_S, f"Decommissioning of {name}")
        work.say(f"{name}: takes nothing new")
    return {"nodes": told}


def _leaves(port: NodesPort, node: Node) -> Health:
    worker = port.master().worker(node.page)
    state = worker.state if worker else "gone"
    return Health(state != "ALIVE", None, f"its worker is {state}")


# --- the end


def finish(work: Work) -> Facts:
    store, facts = work.ports.store, checked(work)
    by = {"changed_by": work.operation.id}
    if work.request.runbook == "restart_cluster":
        cluster_record.change(store, {"state": "running", "jobs": (), "library": None, **by})
    elif work.request.runbook == "scale_cluster" and not facts.get("unchanged"):
        cluster_record.change(store, {"nodes": tuple(facts["nodes"]), **by})
    for record in claimed(work):
        clear_leftovers(work, record.job)
    for line in receipts.lines(settling.settle(work.ports, work.operation, "succeeded", work.say)):
        work.say(line)
    return {"receipt": keys.receipt(work.job, work.operation.id)}


BODIES: dict[str, Callable[[Work], Facts]] = {
    "check": check,
    "claim": cluster_jobs.claim,
    "record_set": record_set,
    "stop_jobs": cluster_jobs.stop_jobs,
    "await_jobs": cluster_jobs.await_jobs,
    "export": cluster_jobs.export,
    "stop_workers": stop_workers,
    "stop_master": stop_master,
    "start_master": start_master,
    "start_nodes": start_nodes,
    "members": members,
    "in_use": in_use,
    "decommission": decommission,
    "resume_jobs": resume_jobs,
    "jobs_healthy": jobs_healthy,
    "caught_up": caught_up,
    "finish": finish,
}
LOOKS: dict[str, Callable[[Work], Health]] = {
    "members": look_members,
    "in_use": look_in_use,
    "jobs_healthy": look_jobs,
    "caught_up": cluster_jobs.look_caught_up,
}
