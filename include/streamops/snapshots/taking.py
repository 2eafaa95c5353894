"""Taking a snapshot: the last committed batch of every stage, copied on the server.

Data objects lie below a prefix that is unique to the attempt; the manifest is written last and conditionally. So a
snapshot exists whole or not at all, a name is never reused silently, and an attempt that died is invisible.

State files are immutable and named by a unique id, so what an earlier snapshot of the same deployment has copied is
not copied again: the manifest names the earlier object. It was looked at a moment before, and is kept as long as any
snapshot names it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed
from typing import Any

from streamops.model.errors import CheckpointError, NotFoundError, SnapshotRefusedError, StreamOpsError
from streamops.model.manifest import Manifest, ManifestObject, ManifestStage
from streamops.model.names import checked
from streamops.model.records import Deployment, StageStart, now
from streamops.snapshots import catalogue, integrity
from streamops.spark import checkpoints
from streamops.spark.checkpoints import Tail
from streamops.store import keys
from streamops.store.object_store import ObjectInfo, ObjectStore

Say = Callable[[str], None]
_LOOK_BACK = 3  # snapshots; what the newest does not hold is not in use any more, unless that one is damaged
_ATTEMPTS = 5  # of copying a checkpoint that a running query changes meanwhile


@dataclass(frozen=True)
class Origin:
    """Who asked for a snapshot, and within what."""

    operation: str
    requested_by: str
    dag_run: str = ""


class Held:
    """What the newest snapshots of a deployment hold already."""

    def __init__(self, store: ObjectStore, job: str, deployment: int) -> None:
        found = [item for item in catalogue.newest(store, job, _LOOK_BACK) if item.deployment == deployment]
        self.store = store
        self.objects = {
            (item.stage, item.path, item.size, item.source_etag): item
            for manifest in reversed(found)
            for item in manifest.objects
            if item.source_etag and checkpoints.is_immutable(item.path)
        }

    def split(self, stage: str, tail: Tail) -> tuple[list[ManifestObject], tuple[ObjectInfo, ...]]:
        """What of a tail is held and intact, and what must be copied."""
        known = {info.key: self.objects.get((stage, tail.path(info), info.size, info.etag)) for info in tail.objects}
        candidates = {key: item for key, item in known.items() if item is not None}
        with ThreadPoolExecutor(checkpoints.THREADS) as pool:
            problems = pool.map(lambda item: integrity.problem(self.store, item), candidates.values())
            shared = {key: item for (key, item), wrong in zip(candidates.items(), problems, strict=True) if not wrong}
        return list(shared.values()), tuple(info for info in tail.objects if info.key not in shared)


def require_space(needed: int, free: int | None) -> None:
    """Refuse an export that would leave the object store without room.

    Args:
        needed: bytes of the export.
        free: bytes free where the object store keeps its data; None when no one knows.

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
    fingerprints: Mapping[str, Any] | None = None,
    say: Say = lambda line: None,
) -> Manifest:
    """Copy the last committed batch of every stage; the snapshot does not exist until ``commit_manifest``.

    Args:
        attempt: names the prefix of the data; another try that repeats it copies over its own objects.
        stages: all stages of the deployment's version; one without a commit is in the manifest without objects.
        also_to: an epoch prefix that gets the objects of ``also_stages`` at the same time, without its ready mark.
        fingerprints: of the stages as deployed; one that is not known is left out.

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
    names, also = list(stages), set(also_stages)
    place = {stage: keys.stage(deployment.job, deployment.number, epoch, stage) for stage in names}
    with ThreadPoolExecutor(len(names) + 1) as pool:
        reading = pool.submit(Held, store, deployment.job, deployment.number)
        tails = dict(zip(names, pool.map(lambda stage: checkpoints.find_tail(store, place[stage]), names), strict=True))
        held = reading.result()
        require_space(sum(tail.size for tail in tails.values() if tail) * (2 if also_to else 1), free_bytes)

        def copy(stage: str) -> tuple[ManifestStage, list[ManifestObject]]:
            target = keys.snapshot_data(deployment.job, attempt, stage)
            twin = also_to if stage in also else None
            return _copy_stage(store, deployment, stage, tails[stage], held, target, twin, say)

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
        shared_library=deployment.library,
        deployment=deployment.number,
        epoch=epoch,
        spark_version=_spark_version(),
        stages={stage: described for stage, (described, _) in done.items()},
        fingerprints=dict(fingerprints or {}),
        objects=tuple(item for _, items in done.values() for item in items),
    ).signed(store.keyring)


def _copy_stage(
    store: ObjectStore,
    deployment: Deployment,
    stage: str,
    tail: Tail | None,
    held: Held,
    target: str,
    also_to: str | None,
    say: Say,
) -> tuple[ManifestStage, list[ManifestObject]]:
    start = deployment.stages.get(stage, StageStart(since_deployment=deployment.number))
    if tail is None:
        say(f"{stage}: no committed batch; it will start empty")
        return ManifestStage(start=start), []
    began = now()
    with ThreadPoolExecutor(2) as pool:
        twin = pool.submit(checkpoints.copy_tail, store, tail, f"{also_to}{stage}/") if also_to else None
        tail, items, copied = _copy_new(store, stage, tail, held, target, may_move=also_to is None)
        if twin and [item.copied.sha256 for item in twin.result()] != [item.sha256 for item in items]:
            raise StreamOpsError(
                f"Two copies of {tail.prefix} differ; the object store is not to be trusted, check it."
            )
    seconds = (now() - began).total_seconds()
    shared = f", {len(items) - copied} shared with earlier snapshots" if copied < len(items) else ""
    say(f"{stage}: batch {tail.batch}, {copied} objects copied{shared}, {tail.size:,} bytes in all, {seconds:.2f} s")
    described = ManifestStage(
        batch=tail.batch, offsets=tail.offsets, watermark_ms=tail.watermark_ms, query_id=tail.query_id, start=start
    )
    return described, items


def _copy_new(
    store: ObjectStore, stage: str, tail: Tail, held: Held, target: str, *, may_move: bool
) -> tuple[Tail, list[ManifestObject], int]:
    """Copy what no snapshot holds; all objects in the tail's order, and how many were copied.

    A query that runs on removes old files: then what is last by now is taken, if it may be another batch.
    """
    for attempt in range(_ATTEMPTS):
        shared, fresh = held.split(stage, tail)
        try:
            copies = checkpoints.copy_tail(store, replace(tail, objects=fresh), target)
        except NotFoundError as error:
            again = checkpoints.find_tail(store, tail.prefix) if may_move else None
            if again is None:
                raise
            if attempt == _ATTEMPTS - 1:
                raise CheckpointError(f"{tail.prefix} changes faster than it can be copied: {error}") from error
            tail = again
            continue
        etags = {tail.path(info): info.etag for info in fresh}
        by_path = {item.path: item for item in shared}
        for item in copies:
            by_path[item.path] = ManifestObject(
                stage=stage,
                path=item.path,
                key=item.copied.key,
                size=item.size,
                sha256=item.copied.sha256,
                version_id=item.copied.version_id,
                source_etag=etags[item.path],
            )
        return tail, [by_path[tail.path(info)] for info in tail.objects], len(copies)
    raise AssertionError("unreachable")


def _spark_version() -> str:
    try:
        return installed("pyspark")
    except PackageNotFoundError:
        return "unknown"
