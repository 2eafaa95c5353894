"""What the first steps of several runbooks ask before anything is touched."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext, suppress

from pydantic import ValidationError

from streamops.cluster import record as cluster_record
from streamops.model.definitions import CsvTail, Definition, Http, Kafka, Param
from streamops.model.errors import CheckpointError, NotFoundError, RefusedError, SnapshotRefusedError
from streamops.model.records import JobRecord
from streamops.operations.context import StepContext
from streamops.operations.facts import Checked
from streamops.operations.ports import Ports
from streamops.operations.requests import NewVersion
from streamops.spark import checkpoints
from streamops.store import jobs
from streamops.versions import artifacts
from streamops.versions.artifacts import ArtifactManifest

NOT_DEPLOYED = "not deployed"


def existing(context: StepContext) -> JobRecord:
    """The record of a job that was deployed before. Raises NotFoundError."""
    record = context.operation.before
    if record is None or not record.deployment:
        known = artifacts.versions(context.ports.store, context.job)
        hint = "deploy one of its versions first: " + ", ".join(known) if known else "publish and deploy it first"
        raise NotFoundError(f"There is no deployed job {context.job}; {hint}.")
    return record


def cluster_up(context: StepContext) -> None:
    """Refuse to start a driver where the cluster was shut down, or is about to be. Raises RefusedError."""
    record = cluster_record.read(context.ports.store)
    if record.state in ("stopping", "stopped"):
        state = "stopped" if record.state == "stopped" else "being shut down"
        raise RefusedError(
            f"The cluster is {state} ({record.changed_by}); start it again with restart_cluster ('streamops cluster "
            "restart'), which brings back the jobs that ran, and then this one."
        )


def absent(context: StepContext, if_exists: bool) -> Checked | None:
    """That there is nothing to do, because no such job was deployed and that is no error."""
    if not if_exists or (context.operation.before and context.operation.before.deployment):
        return None
    context.say(f"There is no deployed job {context.job}: nothing is to be done")
    return Checked(unchanged=True, state=NOT_DEPLOYED)


def version(context: StepContext, asked: NewVersion) -> ArtifactManifest:
    """The version that is asked for; what is another job's code, as ``steps.publish_copy`` will publish it.

    Raises:
        NotFoundError, PublishedError: it is not there, or something else is published under its name.
        RefusedError: a job that runs writes the same measurements.
    """
    if asked.code_of is None:
        return context.version(asked.version)
    store = context.ports.store
    made, _ = artifacts.under_name(store, asked.code_of, asked.version, context.job, asked.measurement_prefix or "")
    for job in jobs.names(store):
        record = jobs.record(store, job)
        running = artifacts.current(store, record) if record and record.desired == "running" else None
        both = set(running.measurements) & set(made.definition.measurements) if running else set()
        if both and job != context.job:
            raise RefusedError(
                f"Job {job} runs and writes {', '.join(sorted(both))}: points of both could be the same point. Give "
                f"{context.job} measurements of its own (measurement_prefix), or stop {job} first."
            )
    return made


def continues(context: StepContext, record: JobRecord) -> Checked:
    """That the job's own checkpoint can be continued."""
    deployment = jobs.deployment(context.ports.store, context.job, record.deployment)
    version = artifacts.load_manifest(context.ports.store, context.job, deployment.version)
    topics = jobs.topics(version.definition, deployment.topics)
    reachable(context.ports, version.definition, topics)
    for stage, tail in _positions(context, record, version.definition).items():
        kept_by_kafka(context, stage, tail.offsets, topics)
    return Checked(version=deployment.version, deployment=deployment.number)


def settings(definition: Definition, request: NewVersion) -> None:
    """Raise RefusedError unless the definition has the params and sources that are set."""
    for name, value in request.params.items():
        _param(definition, name, value)
    for source, place in request.places.items():
        _place(definition, source, place, "topics" if source in request.topics else "addresses")


def _param(definition: Definition, name: str, value: Param) -> None:
    known = definition.params
    if name not in known:
        raise RefusedError(
            f"{definition.job} {definition.version} has no param {name!r}; it has {', '.join(known) or 'none'}."
        )
    wanted = type(known[name])
    if type(value) is not wanted and not (wanted is float and type(value) is int):
        raise RefusedError(f"Param {name} must be a {wanted.__name__}, like {known[name]!r}; it is {value!r}.")


def _place(definition: Definition, source: str, place: str, field: str) -> None:
    """Of a source, as ``field`` of a request sets it."""
    if source not in definition.sources:
        raise RefusedError(
            f"{definition.job} {definition.version} has no source {source!r}; it has {', '.join(definition.sources)}."
        )
    given = definition.sources[source]
    if given.stage:
        raise RefusedError(f"Source {source} is what stage {given.stage.name} hands on; it has no other place.")
    if (field == "topics") != (given.kafka is not None):
        raise RefusedError(
            f"Source {source} is {'a' if given.kafka else 'not a'} Kafka topic; set it with "
            f"{'topics' if given.kafka else 'addresses'}, not with {field}."
        )
    try:
        if given.kafka:
            what = "a topic, like trades, or trades@broker.example:9092 for one of another broker"
            Kafka.at(place)
        elif given.http:
            what = "an absolute URL, like http://127.0.0.1:8000/pings"
            Http(url=place)
        else:
            what = "an absolute directory, like /data/pings"
            CsvTail(directory=place)
    except ValidationError:
        raise RefusedError(f"Address {place!r} of source {source} is not {what}.") from None


def reachable(ports: Ports, definition: Definition, topics: Mapping[str, str], *, made: bool = False) -> None:
    """Raise NotFoundError or UnreachableError unless all topics and sinks of a version answer.

    A sink elsewhere is left to the driver.

    Args:
        made: topics that are not there will be made.
    """
    for topic in topics.values():
        with suppress(NotFoundError) if made else nullcontext():
            ports.ledger.beginning_offsets(topic)
    if not all(sink.elsewhere for sink in definition.influx_sinks):
        ports.sinks_answer()


def same_partitions(context: StepContext, job: str, version: str, published: ArtifactManifest) -> None:
    """Raise RefusedError where state would have to move to another number of partitions, and cannot."""
    # Spark does not record the number in this offset log version, so it would read half of the state silently; a
    # runner that knows this brings the state into the new number before it starts.
    if artifacts.REPARTITION in published.runtime_can:
        return
    new = published.definition
    old = artifacts.load_manifest(context.ports.store, job, version).definition.resources.state_partitions
    if old != new.resources.state_partitions:
        raise RefusedError(
            f"{new.job} {new.version} has resources.state_partitions {new.resources.state_partitions}, but the state "
            f"of {version} lies in {old} partitions, and its runner is too old to change that; publish it again as "
            f"another version, or with {old}."
        )


def runner(published: ArtifactManifest, topics: Mapping[str, str], logging: Mapping[str, str] | None = None) -> None:
    """Raise RefusedError where a topic or a level is asked for that the runner of a version does not know.

    Args:
        topics: source -> topic.
        logging: logger -> level.
    """
    for topic in topics.values() if artifacts.BROKERS not in published.runtime_can else ():
        if Kafka.at(topic).servers:
            raise RefusedError(
                f"{published.job} {published.version} is to read {topic}, and its runner is too old to ask another "
                "broker than the installation's; publish it again as another version."
            )
    if "TRACE" in (logging or {}).values() and artifacts.LEVELS not in published.runtime_can:
        raise RefusedError(
            f"The runner of {published.job} {published.version} is too old to know TRACE; use DEBUG, or publish it "
            "again as another version."
        )


def _positions(context: StepContext, record: JobRecord, definition: Definition) -> dict[str, checkpoints.Tail]:
    store = context.ports.store
    prefix = checkpoints.current_epoch_prefix(store, context.job, record.deployment)
    if prefix is None:
        return {}
    found = {stage: checkpoints.position(store, f"{prefix}{stage}/") for stage in definition.stages}
    return {stage: tail for stage, tail in found.items() if tail}


def tails(context: StepContext, record: JobRecord, definition: Definition) -> dict[str, checkpoints.Tail]:
    """The last committed batch of each stage. Raises CheckpointError when there is none yet."""
    store = context.ports.store
    prefix = checkpoints.current_epoch_prefix(store, context.job, record.deployment)
    if prefix is None:
        raise CheckpointError(
            f"Deployment {record.deployment} of {context.job} has no checkpoint yet; wait until its driver is healthy."
        )
    found = {stage: checkpoints.find_tail(store, f"{prefix}{stage}/") for stage in definition.stages}
    return {stage: tail for stage, tail in found.items() if tail}


def kept_by_kafka(
    context: StepContext, stage: str, offsets: Mapping[str, Mapping[str, int]], topics: Mapping[str, str]
) -> None:
    """Raise SnapshotRefusedError where retention has removed what a stage reads next."""
    for source, partitions in offsets.items():
        if source not in topics:
            continue
        first = context.ports.ledger.beginning_offsets(topics[source])
        for partition, offset in partitions.items():
            if first.get(partition, 0) > offset:
                raise SnapshotRefusedError(
                    f"Stage {stage} of {context.job} stands at offset {offset} of topic {topics[source]}, but Kafka's "
                    f"retention has removed everything before {first[partition]}: "
                    f"{first[partition] - offset:,} events would be "
                    "lost. Start from scratch to accept that (cancel_job, then deploy_job with from_scratch)."
                )
