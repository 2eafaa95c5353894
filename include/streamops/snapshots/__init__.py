"""Snapshots: named, immutable, signed and verified copies of all stages of a job at a commit boundary."""

from streamops.snapshots.catalogue import Entry, commit_manifest, entries, find, list, load, read, require_free_name
from streamops.snapshots.integrity import verify
from streamops.snapshots.leftovers import remove_leftovers
from streamops.snapshots.manifest import Manifest, ManifestObject, ManifestStage
from streamops.snapshots.removal import remove, removed, sweep, undelete
from streamops.snapshots.restoring import require_usable, restore
from streamops.snapshots.taking import Origin, export, require_space

__all__ = [
    "Entry",
    "Manifest",
    "ManifestObject",
    "ManifestStage",
    "Origin",
    "commit_manifest",
    "entries",
    "export",
    "find",
    "list",
    "load",
    "read",
    "remove",
    "remove_leftovers",
    "removed",
    "require_free_name",
    "require_space",
    "require_usable",
    "restore",
    "sweep",
    "undelete",
    "verify",
]
