"""
# Write corrected points, or forget points that a sink refused

**What it does.** One of two things with points that InfluxDB refused, which were set aside so that the job runs on.

- *write*: writes corrected points, and removes from the quarantine those whose ids the file names.
- *drop*: forgets points for good.

**When to use it.** When `streamops quarantine list JOB` shows points. To write, use `streamops quarantine write JOB
FILE`, which uploads the file and then triggers this runbook.

**What it changes.** Points in InfluxDB, and what is in the quarantine. The uploaded file stays with the job's results,
so that you can see what was written.

**What can go wrong, and how to recover.**

- *A line cannot be written*: refused with the number of the line and the reason; nothing was written.
- *InfluxDB still refuses a point*: the task fails with its reason, and the points stay in the quarantine. Other points
  of the file may have been written; writing them again changes nothing.
"""

from streamops.operations.runbooks.manage_quarantine import MANAGE_QUARANTINE
from streamops_airflow.dags import runbook_dag

dag = runbook_dag(MANAGE_QUARANTINE, __doc__)
