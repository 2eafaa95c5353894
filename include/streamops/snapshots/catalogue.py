"""Finding, listing and committing manifests. No one reads one past its signature."""

from __future__ import annotations

import builtins
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime

from streamops.model.errors import ConflictError, NotFoundError, SnapshotExistsError, SnapshotRefusedError
from streamops.model.manifest import Manifest, parse
from streamops.spark import checkpoints
from streamops.store import keys
from streamops.store.object_store import ObjectInfo, ObjectStore


@dataclass(frozen=True)
class Entry:
    """One manifest in the bucket: readable and trusted, or refused with a reason. ``written`` is the store's time."""

    job: str
    name: str
    written: datetime
    manifest: Manifest | None
    refused: str = ""


def read(store: ObjectStore, key: str, version_id: str | None = None) -> Manifest:
    """The manifest stored at a key. Raises NotFoundError, SnapshotRefusedError."""
    return parse(store.get(key, version_id).body, key, store.keyring)


def find(store: ObjectStore, job: str, name: str) -> Manifest | None:
    """The manifest of a snapshot, or None.

    Raises:
        SnapshotRefusedError: it is not signed by this installation, was altered, or cannot be read.
    """
    key = keys.manifest(job, name)
    try:
        manifest = read(store, key)
    except NotFoundError:
        return None
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
        raise missing(job, name)
    return manifest


def missing(job: str, name: str) -> NotFoundError:
    """That there is no such snapshot."""
    return NotFoundError(f"Job {job} has no snapshot {name}; 'streamops snapshots {job}' lists what there is.")


def require_free_name(store: ObjectStore, job: str, name: str) -> None:
    """Refuse a name that is taken, before anything is copied.

    Raises:
        SnapshotExistsError: there is such a snapshot, or one was removed that can still be brought back.
    """
    if store.exists(keys.manifest(job, name)):
        raise _taken(job, name)
    if store.exists(keys.removed_snapshot(job, name)):
        raise SnapshotExistsError(
            f"Snapshot {name} of job {job} was removed and can still be brought back ('streamops snapshots undelete "
            f"{job} {name}'), so its name is not free; choose another name."
        )


def commit_manifest(store: ObjectStore, manifest: Manifest) -> None:
    """Make the snapshot exist. The same manifest again is a success: a retry after a lost answer.

    Raises:
        SnapshotExistsError: the name went to another snapshot meanwhile; that one is unchanged.
        SnapshotRefusedError: the manifest is not signed by this installation.
    """
    key = keys.manifest(manifest.job, manifest.name)
    body = manifest.model_dump_json(indent=1).encode()
    parse(body, key, store.keyring)  # what could not be read again must not come to exist
    try:
        store.put(key, body, if_absent=True)
    except ConflictError:
        try:
            stored = find(store, manifest.job, manifest.name)
        except SnapshotRefusedError:
            stored = None
        if stored is None or stored.attempt != manifest.attempt:
            raise _taken(manifest.job, manifest.name) from None


def list(store: ObjectStore, job: str | None = None) -> builtins.list[Manifest]:
    """All snapshots, or those of one job, the oldest first. One that is refused is left out; ``entries`` tells why."""
    return [entry.manifest for entry in entries(store, job) if entry.manifest is not None]


def entries(store: ObjectStore, job: str | None = None) -> builtins.list[Entry]:
    """Every manifest in the bucket, or of one job, the oldest first."""
    prefixes = [keys.snapshots(job)] if job else [f"{prefix}manifests/" for prefix in store.prefixes(keys.SNAPSHOTS)]
    found = [info for prefix in prefixes for info in store.list(prefix) if info.key.endswith(".json")]
    with ThreadPoolExecutor(checkpoints.THREADS) as pool:
        listed = [entry for entry in pool.map(lambda info: _entry(store, info), found) if entry is not None]
    return sorted(listed, key=lambda entry: (entry.manifest.created if entry.manifest else entry.written, entry.name))


def newest(store: ObjectStore, job: str, count: int) -> builtins.list[Manifest]:
    """The snapshots that were written last, the newest first, without reading the others."""
    infos = sorted(store.list(keys.snapshots(job)), key=lambda info: info.modified, reverse=True)[:count]
    with ThreadPoolExecutor(max(len(infos), 1)) as pool:
        found = pool.map(lambda info: _entry(store, info), infos)
        return [entry.manifest for entry in found if entry is not None and entry.manifest is not None]


def sharing(store: ObjectStore, job: str, key: str) -> builtins.list[str]:
    """The names of all snapshots of a job that need this object."""
    return [item.name for item in list(store, job) if any(part.key == key for part in item.objects)]


def _entry(store: ObjectStore, info: ObjectInfo) -> Entry | None:
    job, _, name = info.key.removeprefix(keys.SNAPSHOTS).removesuffix(".json").split("/", 2)
    try:
        manifest = read(store, info.key)
    except NotFoundError:  # removed between the listing and the reading
        return None
    except SnapshotRefusedError as error:
        return Entry(job, name, info.modified, None, str(error))
    if (manifest.job, manifest.name) != (job, name):
        return Entry(job, name, info.modified, None, f"{info.key} names itself {manifest.job}/{manifest.name}")
    return Entry(job, name, info.modified, manifest)


def _taken(job: str, name: str) -> SnapshotExistsError:
    return SnapshotExistsError(
        f"Job {job} already has a snapshot {name}, and names are never reused; choose another name."
    )
