"""
# Set log levels of a running job

**What it does.** Loggers of the job's driver, in Python or in the JVM, log more or less from now on. Nothing is
started again.

**When to use it.** To look into a job that misbehaves now: `org.apache.spark.sql.execution.streaming: DEBUG`, or
`source.NAME: DEBUG`. To keep levels, set them at an upgrade: these apply until the job is restarted.

**What it changes.** What operations tell the job's driver. `streamops logs JOB` shows what it says.

**What can go wrong, and how to recover.**

- *The job does not run*: refused; nothing was touched.
"""

from streamops.operations.runbooks.set_log_levels import SET_LOG_LEVELS
from streamops_airflow.dags import runbook_dag

dag = runbook_dag(SET_LOG_LEVELS, __doc__)
