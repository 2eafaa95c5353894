"""
# Change a job's scheduled snapshots

**What it does.** Sets when snapshots of a job are taken automatically, and which of its snapshots are kept. Both
replace what its definition says, from now on and for later versions too, until *As defined* is ticked. Whatever you
leave empty stays as it is.

**When to use it.** For more snapshots before a risky week, or for fewer, without a new version: the job runs on.

**What it changes.** The schedule and the rule in the job record. `streamops snapshots schedule` shows the schedule,
`streamops snapshots prune JOB` what the rule would remove.

**What can go wrong, and how to recover.**

- *The job was never deployed, or the schedule is not valid*: refused; nothing was touched.
"""

from streamops.operations.runbooks.schedule_job import SCHEDULE_JOB
from streamops_airflow.dags import runbook_dag

dag = runbook_dag(SCHEDULE_JOB, __doc__)
