"""
# Pause a job, or resume it

**What it does.** With *pause*, reconciliation leaves the job alone: it is not started again by itself, whatever happens
to its driver. With *resume*, reconciliation starts it again when it should run and
does not.

**When to use it.** Before you look into a failing job, or work on its driver by hand. To stop a job, use `cancel_job`:
pausing stops nothing, and the Spark master still relaunches a driver that dies.

**What it changes.** One mark in the job record. `streamops jobs show JOB` shows it.

**What can go wrong, and how to recover.**

- *There is no such job*: refused; nothing was touched.
"""

from streamops.operations.runbooks.pause_job import PAUSE_JOB
from streamops_airflow.dags import runbook_dag

dag = runbook_dag(PAUSE_JOB, __doc__)
