"""The first step of every operation: refuse what must not be, before anything is touched."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from streamops import snapshots
from streamops.model.definitions import CsvTail, Definition, Http
from streamops.model.errors import CheckpointError, NotFoundError, RefusedError, SnapshotRefusedError
from streamops.model.manifest import Manifest
from streamops.model.records import JobRecord
from streamops.operations.operation import Operation, Request
from streamops.operations.ports import Ports
from streamops.spark import checkpoints
from streamops.store import jobs
from streamops.versions import artifacts, libraries, verdicts
from streamops.versions.artifacts import ArtifactManifest


@dataclass(frozen=True)
class Case:
    """What a check looks at."""

    ports: Ports
    operation: Operation
    record: JobRecord | None
    say: Callable[[str], None] = lambda line: None

    @property
    def job(self) -> str:
        return self.operation.job

    def existing(self) -> JobRecord:
        """The record of a job that was deployed before. Raises NotFoundError."""
        if self.record is None or not self.record.deployment:
            known = artifacts.versions(self.ports.store, self.job)
            hint = "deploy one of its versions first: " + ", ".join(known) if known else "publish and deploy it first"
            raise NotFoundError(f"There is no deployed job {self.job}; {hint}.")
        return self.record


def check(case: Case) -> dict[str, Any]:
    """Facts of an accepted request; ``unchanged`` says that there is nothing to do.

    Raises:
        RefusedError, NotFoundError, SnapshotRefusedError, SnapshotExistsError, CheckpointError: what is wrong and
            what to do instead; nothing was touched.
    """
    return {
        "deploy_job": _deploy,
        "start_job": _start,
        "recover_job": _recover,
        "snapshot_job": _snapshot,
        "cancel_job": _cancel,
        "delete_job": _delete,
        "upgrade_job": _upgrade,
    }[case.operation.request.runbook](case)


def _deploy(case: Case) -> dict[str, Any]:
    request, store, record = case.operation.request, case.ports.store, case.record
    version = _published(case)
    if record and record.desired == "running":
        asks_more = (
            request.from_snapshot
            or request.from_scratch
            or request.params
            or request.places
            or request.logging
            or request.library
        )
        if record.version == request.version and not asks_more:
            return {"unchanged": True, "version": record.version, "deployment": record.deployment}
        if record.version == request.version:
            raise RefusedError(
                f"Job {case.job} already runs {record.version}, with what it was deployed with; "
                "to deploy it anew, cancel it first (cancel_job)."
            )
        raise RefusedError(
            f"Job {case.job} runs {record.version}; to replace it by {request.version} and keep its state, "
            "use upgrade_job."
        )
    _settings(version.definition, request)
    libraries.choose(store, version.definition, request.library)
    topics = jobs.topics(version.definition, request.topics)
    reachable(case.ports, version.definition, topics)
    source = request.source_snapshot()
    if source is None:
        if not request.from_scratch:
            _no_state(case)
        return {"version": version.version, "state": "empty"}
    manifest = snapshots.load(store, *source)
    snapshots.require_usable(
        manifest, case.job, fork=request.fork, topics=topics, beginning=case.ports.ledger.beginning_offsets
    )
    _same_partitions(case.ports, manifest.job, manifest.version, version)
    snapshots.verify(store, manifest)
    found = verdicts.of_snapshot(manifest, version, request.params)
    facts = verdicts.require(found, request.accept_loss, case.say)
    return {"version": version.version, "state": f"snapshot {manifest.job}/{manifest.name}", **facts}


def _start(case: Case) -> dict[str, Any]:
    record = case.existing()
    if record.desired == "running":
        raise RefusedError(
            f"Job {case.job} is not stopped (it should be running {record.version}); start_job starts a stopped one. "
            "If its driver hangs, cancel it first (cancel_job)."
        )
    return _continues(case, record)


def _recover(case: Case) -> dict[str, Any]:
    record = case.existing()
    if record.desired != "running":
        raise RefusedError(f"Job {case.job} should not run; start it with start_job.")
    return _continues(case, record)


def _continues(case: Case, record: JobRecord) -> dict[str, Any]:
    """That the job's own checkpoint can be continued."""
    deployment = jobs.deployment(case.ports.store, case.job, record.deployment)
    version = artifacts.load_manifest(case.ports.store, case.job, deployment.version)
    topics = jobs.topics(version.definition, deployment.topics)
    reachable(case.ports, version.definition, topics)
    for stage, tail in _positions(case, record, version.definition).items():
        _kept_by_kafka(case, stage, tail.offsets, topics)
    return {"version": deployment.version, "deployment": deployment.number}


def _snapshot(case: Case) -> dict[str, Any]:
    record, store = case.existing(), case.ports.store
    name = case.operation.snapshot
    snapshots.require_free_name(store, case.job, name)
    facts = {"snapshot": name, "version": record.version, "deployment": record.deployment}
    if not case.operation.request.cancel:  # nothing is stopped for it, so that the export itself can still refuse
        return facts
    size = _size(case, record, _running_version(case, record).definition)
    snapshots.require_space(size, case.ports.free_bytes())
    return facts | {"bytes": size}


def _cancel(case: Case) -> dict[str, Any]:
    record = case.existing()
    return {"unchanged": True} if record.desired != "running" else {"version": record.version, "launch": record.launch}


def _delete(case: Case) -> dict[str, Any]:
    versions = artifacts.versions(case.ports.store, case.job)
    if case.record is None and not versions:
        raise NotFoundError(f"There is no job {case.job}; 'streamops jobs' lists those that are there.")
    names = [manifest.name for manifest in snapshots.list(case.ports.store, case.job)]
    return {"versions": versions, "snapshots": names, "state": case.record.desired if case.record else "not deployed"}


def _upgrade(case: Case) -> dict[str, Any]:
    request, store, record = case.operation.request, case.ports.store, case.existing()
    version = _published(case)
    if record.desired != "running":
        raise RefusedError(
            f"Job {case.job} is {record.desired}, and an upgrade needs a running job; start it (start_job), or deploy "
            f"{request.version} from a snapshot (deploy_job with from_snapshot)."
        )
    old = jobs.deployment(store, case.job, record.deployment)
    changes = request.params or request.places or request.logging or request.library
    same = old.version == version.version and not changes
    if same:
        raise RefusedError(f"Job {case.job} already runs {old.version}; there is nothing to upgrade.")
    _settings(version.definition, request)
    libraries.choose(store, version.definition, request.library, old.library)
    name = case.operation.snapshot
    snapshots.require_free_name(store, case.job, name)
    running = _running_version(case, record)
    _same_partitions(case.ports, case.job, old.version, version)
    topics = jobs.topics(version.definition, {**old.topics, **request.places})
    reachable(case.ports, version.definition, topics)
    size = 0
    for stage, tail in _tails(case, record, running.definition).items():
        _kept_by_kafka(case, stage, tail.offsets, topics)
        size += tail.size
    snapshots.require_space(2 * size, case.ports.free_bytes())
    params = {name: value for name, value in old.params.items() if name in version.definition.params} | request.params
    found = verdicts.of_deployment(running, old.params, version, params)
    facts = verdicts.require(found, request.accept_loss, case.say)
    return {"from": old.version, "to": version.version, "snapshot": name, "bytes": size, **facts}


def _published(case: Case) -> ArtifactManifest:
    version = case.operation.request.version
    assert version is not None  # the request demands it
    return artifacts.load_manifest(case.ports.store, case.job, version)


def _running_version(case: Case, record: JobRecord) -> ArtifactManifest:
    deployment = jobs.deployment(case.ports.store, case.job, record.deployment)
    return artifacts.load_manifest(case.ports.store, case.job, deployment.version)


def _no_state(case: Case) -> None:
    store, record = case.ports.store, case.record
    names = [manifest.name for manifest in snapshots.list(store, case.job)]
    if names:
        raise RefusedError(
            f"Job {case.job} has snapshots ({', '.join(names[-3:])}); start from one (from_snapshot), or tick "
            "from_scratch to process everything again with empty state."
        )
    if record and record.deployment and checkpoints.current_epoch(store, case.job, record.deployment) is not None:
        raise RefusedError(
            f"Job {case.job} has a checkpoint of deployment {record.deployment}; continue it (start_job), or tick "
            "from_scratch to process everything again with empty state."
        )


def _settings(definition: Definition, request: Request) -> None:
    for name, value in request.params.items():
        known = definition.params
        if name not in known:
            raise RefusedError(
                f"{definition.job} {definition.version} has no param {name!r}; it has {', '.join(known) or 'none'}."
            )
        wanted = type(known[name])
        if type(value) is not wanted and not (wanted is float and type(value) is int):
            raise RefusedError(f"Param {name} must be a {wanted.__name__}, like {known[name]!r}; it is {value!r}.")
    for source, place in request.places.items():
        if source not in definition.sources:
            raise RefusedError(
                f"{definition.job} {definition.version} has no source {source!r}; "
                f"it has {', '.join(definition.sources)}."
            )
        given, kind = definition.sources[source], "topics" if source in request.topics else "addresses"
        if (kind == "topics") != (given.kafka is not None):
            raise RefusedError(
                f"Source {source} is {'a' if given.kafka else 'not a'} Kafka topic; set it with "
                f"{'topics' if given.kafka else 'addresses'}, not with {kind}."
            )
        try:
            if given.csv_tail:
                CsvTail(directory=place)
            elif given.http:
                Http(url=place)
        except ValidationError:
            what = "directory, like /data/pings" if given.csv_tail else "URL, like http://127.0.0.1:8000/pings"
            raise RefusedError(f"Address {place!r} of source {source} is not an absolute {what}.") from None


def reachable(ports: Ports, definition: Definition, topics: Mapping[str, str]) -> None:
    """Raise NotFoundError or UnreachableError unless all topics and sinks of a version answer."""
    for topic in topics.values():
        ports.ledger.beginning_offsets(topic)
    if any(sink.influxdb for stage in definition.stages.values() for sink in stage.sinks):
        ports.sinks_answer()


def _same_partitions(ports: Ports, job: str, version: str, published: ArtifactManifest) -> None:
    # Spark does not record the number in this offset log version, so it would read half of the state silently; a
    # runner that knows this brings the state into the new number before it starts.
    if artifacts.REPARTITION in published.runtime_can:
        return
    new = published.definition
    old = artifacts.load_manifest(ports.store, job, version).definition.resources.state_partitions
    if old != new.resources.state_partitions:
        raise RefusedError(
            f"{new.job} {new.version} has resources.state_partitions {new.resources.state_partitions}, but the state "
            f"of {version} lies in {old} partitions, and its runner is too old to change that; publish it anew as "
            f"another version, or with {old}."
        )


def _positions(case: Case, record: JobRecord, definition: Definition) -> dict[str, checkpoints.Tail]:
    store = case.ports.store
    prefix = checkpoints.current_epoch_prefix(store, case.job, record.deployment)
    if prefix is None:
        return {}
    found = {stage: checkpoints.position(store, f"{prefix}{stage}/") for stage in definition.stages}
    return {stage: tail for stage, tail in found.items() if tail}


def _tails(case: Case, record: JobRecord, definition: Definition) -> dict[str, checkpoints.Tail]:
    store = case.ports.store
    prefix = checkpoints.current_epoch_prefix(store, case.job, record.deployment)
    if prefix is None:
        raise CheckpointError(
            f"Deployment {record.deployment} of {case.job} has no checkpoint yet; wait until its driver is healthy."
        )
    found = {stage: checkpoints.find_tail(store, f"{prefix}{stage}/") for stage in definition.stages}
    return {stage: tail for stage, tail in found.items() if tail}


def _size(case: Case, record: JobRecord, definition: Definition) -> int:
    return sum(tail.size for tail in _tails(case, record, definition).values())


def _kept_by_kafka(case: Case, stage: str, offsets: Mapping[str, Mapping[str, int]], topics: Mapping[str, str]) -> None:
    for source, partitions in offsets.items():
        if source not in topics:
            continue
        first = case.ports.ledger.beginning_offsets(topics[source])
        for partition, offset in partitions.items():
            if first.get(partition, 0) > offset:
                raise SnapshotRefusedError(
                    f"Stage {stage} of {case.job} stands at offset {offset} of topic {topics[source]}, but Kafka's "
                    f"retention has removed everything before {first[partition]}: "
                    f"{first[partition] - offset:,} events would be "
                    "lost. Start from scratch to accept that (cancel_job, then deploy_job with from_scratch)."
                )


def manifest_of(ports: Ports, operation: Operation) -> Manifest | None:
    """The snapshot that a deploy starts from."""
    source = operation.request.source_snapshot()
    return snapshots.load(ports.store, *source) if source else None
