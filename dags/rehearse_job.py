"""
# Rehearse a version of a job

**What it does.** Starts another version beside the running one, on a copy of its current state and on the same events,
without letting it write. Once it has read everything there is, both are watched for a while; then their results are
compared window by window, along with rates, lateness, memory and processor time of both, and the new one is dismissed.

**When to use it.** Before an upgrade whose results should not change, or whose change you want to see first. With
*Demand a rehearsal*, `upgrade_job` refuses an upgrade without one. All stages have to keep their state as it is; batch
stages need windows that a watermark closes, a topic as their source and points in InfluxDB; and the cluster needs to
have room for a second driver.

**What it changes.** Nothing that runs. It uses up one deployment number, and the findings are kept:
`streamops rehearsals show ID`, with `--page FILE` as a page and with `--json` for programs. While both run, the machine
does twice the work, and the new version yields to everything else; the page shows how late the running version was
before and during the rehearsal.

**What can go wrong, and how to recover.**

- *check fails*: the log says why this version cannot run beside the other. Nothing was touched.
- *The new version does not read everything in time, or its driver ends*: the run fails, the driver is dismissed, and
  the running version is not affected. The job's log says why.
- *The running version's driver ends meanwhile*: the run fails, so that `reconcile` can bring the job back.
- *Nothing was compared*, or with *Demand equal results* nothing of one stage: no window ended while both were watched.
  Watch for longer than the longest window.
- *Results differ*: the log and the page show examples. That fails the run only with *Demand equal results*, and not for
  stages that *may differ*.
- *You want to stop it*: mark the **run** as failed. The new driver is dismissed.
"""

from streamops.operations.runbooks.rehearse_job import REHEARSE_JOB
from streamops_airflow.dags import runbook_dag

dag = runbook_dag(REHEARSE_JOB, __doc__)
