"""What steps of several runbooks of the cluster do. Each can be run again after a kill, and then has one effect."""

from __future__ import annotations

from collections.abc import Iterable

from streamops.cluster.membership import missing, present
from streamops.model.errors import StreamOpsError
from streamops.operations import cluster_jobs
from streamops.operations.cluster_jobs import checked, claimed
from streamops.operations.context import StepContext
from streamops.operations.facts import Ended, Finished, JobsResumed, Nodes, Waited
from streamops.operations.health import Health
from streamops.operations.requests import Starts
from streamops.operations.runbook import Step
from streamops.operations.steps import clear_leftovers, receipt


def stop(context: StepContext, names: Iterable[str]) -> Ended:
    """Stop the programs of these nodes, and say how each ended."""
    port, ended = context.ports.nodes(), {}
    for name in names:
        if not port.program(name).up:
            continue
        found = port.stop(name)
        ended[name] = found.exit_status
        context.say(f"{name}: {found.state}, exit status {found.exit_status}{_meaning(found.exit_status)}")
        if found.up:
            raise StreamOpsError(f"{name} does not stop ({found.state}: {found.detail}); see its log, then try again.")
    return Ended(exit=ended)


def _meaning(status: int) -> str:
    """A Java process that is asked to end does so with 143, which is no failure."""
    return " (ended as asked)" if status == 143 else ""


def start_nodes(context: StepContext, names: Iterable[str]) -> Nodes:
    """Start the workers of these nodes, as far as they do not run."""
    port, started = context.ports.nodes(), []
    for name in names:
        if not port.program(name).up:
            port.start(name)
            context.say(f"{name}: its worker is started")
        started.append(name)
    return Nodes(nodes=tuple(started))


def look_members(context: StepContext, *, late: bool = False) -> Health:
    """Whether all that are wanted have joined.

    Args:
        late: it is time to continue with those that came.
    """
    port = context.ports.nodes()
    master, wanted = port.master(), checked(context).nodes
    absent = missing(port.inventory, master, wanted)
    shown = f"{len(wanted) - len(absent)}/{len(wanted)} members, the master is {master.status}"
    if master.status == "ALIVE" and not absent:
        return Health(True, None, shown)
    if late and master.status == "ALIVE" and present(port.inventory, master):
        return Health(True, None, f"{shown}; it continues without {', '.join(absent)}")
    return Health(False, None, f"{shown}; waiting for {', '.join(absent) or 'the master'}")


# --- jobs come back


def look_jobs(context: StepContext) -> Health:
    """Whether every job that came back works."""
    return cluster_jobs.look(context, context.reported("resume_jobs", JobsResumed))


def undo_resume(context: StepContext) -> JobsResumed:
    """Bring the jobs back that ran."""
    resumed = cluster_jobs.resume(context, cluster_jobs.running(context))
    for job, _ in cluster_jobs.started(context, resumed):
        again = context.operation.started(f"submit_jobs/{job.job}")
        cluster_jobs.put(job, "resume_jobs", undo=True, again=again)
    return resumed


def undo_jobs_healthy(context: StepContext) -> Waited:
    """Wait until they work."""
    resumed = JobsResumed.model_validate(context.operation.undo["resume_jobs"].facts)
    look = lambda: cluster_jobs.look(context, resumed)  # noqa: E731
    return Waited(why=context.wait(look, context.asked(Starts).healthy_timeout_s, "Health of the jobs").why)


# --- the end


def finish(context: StepContext) -> Finished:
    """Write the receipt and close the operation."""
    for record in claimed(context):
        clear_leftovers(context, record.job)
    return receipt(context)


# --- steps that several runbooks have

SUBMIT_JOBS = Step(
    "submit_jobs",
    "submit_drivers",
    "Submit the driver of each job, supervised by the master",
    cluster_jobs.submit,
    parts=cluster_jobs.to_submit,
    submits=True,
)
JOBS_HEALTHY = Step(
    "jobs_healthy",
    "wait_jobs",
    "Wait until each of them holds its lease and works",
    look=look_jobs,
    awaited="Health of the jobs",
)
FINISH = Step("finish", "finish", "Write the receipt and close the operation", finish)
