"""
# Roll a job back

**What it does.** Brings the version before the present one back into service, from the snapshot that was taken when it
was replaced (or from another snapshot that you name). The old artifact runs, byte for byte. Events since the snapshot
are processed again, and their results written over the same points.

**When to use it.** When a version turns out to be wrong after its upgrade was finished. Before it acts, `check` says
what it costs: how many events are processed again and which results are rewritten. `streamops rollback JOB --dry-run`
says the same without doing anything.

**What it changes.** A new deployment of the old version; the job record. The deployment that ran keeps its checkpoint.
Results that only the newer version wrote stay as they are.

**What can go wrong, and how to recover.**

- *check fails*: the log says what to correct: there is no version to go back to, the snapshot is altered, or Kafka has
  already deleted what comes after it. Nothing was touched.
- *Not healthy in time*: what ran before runs again from its own checkpoint, and the run is failed. A job of which
  nothing ran is left as it was found.
- *The present driver does not stop*: it loses the lease and cannot write any more; the run continues.
- *It does not catch up in time*: the run continues to the recount, which compares what has been written by then.
- *You want to stop it*: mark the **run** as failed. The teardowns bring back what ran before.
"""

from streamops.operations.runbooks.rollback_job import ROLLBACK_JOB
from streamops_airflow.dags import runbook_dag

dag = runbook_dag(ROLLBACK_JOB, __doc__, "changes-a-job")
