"""
# Change a job's scheduled snapshots

**What it does.** Sets when snapshots of a job are taken by themselves, and which of all its snapshots are kept. Both
hold instead of what its definition says, from now on and for later versions too, until *As defined* is ticked. What is
left empty stays as it is.

**When to use it.** For more snapshots before a risky week, or for fewer, without a new version: the job runs on.

**What it changes.** Schedule and rule in the job record. `streamops snapshots schedule` shows the schedule,
`streamops snapshots prune JOB` what the rule would remove.

**What can go wrong, and how to recover.**

- *It was never deployed, or there is no such schedule*: refused; nothing was touched.
"""

from streamops.operations.runbooks.schedule_job import SCHEDULE_JOB
from streamops_airflow.dags import runbook_dag

dag = runbook_dag(SCHEDULE_JOB, __doc__)
