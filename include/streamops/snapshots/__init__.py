"""Snapshots: named, immutable, signed and verified copies of all stages of a job at a commit boundary.

May import ``versions``, ``spark`` and what lies below, and neither ``cluster`` nor ``recount``.

Entry points: the functions below; ``verification``, ``portable`` (a snapshot as a file), ``retention``, ``state``.
"""

from streamops.snapshots.catalogue import Entry, commit_manifest, entries, find, list, load, read, require_free_name
from streamops.snapshots.integrity import verify
from streamops.snapshots.leftovers import remove_leftovers
from streamops.snapshots.removal import remove, removed, sweep, undelete
from streamops.snapshots.restoring import require_usable, restore
from streamops.snapshots.taking import Export, Origin, Twin, require_space

__all__ = [
    "Entry",
    "Export",
    "Origin",
    "Twin",
    "commit_manifest",
    "entries",
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
