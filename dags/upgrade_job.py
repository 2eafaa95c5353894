"""
# Upgrade a job

**What it does.** Stops a running job at a batch boundary, keeps its state as a named snapshot, and starts another
version from that snapshot. Every event still counts exactly once.

**When to use it.** To bring a new version of a running job into service. To go back to the version before, use
`rollback_job`. A job that never ran is started with `deploy_job`; a stopped one with `start_job`.

**What it changes.** A new snapshot; a new deployment of the job with its own checkpoint; the job record. The old
deployment and its checkpoint stay.

**What can go wrong, and how to recover.**

- *check fails*: the log says what to correct. Nothing was touched. With *Demand a rehearsal*, the version may first
  have to be tried beside the running one (`rehearse_job`).
- *check waits*: with *Ask a person*, someone has to approve the result of the check on the page *Required Actions*; it
  is also in the log of `check`. A rejection, or no answer within seven days, fails the run. Nothing was touched.
- *check refuses a stage*: its log has the verdict on each stage. *Incompatible* state is never continued: give the
  stage another name, or keep its computation. State that would be lost (*dropped*, *unknown*, or *starts empty* after a
  change of its windows) has to be accepted: name the stages in *Accept loss of state*. `streamops check JOB VERSION`
  says the same beforehand.
- *The new version does not become healthy in time*: the old version runs again at the end of this run, and the run
  fails. The snapshot is kept. Look at the log of the new version's driver, publish a corrected version, and trigger
  again with another snapshot name.
- *It does not pass its probation*: the same. The log first states what that costs: how many events are processed again.
- *You want to stop the upgrade*: mark the **run** as failed. The teardowns bring the old version back.
"""

from streamops.operations.runbooks.upgrade_job import UPGRADE_JOB
from streamops_airflow.dags import runbook_dag

dag = runbook_dag(UPGRADE_JOB, __doc__, "changes-a-job")
