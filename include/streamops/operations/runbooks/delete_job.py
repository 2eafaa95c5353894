"""Remove a job with its checkpoints, snapshots, versions and logs."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Literal

from pydantic import Field

from streamops import snapshots
from streamops.model.definitions import JobName, TopicName
from streamops.model.errors import NotFoundError, RefusedError
from streamops.operations import checks, steps
from streamops.operations.context import StepContext
from streamops.operations.facts import Checked, Removed
from streamops.operations.requests import JobRequest, Stops
from streamops.operations.runbook import Runbook, Step
from streamops.store import jobs, keys, leases
from streamops.versions import artifacts


class DeleteJob(JobRequest, Stops):
    """What may be asked for."""

    runbook: Literal["delete_job"] = "delete_job"
    job: Annotated[JobName, Field(title="Job", description="The job to delete, with everything that belongs to it.")]
    topics: Annotated[
        tuple[TopicName, ...],
        Field(
            title="Topics",
            description="Topics that it reads and that are deleted with it, events and all; those that are not named "
            "stay.",
        ),
    ] = ()


def check(context: StepContext) -> Checked:
    """What there is of the job. Raises NotFoundError; RefusedError: a topic is not its own."""
    store, record = context.ports.store, context.operation.before
    versions = artifacts.versions(store, context.job)
    if not versions and jobs.record(store, context.job) is None:
        raise NotFoundError(f"There is no job {context.job}; 'streamops jobs' lists those that are there.")
    for topic in context.asked(DeleteJob).topics:
        readers = {job for job in jobs.names(store) if topic in artifacts.topics_read(store, job)}
        if others := sorted(readers - {context.job}):
            raise RefusedError(f"Topic {topic} is read by {', '.join(others)} as well; it stays as long as they do.")
        if not readers:
            raise RefusedError(f"Topic {topic} is not one that {context.job} reads; correct its name, or leave it out.")
    names = tuple(manifest.name for manifest in snapshots.list(store, context.job))
    return Checked(versions=tuple(versions), snapshots=names, state=record.desired if record else checks.NOT_DEPLOYED)


def remove(context: StepContext) -> Removed:
    """Delete the job's objects, kind by kind; what is gone already is not an error.

    Results in the sinks stay: other readers may need them.
    """
    store, removed = context.ports.retention(), {}
    if context.before.last_deployment:  # whoever is thought dead finds that another has the lease, now and for ever
        leases.grant(context.ports.store, context.job, context.operation.id, context.before.last_deployment)
    if topics := context.ports.ledger.delete_topics(keys.results_topics(context.job)):
        context.say(f"Removed topics of {context.job}: {', '.join(topics)}")
    for topic in context.asked(DeleteJob).topics:
        if context.ports.ledger.delete_topic(topic):
            context.say(f"Removed topic {topic}, with its events")
    names = {"snapshots": context.checked.snapshots, "versions": context.checked.versions}
    for kind, prefixes in keys.removable(context.job).items():
        number = 0
        for prefix in prefixes:
            objects = [info.key for info in store.list(prefix)]
            store.delete(objects)
            number += len(objects)
        removed[f"{kind}_objects"] = number
        named = ", ".join(names.get(kind, ()))
        context.say(f"Removed {kind} of {context.job}: {number:,} objects{f' ({named})' if named else ''}")
    return Removed.model_validate(removed)


DELETE_JOB = Runbook(
    request=DeleteJob,
    steps=(
        Step("check", "check", "Check the request against the job, its versions and snapshots", check),
        Step(
            "request_stop",
            "switch",
            "Ask the driver to stop at a batch boundary, if it runs",
            partial(steps.request_stop, to_stay=True),
        ),
        steps.AWAIT_STOP,
        Step("remove", "remove", "Remove checkpoints, snapshots, versions, logs and, last, the job record", remove),
        steps.FINISH,
    ),
)
