"""Start a published version of a job that is not running: with empty state, or from a snapshot."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import Field, model_validator

from streamops import snapshots
from streamops.model.definitions import SnapshotReference
from streamops.model.errors import RefusedError
from streamops.model.manifest import Manifest
from streamops.operations import checks, moving, refilling, steps
from streamops.operations.context import StepContext
from streamops.operations.facts import Checked, Reserved
from streamops.operations.requests import Library, NewVersion
from streamops.operations.runbook import Runbook, Step
from streamops.spark import checkpoints
from streamops.store import jobs, leases
from streamops.versions import libraries, verdicts


class DeployJob(NewVersion):
    """What may be asked for."""

    runbook: Literal["deploy_job"] = "deploy_job"
    library: Annotated[
        Library,
        Field(description="LIBRARY/VERSION; if left empty, that of the job or of the snapshot, else the newest."),
    ] = None
    from_snapshot: Annotated[
        SnapshotReference | None,
        Field(
            title="From snapshot",
            description="Start from this snapshot: NAME, or JOB/NAME together with Fork.",
        ),
    ] = None
    from_scratch: Annotated[
        bool,
        Field(
            title="From scratch",
            description="Start with empty state even though a snapshot or a checkpoint of this job exists.",
        ),
    ] = False
    fork: Annotated[bool, Field(title="Fork", description="Confirm that the snapshot belongs to another job.")] = False

    create_topics: Annotated[
        int | None,
        Field(
            ge=1,
            le=1000,
            title="Create topics",
            description="Create missing topics that its sources read, with this many partitions; if left empty, "
            "a missing topic is refused.",
        ),
    ] = None
    topic_retention_h: Annotated[
        int | None,
        Field(
            ge=1,
            title="Topic retention (h)",
            description="How long created topics keep an event; if left empty, as the broker is configured. A recount "
            "compares what is kept.",
        ),
    ] = None

    @model_validator(mode="after")
    def _go_together(self) -> DeployJob:
        if self.from_snapshot and self.from_scratch:
            raise ValueError("from_snapshot, from_scratch: choose one; a start from scratch has no snapshot")
        if self.fork and not self.from_snapshot:
            raise ValueError("fork: needs from_snapshot, the other job's snapshot as JOB/NAME")
        if self.start_at and not self.from_snapshot:
            raise ValueError("start_at: needs from_snapshot; without state, sources begin where the definition says")
        if self.topic_retention_h and not self.create_topics:
            raise ValueError("topic_retention_h: needs create_topics; a topic that is there keeps what it keeps")
        return self

    def source_snapshot(self) -> tuple[str, str] | None:
        """The snapshot to start from, as job and name."""
        if not self.from_snapshot:
            return None
        job, _, name = self.from_snapshot.rpartition("/")
        return job or self.job, name


def check(context: StepContext) -> Checked:
    """Refuse what cannot work, before anything is touched.

    Raises:
        RefusedError, NotFoundError, SnapshotRefusedError: what is wrong and what to do instead.
    """
    asked, store, record = context.asked(DeployJob), context.ports.store, context.operation.before
    version = checks.version(context, asked)
    if record and record.desired == "running":
        set_ = (asked.params, asked.places, asked.logging, asked.resources, asked.library)
        more = (asked.from_snapshot, asked.from_scratch, *set_)
        if record.version != asked.version:
            raise RefusedError(
                f"Job {context.job} runs {record.version}; to replace it by {asked.version} and keep its state, "
                "use upgrade_job."
            )
        if any(more):
            raise RefusedError(
                f"Job {context.job} already runs {record.version}, with what it was deployed with; "
                "to deploy it again, cancel it first (cancel_job)."
            )
        return Checked(unchanged=True, version=record.version, deployment=record.deployment)
    checks.cluster_up(context)
    checks.settings(version.definition, asked)
    libraries.choose(store, version.definition, asked.library)
    topics = jobs.topics(version.definition, asked.topics)
    source = asked.source_snapshot()
    checks.runner(version, topics, asked.logging)
    checks.reachable(context.ports, version.definition, topics, made=_makes_topics(asked))
    if source is None:
        if not asked.from_scratch:
            _no_state(context)
        return Checked(version=version.version, state="empty")
    manifest, ledger = snapshots.load(store, *source), context.ports.ledger
    of, stood = moving.taken_of(store, manifest), moving.of_snapshot(manifest)
    if asked.start_at and not of:
        raise RefusedError(
            f"Snapshot {manifest.job}/{manifest.name} was taken in another installation, and which topics it had read "
            "is not known here: start_at cannot be kept. Leave it out, or start from_scratch."
        )
    moved = moving.find(ledger, jobs.topics(*of) if of else {}, topics, stood, asked.start_at, context.say)
    same = {name: topic for name, topic in topics.items() if name not in moved}
    snapshots.require_usable(manifest, context.job, fork=asked.fork, topics=same, beginning=ledger.beginning_offsets)
    moving.require_ready(ledger, moved, stood, moving.closed_in(manifest), asked.accept_loss, context.say)
    checks.same_partitions(context, manifest.job, manifest.version, version)
    snapshots.verify(store, manifest)
    changed = verdicts.moved(*of, version.definition, asked.places, moved) if of else {}
    found = verdicts.of_snapshot(store, manifest, version, asked.params, changed)
    told = verdicts.require(found, asked.accept_loss, context.say)
    refilling.starts(ledger, version, told["refilled"], refilling.of_snapshot(manifest), topics)
    state = f"snapshot {manifest.job}/{manifest.name}"
    return Checked(version=version.version, state=state, moved=moved, **told)


def _no_state(context: StepContext) -> None:
    store, record = context.ports.store, context.operation.before
    names = [manifest.name for manifest in snapshots.list(store, context.job)]
    if names:
        raise RefusedError(
            f"Job {context.job} has snapshots ({', '.join(names[-3:])}); start from one (from_snapshot), or tick "
            "from_scratch to process everything again with empty state."
        )
    if record and record.deployment and checkpoints.current_epoch(store, context.job, record.deployment) is not None:
        raise RefusedError(
            f"Job {context.job} has a checkpoint of deployment {record.deployment}; continue it (start_job), or tick "
            "from_scratch to process everything again with empty state."
        )


def reserve(context: StepContext) -> Reserved:
    """Record the deployment, bring its state in place, and name the launch that may write."""
    if context.checked.unchanged:
        return Reserved()
    steps.publish_copy(context)
    store, version, asked = context.ports.store, context.version(), context.asked(DeployJob)
    manifest = _manifest(context, asked)
    if _makes_topics(asked):
        _make_topics(context, jobs.topics(version.definition, asked.topics).values(), asked)
    settings = steps.Settings.asked(asked)
    facts = steps.install(context, version, manifest, context.number, context.launch, settings)
    checks.cluster_up(context)  # of a job that was never deployed, a shutdown has not taken the lock
    steps.give(context, version.version, context.number, context.launch)
    epoch = leases.grant(store, context.job, context.launch, context.number).value.epoch
    return facts.model_copy(update={"epoch": epoch})


def _makes_topics(asked: DeployJob) -> bool:
    """Not with a snapshot: what it has read is in its topics, or lost."""
    return asked.create_topics is not None and asked.from_snapshot is None


def _make_topics(context: StepContext, topics: Iterable[str], asked: DeployJob) -> None:
    hours = asked.topic_retention_h
    config = {"retention.ms": str(hours * 3_600_000)} if hours else {}
    kept = f"for {hours} h" if hours else "as the broker says"
    for topic in topics:
        if context.ports.ledger.ensure_topic(topic, asked.create_topics or 1, config):
            context.say(f"Topic {topic} was not there: made, partitions {asked.create_topics}, keeps events {kept}")


def _manifest(context: StepContext, asked: DeployJob) -> Manifest | None:
    source = asked.source_snapshot()
    return snapshots.load(context.ports.store, *source) if source else None


DEPLOY_JOB = Runbook(
    request=DeployJob,
    steps=(
        Step("check", "check", "Check the request against the job, its versions and snapshots", check),
        Step(
            "reserve",
            "prepare",
            "Record the deployment, put its state in place, and name the launch that may write",
            reserve,
        ),
        steps.SUBMIT,
        steps.HEALTHY,
        steps.FINISH,
    ),
    starts=True,
)
