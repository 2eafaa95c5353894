"""
# Restore a job from a snapshot

**What it does.** Continues the same version of a job from one of its snapshots. Events since the snapshot are
processed again, and their results are written over the same points.

**When to use it.** When the job's checkpoint is damaged (an object was lost, and the job failed with a clear error), or
when the state itself is wrong. The job may be running, stopped or failed. Before it acts, `check` states the cost;
`streamops restore JOB SNAPSHOT --dry-run` does the same without changing anything. For another version, use
`rollback_job`.

**What it changes.** A new deployment of the same version; the job record. The old deployment's checkpoint stays as it
is.

**What can go wrong, and how to recover.**

- *check fails*: the log says what to correct: the snapshot is of another version, the snapshot was altered, or Kafka
  has already deleted what comes after it. Nothing was touched.
- *Not healthy in time*: what ran before runs again from its own checkpoint, and the run fails. A job that was not
  running is left as it was.
- *The current driver does not stop*: it loses the lease and can no longer write; the run continues.
- *It does not catch up in time*: the run continues to the recount, which compares what has been written by then.
- *You want to stop it*: mark the **run** as failed. The teardowns bring back what ran before.
"""

from streamops.operations.runbooks.restore_job import RESTORE_JOB
from streamops_airflow.dags import runbook_dag

dag = runbook_dag(RESTORE_JOB, __doc__, "changes-a-job")
