"""Taking a snapshot: the last committed batch of every stage, copied on the server.

Data objects lie below a prefix that is unique to the attempt; the manifest is written last and conditionally. So a
snapshot exists whole or not at all, a name is never reused silently, and an attempt that died is invisible.

State files are immutable and named by a unique id, so what an earlier snapshot of the same deployment has copied is
not copied again: the manifest names the earlier object. It was looked at a moment before, and is kept as long as any
snapshot names it.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed
from typing import Any

from streamops.model.errors import CheckpointError, NotFoundError, SnapshotRefusedError, StreamOpsError
from streamops.model.manifest import Manifest, ManifestObject, ManifestStage
from streamops.model.names import checked
from streamops.model.records import Deployment, FeedSlice, Offsets, StageStart, now
from streamops.snapshots import catalogue, integrity
from streamops.spark import checkpoints
from streamops.spark.checkpoints import FEED, Tail
from streamops.store import keys
from streamops.store.object_store import ObjectInfo, ObjectStore

Say = Callable[[str], None]
_LOOK_BACK = 3  # snapshots; what the newest does not hold is not in use any more, unless that one is damaged


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


@dataclass(frozen=True)
class Twin:
    """A second place that gets some of the stages at the same time: an epoch prefix, without its ready mark."""

    epoch: str
    stages: frozenset[str]


@dataclass(frozen=True)
class Export:
    """One attempt at a snapshot of a deployment: copies that are no snapshot until ``commit_manifest``.

    Args:
        attempt: names the prefix of the data; another try that repeats it copies over its own objects.
        free_bytes: free where the object store keeps its data; None when no one knows.
        slices: of the feeds through which stages read each other, once it is known up to where each has read.
    """

    store: ObjectStore
    deployment: Deployment
    attempt: str
    twin: Twin | None = None
    free_bytes: int | None = None
    slices: Callable[[Mapping[str, Offsets]], Mapping[str, FeedSlice]] = lambda read: {}
    say: Say = lambda line: None

    def run(
        self,
        name: str,
        stages: Iterable[str],
        origin: Origin,
        *,
        live: bool,
        fingerprints: Mapping[str, Any] | None = None,
    ) -> Manifest:
        """Copy the last committed batch of every stage.

        Args:
            stages: all stages of the deployment's version; one without a commit is in the manifest without objects.
            fingerprints: of the stages as deployed; one that is not known is left out.

        Raises:
            SnapshotRefusedError: too little space.
            CheckpointError: no driver of the deployment ever began, or a file is missing.
        """
        deployment = self.deployment
        epoch = checkpoints.current_epoch(self.store, deployment.job, deployment.number)
        if epoch is None:
            raise CheckpointError(
                f"Deployment {deployment.number} of {deployment.job} has no checkpoint yet; "
                "wait until its driver is healthy."
            )
        done, slices = self._copy(epoch, list(stages))
        for stage, kept in slices.items():
            done[stage][1].append(self._keep(stage, kept))
        return Manifest(
            job=deployment.job,
            name=checked("snapshot", name),
            attempt=self.attempt,
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
        ).signed(self.store.keyring)

    def _keep(self, stage: str, kept: FeedSlice) -> ManifestObject:
        """Store a slice of a feed beside what was copied."""
        body = kept.model_dump_json().encode()
        digest = hashlib.sha256(body).hexdigest()
        key = f"{keys.snapshot_data(self.deployment.job, self.attempt, stage)}{FEED}"
        version = self.store.put_file(key, io.BytesIO(body), digest)
        if self.twin and self.twin.stages & {*kept.readers}:
            self.store.put_file(f"{self.twin.epoch}{stage}/{FEED}", io.BytesIO(body), digest)
        self.say(f"{stage}: {len(kept.records)} records of its feed, {len(kept.pending)} results to be handed on")
        return ManifestObject(stage=stage, path=FEED, key=key, size=len(body), sha256=digest, version_id=version)

    def _copy(
        self, epoch: int, stages: list[str]
    ) -> tuple[dict[str, tuple[ManifestStage, list[ManifestObject]]], Mapping[str, FeedSlice]]:
        """Every stage at once. Two reads come first: of the checkpoints, and of what earlier snapshots hold.

        The feeds of a job that has stopped, whose next version waits for the copies, are read meanwhile.
        """
        job, number = self.deployment.job, self.deployment.number
        with ThreadPoolExecutor(len(stages) + 2) as pool:
            reading = pool.submit(Held, self.store, job, number)
            tails = list(
                pool.map(lambda stage: checkpoints.find_tail(self.store, keys.stage(job, number, epoch, stage)), stages)
            )
            held = reading.result()
            size = sum(tail.size for tail in tails if tail)
            require_space(2 * size if self.twin else size, self.free_bytes)
            read = {stage: tail.offsets if tail else {} for stage, tail in zip(stages, tails, strict=True)}
            meanwhile = pool.submit(self.slices, read) if self.twin else None
            done = dict(zip(stages, pool.map(partial(self._stage, held=held), stages, tails), strict=True))
        read = {stage: described.offsets for stage, (described, _) in done.items()}
        return done, meanwhile.result() if meanwhile else self.slices(read)

    def _stage(self, stage: str, tail: Tail | None, held: Held) -> tuple[ManifestStage, list[ManifestObject]]:
        start = self.deployment.stages.get(stage, StageStart(since_deployment=self.deployment.number))
        if tail is None:
            self.say(f"{stage}: no committed batch; it will start empty")
            return ManifestStage(start=start), []
        began = now()
        if self.twin and stage in self.twin.stages:
            items, copied = self._twice(stage, tail, held, f"{self.twin.epoch}{stage}/")
        else:
            tail, items, copied = self._latest(stage, tail, held)
        seconds = (now() - began).total_seconds()
        shared = f", {len(items) - copied} shared with earlier snapshots" if copied < len(items) else ""
        self.say(
            f"{stage}: batch {tail.batch}, {copied} objects copied{shared}, {tail.size:,} bytes in all, {seconds:.2f} s"
        )
        described = ManifestStage(
            batch=tail.batch, offsets=tail.offsets, watermark_ms=tail.watermark_ms, query_id=tail.query_id, start=start
        )
        return described, items

    def _twice(self, stage: str, tail: Tail, held: Held, target: str) -> tuple[list[ManifestObject], int]:
        """Copy to the snapshot and to ``target``, which must get the same bytes."""
        with ThreadPoolExecutor(1) as pool:
            twin = pool.submit(checkpoints.copy_tail, self.store, tail, target)
            items, copied = self._new(stage, tail, held)
            if [item.copied.sha256 for item in twin.result()] != [item.sha256 for item in items]:
                raise StreamOpsError(
                    f"Two copies of {tail.prefix} differ; the object store is not to be trusted, check it."
                )
        return items, copied

    def _latest(self, stage: str, tail: Tail, held: Held) -> tuple[Tail, list[ManifestObject], int]:
        """Copy the tail, or the one that is last by now: a query that runs on removes old files."""

        def again() -> tuple[Tail, list[ManifestObject], int]:
            newer = checkpoints.tail(self.store, tail.prefix)
            return newer, *self._new(stage, newer, held)

        try:
            return tail, *self._new(stage, tail, held)
        except NotFoundError:
            return checkpoints.persist(again, f"{tail.prefix} changes faster than it can be copied")

    def _new(self, stage: str, tail: Tail, held: Held) -> tuple[list[ManifestObject], int]:
        """Copy what no snapshot holds; all objects in the tail's order, and how many were copied."""
        shared, fresh = held.split(stage, tail)
        target = keys.snapshot_data(self.deployment.job, self.attempt, stage)
        copies = checkpoints.copy_tail(self.store, replace(tail, objects=fresh), target)
        by_path = {item.path: item for item in shared}
        for info, item in zip(fresh, copies, strict=True):
            by_path[item.path] = ManifestObject(
                stage=stage,
                path=item.path,
                key=item.copied.key,
                size=item.size,
                sha256=item.copied.sha256,
                version_id=item.copied.version_id,
                source_etag=info.etag,
            )
        return [by_path[tail.path(info)] for info in tail.objects], len(copies)


def _spark_version() -> str:
    try:
        return installed("pyspark")
    except PackageNotFoundError:
        return "unknown"
