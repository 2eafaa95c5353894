"""
# Upgrade a job

**What it does.** Stops a running job at a batch boundary, keeps its state as a named snapshot, and starts another
version from that snapshot. Every event still counts exactly once.

**When to use it.** To bring a new version of a running job into service. To go back to the version before, use
`rollback_job`. A job that never ran is started with `deploy_job`; a stopped one with `start_job`.

**What it changes.** A new snapshot; a new deployment of the job with its own checkpoint; the job record. The old
deployment and its checkpoint stay.

**What can go wrong, and how to recover.**

- *check fails*: the log says what to correct. Nothing was touched. With *Demand a rehearsal*, it may be that the
  version has to be tried beside the running one first (`rehearse_job`).
- *check waits*: with *Ask a person* someone has to approve what the check says, on the page *Required Actions*; the
  log of `check` has it, too. A rejection, or no answer in seven days, fails the run. Nothing was touched.
- *check refuses a stage*: its log has the verdict on each stage. *Incompatible* state is never continued: give the
  stage another name, or keep its computation. State that would be lost (*dropped*, *unknown*, or *starts empty* after a
  change of its windows) has to be accepted: name the stages in *Accept loss of state*. `streamops check JOB VERSION`
  says the same beforehand.
- *The new version does not become healthy in time*: the old version runs again at the end of this run, and the run is
  failed. The snapshot is kept. Look into the driver's log of the new version, publish a correction, trigger again
  under another snapshot name.
- *It does not pass its probation*: the same. The log says first what that costs: how many events are processed again.
- *You want to stop the upgrade*: mark the **run** as failed. The teardowns bring the old version back.
"""

from streamops.operations.runbooks.upgrade_job import UPGRADE_JOB
from streamops_airflow.dags import runbook_dag

dag = runbook_dag(UPGRADE_JOB, __doc__, "changes-a-job")
