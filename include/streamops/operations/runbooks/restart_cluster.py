"""Start master and workers, and exactly the jobs that ran; wait until each has caught up."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Annotated, Any, Literal

from pydantic import Field

from streamops.cluster import record as cluster_record
from streamops.cluster.membership import missing
from streamops.model.definitions import LibraryReference
from streamops.model.errors import RefusedError, StreamOpsError
from streamops.model.records import now
from streamops.operations import cluster_checks, cluster_jobs, cluster_steps
from streamops.operations.cluster_checks import MASTER
from streamops.operations.cluster_jobs import checked
from streamops.operations.context import StepContext
from streamops.operations.facts import (
    Claimed,
    ClusterChecked,
    JobsCaughtUp,
    JobsResumed,
    Members,
    Nodes,
    Started,
)
from streamops.operations.health import Health
from streamops.operations.operation import Operation
from streamops.operations.requests import ClusterRequest, HealthyTimeout, MembersTimeout, Starts
from streamops.operations.runbook import Runbook, Step, UndoPlan

_MASTER_S = 90.0
_GRACE_S = 30  # to look once more after those that came in time


class RestartCluster(ClusterRequest, Starts):
    """What may be asked for."""

    runbook: Literal["restart_cluster"] = "restart_cluster"
    without_missing: Annotated[
        bool,
        Field(
            title="Without missing members",
            description="Continue with the members that joined in time; the log names those that are missing.",
        ),
    ] = False
    library: Annotated[
        LibraryReference | None,
        Field(
            title="Shared library",
            description="LIBRARY/VERSION to bring the jobs back on; if left empty, the one given to the shutdown.",
        ),
    ] = None
    members_timeout_s: Annotated[MembersTimeout, Field(description="How long the workers may take to join.")] = 300
    healthy_timeout_s: Annotated[
        HealthyTimeout, Field(description="How long the jobs may take to become healthy, and then to catch up.")
    ] = 300


def check(context: StepContext) -> ClusterChecked:
    """Refuse what must not be, before anything is touched.

    Raises:
        RefusedError, UnreachableError, NotFoundError: what is wrong and what to do instead.
    """
    ports, asked = context.ports, context.asked(RestartCluster)
    nodes, record = ports.nodes(), cluster_record.read(ports.store)
    wanted = record.wanted(nodes.inventory)
    silent = {}
    for name in (MASTER, *wanted):
        try:
            nodes.program(name)
        except StreamOpsError as error:
            if name == MASTER or not asked.without_missing:
                raise
            silent[name] = str(error)
    if record.state == "running":
        master = nodes.master()
        if master.status == "ALIVE" and not missing(nodes.inventory, master, wanted):
            raise RefusedError(
                f"The cluster runs already ({len(wanted)}/{len(wanted)} members); nothing was done. To stop it first, "
                "use shutdown_cluster ('streamops cluster shutdown')."
            )
        coming = [item.job for item in cluster_checks.should_run(ports.store)]
    else:
        coming = list(record.jobs)
    told: dict[str, Any] = {"library": record.library} if record.library else {}
    if asked.library:
        back = [item for item in cluster_checks.known(ports.store) if item.job in coming]
        verdicts = cluster_checks.library_verdicts(ports.store, asked.library, back)
        told = {"library": asked.library, "library_verdicts": verdicts}
    there = tuple(name for name in wanted if name not in silent)
    return ClusterChecked(nodes=there, silent=silent, jobs=tuple(coming), **told)


def start_master(context: StepContext) -> Started:
    """Start the master, and wait until it answers."""
    port = context.ports.nodes()
    cluster_record.change(context.ports.store, {"state": "starting", "changed_by": context.operation.id})
    began = time.monotonic()
    port.start(MASTER)

    def look() -> Health:
        # A recovering master waits for workers that are not there yet: its word is enough, whatever it is.
        status = port.master().status
        return Health(status != "DOWN", None, f"the master is {status}")

    context.wait(look, _MASTER_S, "Master")
    return Started(seconds=round(time.monotonic() - began, 1))


def start_nodes(context: StepContext) -> Nodes:
    """Start the workers."""
    return cluster_steps.start_nodes(context, checked(context).nodes)


def look_members(context: StepContext) -> Health:
    """Whether all members have joined, or it is time to continue with those that came, if that was asked for."""
    asked, since = context.asked(RestartCluster), context.operation.steps.get("start_nodes")
    over = since is not None and now() - since.started > timedelta(seconds=asked.members_timeout_s)
    return cluster_steps.look_members(context, late=asked.without_missing and over)


def members(context: StepContext) -> Members:
    """The workers have joined; name those that are missing."""
    port = context.ports.nodes()
    silent = checked(context).silent
    absent = (*missing(port.inventory, port.master(), checked(context).nodes), *silent)
    if absent:
        context.say(f"Missing members: {', '.join(absent)}")
    return Members(why=context.why, missing=absent)


def claim(context: StepContext) -> Claimed:
    """Take the operation lock of every job that comes back. Raises LockedError."""
    coming = checked(context).jobs
    return cluster_jobs.claim(context, [job for job in cluster_jobs.known(context) if job in coming])


def resume_jobs(context: StepContext) -> JobsResumed:
    """Name the launches that continue from the jobs' checkpoints. From here on the cluster runs, whatever a job lacks.

    Reconciliation looks after no job of a cluster that is starting: it would stay so if what follows failed.
    """
    resumed = cluster_jobs.resume(context, checked(context).jobs, kept_by_master=True)
    update = {"state": "running", "jobs": (), "library": None, "changed_by": context.operation.id}
    cluster_record.change(context.ports.store, update)
    return resumed


def caught_up(context: StepContext) -> JobsCaughtUp:
    """Every job has caught up with its topics."""
    return JobsCaughtUp(why=context.why, jobs=cluster_jobs.caught_up(context))


def undo_plan(operation: Operation) -> UndoPlan:
    """What has come up stays up."""
    if operation.done("resume_jobs"):
        return UndoPlan("the cluster runs, and every job is to run; reconciliation starts those that do not")
    if operation.started("start_master"):
        return UndoPlan("what has come up stays up; trigger restart_cluster again")
    return UndoPlan()


RESTART_CLUSTER = Runbook(
    request=RestartCluster,
    steps=(
        Step("check", "check", "Check the request against the inventory, the members and the running jobs", check),
        Step("start_master", "start_servers", "Start the master, and wait until it takes work", start_master),
        Step("start_nodes", "start_servers", "Start the workers", start_nodes),
        Step(
            "members",
            "wait_members",
            "Wait until the workers have joined",
            members,
            look=look_members,
            awaited="Members",
            within=lambda asked: asked.members_timeout_s + (_GRACE_S if asked.without_missing else 0),
        ),
        Step("claim", "resume_jobs", "Take the operation lock of every job that comes back", claim),
        Step("resume_jobs", "resume_jobs", "Name the launches that continue from their own checkpoints", resume_jobs),
        cluster_steps.SUBMIT_JOBS,
        cluster_steps.JOBS_HEALTHY,
        Step(
            "caught_up",
            "wait_caught_up",
            "Wait until every job has caught up with its topics",
            caught_up,
            look=cluster_jobs.look_caught_up,
            awaited="Catching up",
        ),
        cluster_steps.FINISH,
    ),
    undo_plan=undo_plan,
)
