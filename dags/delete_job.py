"""
# Delete a job

**What it does.** Stops a job at a batch boundary if it runs, then removes everything that belongs to it: checkpoints,
snapshots, published versions, logs and the job record. The log of `remove` says what was removed. Topics that it reads
are also removed, with all their events, when *Topics* names them.

**When to use it.** To clean up a job that is no longer needed. To stop a job and keep its state, use `cancel_job` or
`snapshot_job`.

**What it changes.** The job is gone. Its operations and receipts stay, as the record of what was done; so do the
results that it has written.

**What can go wrong, and how to recover.**

- *Another job reads one of the named topics*: refused; nothing was touched.
- *There is no such job*: refused; nothing was touched.
- *It does not stop in time*: the run fails and nothing is removed; look at the job's log, then trigger again.
- *It was a mistake*: objects of a versioned bucket can be brought back with the object store's own tools.
"""

from streamops.operations.runbooks.delete_job import DELETE_JOB
from streamops_airflow.dags import runbook_dag

dag = runbook_dag(DELETE_JOB, __doc__, "destroys")
