"""
# Deploy a job

**What it does.** Starts a published version of a job that is not running: with empty state the first time, or from a
snapshot.

**When to use it.** For a job's first start; to go back to a snapshot of a stopped job; to start a second job from
another job's snapshot (a fork). A running job gets another version with `upgrade_job`; a stopped one continues from
its own checkpoint with `start_job`.

**What it changes.** A new deployment with its own checkpoint, and the job record. Nothing is overwritten.

**What can go wrong, and how to recover.**

- *This version already runs*: the run succeeds and changes nothing; with other settings it is refused.
- *Another version runs*: refused; use `upgrade_job`.
- *State exists*: starting with empty state would not count anything that happened before, and is refused unless
  *From scratch* is ticked. Choose a snapshot, or use `start_job`.
- *The snapshot is refused*: it was altered, is incomplete or belongs to another job, or Kafka has already deleted what
  comes after it. Nothing was touched; choose another.
- *A stage is refused*: the version cannot continue the snapshot's state of that stage. *Incompatible* needs another
  stage name. State that would be lost (*dropped*, *unknown*, or *starts empty* after a change of its windows) needs
  your consent: name the stages in *Accept loss of state*.
- *Not healthy in time*: the run fails; the log names the stage or the error. Nothing ran before, so nothing is
  restored. Fix the cause and trigger again.
"""

from streamops.operations.runbooks.deploy_job import DEPLOY_JOB
from streamops_airflow.dags import runbook_dag

dag = runbook_dag(DEPLOY_JOB, __doc__, "changes-a-job")
