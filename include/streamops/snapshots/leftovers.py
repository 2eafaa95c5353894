"""What export attempts left behind that never became a snapshot."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from streamops.snapshots import catalogue, removal
from streamops.store import keys
from streamops.store.object_store import ObjectStore


def remove_leftovers(
    store: ObjectStore, job: str, keep: Iterable[str] = (), *, deleting: Callable[[], ObjectStore] | None = None
) -> int:
    """Remove the data of attempts that never became a snapshot. Only for the holder of the job's operation lock.

    An object that any snapshot needs stays, whoever copied it; so does everything of a snapshot that was removed
    and can still be brought back, and an archive that waits to be imported.

    Args:
        keep: attempts whose data stays.
        deleting: opens the object store with the identity that may delete; default: ``store`` is that.

    Returns:
        How many objects were removed.
    """
    root = keys.snapshots_data(job)
    entries = catalogue.entries(store, job)
    gone = removal.removed(store, job)
    if any(entry.manifest is None for entry in entries) or any(item.manifest is None for item in gone):
        return 0  # a manifest that cannot be read may still be repaired; its data stays
    manifests = [entry.manifest for entry in entries if entry.manifest] + [
        item.manifest for item in gone if item.manifest
    ]
    attempts = {manifest.attempt for manifest in manifests} | set(keep)
    named = {prefix: prefix.removeprefix(root).rstrip("/") for prefix in store.prefixes(root)}
    unused = [prefix for prefix, name in named.items() if name not in attempts and not name.startswith(keys.UPLOAD)]
    if not unused:
        return 0
    needed = {item.key for manifest in manifests for item in manifest.objects}
    found = [info.key for prefix in unused for info in store.list(prefix) if info.key not in needed]
    if found:
        (deleting() if deleting else store).delete(found)
    return len(found)
