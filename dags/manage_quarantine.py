"""
# Write corrected points, or forget points that a sink refused

**What it does.** One thing with points that InfluxDB refused, and that were put aside so that the job runs on.

- *write*: writes corrected points, and takes those out of the quarantine whose ids the file names.
- *drop*: forgets points for good.

**When to use it.** After `streamops quarantine list JOB` shows some. To write, use `streamops quarantine write JOB
FILE`, which uploads the file and then triggers this.

**What it changes.** Points in InfluxDB, and what is in the quarantine. The uploaded file stays with the job's results,
so that one can see what was written.

**What can go wrong, and how to recover.**

- *Every task is skipped*: another operation holds the job; the log of `check` names it. Trigger again when it is over.
- *A line cannot be written*: refused with the number of the line and the reason; nothing was written.
- *InfluxDB refuses a point still*: the task fails with its reason, and the points stay in the quarantine. Others of the
  file may be written; writing them again changes nothing.
- *Airflow or a worker died*: the task continues when it is tried again. Clearing it is safe.
"""

from streamops.operations.runbooks.manage_quarantine import MANAGE_QUARANTINE
from streamops_airflow.dags import runbook_dag

dag = runbook_dag(MANAGE_QUARANTINE, __doc__)
