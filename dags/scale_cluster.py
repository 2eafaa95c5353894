"""
# Add or remove members of the cluster

**What it does.** *More members*: starts workers on spare nodes of the inventory, waits until they have joined and until
the running jobs that may take more cores use them. *Fewer members*: decommissions the leaving workers, so that they
take no new work, hands their drivers over to the remaining members at a batch boundary, then stops the workers.

**When to use it.** When jobs lag because they lack cores, or to take nodes out of service.

**What it changes.** Which nodes are members. A job whose driver was on a leaving node continues from its own checkpoint
under a new launch; its results have a gap of some seconds, and nothing is lost.

**What can go wrong, and how to recover.**

- *check fails*: the size is 0 or exceeds the inventory, a node is unknown, its supervisor does not answer, or the
  running jobs would not fit on what remains; the log has the numbers. Nothing was touched.
- *A new worker does not join in time*: it is stopped again, and the run fails.
- *You want to stop it*: mark the **run** as failed. Leaving nodes become members again and the jobs run.
"""

from streamops.operations.runbooks.scale_cluster import SCALE_CLUSTER
from streamops_airflow.dags import runbook_dag

dag = runbook_dag(SCALE_CLUSTER, __doc__, "cluster")
