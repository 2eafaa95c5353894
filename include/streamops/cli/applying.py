"""From what is declared and what is there to what must be done, or to what must go: pure decisions, with their reasons.

Applying a file twice does nothing the second time. A file that is behind, because the job was upgraded since, is
refused with the difference: bringing an old version back is never done by omission.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from streamops.cli.declared import Declared, DeclaredCluster, DeclaredJob, DeclaredSnapshot, DeclaredTopic
from streamops.model.errors import RefusedError
from streamops.model.records import Deployment, JobRecord


@dataclass(frozen=True)
class PresentJob:
    """What is there of one job. ``deployments`` are all of them, oldest first; ``reads`` are topics."""

    record: JobRecord | None = None
    deployments: tuple[Deployment, ...] = ()
    published: tuple[str, ...] = ()
    snapshots: tuple[str, ...] = ()
    reads: frozenset[str] = frozenset()

    @property
    def exists(self) -> bool:
        """Whether there is anything to delete."""
        return self.record is not None or bool(self.published)

    @property
    def current(self) -> Deployment | None:
        """The deployment that the record names."""
        number = self.record.deployment if self.record else 0
        return next((item for item in self.deployments if item.number == number), None)


@dataclass(frozen=True)
class PresentTopic:
    """A topic as it is; ``retention_ms`` is -1 where events are kept for ever."""

    partitions: int
    retention_ms: int


@dataclass(frozen=True)
class Present:
    """What is there; ``members`` are the nodes that should be in the cluster, whether or not one has died since.

    ``cluster`` is its state: ``running``, or another one once it was shut down.
    """

    bucket: str
    members: int
    jobs: Mapping[str, PresentJob] = field(default_factory=dict)
    cluster: str = "running"
    topics: Mapping[str, PresentTopic] = field(default_factory=dict)


@dataclass(frozen=True)
class Action:
    """One thing to do. ``verb`` is ``publish``, ``create_topic``, a runbook's name, or ``none``.

    ``values`` are the runbook's form, or what the other two need.
    """

    verb: str
    what: str
    why: str
    values: Mapping[str, Any] = field(default_factory=dict)

    @property
    def changes(self) -> bool:
        """Whether there is anything to do."""
        return self.verb != "none"


def decide(declared: Declared, present: Present) -> tuple[Action, ...]:
    """What must be done for one document, in order; the last word is ``none`` when nothing must.

    Raises:
        RefusedError: the file is stale, or what it declares cannot follow from what is there; names the difference.
    """
    if isinstance(declared, DeclaredCluster):
        return _cluster(declared, present)
    if isinstance(declared, DeclaredTopic):
        return _topic(declared, present.topics.get(declared.name))
    there = present.jobs.get(declared.name if isinstance(declared, DeclaredJob) else declared.job, PresentJob())
    if isinstance(declared, DeclaredSnapshot):
        return _snapshot(declared, there)
    if declared.bucket and declared.bucket != present.bucket:
        raise RefusedError(
            f"Job {declared.name} is declared for bucket {declared.bucket}, but this installation's is "
            f"{present.bucket}; choose another installation with --context, or correct the file."
        )
    return _publish(declared, there) + _job(declared, there)


def _publish(declared: DeclaredJob, there: PresentJob) -> tuple[Action, ...]:
    if declared.version in there.published:
        return ()
    if declared.code is None:
        known = ", ".join(there.published) or "none"
        raise RefusedError(
            f"Job {declared.name} has no version {declared.version} (published: {known}); publish it, or name its "
            "directory with code."
        )
    what = f"{declared.name} {declared.version} from {declared.code}"
    values = {"job": declared.name, "version": declared.version, "code": declared.code, "secret": declared.secret}
    return (Action("publish", what, "the version is not published", values),)


def _job(declared: DeclaredJob, there: PresentJob) -> tuple[Action, ...]:
    record, current = there.record, there.current
    _refuse_stale(declared, there)
    if declared.state == "stopped":
        if record is None or record.desired != "running":
            return (_nothing(declared.name, f"is {record.desired if record else 'not deployed'}"),)
        return (Action("cancel_job", declared.name, f"it runs {record.version}", {"job": declared.name}),)
    if record is None or current is None:
        return (_deploy(declared, "it was never deployed"),)
    same_version = current.version == declared.version
    changed = _changed(declared, current)
    if record.desired == "running":
        if same_version and not changed:
            return (_nothing(declared.name, f"runs {declared.version}"),)
        why = f"it runs {current.version}" if not same_version else "; ".join(changed)
        values = {"job": declared.name, "version": declared.version, **_settings(declared, only=changed)}
        values |= {"start_at": dict(declared.start_at)} if declared.start_at else {}  # also of the version's own topics
        return (Action("upgrade_job", f"{declared.name} to {declared.version}", why, values),)
    if same_version and not changed and not _other_snapshot(declared, record, current):
        why = f"it is {record.desired}, and continues from its own checkpoint"
        return (Action("start_job", f"{declared.name} {declared.version}", why, {"job": declared.name}),)
    if not declared.initial_snapshot and not declared.from_scratch:
        names = ", ".join(there.snapshots[-3:]) or "none"
        raise RefusedError(
            f"Job {declared.name} is {record.desired} with {current.version}; starting {declared.version} without its "
            f"state would process everything again. Name initial_snapshot (there is {names}), "
            "or say from_scratch: true."
        )
    return (_deploy(declared, f"it is {record.desired} with {current.version}"),)


def _other_snapshot(declared: DeclaredJob, record: JobRecord, current: Deployment) -> bool:
    """Whether the declared snapshot is another state than the one that the job would continue from.

    The snapshot that it was stopped with is where its own checkpoint stands; the one that it came from is behind it.
    """
    if declared.initial_snapshot is None:
        return False
    own = {f"{declared.name}/{record.snapshot}", current.from_snapshot}
    job, _, name = declared.initial_snapshot.rpartition("/")
    return f"{job or declared.name}/{name}" not in own


def _refuse_stale(declared: DeclaredJob, there: PresentJob) -> None:
    """A version that ran before and was replaced is not brought back by applying an old file."""
    current = there.current
    if current is None or current.version == declared.version:
        return
    ran = [item.number for item in there.deployments if item.version == declared.version]
    if ran and max(ran) < current.number:
        raise RefusedError(
            f"The file is stale: it declares {declared.name} {declared.version}, which was replaced by "
            f"{current.version} on {current.created:%Y-%m-%d %H:%M} UTC (deployment {max(ran)} -> {current.number}). "
            f"Write version: {current.version}, or go back on purpose: streamops upgrade {declared.name} "
            f"{declared.version} --snapshot NAME."
        )


def _changed(declared: DeclaredJob, current: Deployment) -> tuple[str, ...]:
    """Settings of the file that are not those of the deployment; what the file does not name stays."""
    places = {**declared.topics, **declared.addresses}
    groups: list[tuple[str, Mapping[str, Any], Mapping[str, Any]]] = [
        ("params", declared.params, current.params),
        ("places", places, current.topics),
        ("logging", declared.logging, current.logging),
        ("resources", declared.resources.given, current.resources),
    ]
    found = tuple(
        f"{group}.{name}: {there.get(name, 'as defined')} -> {value}"
        for group, wanted, there in groups
        for name, value in wanted.items()
        if there.get(name) != value
    )
    library = current.library.label if current.library else "none"
    if declared.library and declared.library != library:
        found += (f"library: {library} -> {declared.library}",)
    return found


def _settings(declared: DeclaredJob, only: Iterable[str] | None = None) -> dict[str, Any]:
    if only is not None and not tuple(only):
        return {}
    given = {
        "params": dict(declared.params),
        "topics": dict(declared.topics),
        "addresses": dict(declared.addresses),
        "logging": dict(declared.logging),
        **declared.resources.given,
        "library": declared.library,
    }
    return {name: value for name, value in given.items() if value}


def _deploy(declared: DeclaredJob, why: str) -> Action:
    values: dict[str, Any] = {"job": declared.name, "version": declared.version, **_settings(declared)}
    origin = "with empty state"
    if declared.initial_snapshot:
        values["from_snapshot"] = declared.initial_snapshot
        origin = f"from snapshot {declared.initial_snapshot}"
        if declared.initial_snapshot.rpartition("/")[0] not in ("", declared.name):
            values["fork"] = True
        values |= {"start_at": dict(declared.start_at)} if declared.start_at else {}
    chosen = {
        "from_scratch": declared.from_scratch,
        "create_topics": declared.create_topics,
        "topic_retention_h": declared.topic_retention_h,
    }
    values |= {name: value for name, value in chosen.items() if value}
    return Action("deploy_job", f"{declared.name} {declared.version} {origin}", why, values)


def _snapshot(declared: DeclaredSnapshot, there: PresentJob) -> tuple[Action, ...]:
    label = f"{declared.job}/{declared.name}"
    if declared.name in there.snapshots:
        return (_nothing(label, "exists"),)
    if there.record is None or there.record.desired != "running":
        state = there.record.desired if there.record else "not deployed"
        raise RefusedError(f"Snapshot {label} is not there, and job {declared.job} is {state}; start it to take one.")
    values: dict[str, Any] = {"job": declared.job, "snapshot": declared.name}
    if declared.cancel:
        values["cancel"] = True
    return (Action("snapshot_job", f"{label}{' and stop the job' * declared.cancel}", "it is not there", values),)


def _cluster(declared: DeclaredCluster, present: Present) -> tuple[Action, ...]:
    up: tuple[Action, ...] = ()
    if present.cluster != "running":
        up = (Action("restart_cluster", "cluster", f"it is {present.cluster}"),)
    if declared.size == present.members:
        return up or (_nothing("cluster", f"has {present.members} members"),)
    why = f"it has {present.members} members"
    return (*up, Action("scale_cluster", f"cluster to {declared.size} members", why, {"size": declared.size}))


def _topic(declared: DeclaredTopic, there: PresentTopic | None) -> tuple[Action, ...]:
    label = f"topic {declared.name}"
    wanted_ms = declared.retention_h and declared.retention_h * 3_600_000
    if there is None:
        kept = f"events kept for {declared.retention_h} h" if wanted_ms else "events kept as the broker says"
        config = {"retention.ms": str(wanted_ms)} if wanted_ms else {}
        values = {"topic": declared.name, "partitions": declared.partitions, "config": config}
        what = f"{declared.name}, partitions {declared.partitions}, {kept}"
        return (Action("create_topic", what, "it is not there", values),)
    differs = [
        f"{name}: {now} -> {wanted}"
        for name, now, wanted in (
            ("partitions", there.partitions, declared.partitions),
            ("retention in ms", there.retention_ms, wanted_ms or there.retention_ms),
        )
        if now != wanted
    ]
    if differs:
        raise RefusedError(
            f"Topic {declared.name} is not as declared ({', '.join(differs)}), and one that is there is not changed "
            "here: keys would move to other partitions, or events would go. Correct the file, or change the topic with "
            "Kafka's own tools."
        )
    return (_nothing(label, f"has {there.partitions} partitions"),)


def decide_removal(declared: Iterable[Declared], present: Present) -> tuple[Action, ...]:
    """What must be done so that nothing of what is declared is left: jobs with their topics, snapshots, the cluster.

    Raises:
        RefusedError: a topic is declared without any job that reads it.
    """
    items = tuple(declared)
    names = dict.fromkeys(item.name for item in items if isinstance(item, DeclaredJob))
    goes_with: dict[str, str] = {}  # topic -> the last of its readers, so that the others are gone by then
    for topic in (item.name for item in items if isinstance(item, DeclaredTopic) and item.name in present.topics):
        readers = [name for name in names if present.jobs[name].exists and topic in present.jobs[name].reads]
        if not readers:
            raise RefusedError(
                f"No job of these files reads the topic {topic}, so it stays; name the file of the job that does as "
                "well, or delete it with Kafka's own tools."
            )
        goes_with[topic] = readers[-1]
    actions = [_remove_job(name, present.jobs[name], goes_with) for name in names]
    snapshots = [item for item in items if isinstance(item, DeclaredSnapshot) and item.job not in names]
    actions += [_remove_snapshot(item, present.jobs[item.job]) for item in snapshots]
    if any(isinstance(item, DeclaredCluster) for item in items):  # last: it takes along whatever else runs
        down = present.cluster == "stopped"
        why = f"it is {present.cluster}"
        actions.append(_gone("cluster", "is stopped") if down else Action("shutdown_cluster", "cluster", why))
    return tuple(actions)


def _remove_job(job: str, there: PresentJob, goes_with: Mapping[str, str]) -> Action:
    if not there.exists:
        return _gone(f"job {job}")
    topics = tuple(topic for topic, reader in goes_with.items() if reader == job)
    also = "".join(f", with topic {topic}" for topic in topics)
    why = f"versions: {', '.join(there.published)}; snapshots: {', '.join(there.snapshots) or 'none'}"
    values: dict[str, Any] = {"job": job, **({"topics": topics} if topics else {})}
    return Action("delete_job", f"{job}{also}", why, values)


def _remove_snapshot(item: DeclaredSnapshot, there: PresentJob) -> Action:
    label = f"{item.job}/{item.name}"
    if item.name not in there.snapshots:
        return _gone(f"snapshot {label}")
    values = {"action": "remove", "job": item.job, "snapshot": item.name, "reason": "deleted with its file"}
    return Action("manage_snapshot", f"remove {label}", "for 14 days 'streamops snapshots undelete' undoes it", values)


def _gone(what: str, state: str = "is not there") -> Action:
    return Action("none", what, f"{what} {state}")


def _nothing(what: str, state: str) -> Action:
    return Action("none", what, f"{what} {state}, as declared")
