"""
# Shut the cluster down without losing anything

**What it does.** Stops every running job at a batch boundary, waits until its state is saved and says so per job,
records which jobs ran, then stops the workers and the master and reports how each process ended.

**When to use it.** Before maintenance of the machines, or to take the whole installation out of service.
`restart_cluster` brings back exactly the jobs that ran.

**What it changes.** All jobs are stopped, and so are the Spark workers and the master. Kafka, the object store and the
results stay as they are. With a *Snapshot name*, a snapshot of every job is also kept under that name.

**What can go wrong, and how to recover.**

- *check fails*: the cluster is stopped already, the master or a node's supervisor does not answer, the snapshot name is
  taken, or the state of a job does not fit the *Shared library*. Nothing was touched.
- *stop_jobs fails because an operation holds a job*: nothing was touched; trigger again when it is over.
- *A job does not stop in time*: the jobs that were stopped are restarted, and the run fails. Look at that job
  (`streamops jobs show JOB`), then trigger again.
- *It fails while servers are being stopped*: all state is saved. Trigger `restart_cluster`, or clear the failed task.
"""

from streamops.operations.runbooks.shutdown_cluster import SHUTDOWN_CLUSTER
from streamops_airflow.dags import runbook_dag

dag = runbook_dag(SHUTDOWN_CLUSTER, __doc__, "cluster", "stops-every-job")
