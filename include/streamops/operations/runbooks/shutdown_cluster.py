"""Stop every job at a batch boundary, record which ran, then stop workers and master."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, Literal

from pydantic import Field

from streamops import snapshots
from streamops.cluster import record as cluster_record
from streamops.model.definitions import LibraryReference, SnapshotName
from streamops.model.errors import RefusedError
from streamops.model.names import SCRATCH
from streamops.operations import cluster_checks, cluster_jobs, cluster_steps
from streamops.operations.cluster_checks import MASTER
from streamops.operations.context import StepContext
from streamops.operations.facts import Claimed, ClusterChecked, Ended, Facts, Jobs, JobsKept, JobsStopped
from streamops.operations.operation import Operation
from streamops.operations.requests import ClusterRequest, HealthyTimeout, Starts, Stops, StopTimeout
from streamops.operations.runbook import Runbook, Step, UndoPlan

_DRIVERS_S = 20.0  # for drivers that have saved their state to end: a second or two is usual


class ShutdownCluster(ClusterRequest, Starts, Stops):
    """What may be asked for. Jobs are started again when another one does not stop."""

    runbook: Literal["shutdown_cluster"] = "shutdown_cluster"
    stop_timeout_s: Annotated[StopTimeout, Field(description="How long each job's batch in flight may take.")] = 60
    healthy_timeout_s: Annotated[
        HealthyTimeout, Field(description="For the jobs that are restarted when another one does not stop.")
    ] = 180
    snapshot: Annotated[
        SnapshotName | None,
        Field(
            title="Snapshot name",
            description="Keep a snapshot of every job under this new name; if left empty, none is kept.",
        ),
    ] = None
    library: Annotated[
        LibraryReference | None,
        Field(
            title="Shared library",
            description="LIBRARY/VERSION that the restart brings the jobs back on. Whether their state fits is checked "
            "first.",
        ),
    ] = None


def check(context: StepContext) -> ClusterChecked:
    """Refuse what must not be, before anything is touched.

    Raises:
        RefusedError, UnreachableError, NotFoundError: what is wrong and what to do instead.
    """
    ports, asked = context.ports, context.asked(ShutdownCluster)
    nodes = ports.nodes()
    up = [name for name in (MASTER, *nodes.inventory.names()) if nodes.program(name).up]
    if not up:
        raise RefusedError(
            "The cluster is stopped already; nothing was done. Start it with restart_cluster "
            "('streamops cluster restart')."
        )
    running = cluster_checks.should_run(ports.store)
    if running and nodes.master().status != "ALIVE":
        raise RefusedError(
            f"The master is {nodes.master().status}, and {', '.join(item.job for item in running)} should run; wait "
            "until it is ALIVE, so that every job can save its state."
        )
    for item in running if asked.snapshot else ():
        snapshots.require_free_name(ports.store, item.job, asked.snapshot or "")
    told: dict[str, Any] = {}
    if asked.library:
        verdicts = cluster_checks.library_verdicts(ports.store, asked.library, running)
        told = {"library": asked.library, "library_verdicts": verdicts}
    return ClusterChecked(
        jobs=tuple(item.job for item in running),
        programs=tuple(up),
        stopped_nodes=len(up) - (MASTER in up),
        **told,
    )


def claim(context: StepContext) -> Claimed:
    """Take the operation lock of every job. Raises LockedError."""
    return cluster_jobs.claim(context, cluster_jobs.known(context))


def record_set(context: StepContext) -> Jobs:
    """Record which jobs run, so that a restart brings back exactly these."""
    # A restore test does not outlive the cluster: what is left of it is removed by the next one.
    running = tuple(job for job in cluster_jobs.running(context) if not job.startswith(SCRATCH))
    update = {"state": "stopping", "jobs": running, "library": cluster_jobs.checked(context).library}
    cluster_record.change(context.ports.store, {**update, "changed_by": context.operation.id})
    context.say(f"Recorded as running: {', '.join(running) or 'no job'}")
    return Jobs(jobs=running)


def await_jobs(context: StepContext) -> JobsStopped:
    """Wait until the state of every job is saved.

    Raises:
        RefusedError: one was deployed for the first time meanwhile, when the locks of the others were taken already.
    """
    stopped = cluster_jobs.await_jobs(context)
    claimed = {record.job for record in cluster_jobs.claimed(context)}
    if new := [item.job for item in cluster_checks.should_run(context.ports.store) if item.job not in claimed]:
        raise RefusedError(
            f"{', '.join(new)} was deployed while the cluster began to shut down, and would be killed with it; trigger "
            "shutdown_cluster again."
        )
    return stopped


def export(context: StepContext) -> JobsKept:
    """Keep a snapshot of every job, when a name was given."""
    return cluster_jobs.export(context, context.asked(ShutdownCluster).snapshot)


def stop_workers(context: StepContext) -> Ended:
    """Stop all workers, once the drivers have ended."""
    _await_drivers(context)
    return cluster_steps.stop(context, context.ports.nodes().inventory.names())


def _await_drivers(context: StepContext) -> None:
    """Let drivers end, for a while: their last word comes some seconds before their process is gone.

    The master would take one that goes down with its worker for lost, remember it, and start it again with the
    cluster, beside the one that the restart submits.
    """
    port = context.ports.nodes()
    held: tuple[str, ...] = ()

    def ended() -> bool:
        nonlocal held
        held = tuple(driver.id for driver in port.master().drivers)
        return not held

    if not context.until(ended, _DRIVERS_S):
        context.say(f"The master still holds {', '.join(held)}; the workers are stopped")


def stop_master(context: StepContext) -> Ended:
    """Stop the master, after which the cluster is stopped."""
    facts = cluster_steps.stop(context, (MASTER,))
    cluster_record.change(context.ports.store, {"state": "stopped", "changed_by": context.operation.id})
    return facts


def undo_plan(operation: Operation) -> UndoPlan:
    """A working cluster, unless it is on its way down."""
    if operation.started("stop_workers"):
        return UndoPlan(
            "all state is saved and the cluster is partly stopped; 'streamops cluster restart' brings it back"
        )
    if operation.started("stop_jobs"):
        return UndoPlan("the jobs that were stopped run again", ("resume_jobs", "jobs_healthy", "put_record_back"))
    if operation.started("record_set"):
        return UndoPlan("no job was asked to stop", ("put_record_back",))
    return UndoPlan()


def put_record_back(context: StepContext) -> Facts:
    """The cluster runs, as it was recorded before."""
    update = {"state": "running", "jobs": (), "changed_by": context.operation.id}
    cluster_record.change(context.ports.store, update)
    return Facts()


SHUTDOWN_CLUSTER = Runbook(
    request=ShutdownCluster,
    steps=(
        Step("check", "check", "Check the request against the inventory, the members and the running jobs", check),
        Step("claim", "stop_jobs", "Take the operation lock of every job", claim),
        Step(
            "record_set",
            "stop_jobs",
            "Record which jobs run, so that a restart brings back exactly these",
            record_set,
        ),
        Step(
            "stop_jobs",
            "stop_jobs",
            "Ask every running job to stop at a batch boundary",
            partial(cluster_jobs.stop_jobs, to_stay=True),
        ),
        Step("await_jobs", "stop_jobs", "Wait until the state of every job is saved", await_jobs),
        Step("export", "keep_snapshots", "Keep a snapshot of every job (only when a name was given)", export),
        Step("stop_workers", "stop_servers", "Stop the workers", stop_workers),
        Step("stop_master", "stop_servers", "Stop the master", stop_master),
        cluster_steps.FINISH,
    ),
    undo_plan=undo_plan,
    undo={
        "resume_jobs": cluster_steps.undo_resume,
        "jobs_healthy": cluster_steps.undo_jobs_healthy,
        "put_record_back": put_record_back,
    },
    restoring="restore_cluster",
    submits_again="resume_jobs",
    forward=lambda operation: operation.started("stop_workers"),
)
