"""
# Start a stopped job

**What it does.** Starts a job that is stopped or whose driver failed, with the same version and from its own
checkpoint: it continues exactly where it stopped.

**When to use it.** After `cancel_job`, or after `snapshot_job` with *Cancel*; or after a driver failed, once the cause
is fixed. To start a job that never ran, or to start from a snapshot, use `deploy_job`.

**What it changes.** The job record names a new launch and says that the job should run. The deployment stays the same.

**What can go wrong, and how to recover.**

- *The job should be running already, and its driver has not failed*: refused; if its driver hangs, cancel it first
  (`cancel_job`), then start it.
- *The job was never deployed*: refused; use `deploy_job`.
- *Not healthy in time*: the run fails; the log names the stage or the error. Fix the cause and trigger again.
"""

from streamops.operations.runbooks.start_job import START_JOB
from streamops_airflow.dags import runbook_dag

dag = runbook_dag(START_JOB, __doc__, "changes-a-job")
