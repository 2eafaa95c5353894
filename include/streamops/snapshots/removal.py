"""Removing snapshots, bringing them back, and freeing their bytes once that time is over.

To remove is to take the manifest away and to remember it; the data stays for ``KEPT``. Only the sweep deletes data,
for good (with its old versions), and only what no snapshot, removed snapshot or unfinished export needs.
"""

from __future__ import annotations

from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import chain

from pydantic import ValidationError

from streamops.model.errors import ConflictError, NotFoundError, SnapshotExistsError, SnapshotRefusedError
from streamops.model.manifest import Manifest, parse
from streamops.model.records import now
from streamops.model.stored import Stored
from streamops.snapshots import catalogue
from streamops.spark import checkpoints
from streamops.store import keys
from streamops.store.object_store import ObjectStore, Version

KEPT = timedelta(days=14)


class Record(Stored):
    """What is remembered of a removed snapshot; ``body`` is its signed manifest, unchanged."""

    job: str
    name: str
    reason: str
    by: str
    body: str


@dataclass(frozen=True)
class Removed:
    """A removed snapshot, since ``when`` by the object store's clock; ``manifest`` is None if it cannot be trusted."""

    job: str
    name: str
    when: datetime
    record: Record | None
    manifest: Manifest | None

    def until(self) -> datetime:
        """How long it can be brought back."""
        return self.when + KEPT


@dataclass(frozen=True)
class Swept:
    """What a sweep freed: the names that are gone for good, versions of objects, and bytes."""

    snapshots: tuple[str, ...] = ()
    versions: int = 0
    size: int = 0
    stopped_by: str = ""  # why nothing was swept


def remove(store: ObjectStore, job: str, name: str, reason: str, by: str) -> None:
    """Take a snapshot out of the catalogue; ``undelete`` brings it back for 14 days.

    Raises:
        NotFoundError: there is no such snapshot.
    """
    key = keys.manifest(job, name)
    try:
        body = store.get(key).body
    except NotFoundError:
        if store.exists(keys.removed_snapshot(job, name)):
            return  # a retry
        raise catalogue.missing(job, name) from None
    record = Record(job=job, name=name, reason=reason, by=by, body=body.decode(errors="replace"))
    store.put(keys.removed_snapshot(job, name), record.model_dump_json().encode())
    store.delete([key])


def record_of(store: ObjectStore, job: str, name: str) -> Record:
    """What is remembered of a removed snapshot. Raises NotFoundError: it was not removed, or its time is over."""
    found = next((item for item in removed(store, job) if item.name == name), None)
    if found is None or found.record is None:
        raise NotFoundError(
            f"No removed snapshot {name} of job {job} can be brought back; "
            f"'streamops snapshots removed {job}' lists them."
        )
    return found.record


def undelete(store: ObjectStore, job: str, name: str) -> Manifest:
    """Bring a removed snapshot back, as it was.

    Raises:
        NotFoundError: nothing of that name was removed, or its time is over.
        SnapshotRefusedError: its manifest is not to be trusted, or an object is gone.
        SnapshotExistsError: the name is in use.
    """
    kept = record_of(store, job, name)
    manifest = parse(kept.body.encode(), keys.removed_snapshot(job, name), store.keyring)
    if (manifest.job, manifest.name) != (job, name):
        raise SnapshotRefusedError(f"What is kept of {job}/{name} names itself {manifest.job}/{manifest.name}.")
    try:
        store.put(keys.manifest(job, name), kept.body.encode(), if_absent=True)
    except ConflictError:
        if catalogue.load(store, job, name).attempt != manifest.attempt:
            raise SnapshotExistsError(f"Job {job} has another snapshot {name} by now; it is unchanged.") from None
    store.delete([keys.removed_snapshot(job, name)])
    return manifest


def removed(store: ObjectStore, job: str) -> list[Removed]:
    """The removed snapshots of a job that can still be brought back, the oldest removal first."""

    def read(info_key: str, when: datetime) -> Removed | None:
        name = info_key.rsplit("/", 1)[1].removesuffix(".json")
        try:
            record = Record.model_validate_json(store.get(info_key).body)
            manifest = parse(record.body.encode(), info_key, store.keyring)
        except NotFoundError:
            return None
        except ValidationError:
            return Removed(job, name, when, None, None)
        except SnapshotRefusedError:
            return Removed(job, name, when, record, None)
        return Removed(job, name, when, record, manifest)

    present = {info.key for info in store.list(keys.snapshots(job))}
    infos = [
        info
        for info in store.list(keys.removed_snapshots(job))
        if keys.manifest(job, info.key.rsplit("/", 1)[1].removesuffix(".json")) not in present  # half way back
    ]
    with ThreadPoolExecutor(checkpoints.THREADS) as pool:
        found = [item for item in pool.map(lambda info: read(info.key, info.modified), infos) if item is not None]
    return sorted(found, key=lambda item: (item.when, item.name))


def sweep(store: ObjectStore, job: str, moment: datetime | None = None, *, apply: bool = True) -> Swept:
    """Free what nothing needs any more. Only for the holder of the job's operation lock.

    Args:
        moment: the present; only what was removed, or left over, ``KEPT`` before it goes.
        apply: False only counts.
    """
    before = (moment or now()) - KEPT
    gone = removed(store, job)
    try:
        needed = _needed(store, job, [item for item in gone if item.when > before], before)
    except SnapshotRefusedError as error:
        return Swept(stopped_by=str(error))
    old = _unneeded(store, job, needed, before)
    names = tuple(item.name for item in gone if item.when <= before)
    if apply:
        store.delete_versions(old)
        for name in names:  # the note of the removal last, so that a sweep that died is done again
            for key in (keys.snapshot_check, keys.snapshot_pin, keys.manifest, keys.removed_snapshot):
                store.delete_versions(store.versions(key(job, name)))
    return Swept(names, len(old), sum(version.size for version in old))


def _needed(store: ObjectStore, job: str, kept: list[Removed], before: datetime) -> set[str]:
    """Keys of all objects that some snapshot, removed snapshot or unfinished export needs.

    Raises:
        SnapshotRefusedError: what one of them needs cannot be known.
    """
    manifests = _drafts(store, job, before)
    for entry in catalogue.entries(store, job):
        if entry.manifest is None:
            raise SnapshotRefusedError(
                f"{job}/{entry.name} cannot be read, and what it needs is unknown: {entry.refused}"
            )
        manifests.append(entry.manifest)
    for item in kept:
        if item.manifest is None:
            raise SnapshotRefusedError(f"what was kept of the removed {job}/{item.name} cannot be read")
        manifests.append(item.manifest)
    return {item.key for manifest in manifests for item in manifest.objects}


def _unneeded(store: ObjectStore, job: str, needed: set[str], before: datetime) -> list[Version]:
    """All versions of the objects that nothing needs and no one has written since."""
    by_key: dict[str, list[Version]] = defaultdict(list)
    for version in store.versions(keys.snapshots_data(job)):
        by_key[version.key].append(version)
    old = (
        versions
        for key, versions in by_key.items()
        if key not in needed and max(version.modified for version in versions) <= before
    )
    return list(chain.from_iterable(old))


def _drafts(store: ObjectStore, job: str, before: datetime) -> list[Manifest]:
    """Exports that may still become snapshots."""
    found = []
    for prefix in store.prefixes(keys.snapshots_data(job)):
        for info in store.list(f"{prefix}manifest.json"):
            if info.modified > before:
                try:
                    found.append(catalogue.read(store, info.key))
                except (NotFoundError, SnapshotRefusedError):
                    continue
    return found
