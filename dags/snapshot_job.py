"""
# Take a snapshot

**What it does.** Keeps the state of a job as a named, immutable, verified snapshot. By default the job keeps running;
with *Cancel* it is first stopped at a batch boundary.

**When to use it.** Before a risky change; as a regular backup; with *Cancel*, to take a job out of service so that it
can be continued later from there, also as another version.

**What it changes.** A new snapshot. With *Cancel*, also the job: it is stopped, and shown as stopped.

**What can go wrong, and how to recover.**

- *The name is taken*: refused; names are never reused. Choose another.
- *The export fails* (no space, no object store): there is no snapshot, not even a partial one. With *Cancel* the job
  runs again at the end of this run, from its own checkpoint; otherwise it never stopped.
- *The job does not stop in time*: the run fails, and another driver continues the job; look at the log of the first.
- *The job does not work again either* (the store is still away, no room on the cluster): `submit_again` fails and says
  why, and the job stays locked. `reconcile` retries later, or run `streamops operations abort`.
"""

from streamops.operations.runbooks.snapshot_job import SNAPSHOT_JOB
from streamops_airflow.dags import runbook_dag

dag = runbook_dag(SNAPSHOT_JOB, __doc__, "snapshots")
