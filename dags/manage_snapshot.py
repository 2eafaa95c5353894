"""
# Manage a snapshot

**What it does.** One thing with one snapshot.

- *pin*: retention keeps it, whatever the rule says. *unpin*: the rule decides again.
- *remove*: takes it out of the catalogue. *undelete*: brings a removed one back.
- *import*: creates a snapshot from an archive that `streamops snapshots import FILE` has uploaded, after comparing each
  object with the signed manifest; its version is published if it is missing.

**When to use it.** To keep a snapshot longer than the rule does, or to remove one earlier. For an import, use the
command, which uploads the file and then triggers this runbook.

**What it changes.** A note on the snapshot, or the catalogue. A removed snapshot can be brought back for 14 days.

**What can go wrong, and how to recover.**

- *It is pinned, or in use*: it is not removed; the message says by whom.
- *Another installation signed it*: refused. If you know where the file comes from, import it with *Trust*; the file
  is not uploaded again.
- *The archive was altered or truncated*: refused, and no snapshot exists. Export it again.
- *An import was interrupted*: when it is retried, it brings only what is missing.
"""

from streamops.operations.runbooks.manage_snapshot import MANAGE_SNAPSHOT
from streamops_airflow.dags import runbook_dag

dag = runbook_dag(MANAGE_SNAPSHOT, __doc__, "snapshots")
