"""
# Cancel a job

**What it does.** Stops a running job: the batch in flight is finished and committed, then the driver ends.

**When to use it.** To take a job out of service. Its checkpoint stays, and `start_job` continues from it without losing
an event, as long as Kafka still has what came after. To keep a named copy of the state as well, use `snapshot_job` with
*Cancel*.

**What it changes.** The job is stopped. No results and no state are deleted.

**What can go wrong, and how to recover.**

- *The job is already stopped*: the run succeeds and changes nothing.
- *It does not stop in time*: the run fails, but the job has been told to stop; look at its log, then trigger again.
"""

from streamops.operations.runbooks.cancel_job import CANCEL_JOB
from streamops_airflow.dags import runbook_dag

dag = runbook_dag(CANCEL_JOB, __doc__, "stops-a-job")
