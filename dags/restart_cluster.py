"""
# Restart the cluster, with the jobs that ran

**What it does.** Starts the master and the workers, waits until all members have joined, starts exactly the jobs that
`shutdown_cluster` stopped, each from its own checkpoint, and waits until each has caught up with its topics. For each
job, it reports how many events it caught up on and how many seconds that took.

**When to use it.** After `shutdown_cluster`; or when the cluster is down for another reason: then the jobs that should
run come back. A driver that the master still holds is left to the master, which starts it again by itself.

**What it changes.** Master and workers run; the job records of these jobs name a new launch of the same deployment.

**What can go wrong, and how to recover.**

- *check fails*: the cluster is already running, or a node's supervisor does not answer. Nothing was touched. To start
  without a node that is broken, tick *Without missing members*.
- *Not all members join in time*: the log names the missing ones. Repair them and trigger again, or tick *Without
  missing members*.
- *A job cannot continue*: the log names it, and none was started; Kafka's retention may have overtaken it. Start it in
  another way (`deploy_job`), then trigger again for the rest.
- *A job is started, but does not work or catch up in time*: the run fails, but the cluster keeps running:
  reconciliation covers the job, and `streamops jobs show JOB` says what it lacks.
"""

from streamops.operations.runbooks.restart_cluster import RESTART_CLUSTER
from streamops_airflow.dags import runbook_dag

dag = runbook_dag(RESTART_CLUSTER, __doc__, "cluster")
