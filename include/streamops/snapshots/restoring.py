"""From a snapshot back to the checkpoints of a fresh deployment."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor

from streamops.model.errors import SnapshotRefusedError
from streamops.model.manifest import Manifest, ManifestObject
from streamops.model.records import FeedSlice, now
from streamops.snapshots.integrity import verify
from streamops.spark import checkpoints
from streamops.store.object_store import ObjectStore

Say = Callable[[str], None]


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
    moved: Mapping[str, Mapping[str, Mapping[str, int]]] | None = None,
    say: Say = lambda line: None,
) -> dict[str, int]:
    """Verify everything, then copy into the checkpoints of a fresh epoch, whose ready mark comes last.

    Args:
        target: an epoch prefix (``keys.epoch``) that nothing runs on.
        stages: those of the version that continues; stages of the snapshot that are not in it are left out.
        verified: the caller has verified the same manifest a moment ago.
        moved: source -> topic -> partition -> offset, of sources that continue in another topic.

    Returns:
        The batch that each restored stage continues after.

    Raises:
        SnapshotRefusedError: an object is missing or altered; before the first write.
    """
    if not verified:
        verify(store, manifest)
    wanted = set(manifest.stages if stages is None else stages)
    items = [item for item in manifest.objects if item.stage in wanted and _has_readers(store, item, wanted)]
    began = now()

    def copy(item: ManifestObject) -> None:
        done = store.copy(item.key, f"{target}{item.stage}/{item.path}", item.size, item.version_id)
        if done.sha256 != item.sha256:
            raise SnapshotRefusedError(
                f"{item.key} changed while snapshot {manifest.job}/{manifest.name} was restored; use another snapshot."
            )

    with ThreadPoolExecutor(checkpoints.THREADS) as pool:
        for _ in pool.map(copy, items):
            pass
    batches = {name: stage.batch for name, stage in manifest.stages.items() if name in wanted and stage.batch >= 0}
    for name, batch in batches.items() if moved else ():
        checkpoints.move(store, f"{target}{name}/", batch, moved or {})
    checkpoints.mark_ready(store, f"{target}ready.json", batches, f"snapshot {manifest.job}/{manifest.name}")
    seconds = (now() - began).total_seconds()
    say(f"{len(items)} objects of snapshot {manifest.job}/{manifest.name} restored in {seconds:.2f} s")
    return batches


def _has_readers(store: ObjectStore, item: ManifestObject, stages: Collection[str]) -> bool:
    """Whether a slice of a feed is continued by any stage; True for every other object."""
    if item.path != checkpoints.FEED:
        return True
    kept = FeedSlice.model_validate_json(store.get(item.key, item.version_id).body)
    return bool({*kept.readers} & {*stages})
