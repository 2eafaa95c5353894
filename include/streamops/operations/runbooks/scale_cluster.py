"""Add members, or drain and remove them, while jobs run."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Annotated, Literal

from pydantic import Field, model_validator

from streamops.cluster import record as cluster_record
from streamops.cluster.capacity import require_capacity
from streamops.cluster.membership import Target, change, missing, present
from streamops.cluster.nodes import Node
from streamops.model.errors import RefusedError
from streamops.model.records import FINAL
from streamops.operations import cluster_checks, cluster_jobs, cluster_steps
from streamops.operations.cluster_jobs import checked
from streamops.operations.context import StepContext
from streamops.operations.facts import Claimed, ClusterChecked, Ended, Finished, JobsResumed, Members, Nodes
from streamops.operations.health import Health
from streamops.operations.operation import Operation
from streamops.operations.ports import NodesPort
from streamops.operations.requests import ClusterRequest, HealthyTimeout, MembersTimeout, NodeNames, Starts, Stops
from streamops.operations.runbook import Runbook, Step, UndoPlan
from streamops.spark.master import Master
from streamops.store import jobs

_MASTER_S = 90.0


class ScaleCluster(ClusterRequest, Starts, Stops):
    """What may be asked for."""

    runbook: Literal["scale_cluster"] = "scale_cluster"
    size: Annotated[
        int | None,
        Field(
            ge=1,
            le=1000,
            title="Size",
            description="The number of members to reach; or leave it empty and give a change.",
        ),
    ] = None
    change: Annotated[
        int | None,
        Field(ge=-1000, le=1000, title="Change", description="How many more members (2), or fewer (-1)."),
    ] = None
    nodes: NodeNames = ()
    members_timeout_s: MembersTimeout = 300
    healthy_timeout_s: Annotated[
        HealthyTimeout, Field(description="How long a job that was handed over may take to become healthy again.")
    ] = 180

    @model_validator(mode="after")
    def _go_together(self) -> ScaleCluster:
        if self.size is not None and self.change is not None:
            raise ValueError("size, change: choose one")
        return self


def check(context: StepContext) -> ClusterChecked:
    """Refuse what must not be, before anything is touched.

    Raises:
        RefusedError, UnreachableError, NotFoundError: what is wrong and what to do instead.
    """
    ports, asked = context.ports, context.asked(ScaleCluster)
    nodes, record = ports.nodes(), cluster_record.read(ports.store)
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
    decided = change(inventory, wanted, hosted, Target(asked.size, asked.change, asked.nodes))
    if master.status != "ALIVE":
        raise RefusedError(f"The master is {master.status}; wait until it is ALIVE, then scale.")
    for name in (*decided.start, *decided.stop):
        nodes.program(name)  # its supervisor answers and accepts the password
    if not decided.start and not decided.stop:
        return ClusterChecked(unchanged=True, size=decided.size, nodes=tuple(wanted))
    rest = [name for name in wanted if name not in decided.stop]
    if decided.stop:
        here = present(inventory, master)
        require_capacity([inventory.node(name) for name in rest if name in here], cluster_checks.needs(ports))
    return ClusterChecked(
        members=len(wanted),
        size=decided.size,
        start=tuple(decided.start),
        stop=tuple(decided.stop),
        nodes=tuple(name for name in inventory.names() if name in rest or name in decided.start),
        drivers={name: hosted[name] for name in decided.stop},
    )


def start_nodes(context: StepContext) -> Nodes:
    """Start workers on spare nodes."""
    return cluster_steps.start_nodes(context, checked(context).start)


def look_members(context: StepContext) -> Health:
    """Whether all members have joined."""
    if checked(context).unchanged:
        return Health(True, None, "the size is as asked for")
    return cluster_steps.look_members(context)


def members(context: StepContext) -> Members:
    """The workers have joined."""
    return Members(why=context.why, missing=())


def look_in_use(context: StepContext) -> Health:
    """Proof that jobs use new members: stateful tasks there, for each job that had fewer cores than it may take."""
    started = checked(context).start
    if not started:
        return Health(True, None, "no member was added")
    port, store = context.ports.nodes(), context.ports.store
    master = port.master()
    fresh = {
        pair
        for name in started
        if (worker := master.worker(port.inventory.node(name).page))
        for pair in worker.executors
    }
    by_job = {application.name: application.id for application in master.applications}
    waiting, used = [], []
    for need in cluster_checks.needs(context.ports):
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
    if _grows(context, master):
        return Health(False, None, "waiting for executors on the new members")
    return Health(True, None, "no running job may take more cores than it has")


def _grows(context: StepContext, master: Master) -> bool:
    """Whether a running job has fewer cores than its definition allows, so that executors will come."""
    has = {application.name: application.cores for application in master.applications}
    return any(need.job in has and has[need.job] < need.resources.cores for need in cluster_checks.needs(context.ports))


def claim(context: StepContext) -> Claimed:
    """Take the operation lock of every job whose driver is on a leaving node. Raises LockedError."""
    return cluster_jobs.claim(context, _hosted(context))


def _hosted(context: StepContext) -> list[str]:
    """Jobs with a driver on a leaving node, and those of which no one knows where their driver is."""
    leaving = checked(context).stop
    if not leaving:
        return []
    port, running = context.ports.nodes(), cluster_checks.should_run(context.ports.store)
    master = port.master()
    workers = [master.worker(port.inventory.node(name).page) for name in leaving]
    there = {driver.id for worker in workers if worker for driver in master.drivers_on(worker)}
    if not there:
        return []
    found = []
    for record in running:
        status = jobs.status(context.ports.store, record.job, record.launch) if record.launch else None
        driver = status.driver if status else ""
        if not driver or driver in there or driver not in {item.id for item in master.drivers}:
            found.append(record.job)
    return found


def decommission(context: StepContext) -> Nodes:
    """Let the leaving workers take no new work."""
    port, told = context.ports.nodes(), []
    for name in checked(context).stop:
        node, master = port.inventory.node(name), port.master()
        worker = master.worker(node.page)
        if worker is None or worker.state != "ALIVE":
            continue
        port.decommission(name)
        told.append(name)
        context.wait(partial(_look_leaving, port, node), _MASTER_S, f"Decommissioning of {name}")
        context.say(f"{name}: takes nothing new")
    return Nodes(nodes=tuple(told))


def _look_leaving(port: NodesPort, node: Node) -> Health:
    worker = port.master().worker(node.page)
    state = worker.state if worker else "gone"
    return Health(state != "ALIVE", None, f"its worker is {state}")


def resume_jobs(context: StepContext) -> JobsResumed:
    """Name the launches that start the jobs on the remaining members, from their own checkpoints."""
    return cluster_jobs.resume(context, cluster_jobs.running(context))


def stop_workers(context: StepContext) -> Ended:
    """Stop the leaving workers."""
    return cluster_steps.stop(context, checked(context).stop)


def finish(context: StepContext) -> Finished:
    """The members are as asked for."""
    if not checked(context).unchanged:
        _set_members(context)
    return cluster_steps.finish(context)


def _set_members(context: StepContext) -> Nodes:
    names = checked(context).nodes
    cluster_record.change(context.ports.store, {"nodes": names, "changed_by": context.operation.id})
    return Nodes(nodes=names)


def undo_plan(operation: Operation) -> UndoPlan:
    """A working cluster, whatever was interrupted."""
    if operation.reported("check", ClusterChecked).start and operation.started("start_nodes"):
        if operation.done("members"):
            return UndoPlan("the new members have joined and stay", ("keep_members",))
        return UndoPlan("the workers that were started are stopped again", ("stop_started",))
    if operation.started("decommission"):
        if operation.started("stop_jobs"):
            return UndoPlan("the leaving nodes stay, and the jobs run", ("rejoin", "resume_jobs", "jobs_healthy"))
        return UndoPlan("the leaving nodes stay", ("rejoin",))
    return UndoPlan()


def stop_started(context: StepContext) -> Ended:
    """Stop the workers that were started."""
    return cluster_steps.stop(context, checked(context).start)


def rejoin(context: StepContext) -> Nodes:
    """A worker that was decommissioned takes work again only after a restart."""
    port, leaving = context.ports.nodes(), checked(context).stop
    back = []
    for name in leaving:
        worker = port.master().worker(port.inventory.node(name).page)
        if worker is not None and worker.state == "ALIVE":
            continue
        cluster_steps.stop(context, (name,))
        port.start(name)
        back.append(name)

    def look() -> Health:
        absent = missing(port.inventory, port.master(), leaving)
        return Health(not absent, None, f"waiting for {', '.join(absent)}" if absent else "all are members again")

    context.wait(look, context.asked(ScaleCluster).members_timeout_s, "Members")
    return Nodes(nodes=tuple(back))


SCALE_CLUSTER = Runbook(
    request=ScaleCluster,
    steps=(
        Step("check", "check", "Check the request against the inventory, the members and the running jobs", check),
        Step("start_nodes", "start_nodes", "Start workers on spare nodes", start_nodes),
        Step(
            "members",
            "wait_members",
            "Wait until the workers have joined",
            members,
            look=look_members,
            awaited="Members",
            within=lambda asked: asked.members_timeout_s,
        ),
        Step(
            "in_use",
            "wait_in_use",
            "Wait until jobs that want more cores use the new members",
            look=look_in_use,
            awaited="New members",
        ),
        Step("claim", "hand_over", "Take the operation lock of every job whose driver is on a leaving node", claim),
        Step("decommission", "hand_over", "Let the leaving workers take no new work", decommission),
        Step(
            "stop_jobs",
            "hand_over",
            "Ask the drivers there to stop at a batch boundary",
            partial(cluster_jobs.stop_jobs, to_stay=False),
        ),
        Step("await_jobs", "hand_over", "Wait until their state is saved", cluster_jobs.await_jobs),
        Step(
            "resume_jobs",
            "hand_over",
            "Name the launches that continue on the remaining members, from their own checkpoints",
            resume_jobs,
        ),
        cluster_steps.SUBMIT_JOBS,
        cluster_steps.JOBS_HEALTHY,
        Step("stop_workers", "stop_nodes", "Stop the leaving workers", stop_workers),
        replace(cluster_steps.FINISH, act=finish),
    ),
    undo_plan=undo_plan,
    undo={
        "keep_members": _set_members,
        "stop_started": stop_started,
        "rejoin": rejoin,
        "resume_jobs": cluster_steps.undo_resume,
        "jobs_healthy": cluster_steps.undo_jobs_healthy,
    },
    restoring="restore_cluster",
    submits_again="resume_jobs",
    forward=lambda operation: operation.started("stop_workers"),
)
