"""
# Roll a job back

**What it does.** Brings the version before the current one back into service, from the snapshot that was taken when it
was replaced (or from another snapshot that you name). The old artifact runs, byte for byte. Events since the snapshot
are processed again, and their results are written over the same points.

**When to use it.** When a version turns out to be wrong after its upgrade has finished. Before it acts, `check` states
the cost: how many events are processed again and which results are rewritten. `streamops rollback JOB --dry-run` does
the same without changing anything.

**What it changes.** A new deployment of the old version; the job record. The deployment that ran keeps its checkpoint.
Results that only the newer version wrote stay as they are.

**What can go wrong, and how to recover.**

- *check fails*: the log says what to correct: there is no version to go back to, the snapshot was altered, or Kafka
  has already deleted what comes after it. Nothing was touched.
- *Not healthy in time*: what ran before runs again from its own checkpoint, and the run fails. A job that was not
  running is left as it was.
- *The current driver does not stop*: it loses the lease and can no longer write; the run continues.
- *It does not catch up in time*: the run continues to the recount, which compares what has been written by then.
- *You want to stop it*: mark the **run** as failed. The teardowns bring back what ran before.
"""

from streamops.operations.runbooks.rollback_job import ROLLBACK_JOB
from streamops_airflow.dags import runbook_dag

dag = runbook_dag(ROLLBACK_JOB, __doc__, "changes-a-job")
