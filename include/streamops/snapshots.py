"""Snapshots: named, immutable, verified copies of all stages of a job at a commit boundary.

Data objects lie below a prefix that is unique to the attempt; the manifest is written last and conditionally. So a
snapshot exists whole or not at all, a name is never reused silently, and an attempt that died is invisible.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from streamops import checkpoints, keys
from streamops.adapters.object_store import ObjectStore
from streamops.errors import (
    CheckpointError,
    ConflictError,
    NotFoundError,
    SnapshotExistsError,
    SnapshotRefusedError,
    StreamOpsError,
)
from streamops.names import checked
from streamops.records import Deployment, Offsets, StageStart, now

Say = Callable[[str], None]


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class ManifestObject(_Model):
    """One object: ``path`` inside the stage's checkpoint, ``size`` in bytes, ``sha256`` in hex."""

    stage: str
    path: str
    key: str
    size: int
    sha256: str
    version_id: str | None = None


class ManifestStage(_Model):
    """A stage after its last committed ``batch`` (-1: none yet); ``start`` is from where its state counts."""

    batch: int = -1
    offsets: Offsets = {}
    watermark_ms: int | None = None
    query_id: str = ""
    start: StageStart


class Manifest(_Model):
    """What a snapshot is. It exists when this object exists."""

    format: Literal[1] = 1
    job: str
    name: str
    attempt: str
    created: datetime
    live: bool  # taken while the job ran on
    operation: str = ""
    requested_by: str = ""
    dag_run: str = ""
    version: str
    artifact_sha256: str
    runtime_sha256: str
    shared_library: str | None = None
    deployment: int
    epoch: int
    spark_version: str
    checkpoint_format: int = 2
    stages: dict[str, ManifestStage]
    fingerprints: dict[str, str] = {}
    objects: tuple[ManifestObject, ...]
    signature: str | None = None

    @property
    def size(self) -> int:
        """Bytes of all objects."""
        return sum(item.size for item in self.objects)


@dataclass(frozen=True)
class Origin:
    """Who asked for a snapshot, and within what."""

    operation: str
    requested_by: str
    dag_run: str = ""


def require_free_name(store: ObjectStore, job: str, name: str) -> None:
    """Refuse a name that is taken, before anything is copied.

    Raises:
        SnapshotExistsError: there is such a snapshot; it is unchanged.
    """
    if find(store, job, name) is not None:
        raise SnapshotExistsError(
            f"Job {job} already has a snapshot {name}, and names are never reused; choose another name."
        )


def require_space(needed: int, free: int | None) -> None:
    """Refuse an export that would leave the object store without room.

    Args:
        needed: bytes of the export.
        free: bytes free where the object store keeps its data; None when nobody knows.

    Raises:
        SnapshotRefusedError: there is less than twice the size.
    """
    if free is not None and free < 2 * needed:
        raise SnapshotRefusedError(
            f"The export takes {needed:,} bytes and the object store has {free:,} free; at least twice the size "
            "must be free. Remove what is not needed and run it again."
        )


def export(
    store: ObjectStore,
    deployment: Deployment,
    name: str,
    attempt: str,
    stages: Iterable[str],
    origin: Origin,
    *,
    live: bool,
    free_bytes: int | None = None,
    also_to: str | None = None,
    also_stages: Iterable[str] = (),
    say: Say = lambda line: None,
) -> Manifest:
    """Copy the last committed batch of every stage; the snapshot does not exist until ``commit_manifest``.

    Args:
        attempt: names the prefix of the data; another try that repeats it copies over its own objects.
        stages: all stages of the deployment's version; one without a commit is in the manifest without objects.
        also_to: an epoch prefix that gets the objects of ``also_stages`` at the same time, without its ready mark.

    Raises:
        SnapshotRefusedError: too little space.
        CheckpointError: no driver of the deployment ever began, or a file is missing.
    """
    epoch = checkpoints.current_epoch(store, deployment.job, deployment.number)
    if epoch is None:
        raise CheckpointError(
            f"Deployment {deployment.number} of {deployment.job} has no checkpoint yet; "
            "wait until its driver is healthy."
        )
    names, also = builtins.list(stages), set(also_stages)
    place = {stage: keys.stage(deployment.job, deployment.number, epoch, stage) for stage in names}
    with ThreadPoolExecutor(max(len(names), 1)) as pool:
        tails = dict(zip(names, pool.map(lambda stage: checkpoints.find_tail(store, place[stage]), names), strict=True))
        require_space(sum(tail.size for tail in tails.values() if tail) * (2 if also_to else 1), free_bytes)

        def copy(stage: str) -> tuple[ManifestStage, builtins.list[ManifestObject]]:
            target = keys.snapshot_data(deployment.job, attempt, stage)
            twin = also_to if stage in also else None
            return _copy_stage(store, deployment, stage, tails[stage], target, twin, say)

        done = dict(zip(names, pool.map(copy, names), strict=True))
    return Manifest(
        job=deployment.job,
        name=checked("snapshot", name),
        attempt=attempt,
        created=now(),
        live=live,
        operation=origin.operation,
        requested_by=origin.requested_by,
        dag_run=origin.dag_run,
        version=deployment.version,
        artifact_sha256=deployment.artifact_sha256,
        runtime_sha256=deployment.runtime_sha256,
        deployment=deployment.number,
        epoch=epoch,
        spark_version=_spark_version(),
        stages={stage: described for stage, (described, _) in done.items()},
        objects=tuple(item for _, items in done.values() for item in items),
    )


def _copy_stage(
    store: ObjectStore,
    deployment: Deployment,
    stage: str,
    tail: checkpoints.Tail | None,
    target: str,
    also_to: str | None,
    say: Say,
) -> tuple[ManifestStage, builtins.list[ManifestObject]]:
    start = deployment.stages.get(stage, StageStart(since_deployment=deployment.number))
    if tail is None:
        say(f"{stage}: no committed batch; it will start empty")
        return ManifestStage(start=start), []
    began = now()
    with ThreadPoolExecutor(2) as pool:
        twin = pool.submit(checkpoints.copy_tail, store, tail, f"{also_to}{stage}/") if also_to else None
        try:
            copies = checkpoints.copy_tail(store, tail, target)
        except NotFoundError:  # the running query removed a file meanwhile: take what is last now
            again = checkpoints.copy_last(store, tail.prefix, target)
            if again is None or also_to:
                raise
            tail, copies = again
        if twin and [item.copied.sha256 for item in twin.result()] != [item.copied.sha256 for item in copies]:
            raise StreamOpsError(
                f"Two copies of {tail.prefix} differ; the object store is not to be trusted, check it."
            )
    seconds = (now() - began).total_seconds()
    say(f"{stage}: batch {tail.batch}, {len(copies)} objects, {tail.size:,} bytes copied in {seconds:.2f} s")
    described = ManifestStage(
        batch=tail.batch, offsets=tail.offsets, watermark_ms=tail.watermark_ms, query_id=tail.query_id, start=start
    )
    return described, [
        ManifestObject(
            stage=stage,
            path=item.path,
            key=item.copied.key,
            size=item.size,
            sha256=item.copied.sha256,
            version_id=item.copied.version_id,
        )
        for item in copies
    ]


def commit_manifest(store: ObjectStore, manifest: Manifest) -> None:
    """Make the snapshot exist. The same manifest again is a success: a retry after a lost answer.

    Raises:
        SnapshotExistsError: the name went to another snapshot meanwhile; that one is unchanged.
    """
    key = keys.manifest(manifest.job, manifest.name)
    try:
        store.put(key, manifest.model_dump_json(indent=1).encode(), if_absent=True)
    except ConflictError:
        stored = find(store, manifest.job, manifest.name)
        if stored is None or stored.attempt != manifest.attempt:
            raise SnapshotExistsError(
                f"Job {manifest.job} already has a snapshot {manifest.name}, and names are never reused; "
                "choose another name."
            ) from None


def find(store: ObjectStore, job: str, name: str) -> Manifest | None:
    """The manifest of a snapshot, or None.

    Raises:
        SnapshotRefusedError: the manifest cannot be read as one.
    """
    key = keys.manifest(job, name)
    try:
        body = store.get(key).body
    except NotFoundError:
        return None
    try:
        manifest = Manifest.model_validate_json(body)
    except ValidationError as error:
        raise SnapshotRefusedError(
            f"The manifest {key} is damaged ({error.error_count()} wrong fields); use another snapshot."
        ) from None
    if (manifest.job, manifest.name) != (job, name):
        raise SnapshotRefusedError(
            f"The manifest {key} names itself {manifest.job}/{manifest.name}; it was moved or altered, "
            "use another snapshot."
        )
    return manifest


def load(store: ObjectStore, job: str, name: str) -> Manifest:
    """The manifest of a snapshot. Raises NotFoundError, SnapshotRefusedError."""
    manifest = find(store, job, name)
    if manifest is None:
        raise NotFoundError(f"Job {job} has no snapshot {name}; 'streamops snapshots {job}' lists what there is.")
    return manifest


def verify(store: ObjectStore, manifest: Manifest) -> None:
    """Compare every object with the manifest, without reading its bytes.

    Raises:
        SnapshotRefusedError: naming the first object that is missing or altered.
    """
    with ThreadPoolExecutor(checkpoints.THREADS) as pool:
        for problem in pool.map(lambda item: _problem(store, item), manifest.objects):
            if problem:
                raise SnapshotRefusedError(
                    f"Snapshot {manifest.job}/{manifest.name} is not intact: {problem}; nothing was touched, "
                    "use another snapshot."
                )


def _problem(store: ObjectStore, item: ManifestObject) -> str:
    try:
        head = store.head(item.key)
    except NotFoundError:
        return f"{item.key} is missing"
    if head.size != item.size:
        return f"{item.key} has {head.size} bytes instead of {item.size}"
    if head.sha256 != item.sha256:
        return f"{item.key} has another SHA-256 than the manifest says"
    if item.version_id and head.version_id != item.version_id:
        return f"{item.key} was written again after the snapshot was taken"
    return ""


def require_usable(
    manifest: Manifest,
    job: str,
    *,
    fork: bool,
    topics: Mapping[str, str],
    beginning: Callable[[str], Mapping[str, int]],
) -> None:
    """Refuse a snapshot that this job cannot continue from.

    Args:
        topics: of the version that will continue: source to topic.
        beginning: the first offset that each partition of a topic still holds.

    Raises:
        SnapshotRefusedError: it is another job's and no fork was asked for, or retention has passed its offsets.
    """
    if manifest.job != job and not fork:
        raise SnapshotRefusedError(
            f"Snapshot {manifest.job}/{manifest.name} belongs to job {manifest.job}, not to {job}; "
            "to start a new job from it, ask for a fork."
        )
    firsts = {source: beginning(topic) for source, topic in topics.items()}
    for name, stage in manifest.stages.items():
        for source, partitions in stage.offsets.items():
            for partition, offset in partitions.items():
                first = firsts.get(source, {}).get(partition, 0)
                if first > offset:
                    raise SnapshotRefusedError(
                        f"Snapshot {manifest.job}/{manifest.name} continues stage {name} at offset {offset} of topic "
                        f"{topics[source]}, partition {partition}, but Kafka's retention has removed everything before "
                        f"{first}: {first - offset:,} events would be lost. Use a newer snapshot, "
                        "or start from scratch."
                    )


def restore(
    store: ObjectStore,
    manifest: Manifest,
    target: str,
    stages: Iterable[str] | None = None,
    *,
    verified: bool = False,
    say: Say = lambda line: None,
) -> dict[str, int]:
    """Verify everything, then copy into the checkpoints of a fresh epoch, whose ready mark comes last.

    Args:
        target: an epoch prefix (``keys.epoch``) that nothing runs on.
        stages: those of the version that continues; stages of the snapshot that are not in it are left out.
        verified: the caller has verified the same manifest a moment ago.

    Returns:
        The batch that each restored stage continues after.

    Raises:
        SnapshotRefusedError: an object is missing or altered; before the first write.
    """
    if not verified:
        verify(store, manifest)
    wanted = set(manifest.stages if stages is None else stages)
    items = [item for item in manifest.objects if item.stage in wanted]
    began = now()

    def copy(item: ManifestObject) -> None:
        done = store.copy(item.key, f"{target}{item.stage}/{item.path}", item.version_id)
        if done.sha256 != item.sha256:
            raise SnapshotRefusedError(
                f"{item.key} changed while snapshot {manifest.job}/{manifest.name} was restored; use another snapshot."
            )

    with ThreadPoolExecutor(checkpoints.THREADS) as pool:
        for _ in pool.map(copy, items):
            pass
    batches = {name: stage.batch for name, stage in manifest.stages.items() if name in wanted and stage.batch >= 0}
    checkpoints.mark_ready(store, f"{target}ready.json", batches, f"snapshot {manifest.job}/{manifest.name}")
    seconds = (now() - began).total_seconds()
    say(f"{len(items)} objects of snapshot {manifest.job}/{manifest.name} restored in {seconds:.2f} s")
    return batches


def list(store: ObjectStore, job: str | None = None) -> builtins.list[Manifest]:
    """All snapshots, or those of one job, the oldest first. A damaged manifest is left out."""
    prefixes = [keys.snapshots(job)] if job else [f"{prefix}manifests/" for prefix in store.prefixes("snapshots/")]
    found = [info.key for prefix in prefixes for info in store.list(prefix) if info.key.endswith(".json")]

    def read(key: str) -> Manifest | None:
        try:
            return Manifest.model_validate_json(store.get(key).body)
        except (ValidationError, NotFoundError):
            return None

    with ThreadPoolExecutor(checkpoints.THREADS) as pool:
        manifests = [manifest for manifest in pool.map(read, found) if manifest is not None]
    return sorted(manifests, key=lambda item: (item.created, item.job, item.name))


def remove_leftovers(store: ObjectStore, job: str, keep: Iterable[str] = ()) -> int:
    """Remove the data of attempts that never became a snapshot. Only for the holder of the job's operation lock.

    Returns:
        How many objects were removed.
    """
    root = f"snapshots/{checked('job', job)}/data/"
    manifests = list(store, job)
    used = {manifest.attempt for manifest in manifests} | set(keep)
    if len(manifests) != sum(1 for _ in store.list(keys.snapshots(job))):
        return 0  # a manifest that cannot be read may still be repaired; its data stays
    unused = [prefix for prefix in store.prefixes(root) if prefix.removeprefix(root).rstrip("/") not in used]
    removed = [info.key for prefix in unused for info in store.list(prefix)]
    store.delete(removed)
    return len(removed)


def _spark_version() -> str:
    try:
        return installed("pyspark")
    except PackageNotFoundError:
        return "unknown"
