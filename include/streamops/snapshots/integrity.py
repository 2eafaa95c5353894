"""Whether a snapshot's objects are what its manifest says.

What counts is the version that the manifest names: an object that someone wrote over, or deleted, is still there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from streamops.model.errors import NotFoundError, SnapshotRefusedError, StreamOpsError, UnreachableError
from streamops.model.manifest import Manifest, ManifestObject
from streamops.snapshots import catalogue
from streamops.spark import checkpoints
from streamops.store.object_store import ObjectStore


def verify(store: ObjectStore, manifest: Manifest) -> None:
    """Compare every object with the manifest, without reading its bytes.

    Raises:
        SnapshotRefusedError: naming the first object that is missing or altered.
    """
    with ThreadPoolExecutor(checkpoints.THREADS) as pool:
        found = zip(manifest.objects, pool.map(lambda item: problem(store, item), manifest.objects), strict=True)
        for item, wrong in found:
            if wrong:
                raise refusal(store, manifest, item, wrong)


def refusal(store: ObjectStore, manifest: Manifest, item: ManifestObject, wrong: str) -> SnapshotRefusedError:
    """What is said of a snapshot with a wrong object: also which others need the same one."""
    others = [name for name in catalogue.sharing(store, manifest.job, item.key) if name != manifest.name]
    shared = f" (snapshots {', '.join(others)} need the same object)" if others else ""
    return SnapshotRefusedError(
        f"Snapshot {manifest.job}/{manifest.name} is not intact: {wrong}{shared}; nothing was touched, "
        "use another snapshot."
    )


def problem(store: ObjectStore, item: ManifestObject) -> str:
    """What is wrong with an object, as far as the server knows without reading it; empty for nothing.

    Of one that was copied in parts it knows no hash, so that one is read.
    """
    try:
        head = store.head(item.key, item.version_id)
    except NotFoundError:
        return f"{item.key} is missing"
    if head.size != item.size:
        return f"{item.key} has {head.size} bytes instead of {item.size}"
    if (head.sha256 or store.hashed(item.key, item.version_id)) != item.sha256:
        return f"{item.key} has another SHA-256 than the manifest says"
    return ""


def read(store: ObjectStore, item: ManifestObject, write: Callable[[bytes], object] = lambda chunk: None) -> str:
    """Hand the bytes of an object to ``write``, piece by piece, and say what is wrong with them; empty for nothing.

    Raises:
        UnreachableError: the object store does not answer, which says nothing about the object.
    """
    digest, size = hashlib.sha256(), 0
    try:
        for chunk in store.chunks(item.key, item.version_id):
            digest.update(chunk)
            size += len(chunk)
            write(chunk)
    except UnreachableError:
        raise
    except NotFoundError:
        return f"{item.key} is missing"
    except StreamOpsError as error:
        return f"{item.key} cannot be read ({error})"
    if size != item.size:
        return f"{item.key} has {size} bytes instead of {item.size}"
    return "" if digest.hexdigest() == item.sha256 else f"{item.key} was altered: its bytes have another SHA-256"


def is_covered(store: ObjectStore, item: ManifestObject) -> bool:
    """Whether someone wrote over an object, or deleted it, since the snapshot was taken; its version may be intact."""
    try:
        return store.head(item.key).version_id != item.version_id
    except NotFoundError:
        return True
